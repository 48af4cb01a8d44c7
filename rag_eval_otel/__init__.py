"""Score the answers of RAG applications while they run, and put the scores on their traces.

- For LangChain, use `RagEvalCallbackHandler`.
- For the spans of other instrumentations, use `instrument`.
- For code that nothing records, use the functions `record_question`, `record_retrieval` and
  `record_answer`.
- Without tracing, `evaluate` scores one `Sample`; `aevaluate` is its twin for code that awaits.
  `rag_eval_otel.tools` has `evaluate_dataset` and `aevaluate_dataset`, which score many.

Each name is imported when it is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from rag_eval_otel import semconv

if TYPE_CHECKING:
    from rag_eval_otel.config import Config
    from rag_eval_otel.embed import HashingEmbedder, LangChainEmbedder, OpenAIEmbedder
    from rag_eval_otel.errors import ConfigError, JudgeError
    from rag_eval_otel.evaluation import aevaluate, evaluate
    from rag_eval_otel.judge.langchain import LangChainJudge
    from rag_eval_otel.judge.lexical import LexicalJudge
    from rag_eval_otel.judge.local import LocalJudge
    from rag_eval_otel.judge.openai import OpenAIJudge
    from rag_eval_otel.live.handler import RagEvalCallbackHandler
    from rag_eval_otel.live.instrument import Handle, RagEvalSpanProcessor, instrument
    from rag_eval_otel.live.recorded import (
        record_answer,
        record_feedback,
        record_question,
        record_retrieval,
    )
    from rag_eval_otel.metrics import Metric
    from rag_eval_otel.types import Evaluation, Feedback, Passage, Sample, Score, Usage

__version__ = semconv.VERSION

__all__ = [
    "Config",
    "ConfigError",
    "Evaluation",
    "Feedback",
    "Handle",
    "HashingEmbedder",
    "JudgeError",
    "LangChainEmbedder",
    "LangChainJudge",
    "LexicalJudge",
    "LocalJudge",
    "Metric",
    "OpenAIEmbedder",
    "OpenAIJudge",
    "Passage",
    "RagEvalCallbackHandler",
    "RagEvalSpanProcessor",
    "Sample",
    "Score",
    "Usage",
    "aevaluate",
    "evaluate",
    "instrument",
    "record_answer",
    "record_feedback",
    "record_question",
    "record_retrieval",
]

_HOMES = {
    "Config": "config",
    "ConfigError": "errors",
    "Evaluation": "types",
    "Feedback": "types",
    "Handle": "live.instrument",
    "HashingEmbedder": "embed",
    "JudgeError": "errors",
    "LangChainEmbedder": "embed",
    "LangChainJudge": "judge.langchain",
    "LexicalJudge": "judge.lexical",
    "LocalJudge": "judge.local",
    "Metric": "metrics",
    "OpenAIEmbedder": "embed",
    "OpenAIJudge": "judge.openai",
    "Passage": "types",
    "RagEvalCallbackHandler": "live.handler",
    "RagEvalSpanProcessor": "live.instrument",
    "Sample": "types",
    "Score": "types",
    "Usage": "types",
    "aevaluate": "evaluation",
    "evaluate": "evaluation",
    "instrument": "live.instrument",
    "record_answer": "live.recorded",
    "record_feedback": "live.recorded",
    "record_question": "live.recorded",
    "record_retrieval": "live.recorded",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        msg = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(msg)
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return [*globals(), *__all__]
