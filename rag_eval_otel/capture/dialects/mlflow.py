"""Read spans of MLflow into steps (calls in a trace).

Inputs, outputs and even the type of a span are JSON.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from rag_eval_otel.capture.dialects import build
from rag_eval_otel.capture.dialects.dialect import Dialect
from rag_eval_otel.capture.dialects.values import JSON, value
from rag_eval_otel.capture.span import PlainSpan, SpanView, word
from rag_eval_otel.capture.step import Kind, Step
from rag_eval_otel.capture.text import Keys

_KINDS: Mapping[str, Kind] = {
    "AGENT": "agent",
    "CHAT_MODEL": "llm",
    "EMBEDDING": "embedding",
    "LLM": "llm",
    "RERANKER": "reranker",
    "RETRIEVER": "retriever",
    "TOOL": "tool",
}


def kind(view: SpanView) -> Kind | None:
    found = word(view, "mlflow.spanType")
    return None if found is None else _KINDS.get(found.strip('"'), "chain")


def to_step(view: PlainSpan, of: Kind) -> Step:
    inputs, outputs = (
        value(view, "mlflow.spanInputs", opening=JSON),
        value(view, "mlflow.spanOutputs", opening=JSON),
    )
    if of in {"retriever", "reranker"}:
        return build.retrieval(view, inputs=_only(inputs, view.keys), documents=outputs, kind=of)
    if of == "llm":
        return build.llm(view, messages=inputs, reply=outputs)
    if of == "tool":
        return build.tool(view, inputs=_only(inputs, view.keys), outputs=outputs)
    return build.chain(view, of, inputs=_only(inputs, view.keys), outputs=outputs)


def _only(inputs: object, keys: Keys) -> object:
    """Return the argument of a decorated function if it has only one, else all ``inputs``.

    If the only argument has a usual name of a question, return all ``inputs``, too.
    """
    if isinstance(inputs, Mapping) and len(inputs) == 1 and build.question_in(inputs, keys) is None:
        return next(iter(inputs.values()))
    return inputs


DIALECT: Final = Dialect(
    name="mlflow",
    kind=kind,
    to_step=to_step,
    marks=frozenset({"mlflow.spanType"}),
    content=(r"mlflow\.(span|trace)(Inputs|Outputs)", r"mlflow\.chat\.messages"),
    content_events=((r"new_token", r"token|chunk"),),
    output="mlflow.spanOutputs",
    instrumentations="mlflow",
)
