"""Read spans of Langfuse, LangSmith, MLflow and Vercel's AI SDK into steps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from rag_eval_otel.capture import step as build
from rag_eval_otel.capture.conventions import openinference
from rag_eval_otel.capture.conventions.convention import Convention
from rag_eval_otel.capture.span import Span, value, word
from rag_eval_otel.capture.step import RETRIEVALS, Kind, Step
from rag_eval_otel.capture.values import JSON, TEXT_OR_JSON


def _platform(
    name: str,
    *,
    mark: str,
    kinds: Mapping[str, Kind],
    inputs: str,  # names of attributes, separated by spaces; the first on the span is read
    outputs: str,
    opening: str = JSON,
    **more: Any,
) -> Convention:
    """Build the convention of a platform; the attribute ``mark`` has the kind of call."""

    def kind(view: Span) -> Kind | None:
        called = word(view, mark)
        return None if called is None else kinds.get(called.strip('"').rpartition(".")[2], "chain")

    def to_step(view: Span, of: Kind) -> Step:
        asked = build.arguments(value(view, *inputs.split(), opening=opening))
        told = value(view, *outputs.split(), opening=opening)
        if of in RETRIEVALS:
            if isinstance(told, dict):  # LangSmith's return value of a function
                told = told.get("output", told)
            return build.retrieval(view, inputs=asked, documents=told, kind=of)
        if of == "llm":
            finish = view.attributes.get("ai.response.finishReason")
            return build.llm(view, messages=asked, reply=told, finish=finish)
        if of == "tool":
            name = view.attributes.get("ai.toolCall.name")
            return build.tool(view, inputs=asked, outputs=told, name=name)
        is_top = view.attributes.get("langfuse.internal.is_app_root") is True  # has no real parent
        return build.chain(
            view, of, inputs=asked, outputs=told, documents=build.listed(told), is_remote=is_top
        )

    return Convention(name=name, kind=kind, to_step=to_step, marks=frozenset({mark}), **more)


_SAME: Final[Mapping[str, Kind]] = {n.lower(): kind for n, kind in openinference.KINDS.items()}

CONVENTIONS: Final = (
    _platform(
        "langfuse",
        mark="langfuse.observation.type",
        kinds={**_SAME, "generation": "llm"},
        inputs="langfuse.observation.input",
        outputs="langfuse.observation.output",
        opening=TEXT_OR_JSON,
        content=(r"langfuse\.(observation|trace)\.(input|output)",),
        instrumentations="langfuse",
        metadata_prefixes=("langfuse.observation.metadata.", "langfuse.trace.metadata."),
    ),
    _platform(
        "langsmith",
        mark="langsmith.span.kind",
        kinds=_SAME,
        inputs="gen_ai.prompt",
        outputs="gen_ai.completion",
        content=(r"gen_ai\.(prompt|completion)",),
        instrumentations="langsmith",
        metadata_prefixes=("langsmith.metadata.",),
    ),
    _platform(
        "mlflow",
        mark="mlflow.spanType",
        kinds={**openinference.KINDS, "CHAT_MODEL": "llm"},
        inputs="mlflow.spanInputs",
        outputs="mlflow.spanOutputs",
        content=(r"mlflow\.(span|trace)(Inputs|Outputs)", r"mlflow\.chat\.messages"),
        content_events=((r"new_token", r"token|chunk"),),
        instrumentations="mlflow",
    ),
    _platform(
        "vercel",
        mark="ai.operationId",
        kinds={"doGenerate": "llm", "doStream": "llm", "toolCall": "tool"},
        inputs="ai.toolCall.args ai.prompt.messages ai.prompt",
        outputs="ai.toolCall.result ai.response.text ai.response.object",
        opening=TEXT_OR_JSON,
        content=(
            r"ai\.(prompt|prompt\.messages|values?|documents|embeddings?|ranking)",
            r"ai\.(response\.(text|object|reasoning|toolCalls|files)|toolCall\.(args|result))",
        ),
    ),
)
