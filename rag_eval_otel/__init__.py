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
    from rag_eval_otel.judge.function import FunctionJudge
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
    "FunctionJudge",
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

_MODULES = {
    "config": ("Config",),
    "embed": ("HashingEmbedder", "LangChainEmbedder", "OpenAIEmbedder"),
    "errors": ("ConfigError", "JudgeError"),
    "evaluation": ("aevaluate", "evaluate"),
    "judge.function": ("FunctionJudge",),
    "judge.langchain": ("LangChainJudge",),
    "judge.lexical": ("LexicalJudge",),
    "judge.local": ("LocalJudge",),
    "judge.openai": ("OpenAIJudge",),
    "live.handler": ("RagEvalCallbackHandler",),
    "live.instrument": ("Handle", "RagEvalSpanProcessor", "instrument"),
    "live.recorded": ("record_answer", "record_feedback", "record_question", "record_retrieval"),
    "metrics": ("Metric",),
    "types": ("Evaluation", "Feedback", "Passage", "Sample", "Score", "Usage"),
}
_HOMES = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return [*globals(), *__all__]
