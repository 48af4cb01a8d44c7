"""Metrics by name: ours, sets of them, and those that other packages bring."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from difflib import get_close_matches
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from rag_eval_otel.errors import ConfigError
from rag_eval_otel.metrics.context import (
    ContextRelevance,
    ContextRelevancyRubric,
    IDContextPrecision,
    IDContextRecall,
    StatementContextRelevance,
)
from rag_eval_otel.metrics.context_rank import ContextPrecision, ContextRecall, ContextUtilization
from rag_eval_otel.metrics.correctness import (
    AnswerAccuracy,
    AnswerCorrectness,
    AnswerExactMatch,
    Correctness,
    SemanticSimilarity,
)
from rag_eval_otel.metrics.dual import MultiMethodRelevancy
from rag_eval_otel.metrics.function import FunctionMetric, MetricFunction
from rag_eval_otel.metrics.groundedness import Faithfulness, StatementFaithfulness
from rag_eval_otel.metrics.outcome import Metric
from rag_eval_otel.metrics.ranking import (
    MRR,
    NDCG,
    AveragePrecision,
    HitRate,
    RetrievalPrecision,
    RetrievalRecall,
)
from rag_eval_otel.metrics.relevancy import (
    AnswerRelevancy,
    AnswerRelevancyRubric,
    DecompositionRelevancy,
    DirectRelevancy,
    IntentRelevancy,
    ReverseRelevancy,
)
from rag_eval_otel.metrics.rubric import Guideline, InstanceRubric, Rubric
from rag_eval_otel.metrics.whole_answer import (
    ResponseGroundedness,
    ResponseRelevancy,
    ResponseSupported,
)

_NUMBER = re.compile(r"-?(?:\d+\.?\d*|\.\d+)")
_NAME = re.compile(r"[a-z][a-z0-9_]*")
_RESERVED = frozenset({"status", "label", "judge", "duration", "reason", "version"})
"""What a span says of the whole evaluation, at the place where each metric has its own."""

ENTRY_POINT_GROUP = "rag_eval_otel.metrics"
"""Where a package names what makes its metrics: a class, or a function without parameters."""

METRICS: Mapping[str, Callable[[], Metric]] = {
    "answer_accuracy": AnswerAccuracy,
    "answer_correctness": AnswerCorrectness,
    "answer_exact_match": AnswerExactMatch,
    "answer_relevancy": AnswerRelevancy,
    "answer_relevancy_rubric": AnswerRelevancyRubric,
    "average_precision": AveragePrecision,
    "context_precision": ContextPrecision,
    "context_recall": ContextRecall,
    "context_relevance": ContextRelevance,
    "context_relevancy_rubric": ContextRelevancyRubric,
    "context_utilization": ContextUtilization,
    "correctness": Correctness,
    "decomposition_relevancy": DecompositionRelevancy,
    "direct_relevancy": DirectRelevancy,
    "faithfulness": Faithfulness,
    "guideline": Guideline,
    "hit_rate": HitRate,
    "id_context_precision": IDContextPrecision,
    "id_context_recall": IDContextRecall,
    "instance_rubric": InstanceRubric,
    "intent_relevancy": IntentRelevancy,
    "mrr": MRR,
    "multi_method_relevancy": MultiMethodRelevancy,
    "ndcg": NDCG,
    "response_groundedness": ResponseGroundedness,
    "response_relevancy": ResponseRelevancy,
    "response_supported": ResponseSupported,
    "retrieval_precision": RetrievalPrecision,
    "retrieval_recall": RetrievalRecall,
    "reverse_relevancy": ReverseRelevancy,
    "rubric": Rubric,
    "semantic_similarity": SemanticSimilarity,
    "statement_context_relevance": StatementContextRelevance,
    "statement_faithfulness": StatementFaithfulness,
}
"""Every metric of ours by name, with its default parameters."""


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
    return (
        HitRate(),
        MRR(),
        RetrievalPrecision(),
        RetrievalRecall(),
        AveragePrecision(),
        NDCG(),
    )


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
"""Named sets. Fused judge requests a sample: 2, 4, 3, 2, 3, 4 and 0.

``dual`` has the metrics of ``default`` as their sources define them: two judges, and claims that
the judge finds. ``full`` has them under names that end in ``_full``, to be measured beside the
short ones. ``lean`` is another name of ``default``.
"""


def resolve_metrics(wanted: Iterable[str | Metric | MetricFunction]) -> tuple[Metric, ...]:
    """Return the metrics meant by names of metrics, names of sets, metrics, and functions.

    Raises `ConfigError` for a name that is not known, for what is no metric, for two metrics of one
    name, and for none.
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
    """Return ``metrics`` with other ``thresholds``, by name.

    Raises `ConfigError` for one that is not among them, and for a threshold that no score of its
    metric can be on both sides of.
    """
    found = {metric.name: metric for metric in metrics}
    for name, threshold in thresholds.items():
        require_measured("a threshold", name, found)
        found[name] = _with_threshold(found[name], threshold)
    return tuple(found.values())


def require_measured(told: str, name: str, measured: Collection[str]) -> None:
    """Raise `ConfigError`, saying what was ``told`` of it, unless ``name`` is ``measured``."""
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
    """Return the lowest and the highest score that ``metric`` says it gives; infinite if unsaid."""
    scale = getattr(metric, "scale", None) or getattr(metric, "levels", None)
    if scale:
        return float(min(scale)), float(max(scale))
    told = [float(number) for number in _NUMBER.findall(getattr(metric, "range", ""))]
    return (min(told), max(told)) if told else (-math.inf, math.inf)


def metric_names() -> tuple[str, ...]:
    """Return the names of all metrics: ours, then those of other packages."""
    others = (entry.name for entry in entry_points(group=ENTRY_POINT_GROUP))
    return tuple(dict.fromkeys((*METRICS, *sorted(others))))


def _named(name: str) -> tuple[Metric, ...]:
    if name in METRIC_SETS:
        return METRIC_SETS[name]()
    if name in METRICS:
        return (METRICS[name](),)
    brought = entry_points(group=ENTRY_POINT_GROUP, name=name)
    if brought:
        return (_made(next(iter(brought))),)
    msg = f"unknown metric {name!r}; there are {', '.join([*metric_names(), *METRIC_SETS])}"
    raise ConfigError(msg)


def _made(entry: EntryPoint) -> Metric:
    """Return the metric that another package brings."""
    try:
        metric = entry.load()()
    except (ImportError, AttributeError, TypeError) as error:
        msg = f"the metric {entry.name!r} of {entry.value} could not be made: {error}"
        raise ConfigError(msg) from error
    return _checked(metric)


def _checked(given: Metric | MetricFunction) -> Metric:
    """Return ``given``, a function as a metric; of a user's own, anything may be missing."""
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
