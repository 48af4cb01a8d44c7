"""Read spans of Langfuse, LangSmith and MLflow into steps (calls in a trace).

Each platform writes kind, inputs and outputs of a call in attributes of its own, as JSON.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from rag_eval_otel.capture import step as build
from rag_eval_otel.capture.conventions.convention import Convention
from rag_eval_otel.capture.span import PlainSpan, SpanView, word
from rag_eval_otel.capture.step import Kind, Step
from rag_eval_otel.capture.values import JSON, Keys, question_in, value

# --- Langfuse -------------------------------------------------------------------------------------

_LANGFUSE_KINDS: Mapping[str, Kind] = {
    "agent": "agent",
    "embedding": "embedding",
    "generation": "llm",
    "retriever": "retriever",
    "tool": "tool",
}


def langfuse_kind(view: SpanView) -> Kind | None:
    found = word(view, "langfuse.observation.type")
    return None if found is None else _LANGFUSE_KINDS.get(found, "chain")


def langfuse_step(view: PlainSpan, of: Kind) -> Step:
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


LANGFUSE: Final = Convention(
    name="langfuse",
    kind=langfuse_kind,
    to_step=langfuse_step,
    marks=frozenset({"langfuse.observation.type"}),
    content=(r"langfuse\.(observation|trace)\.(input|output)",),
    output="langfuse.observation.output",
    function_output="langfuse.observation.output",
    instrumentations="langfuse",
    metadata_prefixes=("langfuse.observation.metadata.", "langfuse.trace.metadata."),
)


# --- LangSmith ------------------------------------------------------------------------------------

_LANGSMITH_KINDS: Mapping[str, Kind] = {
    "embedding": "embedding",
    "llm": "llm",
    "retriever": "retriever",
    "tool": "tool",
}


def langsmith_kind(view: SpanView) -> Kind | None:
    found = word(view, "langsmith.span.kind")
    return None if found is None else _LANGSMITH_KINDS.get(found, "chain")


def langsmith_step(view: PlainSpan, of: Kind) -> Step:
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


LANGSMITH: Final = Convention(
    name="langsmith",
    kind=langsmith_kind,
    to_step=langsmith_step,
    marks=frozenset({"langsmith.span.kind"}),
    content=(r"gen_ai\.(prompt|completion)",),
    output="gen_ai.completion",
    instrumentations="langsmith",
    exports_late=True,
    metadata_prefixes=("langsmith.metadata.",),
)


# --- MLflow ---------------------------------------------------------------------------------------

_MLFLOW_KINDS: Mapping[str, Kind] = {
    "AGENT": "agent",
    "CHAT_MODEL": "llm",
    "EMBEDDING": "embedding",
    "LLM": "llm",
    "RERANKER": "reranker",
    "RETRIEVER": "retriever",
    "TOOL": "tool",
}


def mlflow_kind(view: SpanView) -> Kind | None:
    found = word(view, "mlflow.spanType")
    return None if found is None else _MLFLOW_KINDS.get(found.strip('"'), "chain")


def mlflow_step(view: PlainSpan, of: Kind) -> Step:
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
    if isinstance(inputs, Mapping) and len(inputs) == 1 and question_in(inputs, keys) is None:
        return next(iter(inputs.values()))
    return inputs


MLFLOW: Final = Convention(
    name="mlflow",
    kind=mlflow_kind,
    to_step=mlflow_step,
    marks=frozenset({"mlflow.spanType"}),
    content=(r"mlflow\.(span|trace)(Inputs|Outputs)", r"mlflow\.chat\.messages"),
    content_events=((r"new_token", r"token|chunk"),),
    output="mlflow.spanOutputs",
    instrumentations="mlflow",
)
