"""Read spans of OpenInference (Arize) into steps (calls in a trace), and write its attributes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, get_args

from rag_eval_otel import semconv
from rag_eval_otel.capture import step as build
from rag_eval_otel.capture.conventions.convention import Convention
from rag_eval_otel.capture.documents import documents_in, ids_in, passage_of, window_of
from rag_eval_otel.capture.span import Span, value, word
from rag_eval_otel.capture.step import RETRIEVALS, Kind, Step
from rag_eval_otel.capture.values import (
    CUT,
    HIDDEN,
    Lost,
    answer_in,
    at,
    has_gaps,
    numbered,
    read,
    role_named,
    texts_of,
)
from rag_eval_otel.types import Passage

if TYPE_CHECKING:
    from opentelemetry.util.types import AttributeValue

    Attributes = dict[str, AttributeValue | None]

KINDS: Mapping[str, Kind] = {
    **{kind.upper(): kind for kind in get_args(Kind) if kind != "other"},
    **dict.fromkeys(("EVALUATOR", "GUARDRAIL"), "aside"),
    "DECISION": "plan",
}
SPAN_KIND: Final = "openinference.span.kind"
DSPY: Final = "openinference.instrumentation.dspy"
GUARDRAILS: Final = "openinference.instrumentation.guardrails"  # its guards call the model
_SCORES: Final = frozenset(
    f"{scope}{term}s.0.{term}.name"
    for scope in ("", "trace.", "session.")
    for term in ("annotation", "evaluation")
)
_ROLE, _TOOLS = ".message.role", ("tool", "function")


def kind(view: Span) -> Kind | None:
    """Return the kind of call; None for our own spans, which have GenAI attributes, too."""
    if view.links and not _SCORES.isdisjoint(view.attributes):
        return "aside"  # it carries scores of the linked span
    name = word(view, SPAN_KIND)
    if name is None or view.scope == semconv.SCOPE:
        return None
    of = KINDS.get(name.upper(), "chain")
    return "chain" if of == "aside" and view.scope == GUARDRAILS else of


def holds_documents(view: Span) -> bool:
    return any(
        key.endswith(_ROLE) and role in _TOOLS
        for key, role in view.attributes.items()
        if isinstance(role, str)
    )


def to_step(view: Span, of: Kind) -> Step:
    inputs, outputs = value(view, "input.value"), value(view, "output.value")
    if of in RETRIEVALS:
        prefix = "retrieval.documents" if of == "retriever" else "reranker.output_documents"
        items = list(numbered(view.attributes, prefix))
        windows: dict[str, str] = {}
        for _, item in items:  # the longer texts that LlamaIndex keeps in the metadata of documents
            windows |= window_of(item.get("document.content"), item.get("document.metadata"))
        return build.retrieval(
            view,
            inputs=value(view, "reranker.query", "input.value"),
            documents=_documents(view, outputs, items),
            kind=of,
            count=items[-1][0] + 1 if items else None,  # of the others, nothing was recorded
            windows=windows,
            kept_ids=tuple(ids_in(outputs)),
        )
    if of == "llm":
        return _llm(view, outputs)
    if of == "tool":
        return build.tool(
            view,
            inputs=inputs,
            outputs=outputs,
            name=view.attributes.get("tool.name"),
            description=str(view.attributes.get("tool.description") or ""),
        )
    if of == "embedding":
        if not isinstance(inputs, Lost):
            inputs = view.attributes.get("embedding.embeddings.0.embedding.text")
        outputs = None
    return build.chain(view, of, inputs=inputs, outputs=outputs)


def _documents(view: Span, outputs: Any, items: Sequence[tuple[int, dict[str, Any]]]) -> Any:
    with_text = [item for _, item in items if "document.content" in item]
    if view.dropped and (has_gaps(number for number, _ in items) or not items):
        return CUT
    if not with_text:
        return outputs
    if any(read(item["document.content"], limit=view.value_limit) is CUT for item in with_text):
        return CUT
    found = ({k.removeprefix("document."): v for k, v in item.items()} for item in with_text)
    return tuple(passage for passage in map(passage_of, found) if passage is not None)


def _llm(view: Span, outputs: Any) -> Step:
    messages = messages_at(view, "llm.input_messages")
    reply = messages_at(view, "llm.output_messages") or messages_at(view, "llm.choices")
    prompts = view.attributes.get("llm.prompts")
    if messages is None:
        messages = messages_at(view, "llm.prompts") or (list(prompts) if prompts else None)
        messages = messages[:1] if isinstance(messages, list) else messages  # the first of a batch
        messages = HIDDEN if value(view, "input.value") is HIDDEN else messages
    documents: tuple[Passage, ...] = ()
    if isinstance(reply, list):
        hosted = (m["content"] for m in reply if m["role"] == "tool")  # found by the provider
        documents = tuple(chain.from_iterable(documents_in(t) or () for t in hosted if t))
        if at(outputs, "object") == "response":
            reply = reply[-1:]  # of one reply, OpenAI's Responses API lists all steps
    elif reply is None:  # only without messages, because messages may have been redacted
        is_text = prompts or not isinstance(outputs, dict | list)
        reply = outputs if is_text else _streamed(outputs)
    call = build.llm(
        view,
        messages=messages,
        reply=reply,
        response_id=at(outputs, "id"),
        finish=view.attributes.get("llm.finish_reason"),
    )
    if view.scope == DSPY or (call.output or "").startswith("[[ ## "):
        call = _named_fields(call)
    return replace(call, documents=documents, **build.HOSTED) if documents else call


_FIELDS = re.compile(
    r"^\[\[ ## (\w+) ## \]\][ \t]*\n?(.*?)(?=^\[\[ ## \w+ ## \]\]|\Z)", re.MULTILINE | re.DOTALL
)


def _named_fields(call: Step) -> Step:
    """Return ``call`` with only the answer field of a DSPy reply as its output, if it is one."""
    reply = call.output or ""
    fields = {name: text.strip() for name, text in _FIELDS.findall(reply) if name != "completed"}
    if not fields:
        return call
    if "next_tool_name" in fields:
        return replace(call, output=None, calls_tools=True)
    return replace(call, output=answer_in(fields) or [*fields.values()][-1])


def _streamed(outputs: Any) -> Any:
    """Return the last message in the raw events of a streamed OpenAI response, or None."""
    found = outputs[-1] if isinstance(outputs, list) and outputs else outputs
    items = at(found, "output") if at(found, "object") == "response" else None
    if not isinstance(items, list):
        return None
    said = next((item for item in reversed(items) if at(item, "content")), {"content": ""})
    calls = [item for item in items if at(item, "arguments") is not None]
    return {**said, "role": "assistant", "tool_calls": calls}


def messages_at(view: Span, prefix: str) -> Any:
    """Return the chat messages on ``view``; None without any; `CUT` if one was dropped or cut."""
    items = list(numbered(view.attributes, prefix))
    if not items:
        return None
    messages = [_message({_INNER.sub("", k): v for k, v in item.items()}) for _, item in items]
    # OpenAI Agents leaves the index 0 to instructions, and others to what it does not describe.
    lacks = has_gaps(n for n, _ in items) and (view.dropped or prefix != "llm.input_messages")
    if lacks or (view.dropped and "content" not in messages[0]):
        return CUT
    if any(read(m["content"], limit=view.value_limit) is CUT for m in messages if "content" in m):
        return CUT
    called: Mapping[str, str] = {}
    for message in messages:  # LiteLLM's tool results have no id: there was one call before
        called = message["called"] or called
        for result in message.get("results", ()):
            if not result["id"] and not result["name"] and len(called) == 1:
                result["name"] = next(iter(called.values()))
    return messages


_INNER = re.compile(r"\b(message|message_content|tool_call|function)\.")
_TEXTS = ("content", "completion.text", "prompt.text")  # one of them


def _message(item: Mapping[str, Any]) -> dict[str, Any]:
    calls = [call for _, call in numbered(item, "tool_calls")]
    parts = [part for _, part in numbered(item, "contents")]
    named = (call for call in (*calls, *parts) if "name" in call)
    message: dict[str, Any] = {
        "role": item.get("role", "user" if "prompt.text" in item else "system"),
        "called": {str(call.get("id")): str(call["name"]) for call in named},
    }
    message["role"] = role_named(message["role"]) or message["role"]
    message["tool_calls"] = bool(calls or message["called"])
    if parts or calls or any(name in item for name in _TEXTS):
        whole = next((item[name] for name in _TEXTS if item.get(name)), parts)
        blocks = read(whole) if message["role"] != "tool" else whole
        told = "".join(texts_of(blocks)) if isinstance(blocks, list) else whole
        message["content"] = told if isinstance(told, str) else str(told)
    if message["role"] == "tool":
        known = {"id": item.get("tool_call_id"), "name": item.get("name")}
        message["results"] = [{**known, "text": message.get("content")}]
    return message


CONVENTION: Final = Convention(
    name="openinference",
    kind=kind,
    to_step=to_step,
    marks=frozenset({SPAN_KIND, *_SCORES}),
    content=(
        r"(input|output)\.(value|(audio|images?|videos?)\..+)",
        r"llm\.(input|output)_messages\.\d+\.message\.content",
        r"llm\.(input|output)_messages\.\d+\.message\.contents\.\d+\.message_content\.(?!type$).+",
        r"llm\.(input|output)_messages\.\d+\.message\..*arguments(_json)?",
        r"llm\.(prompts|completions|choices)(\..+)?",
        r"llm\.(prompt_template\.(template|variables)|function_call|invocation_parameters)",
        r"llm\.tools\..+|decision\..+",
        r"retrieval\.documents\.\d+\.document\.(content|metadata)",
        r"reranker\.(query|(input|output)_documents\.\d+\.document\.(content|metadata))",
        r"tool\.(parameters|description|json_schema)",
        r"((trace|session)\.)?(annotations|evaluations)\.\d+\.\w+\.(explanation|metadata)",
        r"embedding\.((text|vector)|embeddings\.\d+\.embedding\.(text|vector))",
    ),
    holds_documents=holds_documents,
    instrumentations=r"openinference\.",
)


def described(
    of: Kind,
    *,
    name: str = "",
    model: str | None = None,
    provider: str | None = None,
    system: str | None = None,
    finish: str | None = None,
    call_id: str | None = None,
    tokens: tuple[int, int] | None = None,
) -> Attributes:
    """Return the OpenInference attributes of a LangChain call, except its texts."""
    attributes: Attributes = {SPAN_KIND: "CHAIN" if of == "other" else of.upper()}
    if of == "tool":
        attributes["tool.name"], attributes["tool.id"] = name, call_id
    if of == "llm":
        attributes["llm.model_name"] = model
        attributes["llm.provider"], attributes["llm.system"] = provider, system
        attributes["llm.finish_reason"] = finish
    if of == "llm" and tokens is not None:
        attributes["llm.token_count.prompt"], attributes["llm.token_count.completion"] = tokens
        attributes["llm.token_count.total"] = sum(tokens)
    return attributes


def texts(
    *,
    asked: str | None,
    told: str | None,
    documents: Sequence[Passage] = (),
    messages: Iterable[tuple[str, str]] = (),
) -> Attributes:
    attributes: Attributes = {}
    # More would fill the 128 attributes of a span, and push its scores out.
    for i, document in enumerate(documents[:30]):
        prefix = f"retrieval.documents.{i}.document"
        attributes[f"{prefix}.content"] = document.text
        attributes[f"{prefix}.id"] = document.id
        attributes[f"{prefix}.score"] = None if document.score is None else float(document.score)
    shown = list(messages)[-20:]
    replies = [("assistant", told)] if shown and told else []
    for kind, pairs in (("input", shown), ("output", replies)):
        for i, (role, text) in enumerate(pairs):
            attributes[f"llm.{kind}_messages.{i}.message.role"] = role
            attributes[f"llm.{kind}_messages.{i}.message.content"] = text
    return {**attributes, "input.value": asked, "output.value": told}
