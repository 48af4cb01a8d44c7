"""Find metrics by name: built-in metrics, sets of metrics, and metrics of other packages."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from difflib import get_close_matches
from typing import Any

from rag_eval_otel.errors import ConfigError
from rag_eval_otel.metrics.context import (
    ContextPrecision,
    ContextRecall,
    ContextRelevance,
    ContextUtilization,
    StatementContextRelevance,
)
from rag_eval_otel.metrics.correctness import AnswerCorrectness
from rag_eval_otel.metrics.function import FunctionMetric, MetricFunction
from rag_eval_otel.metrics.groundedness import Faithfulness, ResponseGroundedness
from rag_eval_otel.metrics.outcome import Metric
from rag_eval_otel.metrics.ranking import (
    MRR,
    NDCG,
    AveragePrecision,
    HitRate,
    RetrievalPrecision,
    RetrievalRecall,
)
from rag_eval_otel.metrics.relevancy import AnswerRelevancy, MultiMethodRelevancy
from rag_eval_otel.registry import Registry

_NUMBER = re.compile(r"-?(?:\d+\.?\d*|\.\d+)")
_NAME = re.compile(r"[a-z][a-z0-9_]*")
_RESERVED = frozenset(
    {
        *("status", "label", "judge", "duration", "reason", "version", "threshold"),
        *("cost", "currency", "tokens", "truncated"),
        *("contexts", "drift", "injection", "offline", "sampling"),
        *("annotator", "overall"),
    }
)
"""Names that no metric can have: on a span, they name attributes of the whole evaluation.

A metric ``cost`` would write ``rag.evaluation.cost.score``, but ``rag.evaluation.cost`` is a number
already. Backends that store attributes as nested objects can have only one of the two.
"""


def _default() -> tuple[Metric, ...]:
    return (AnswerRelevancy(), ContextRelevance(), Faithfulness(), ResponseGroundedness())


def _dual() -> tuple[Metric, ...]:
    return (
        AnswerRelevancy(),
        ContextRelevance(judges=2),
        Faithfulness(form="full"),
        ResponseGroundedness(judges=2),
    )


def _online() -> tuple[Metric, ...]:
    return (
        AnswerRelevancy(),
        Faithfulness(),
        ContextUtilization(),
        StatementContextRelevance(),
        MultiMethodRelevancy(),
    )


def _reference() -> tuple[Metric, ...]:
    return (*_online(), ContextPrecision(), ContextRecall(), AnswerCorrectness())


def _retrieval() -> tuple[Metric, ...]:
    return (HitRate(), MRR(), RetrievalPrecision(), RetrievalRecall(), AveragePrecision(), NDCG())


def _full() -> tuple[Metric, ...]:
    return (
        ContextRelevance(judges=2, name="context_relevance_full"),
        Faithfulness(form="full", name="faithfulness_full"),
        ResponseGroundedness(judges=2, name="response_groundedness_full"),
    )


METRIC_SETS: Mapping[str, Callable[[], tuple[Metric, ...]]] = {
    "default": _default,
    "dual": _dual,
    "full": _full,
    "lean": _default,
    "online": _online,
    "reference": _reference,
    "retrieval": _retrieval,
}
"""Named sets of metrics. With fusion, they take 2, 4, 3, 2, 3, 4 and 0 judge requests a sample.

``dual`` has the metrics of ``default`` as their sources define them, with two judges and with
claims that the judge finds. ``full`` has three of these metrics under names that end in ``_full``,
so that they can be measured beside the short ones. ``lean`` is another name of ``default``.
"""

_REGISTRY = Registry(
    kind="metric",
    built_in={
        "answer_accuracy": "rag_eval_otel.metrics.correctness:AnswerAccuracy",
        "answer_correctness": "rag_eval_otel.metrics.correctness:AnswerCorrectness",
        "answer_exact_match": "rag_eval_otel.metrics.correctness:AnswerExactMatch",
        "answer_relevancy": "rag_eval_otel.metrics.relevancy:AnswerRelevancy",
        "answer_relevancy_rubric": "rag_eval_otel.metrics.relevancy:AnswerRelevancyRubric",
        "average_precision": "rag_eval_otel.metrics.ranking:AveragePrecision",
        "context_precision": "rag_eval_otel.metrics.context:ContextPrecision",
        "context_recall": "rag_eval_otel.metrics.context:ContextRecall",
        "context_relevance": "rag_eval_otel.metrics.context:ContextRelevance",
        "context_relevancy_rubric": "rag_eval_otel.metrics.context:ContextRelevancyRubric",
        "context_utilization": "rag_eval_otel.metrics.context:ContextUtilization",
        "correctness": "rag_eval_otel.metrics.correctness:Correctness",
        "decomposition_relevancy": "rag_eval_otel.metrics.relevancy:DecompositionRelevancy",
        "direct_relevancy": "rag_eval_otel.metrics.relevancy:DirectRelevancy",
        "faithfulness": "rag_eval_otel.metrics.groundedness:Faithfulness",
        "guideline": "rag_eval_otel.metrics.rubric:Guideline",
        "hit_rate": "rag_eval_otel.metrics.ranking:HitRate",
        "id_context_precision": "rag_eval_otel.metrics.ranking:IDContextPrecision",
        "id_context_recall": "rag_eval_otel.metrics.ranking:IDContextRecall",
        "instance_rubric": "rag_eval_otel.metrics.rubric:InstanceRubric",
        "intent_relevancy": "rag_eval_otel.metrics.relevancy:IntentRelevancy",
        "mrr": "rag_eval_otel.metrics.ranking:MRR",
        "multi_method_relevancy": "rag_eval_otel.metrics.relevancy:MultiMethodRelevancy",
        "ndcg": "rag_eval_otel.metrics.ranking:NDCG",
        "response_groundedness": "rag_eval_otel.metrics.groundedness:ResponseGroundedness",
        "response_relevancy": "rag_eval_otel.metrics.groundedness:ResponseRelevancy",
        "response_supported": "rag_eval_otel.metrics.groundedness:ResponseSupported",
        "retrieval_precision": "rag_eval_otel.metrics.ranking:RetrievalPrecision",
        "retrieval_recall": "rag_eval_otel.metrics.ranking:RetrievalRecall",
        "reverse_relevancy": "rag_eval_otel.metrics.relevancy:ReverseRelevancy",
        "rubric": "rag_eval_otel.metrics.rubric:Rubric",
        "semantic_similarity": "rag_eval_otel.metrics.correctness:SemanticSimilarity",
        "statement_context_relevance": "rag_eval_otel.metrics.context:StatementContextRelevance",
        "statement_faithfulness": "rag_eval_otel.metrics.groundedness:StatementFaithfulness",
    },
    also=tuple(METRIC_SETS),
)
"""The class of each metric, built in or of another package. It is called without arguments."""

METRICS: Mapping[str, Callable[[], Metric]] = {
    name: _REGISTRY.find(name) for name in _REGISTRY.built_in
}
"""The built-in metrics by name. Calling a value makes the metric with its default parameters."""


def resolve_metrics(wanted: Iterable[str | Metric | MetricFunction]) -> tuple[Metric, ...]:
    """Return the metrics that ``wanted`` names or contains.

    ``wanted`` has names of metrics, names of sets, metrics, or functions of a sample. Raises
    `ConfigError` for an unknown name, for an object that is not a metric, for two metrics with the
    same name, and if ``wanted`` is empty.
    """
    found: list[Metric] = []
    for item in [wanted] if isinstance(wanted, str) else wanted:
        found += _named(item) if isinstance(item, str) else (_checked(item),)
    names = [metric.name for metric in found]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        msg = f"metrics named twice: {', '.join(twice)}; give each a name of its own (name=...)"
        raise ConfigError(msg)
    if not found:
        msg = "no metrics; name at least one, or 'default'"
        raise ConfigError(msg)
    return tuple(found)


def with_thresholds(
    metrics: Iterable[Metric], thresholds: Mapping[str, float]
) -> tuple[Metric, ...]:
    """Return ``metrics``, changed to the ``thresholds`` (a mapping from names of metrics).

    Raises `ConfigError` for a threshold of a metric that is not in ``metrics``, and for a threshold
    outside the metric's range.
    """
    found = {metric.name: metric for metric in metrics}
    for name, threshold in thresholds.items():
        require_measured(name, found, told="a threshold")
        found[name] = _with_threshold(found[name], threshold)
    return tuple(found.values())


def require_measured(name: str, measured: Collection[str], *, told: str) -> None:
    """Raise `ConfigError` unless ``name`` is one of ``measured``, the names of measured metrics.

    ``told`` is what the user set for the metric, such as "a threshold", for the error message.
    """
    if name not in measured:
        near = get_close_matches(name, measured, n=1)
        meant = f"; did you mean {near[0]}?" if near else "."
        listed = ", ".join(sorted(measured))
        msg = f"there is {told} of {name!r}, which is not measured{meant} Measured are: {listed}"
        raise ConfigError(msg)


def _with_threshold(metric: Metric, threshold: float) -> Metric:
    made: Any = metric
    if "threshold" not in getattr(made, "__dataclass_fields__", {}):
        msg = f"the metric {metric.name!r} has no threshold that could be set"
        raise ConfigError(msg)
    low, high = bounds_of(metric)
    if not low <= threshold <= high:
        msg = f"the threshold of {metric.name} must be from {low:g} to {high:g}, not {threshold:g}"
        raise ConfigError(msg)
    changed: Metric = replace(made, threshold=threshold)
    return changed


def bounds_of(metric: Metric) -> tuple[float, float]:
    """Return the lowest and the highest score of ``metric``; infinite if it states no range."""
    scale = getattr(metric, "scale", None) or getattr(metric, "levels", None)
    if scale:
        return float(min(scale)), float(max(scale))
    told = [float(number) for number in _NUMBER.findall(getattr(metric, "range", ""))]
    return (min(told), max(told)) if told else (-math.inf, math.inf)


def metric_names() -> tuple[str, ...]:
    """Return the names of all metrics: built-in metrics first, then metrics of other packages."""
    return _REGISTRY.names()


def _named(name: str) -> tuple[Metric, ...]:
    if name in METRIC_SETS:
        return METRIC_SETS[name]()
    return (_checked(_REGISTRY.make(name)),)


def _checked(given: Metric | MetricFunction) -> Metric:
    """Return ``given`` as a metric; a function becomes a `FunctionMetric`.

    Raises `ConfigError` for a class, an object that lacks a part of a metric, and a name that
    cannot be used.
    """
    metric: Any = given
    if callable(given) and not isinstance(given, type) and not hasattr(given, "measure"):
        metric = FunctionMetric(function=given)
    if isinstance(metric, type):
        msg = f"{metric.__name__} is a class; pass a metric made of it: {metric.__name__}()"
        raise ConfigError(msg)
    missing = [part for part in ("name", "needs", "asks", "measure") if not hasattr(metric, part)]
    if missing:
        msg = f"{metric!r} is no metric: it has no {', '.join(missing)} (see outcome.Metric)"
        raise ConfigError(msg)
    if not _NAME.fullmatch(metric.name) or metric.name in _RESERVED:
        msg = f"a metric can't be named {metric.name!r}; use a-z, 0-9 and _, and none of "
        raise ConfigError(msg + ", ".join(sorted(_RESERVED)))
    checked: Metric = metric
    return checked
