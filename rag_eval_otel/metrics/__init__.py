"""The metrics: each metric computes a score of one sample (question, contexts, answer)."""

from __future__ import annotations

from rag_eval_otel.metrics.context import (
    ContextPrecision,
    ContextRecall,
    ContextRelevance,
    ContextRelevancyRubric,
    ContextUtilization,
    StatementContextRelevance,
)
from rag_eval_otel.metrics.correctness import (
    AnswerAccuracy,
    AnswerCorrectness,
    AnswerExactMatch,
    Correctness,
    CrossEncoderSimilarity,
    SemanticSimilarity,
)
from rag_eval_otel.metrics.custom import LLMMetric
from rag_eval_otel.metrics.function import FunctionMetric, MetricFunction
from rag_eval_otel.metrics.groundedness import (
    Faithfulness,
    ResponseGroundedness,
    ResponseRelevancy,
    ResponseSupported,
    StatementFaithfulness,
)
from rag_eval_otel.metrics.ranking import (
    MRR,
    NDCG,
    AveragePrecision,
    HitRate,
    IDContextPrecision,
    IDContextRecall,
    RetrievalPrecision,
    RetrievalRecall,
)
from rag_eval_otel.metrics.registry import (
    METRIC_SETS,
    METRICS,
    metric_names,
    require_measured,
    resolve_metrics,
    with_thresholds,
)
from rag_eval_otel.metrics.relevancy import (
    AnswerRelevancy,
    AnswerRelevancyRubric,
    DecompositionRelevancy,
    DirectRelevancy,
    IntentRelevancy,
    MultiMethodRelevancy,
    ReverseRelevancy,
)
from rag_eval_otel.metrics.rubric import Guideline, InstanceRubric, Rubric

__all__ = [
    "METRICS",
    "METRIC_SETS",
    "MRR",
    "NDCG",
    "AnswerAccuracy",
    "AnswerCorrectness",
    "AnswerExactMatch",
    "AnswerRelevancy",
    "AnswerRelevancyRubric",
    "AveragePrecision",
    "ContextPrecision",
    "ContextRecall",
    "ContextRelevance",
    "ContextRelevancyRubric",
    "ContextUtilization",
    "Correctness",
    "CrossEncoderSimilarity",
    "DecompositionRelevancy",
    "DirectRelevancy",
    "Faithfulness",
    "FunctionMetric",
    "Guideline",
    "HitRate",
    "IDContextPrecision",
    "IDContextRecall",
    "InstanceRubric",
    "IntentRelevancy",
    "LLMMetric",
    "MetricFunction",
    "MultiMethodRelevancy",
    "ResponseGroundedness",
    "ResponseRelevancy",
    "ResponseSupported",
    "RetrievalPrecision",
    "RetrievalRecall",
    "ReverseRelevancy",
    "Rubric",
    "SemanticSimilarity",
    "StatementContextRelevance",
    "StatementFaithfulness",
    "metric_names",
    "require_measured",
    "resolve_metrics",
    "with_thresholds",
]
