"""Read spans of Langfuse into steps (calls in a trace). Langfuse calls spans observations."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from rag_eval_otel.capture.dialects import build
from rag_eval_otel.capture.dialects.dialect import Dialect
from rag_eval_otel.capture.dialects.values import value
from rag_eval_otel.capture.span import PlainSpan, SpanView, word
from rag_eval_otel.capture.step import Kind, Step

_KINDS: Mapping[str, Kind] = {
    "agent": "agent",
    "embedding": "embedding",
    "generation": "llm",
    "retriever": "retriever",
    "tool": "tool",
}


def kind(view: SpanView) -> Kind | None:
    found = word(view, "langfuse.observation.type")
    return None if found is None else _KINDS.get(found, "chain")


def to_step(view: PlainSpan, of: Kind) -> Step:
    inputs = build.arguments(value(view, "langfuse.observation.input"), view.keys)
    outputs = value(view, "langfuse.observation.output")
    if of == "retriever":
        return build.retrieval(view, inputs=inputs, documents=outputs)
    if of == "llm":
        return build.llm(view, messages=inputs, reply=outputs)
    if of == "tool":
        return build.tool(view, inputs=inputs, outputs=outputs)
    is_top = view.attributes.get("langfuse.internal.is_app_root") is True  # has no real parent
    listed = build.listed(outputs)
    return build.chain(view, of, inputs=inputs, outputs=outputs, documents=listed, is_remote=is_top)


DIALECT: Final = Dialect(
    name="langfuse",
    kind=kind,
    to_step=to_step,
    marks=frozenset({"langfuse.observation.type"}),
    content=(r"langfuse\.(observation|trace)\.(input|output)",),
    output="langfuse.observation.output",
    function_output="langfuse.observation.output",
    instrumentations="langfuse",
    metadata_prefixes=("langfuse.observation.metadata.", "langfuse.trace.metadata."),
)
