"""Read spans of OpenInference (Arize) into steps (calls in a trace), and describe our own spans.

OpenInference writes each item of a list as an attribute with a number in its name, and writes the
kind of call on each span.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from rag_eval_otel import semconv
from rag_eval_otel.capture import step as build
from rag_eval_otel.capture.conventions.convention import Convention
from rag_eval_otel.capture.documents import documents_in, ids_in, passages_of, window_of
from rag_eval_otel.capture.span import PlainSpan, SpanView, word
from rag_eval_otel.capture.step import Kind, Step
from rag_eval_otel.capture.values import (
    CUT,
    HIDDEN,
    Lost,
    has_gaps,
    numbered,
    read,
    role_named,
    texts_of,
    value,
)
from rag_eval_otel.types import Passage

if TYPE_CHECKING:
    from opentelemetry.util.types import AttributeValue

    Attributes = dict[str, AttributeValue | None]

_KINDS: Mapping[str, Kind] = {
    "AGENT": "agent",
    "CHAIN": "chain",
    "EMBEDDING": "embedding",
    "LLM": "llm",
    "PROMPT": "chain",
    "RERANKER": "reranker",
    "RETRIEVER": "retriever",
    "TOOL": "tool",
}

SPAN_KIND: Final = "openinference.span.kind"
_ROLE, _TOOLS = ".message.role", ("tool", "function")


def kind(view: SpanView) -> Kind | None:
    """Return the kind of call on a span; None for spans of this library.

    GenAI attributes describe those spans, too, and more exactly.
    """
    found = word(view, SPAN_KIND)
    if found is None or view.scope == semconv.SCOPE:
        return None
    return _KINDS.get(found.upper(), "chain")


def holds_documents(view: SpanView) -> bool:
    """Return True if the model call on the span ``view`` has tool results among its messages."""
    return any(
        role in _TOOLS and key.endswith(_ROLE)
        for key, role in view.attributes.items()
        if isinstance(role, str)
    )


def to_step(view: PlainSpan, of: Kind) -> Step:
    inputs, outputs = value(view, "input.value"), value(view, "output.value")
    if of == "retriever":
        found = _documents(view, outputs)
        count = sum(1 for _ in numbered(view.attributes, "retrieval.documents")) or None
        return build.retrieval(
            view, inputs=inputs, documents=found, count=count, windows=_windows(view)
        )
    if of == "reranker":
        inputs = value(view, "reranker.query", "input.value")
        documents = _documents(view, outputs, prefix="reranker.output_documents")
        kept = tuple(ids_in(outputs))
        return build.retrieval(
            view, inputs=inputs, documents=documents, kind="reranker", kept_ids=kept
        )
    if of == "llm":
        return _llm(view, outputs)
    if of == "tool":
        name = view.attributes.get("tool.name")
        about = str(view.attributes.get("tool.description") or "")
        return build.tool(view, inputs=inputs, outputs=outputs, name=name, description=about)
    if of == "embedding":
        text = view.attributes.get("embedding.embeddings.0.embedding.text")
        return build.chain(
            view, of, inputs=inputs if isinstance(inputs, Lost) else text, outputs=None
        )
    return build.chain(view, of, inputs=inputs, outputs=outputs)


def _documents(view: PlainSpan, outputs: Any, prefix: str = "retrieval.documents") -> Any:
    """Return the documents on the span ``view``, or `CUT` if documents were dropped or shortened.

    ``prefix`` begins the attribute names. If the SDK dropped attributes, gaps in the numbers of the
    remaining attributes show that documents are missing.
    """
    found = list(numbered(view.attributes, prefix))
    with_text = [item for _, item in found if "document.content" in item]
    if view.dropped and (has_gaps(n for n, _ in found) or not found):
        return CUT
    if not with_text:
        return outputs if outputs is HIDDEN or outputs is CUT else _listed(outputs)
    if any(read(item["document.content"], limit=view.value_limit) is CUT for item in with_text):
        return CUT
    return passages_of(
        {key.removeprefix("document."): part for key, part in item.items()} for item in with_text
    )


def _windows(view: PlainSpan) -> dict[str, str]:
    """Return the longer texts that LlamaIndex keeps in the metadata of documents."""
    found: dict[str, str] = {}
    for _, item in numbered(view.attributes, "retrieval.documents"):
        found |= window_of(item.get("document.content"), item.get("document.metadata"))
    return found


def _listed(outputs: Any) -> Any:
    """Return an empty list if ``outputs`` is an empty list of documents, else None.

    Documents that were found are also in attributes of their own, so they are not read here.
    """
    listed = outputs.get("documents") if isinstance(outputs, Mapping) else outputs
    return [] if listed == [] else None


def _llm(view: PlainSpan, outputs: Any) -> Step:
    messages, reply = _messages(view, "llm.input_messages"), _messages(view, "llm.output_messages")
    prompts = view.attributes.get("llm.prompts")
    if messages is None:
        messages = list(prompts) if prompts else None
        messages = HIDDEN if value(view, "input.value") is HIDDEN else messages
    found = _hosted(reply)
    if isinstance(reply, list):
        if isinstance(outputs, Mapping) and outputs.get("object") == "response":
            reply = reply[-1:]  # of one reply, OpenAI's Responses API lists all steps
    elif reply is None and (prompts or not isinstance(outputs, Mapping | list)):
        reply = outputs  # only without messages, because messages may have been redacted
    elif reply is None:
        reply = _streamed(outputs)
    call = build.llm(
        view,
        messages=messages,
        reply=reply,
        response_id=_response_id(outputs),
        finish=view.attributes.get("llm.finish_reason"),
    )
    if found is None:
        return call
    return replace(call, documents=found, recorded=frozenset({"documents"}))


def _streamed(outputs: Any) -> Any:
    """Return the reply in the ``outputs`` of a streamed OpenAI response, or None.

    Such a reply has no message attributes.
    """
    found = outputs[-1] if isinstance(outputs, list) and outputs else outputs
    output = found.get("output") if isinstance(found, Mapping) else None
    if not isinstance(output, list) or found.get("object") != "response":
        return None
    calls = [item for item in output if isinstance(item, Mapping) and "arguments" in item]
    reply = [item for item in output if isinstance(item, Mapping) and item.get("content")]
    return {**(reply[-1] if reply else {"content": ""}), "role": "assistant", "tool_calls": calls}


def _hosted(reply: Any) -> tuple[Passage, ...] | None:
    """Return the documents of a search that the model's provider ran in the call, or None."""
    messages = reply if isinstance(reply, list) else []
    outputs = [m["content"] for m in messages if m["role"] == "tool" and m.get("content")]
    found = [documents_in(content) for content in outputs]
    listed = [passages for passages in found if passages]
    return tuple(passage for passages in listed for passage in passages) if listed else None


def _messages(view: PlainSpan, prefix: str) -> Any:
    """Return the chat messages on the span ``view`` as plain data, or None if there are none.

    ``prefix`` begins the attribute names. If a message was dropped or shortened, return `CUT`.
    """
    found = list(numbered(view.attributes, prefix))
    if not found:
        return None
    messages = [_message(item) for _, item in found]
    _name_results(messages)
    if view.dropped and (has_gaps(n for n, _ in found) or "content" not in messages[0]):
        return CUT
    if any(read(m["content"], limit=view.value_limit) is CUT for m in messages if "content" in m):
        return CUT
    return messages


def _name_results(messages: Sequence[dict[str, Any]]) -> None:
    """Give tool results without an id (LiteLLM) the name of the only tool call before them."""
    called: Mapping[str, str] = {}
    for message in messages:
        called = message["called"] or called
        for result in message.get("results", ()):
            if not result["id"] and not result["name"] and len(called) == 1:
                result["name"] = next(iter(called.values()))


def _message(item: Mapping[str, Any]) -> dict[str, Any]:
    message: dict[str, Any] = {
        "role": role_named(item.get("message.role")) or item.get("message.role", "system"),
        "tool_calls": any(key.startswith("message.tool_calls.") for key in item),
    }
    blocks = [
        {key.removeprefix("message_content."): part for key, part in block.items()}
        for _, block in numbered(item, "message.contents")
    ]
    if "message.content" in item or blocks:
        message["content"] = str(item.get("message.content") or "".join(texts_of(blocks)))
    elif message["tool_calls"]:
        message["content"] = ""
    calls = numbered(item, "message.tool_calls") if message["tool_calls"] else ()
    message["called"] = {
        str(call.get("tool_call.id")): str(call.get("tool_call.function.name", ""))
        for _, call in calls
    }
    if message["role"] == "tool":
        known = {"id": item.get("message.tool_call_id"), "name": item.get("message.name")}
        message["results"] = [{**known, "text": message.get("content")}]
    return message


def _response_id(outputs: Any) -> object:
    """Return the id of the model's response if ``outputs`` is a complete response, else None."""
    return outputs.get("id") if isinstance(outputs, Mapping) else None


CONVENTION: Final = Convention(
    name="openinference",
    kind=kind,
    to_step=to_step,
    marks=frozenset({SPAN_KIND}),
    content=(
        r"(input|output)\.(value|audio\..+)",
        r"llm\.(input|output)_messages\.\d+\.message\.content",
        r"llm\.(input|output)_messages\.\d+\.message\.contents\.\d+\.message_content\.(?!type$).+",
        r"llm\.(input|output)_messages\.\d+\.message\..*arguments(_json)?",
        r"llm\.(prompts|completions|choices)(\..+)?",
        r"llm\.prompt_template\.(template|variables)",
        r"retrieval\.documents\.\d+\.document\.(content|metadata)",
        r"reranker\.(query|(input|output)_documents\.\d+\.document\.(content|metadata))",
        r"tool\.parameters",
        r"embedding\.((text|vector)|embeddings\.\d+\.embedding\.(text|vector))",
    ),
    holds_documents=holds_documents,
    output="output.value",
    tool_names=("tool.name",),
    instrumentations=r"openinference\.",
)


# --- spans of this library ------------------------------------------------------------------------

_MOST_DOCUMENTS = 30
_MOST_MESSAGES = 20
"""More would fill the 128 attributes that a span of the SDK has, and push its scores out."""


def described(
    of: Kind,
    *,
    name: str = "",
    model: str | None = None,
    provider: object = None,
    tokens: tuple[int | None, int | None] | None = None,
) -> Attributes:
    """Return the OpenInference attributes of a call, without texts of users.

    ``name`` is the name of a tool. ``tokens`` are the numbers of tokens that a model read and
    wrote.
    """
    found: Attributes = {SPAN_KIND: "CHAIN" if of == "other" else of.upper()}
    if of == "tool":
        found["tool.name"] = name
    if of == "llm":
        read_, written = tokens or (None, None)
        found |= {
            "llm.model_name": model,
            "llm.provider": None if provider is None else str(provider),
            "llm.token_count.prompt": read_,
            "llm.token_count.completion": written,
            "llm.token_count.total": None if read_ is None or written is None else read_ + written,
        }
    return found


def texts(
    *,
    asked: str | None,
    told: str | None,
    documents: Sequence[Passage] = (),
    messages: Iterable[tuple[str, str]] = (),
) -> Attributes:
    """Return the OpenInference attributes with the texts of a call.

    ``messages`` are the pairs of role and text that a model was shown. Only the first 30 documents
    and the last 20 messages are included.
    """
    found: Attributes = {}
    for i, document in enumerate(documents[:_MOST_DOCUMENTS]):
        prefix = f"retrieval.documents.{i}.document"
        found[f"{prefix}.content"] = document.text
        found[f"{prefix}.id"] = document.id
        found[f"{prefix}.score"] = None if document.score is None else float(document.score)
    shown = list(messages)
    for i, (role, text) in enumerate(shown[-_MOST_MESSAGES:]):
        found[f"llm.input_messages.{i}.message.role"] = role
        found[f"llm.input_messages.{i}.message.content"] = text
    if shown and told:
        found["llm.output_messages.0.message.role"] = "assistant"
        found["llm.output_messages.0.message.content"] = told
    return {**found, "input.value": asked, "output.value": told}
