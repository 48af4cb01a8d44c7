"""The metrics: each metric computes a score of one sample (question, contexts, answer).

`metric` makes a metric by name, with options. The classes here are those with options of their own.
"""

from __future__ import annotations

from rag_eval_otel.metrics.base import Metric
from rag_eval_otel.metrics.context import StatementContextRelevance
from rag_eval_otel.metrics.correctness import (
    AnswerCorrectness,
    Correctness,
    CrossEncoderSimilarity,
    SemanticSimilarity,
)
from rag_eval_otel.metrics.custom import (
    FunctionMetric,
    Guideline,
    InstanceRubric,
    LLMMetric,
    MetricFunction,
    Rubric,
)
from rag_eval_otel.metrics.groundedness import Faithfulness, StatementFaithfulness
from rag_eval_otel.metrics.registry import (
    METRIC_SETS,
    METRICS,
    metric,
    metric_names,
    require_measured,
    resolve_metrics,
    with_thresholds,
)
from rag_eval_otel.metrics.relevancy import (
    AnswerRelevancy,
    DecompositionRelevancy,
    IntentRelevancy,
    MultiMethodRelevancy,
    ReverseRelevancy,
)

__all__ = [
    "METRICS",
    "METRIC_SETS",
    "AnswerCorrectness",
    "AnswerRelevancy",
    "Correctness",
    "CrossEncoderSimilarity",
    "DecompositionRelevancy",
    "Faithfulness",
    "FunctionMetric",
    "Guideline",
    "InstanceRubric",
    "IntentRelevancy",
    "LLMMetric",
    "Metric",
    "MetricFunction",
    "MultiMethodRelevancy",
    "ReverseRelevancy",
    "Rubric",
    "SemanticSimilarity",
    "StatementContextRelevance",
    "StatementFaithfulness",
    "metric",
    "metric_names",
    "require_measured",
    "resolve_metrics",
    "with_thresholds",
]
