"""MLflow: inputs and outputs as JSON; even the type of a span is."""

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
    """Return the kind of ``view``, or None if it is not of this dialect."""
    found = word(view, "mlflow.spanType")
    return None if found is None else _KINDS.get(found.strip('"'), "chain")


def to_step(view: PlainSpan, of: Kind) -> Step:
    """Return what ``view`` tells."""
    asked, told = (
        value(view, "mlflow.spanInputs", opening=JSON),
        value(view, "mlflow.spanOutputs", opening=JSON),
    )
    if of in {"retriever", "reranker"}:
        return build.retrieval(view, asked=_only(asked, view.keys), documents=told, kind=of)
    if of == "llm":
        return build.llm(view, messages=asked, said=told)
    if of == "tool":
        return build.tool(view, asked=_only(asked, view.keys), told=told)
    return build.chain(view, of, asked=_only(asked, view.keys), told=told)


def _only(asked: object, keys: Keys) -> object:
    """Return the one argument of a decorated function, whatever it is called."""
    if isinstance(asked, Mapping) and len(asked) == 1 and build.question_in(asked, keys) is None:
        return next(iter(asked.values()))
    return asked


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
