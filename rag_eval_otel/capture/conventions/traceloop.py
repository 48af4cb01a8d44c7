"""Read spans of Traceloop (OpenLLMetry) into steps (calls in a trace).

The versions from 0.47 to 0.6x are read, over LangChain, LlamaIndex and Haystack.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from rag_eval_otel.capture import step as build
from rag_eval_otel.capture.conventions import genai
from rag_eval_otel.capture.conventions.convention import Convention
from rag_eval_otel.capture.conventions.haystack import answer_of_components, query_of
from rag_eval_otel.capture.span import PlainSpan, SpanView, word
from rag_eval_otel.capture.step import Kind, Step
from rag_eval_otel.capture.values import CUT, JSON, has_gaps, numbered, read, value

_OPERATIONS: Mapping[str, Kind] = {
    "chat": "llm",
    "completion": "llm",
    "embeddings": "embedding",
    "execute_tool": "tool",
    "text_completion": "llm",
    "vector_db_retrieve": "retriever",
}
_ENTITIES: tuple[tuple[re.Pattern[str], Kind], ...] = (
    (re.compile(r"Retriever\.(task|workflow)$"), "retriever"),
    (re.compile(r"(Rerank|Reranker|Post[pP]rocessor|Reorder)\.task$"), "reranker"),
    (re.compile(r"Embedding\.task$"), "embedding"),
    (re.compile(r"Tool\.task$"), "tool"),
)
_IN_FULL = "gen_ai.tool.call.result"
_HAYSTACK = "opentelemetry.instrumentation.haystack"


def kind(view: SpanView) -> Kind | None:
    attributes = view.attributes
    entity = word(view, "traceloop.span.kind")
    if entity is None:
        return _legacy(view)
    found = _OPERATIONS.get(word(view, "gen_ai.operation.name") or "")
    if found is not None:
        return found
    if "gen_ai.output.messages" in attributes or "gen_ai.input.messages" in attributes:
        return "llm"
    if entity == "tool" or "tool.name" in attributes:
        return "tool"
    name = word(view, "traceloop.entity.name") or ""
    found = next((of for pattern, of in _ENTITIES if pattern.search(name)), None)
    return found or ("reranker" if _takes_nodes(view) else "chain")


def _takes_nodes(view: SpanView) -> bool:
    """Return True for LlamaIndex' postprocessors, whatever the name of their class is."""
    inputs, outputs = map(
        view.attributes.get, ("traceloop.entity.input", "traceloop.entity.output")
    )
    return str(inputs or "").startswith('{"nodes":') and str(outputs or "").startswith("[")


def _legacy(view: SpanView) -> Kind | None:
    """Return the kind of a model call whose span has no ``traceloop.span.kind``, or None."""
    request = word(view, "llm.request.type")
    if request is None:
        return None
    return "embedding" if request == "embedding" else "llm"


def to_step(view: PlainSpan, of: Kind) -> Step:
    inputs = _inner(value(view, "traceloop.entity.input", opening=JSON), "inputs", "input_str")
    outputs = value(view, "traceloop.entity.output", opening=JSON)
    inputs = _streamed(outputs) or inputs
    outputs = _inner(outputs, "outputs", "output")
    if of == "llm":
        return _llm(view)
    if of == "tool" and outputs is None and _IN_FULL in view.attributes:
        return genai.to_step(view, of)
    if of in {"retriever", "reranker"}:
        return build.retrieval(view, inputs=inputs, documents=outputs, kind=of)
    if of == "tool":
        name = view.attributes.get("tool.name") or view.attributes.get("traceloop.entity.name")
        return build.tool(view, inputs=inputs, outputs=outputs, name=name)
    if view.scope == _HAYSTACK and isinstance(inputs, Mapping):
        inputs = query_of(inputs.get("kwargs", inputs), view.keys)
        return build.chain(
            view, of, inputs=inputs, outputs=answer_of_components(outputs, view.keys)
        )
    inputs = build.arguments(inputs, view.keys)
    return build.chain(view, of, inputs=inputs, outputs=outputs, documents=build.listed(outputs))


def _inner(found: Any, *keys: str) -> Any:
    """Return the value in ``found`` without the dict of tags and metadata around it.

    ``keys`` are the dict keys under which the value may be in that dict.
    """
    if isinstance(found, Mapping):
        return next((found[key] for key in keys if key in found), found)
    return found


def _streamed(outputs: Any) -> Any:
    """Return the input of a streaming chain from its ``outputs``, or None if it is not there."""
    extra = outputs.get("kwargs") if isinstance(outputs, Mapping) else None
    return extra.get("inputs") if isinstance(extra, Mapping) else None


def _llm(view: PlainSpan) -> Step:
    messages, reply = genai.messages_of(view)
    if messages is None and reply is None:
        messages, reply = _numbered(view)
    if messages is None and reply is None and view.scope != _HAYSTACK:
        messages = value(view, "traceloop.entity.input", opening=JSON)
        reply = value(view, "traceloop.entity.output", opening=JSON)
    response = view.attributes.get("gen_ai.response.id")
    finish = view.attributes.get("gen_ai.response.finish_reasons")
    return build.llm(view, messages=messages, reply=reply, response_id=response, finish=finish)


def _numbered(view: PlainSpan) -> tuple[Any, Any]:
    """Read prompt and reply from attributes ``gen_ai.prompt.N`` and ``gen_ai.completion.N``."""
    shown = list(numbered(view.attributes, "gen_ai.prompt"))
    reply = [item for _, item in numbered(view.attributes, "gen_ai.completion")]
    messages: Any = [_message(item, view.value_limit) for _, item in shown]
    if CUT in messages or (view.dropped and has_gaps(number for number, _ in shown)):
        messages = CUT
    if view.scope == _HAYSTACK:  # this instrumentation writes a dict key instead of the reply
        return messages or None, None
    spoken = read(reply[0].get("content"), limit=view.value_limit) if reply else None
    calls = any(key.startswith("tool_calls") for item in reply for key in item)
    if calls and spoken is not CUT:
        spoken = {"role": "assistant", "content": spoken or "", "tool_calls": True}
    return messages or None, spoken


def _message(item: Mapping[str, Any], limit: int | None) -> Any:
    content = item.get("content")
    text = read(content, limit=limit)
    if text is CUT:
        return CUT
    if isinstance(text, list):
        content = "".join(str(p.get("text") or "") for p in text if isinstance(p, Mapping))
    message: dict[str, Any] = {
        "role": item.get("role", "system"),
        "content": str(content or ""),
    }
    calls = [call for _, call in numbered(item, "tool_calls")]
    message["called"] = {str(call.get("id")): str(call.get("name", "")) for call in calls}
    if message["role"] == "tool":
        message["results"] = [{"id": item.get("tool_call_id"), "text": message["content"]}]
    return message


CONVENTION: Final = Convention(
    name="traceloop",
    kind=kind,
    to_step=to_step,
    marks=frozenset({"llm.request.type", "traceloop.span.kind"}),
    content=(
        r"(traceloop\.entity|gen_ai\.task)\.(input|output)",
        r"(gen_ai|llm)\.(prompt|completion)s?\.\d+\.(content|reasoning.*|(tool_calls\.\d+|function_call)\.arguments)",
        r"traceloop\.prompt\.(template|template_variables\..+)",
        r"tool\.(arguments|input|output|result)",
    ),
    output="traceloop.entity.output",
    function_output="traceloop.entity.output",
    tool_names=("tool.name", "gen_ai.tool.name", "traceloop.entity.name"),
    instrumentations=(
        r"traceloop|opentelemetry\.instrumentation\.(agno|anthropic|bedrock|chromadb|cohere|crewai"
        r"|google|groq|haystack|langchain|llamaindex|mcp|mistralai|ollama|openai|vertexai)"
    ),
    metadata_prefixes=("traceloop.association.properties.",),
)
