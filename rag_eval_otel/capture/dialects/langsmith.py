"""Read spans that LangSmith exports to OpenTelemetry into steps (calls in a trace).

Inputs and outputs are JSON. LangSmith exports spans long after they have ended.
"""

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
    found = word(view, "langsmith.span.kind")
    return None if found is None else _KINDS.get(found, "chain")


def to_step(view: PlainSpan, of: Kind) -> Step:
    inputs, outputs = (
        value(view, "gen_ai.prompt", opening=JSON),
        value(view, "gen_ai.completion", opening=JSON),
    )
    if of == "retriever":
        return build.retrieval(view, inputs=inputs, documents=_unwrapped(outputs))
    if of == "llm":
        return build.llm(view, messages=inputs, reply=outputs)
    if of == "tool":
        return build.tool(view, inputs=inputs, outputs=outputs)
    return build.chain(view, of, inputs=inputs, outputs=outputs)


def _unwrapped(outputs: object) -> object:
    """Return the return value of a function, which LangSmith puts into a dict under ``output``."""
    if isinstance(outputs, Mapping) and set(outputs) == {"output"}:
        return outputs["output"]
    return outputs


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
