"""Langfuse: input and output of observations, each of a type."""

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
    """Return the kind of ``view``, or None if it is not of this dialect."""
    found = word(view, "langfuse.observation.type")
    return None if found is None else _KINDS.get(found, "chain")


def to_step(view: PlainSpan, of: Kind) -> Step:
    """Return what ``view`` tells."""
    asked = build.arguments(value(view, "langfuse.observation.input"), view.keys)
    told = value(view, "langfuse.observation.output")
    if of == "retriever":
        return build.retrieval(view, asked=asked, documents=told)
    if of == "llm":
        return build.llm(view, messages=asked, said=told)
    if of == "tool":
        return build.tool(view, asked=asked, told=told)
    is_top = view.attributes.get("langfuse.internal.is_app_root") is True  # its parent is made up
    listed = build.listed(told)
    return build.chain(view, of, asked=asked, told=told, documents=listed, is_remote=is_top)


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
