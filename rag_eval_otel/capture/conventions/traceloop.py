"""Read spans of Traceloop (OpenLLMetry) into steps (calls in a trace)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from rag_eval_otel.capture import step as build
from rag_eval_otel.capture.conventions import genai, openinference
from rag_eval_otel.capture.conventions.convention import Convention
from rag_eval_otel.capture.conventions.haystack import answer_of_components, query_of
from rag_eval_otel.capture.span import Span, value, word
from rag_eval_otel.capture.step import RETRIEVALS, Kind, Step
from rag_eval_otel.capture.values import JSON, at

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
_HAYSTACK = "opentelemetry.instrumentation.haystack"


def _kind(view: Span) -> Kind | None:
    attributes = view.attributes
    entity = word(view, "traceloop.span.kind")
    if entity is None:
        request = word(view, "llm.request.type")  # of a model call by an old version
        return request and ("embedding" if request == "embedding" else "llm")  # type: ignore[return-value]
    kind = _OPERATIONS.get(word(view, "gen_ai.operation.name") or "")
    if kind is not None:
        return kind
    if "gen_ai.output.messages" in attributes or "gen_ai.input.messages" in attributes:
        return "llm"
    if entity == "tool" or "tool.name" in attributes:
        return "tool"
    name = word(view, "traceloop.entity.name") or ""
    kind = next((kind for pattern, kind in _ENTITIES if pattern.search(name)), None)
    inputs, outputs = (word(view, f"traceloop.entity.{key}") or "" for key in ("input", "output"))
    takes_nodes = inputs.startswith('{"nodes":') and outputs.startswith("[")
    return kind or ("reranker" if takes_nodes else "chain")  # LlamaIndex' postprocessors


def _to_step(view: Span, of: Kind) -> Step:
    inputs = _inner(value(view, "traceloop.entity.input", opening=JSON), "inputs", "input_str")
    outputs = value(view, "traceloop.entity.output", opening=JSON)
    inputs = at(outputs, "kwargs", "inputs") or inputs  # of a streaming chain
    outputs = _inner(outputs, "outputs", "output")
    if of == "llm":
        return _llm(view)
    if of == "tool" and outputs is None and "gen_ai.tool.call.result" in view.attributes:
        return genai.to_step(view, of)
    if of in RETRIEVALS:
        return build.retrieval(view, inputs=inputs, documents=outputs, kind=of)
    if of == "tool":
        name = view.attributes.get("tool.name") or view.attributes.get("traceloop.entity.name")
        return build.tool(view, inputs=inputs, outputs=outputs, name=name)
    if view.scope == _HAYSTACK and isinstance(inputs, dict):
        inputs, outputs = query_of(inputs.get("kwargs", inputs)), answer_of_components(outputs)
        return build.chain(view, of, inputs=inputs, outputs=outputs)
    inputs, documents = build.arguments(inputs), build.listed(outputs)
    return build.chain(view, of, inputs=inputs, outputs=outputs, documents=documents)


def _inner(data: Any, *keys: str) -> Any:
    if isinstance(data, dict):
        return next((data[key] for key in keys if key in data), data)
    return data


def _llm(view: Span) -> Step:
    messages, reply = genai.messages_of(genai.with_events(view))
    if messages is None and reply is None:
        messages = openinference.messages_at(view, "gen_ai.prompt")
        if view.scope != _HAYSTACK:  # this instrumentation writes a dict key instead of the reply
            reply = openinference.messages_at(view, "gen_ai.completion")
    if messages is None and reply is None and view.scope != _HAYSTACK:
        messages = value(view, "traceloop.entity.input", opening=JSON)
        reply = value(view, "traceloop.entity.output", opening=JSON)
    return build.llm(
        view,
        messages=messages,
        reply=reply,
        response_id=view.attributes.get("gen_ai.response.id"),
        finish=view.attributes.get("gen_ai.response.finish_reasons"),
    )


CONVENTION: Final = Convention(
    name="traceloop",
    kind=_kind,
    to_step=_to_step,
    marks=frozenset({"llm.request.type", "traceloop.span.kind"}),
    content=(
        r"(traceloop\.entity|gen_ai\.task)\.(input|output)",
        r"(gen_ai|llm)\.(prompt|completion)s?\.\d+\.(content|reasoning.*|(tool_calls\.\d+|function_call)\.arguments)",
        r"traceloop\.prompt\.(template|template_variables\..+)",
        r"tool\.(arguments|input|output|result)",
    ),
    instrumentations=(
        r"traceloop|opentelemetry\.instrumentation\.(agno|anthropic|bedrock|chromadb|cohere|crewai"
        r"|google|groq|haystack|langchain|llamaindex|mcp|mistralai|ollama|openai|vertexai)"
    ),
    metadata_prefixes=("traceloop.association.properties.",),
)
