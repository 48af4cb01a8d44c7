"""LangSmith's OTel export: prompt and completion as JSON, written after the fact."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from rag_eval_otel.capture.dialects import build
from rag_eval_otel.capture.dialects.dialect import Dialect
from rag_eval_otel.capture.dialects.values import JSON, value
from rag_eval_otel.capture.span import PlainSpan, SpanView, word
from rag_eval_otel.capture.step import Kind, Step

_KINDS: Mapping[str, Kind] = {
    "embedding": "embedding",
    "llm": "llm",
    "retriever": "retriever",
    "tool": "tool",
}


def kind(view: SpanView) -> Kind | None:
    """Return the kind of ``view``, or None if it is not of this dialect."""
    found = word(view, "langsmith.span.kind")
    return None if found is None else _KINDS.get(found, "chain")


def to_step(view: PlainSpan, of: Kind) -> Step:
    """Return what ``view`` tells."""
    asked, told = (
        value(view, "gen_ai.prompt", opening=JSON),
        value(view, "gen_ai.completion", opening=JSON),
    )
    if of == "retriever":
        return build.retrieval(view, asked=asked, documents=_unwrapped(told))
    if of == "llm":
        return build.llm(view, messages=asked, said=told)
    if of == "tool":
        return build.tool(view, asked=asked, told=told)
    return build.chain(view, of, asked=asked, told=told)


def _unwrapped(told: object) -> object:
    """Return the list that a function returned, which LangSmith puts below ``output``."""
    if isinstance(told, Mapping) and set(told) == {"output"}:
        return told["output"]
    return told


DIALECT: Final = Dialect(
    name="langsmith",
    kind=kind,
    to_step=to_step,
    marks=frozenset({"langsmith.span.kind"}),
    content=(r"gen_ai\.(prompt|completion)",),
    output="gen_ai.completion",
    instrumentations="langsmith",
    exports_late=True,
    metadata_prefixes=("langsmith.metadata.",),
)
