"""OpenInference (Arize): everything is in flattened attributes, told apart by a kind."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from rag_eval_otel.capture.dialects import build
from rag_eval_otel.capture.dialects.dialect import Dialect
from rag_eval_otel.capture.dialects.documents import documents_in, ids_in, passages_of, wider_of
from rag_eval_otel.capture.dialects.values import (
    CUT,
    HIDDEN,
    Lost,
    has_gaps,
    numbered,
    read,
    role_named,
    value,
)
from rag_eval_otel.capture.span import PlainSpan, SpanView, word
from rag_eval_otel.capture.step import Kind, Step
from rag_eval_otel.types import Passage

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

_ROLE, _TOOLS = ".message.role", ("tool", "function")


def kind(view: SpanView) -> Kind | None:
    """Return the kind of ``view``, or None if it is not of this dialect."""
    found = word(view, "openinference.span.kind")
    return None if found is None else _KINDS.get(found.upper(), "chain")


def holds_documents(view: SpanView) -> bool:
    """Tell whether a model was shown what a tool said, or the provider's own search found."""
    return any(
        role in _TOOLS and key.endswith(_ROLE)
        for key, role in view.attributes.items()
        if isinstance(role, str)
    )


def to_step(view: PlainSpan, of: Kind) -> Step:
    """Return what ``view`` tells."""
    asked, told = value(view, "input.value"), value(view, "output.value")
    if of == "retriever":
        found = _documents(view, told)
        return build.retrieval(view, asked=asked, documents=found, windows=_wider(view))
    if of == "reranker":
        asked = value(view, "reranker.query", "input.value")
        documents = _documents(view, told, prefix="reranker.output_documents")
        kept = tuple(ids_in(told))
        return build.retrieval(
            view, asked=asked, documents=documents, kind="reranker", kept_ids=kept
        )
    if of == "llm":
        return _llm(view, told)
    if of == "tool":
        name = view.attributes.get("tool.name")
        about = str(view.attributes.get("tool.description") or "")
        return build.tool(view, asked=asked, told=told, name=name, description=about)
    if of == "embedding":
        text = view.attributes.get("embedding.embeddings.0.embedding.text")
        return build.chain(view, of, asked=asked if isinstance(asked, Lost) else text, told=None)
    return build.chain(view, of, asked=asked, told=told)


def _documents(view: PlainSpan, told: Any, prefix: str = "retrieval.documents") -> Any:
    """Return the documents; their numbers show whether some were dropped."""
    found = list(numbered(view.attributes, prefix))
    contents = [item["document.content"] for _, item in found if "document.content" in item]
    if view.dropped and (has_gaps(n for n, _ in found) or not found):
        return CUT
    if not contents:
        return told if told is HIDDEN or told is CUT else _listed(told)
    if any(read(text, limit=view.value_limit) is CUT for text in contents):
        return CUT
    return passages_of(
        {key.removeprefix("document."): part for key, part in item.items()} for _, item in found
    )


def _wider(view: PlainSpan) -> dict[str, str]:
    """Return the texts around documents, as LlamaIndex keeps them for its windows."""
    found: dict[str, str] = {}
    for _, item in numbered(view.attributes, "retrieval.documents"):
        found |= wider_of(item.get("document.content"), item.get("document.metadata"))
    return found


def _listed(told: Any) -> Any:
    """Return an empty list where the output is one; texts are in attributes, never only there."""
    listed = told.get("documents") if isinstance(told, Mapping) else told
    return [] if listed == [] else None


def _llm(view: PlainSpan, told: Any) -> Step:
    messages, said = _messages(view, "llm.input_messages"), _messages(view, "llm.output_messages")
    prompts = view.attributes.get("llm.prompts")
    if messages is None:
        messages = list(prompts) if prompts else None
        messages = HIDDEN if value(view, "input.value") is HIDDEN else messages
    found = _hosted(said)
    if isinstance(said, list):
        said = said[-1:]
    elif said is None and (prompts or not isinstance(told, Mapping | list)):
        said = told  # in full only where there are no messages that could have been hidden
    elif said is None:
        said = _streamed(told)
    call = build.llm(
        view,
        messages=messages,
        said=said,
        response_id=_response_id(told),
        finish=view.attributes.get("llm.finish_reason"),
    )
    if found is None:
        return call
    return replace(call, documents=found, recorded=frozenset({"documents"}))


def _streamed(told: Any) -> Any:
    """Return what a response of OpenAI's says that was streamed: nobody makes messages of it."""
    found = told[-1] if isinstance(told, list) and told else told
    output = found.get("output") if isinstance(found, Mapping) else None
    if not isinstance(output, list) or found.get("object") != "response":
        return None
    calls = [item for item in output if isinstance(item, Mapping) and "arguments" in item]
    said = [item for item in output if isinstance(item, Mapping) and item.get("content")]
    return {**(said[-1] if said else {"content": ""}), "role": "assistant", "tool_calls": calls}


def _hosted(said: Any) -> tuple[Passage, ...] | None:
    """Return what a search found that the provider made while it wrote the answer."""
    messages = said if isinstance(said, list) else []
    told = [m["content"] for m in messages if m["role"] == "tool" and m.get("content")]
    found = [documents_in(content) for content in told]
    listed = [passages for passages in found if passages]
    return tuple(passage for passages in listed for passage in passages) if listed else None


def _messages(view: PlainSpan, prefix: str) -> Any:
    """Return the messages as plain data, None if there are none, `CUT` if one was dropped."""
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
    """Let results without an id, as beside LiteLLM, be those of the only call before them."""
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
    parts = [text for key, text in sorted(item.items()) if key.endswith("message_content.text")]
    if "message.content" in item or parts:
        message["content"] = str(item.get("message.content") or "".join(map(str, parts)))
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


def _response_id(told: Any) -> object:
    """Return the provider's id of the response, where the output is one in full."""
    return told.get("id") if isinstance(told, Mapping) else None


DIALECT: Final = Dialect(
    name="openinference",
    kind=kind,
    to_step=to_step,
    marks=frozenset({"openinference.span.kind"}),
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
