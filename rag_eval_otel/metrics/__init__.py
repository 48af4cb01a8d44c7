"""The metrics: each metric computes a score of one sample (question, contexts, answer)."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from difflib import get_close_matches
from functools import partial
from typing import Any

from rag_eval_otel.errors import ConfigError
from rag_eval_otel.metrics.base import Metric as Metric
from rag_eval_otel.metrics.base import RatedMetric, TaskMetric
from rag_eval_otel.metrics.citations import CitationPrecision as CitationPrecision
from rag_eval_otel.metrics.citations import CitationRecall as CitationRecall
from rag_eval_otel.metrics.context import CONTEXT
from rag_eval_otel.metrics.context import StatementContextRelevance as StatementContextRelevance
from rag_eval_otel.metrics.correctness import CORRECT, AnswerExactMatch
from rag_eval_otel.metrics.correctness import AnswerCorrectness as AnswerCorrectness
from rag_eval_otel.metrics.correctness import Correctness as Correctness
from rag_eval_otel.metrics.correctness import SemanticSimilarity as SemanticSimilarity
from rag_eval_otel.metrics.custom import FunctionMetric as FunctionMetric
from rag_eval_otel.metrics.custom import Guideline as Guideline
from rag_eval_otel.metrics.custom import InstanceRubric as InstanceRubric
from rag_eval_otel.metrics.custom import LLMMetric as LLMMetric
from rag_eval_otel.metrics.custom import MetricFunction as MetricFunction
from rag_eval_otel.metrics.custom import Rubric as Rubric
from rag_eval_otel.metrics.groundedness import GROUNDED
from rag_eval_otel.metrics.groundedness import Faithfulness as Faithfulness
from rag_eval_otel.metrics.groundedness import StatementFaithfulness as StatementFaithfulness
from rag_eval_otel.metrics.ranking import RANKING, RankingMetric
from rag_eval_otel.metrics.relevancy import RELEVANCY
from rag_eval_otel.metrics.relevancy import AnswerRelevancy as AnswerRelevancy
from rag_eval_otel.metrics.relevancy import DecompositionRelevancy as DecompositionRelevancy
from rag_eval_otel.metrics.relevancy import IntentRelevancy as IntentRelevancy
from rag_eval_otel.metrics.relevancy import MultiMethodRelevancy as MultiMethodRelevancy
from rag_eval_otel.metrics.relevancy import NeedlessRefusal as NeedlessRefusal
from rag_eval_otel.metrics.relevancy import ReverseRelevancy as ReverseRelevancy
from rag_eval_otel.registry import Registry

_NAME = re.compile(r"[a-z][a-z0-9_]*")
_RESERVED = frozenset(
    "annotator cause citations contexts cost currency drift duration history injection judge label"
    " normalized_score offline outcome overall reason retrieval sampling status threshold tokens"
    " truncated unsupported version".split()
)
"""Names that no metric can have, because ``rag.evaluation.<name>`` is a value of the evaluation."""

_ROWS: tuple[TaskMetric | RatedMetric | RankingMetric, ...]
_ROWS = (*RELEVANCY, *GROUNDED, *CONTEXT, *RANKING, *CORRECT)
_CLASSES: tuple[Callable[..., Metric], ...] = (
    *(AnswerCorrectness, AnswerExactMatch, Correctness, SemanticSimilarity),
    *(AnswerRelevancy, DecompositionRelevancy, IntentRelevancy),
    *(CitationPrecision, CitationRecall, NeedlessRefusal),
    *(MultiMethodRelevancy, ReverseRelevancy, Faithfulness, StatementFaithfulness),
    *(Guideline, InstanceRubric, Rubric, StatementContextRelevance),
)
_MADE = {row.name: partial(replace, row) for row in _ROWS} | {one().name: one for one in _CLASSES}
METRICS: Mapping[str, Callable[..., Metric]] = dict(sorted(_MADE.items()))
"""The built-in metrics by name. Calling a value with options makes the metric."""

_DUAL: Mapping[str, Mapping[str, Any]] = {
    "context_relevance": {"judges": 2},
    "faithfulness": {"form": "full"},
    "response_groundedness": {"judges": 2},
}
"""The options of metrics with which they are what their sources define."""
_ONLINE = (
    *("answer_relevancy", "faithfulness", "context_utilization"),
    *("statement_context_relevance", "multi_method_relevancy"),
)
_REFERENCE = (*_ONLINE, "context_precision", "context_recall", "answer_correctness")
_RETRIEVAL = ("hit_rate", "mrr", "retrieval_precision", "retrieval_recall", "average_precision")


def _made(names: Iterable[str], options: Mapping[str, Any] | None = None) -> tuple[Metric, ...]:
    return tuple(METRICS[name](**(options or {}).get(name, {})) for name in names)


METRIC_SETS: Mapping[str, Callable[[], tuple[Metric, ...]]] = {
    "default": partial(_made, ("answer_relevancy", *_DUAL)),
    "dual": partial(_made, ("answer_relevancy", *_DUAL), _DUAL),
    "full": partial(_made, _DUAL, {n: {**_DUAL[n], "name": f"{n}_full"} for n in _DUAL}),
    "online": partial(_made, _ONLINE),
    "reference": partial(_made, _REFERENCE),
    "retrieval": partial(_made, (*_RETRIEVAL, "ndcg")),
}
"""Named sets of metrics: ``dual`` and ``full`` measure as the sources of the metrics define it."""

_PACKAGES = Registry(kind="metric", built_in={}, also=(*METRICS, *METRIC_SETS))
"""The metrics of other packages."""


def metric(name: str, /, **options: Any) -> Metric:
    """Return the metric called ``name``, as in ``metric("ndcg", k=10)``, or raise `ConfigError`."""
    if name not in METRICS:
        return _checked(_PACKAGES.make(name, **options))
    try:
        return METRICS[name](**options)
    except TypeError as error:
        raise ConfigError(f"the metric {name!r} cannot be made: {error}") from error


def resolve_metrics(wanted: Iterable[str | Metric | MetricFunction]) -> tuple[Metric, ...]:
    """Return the metrics that ``wanted`` has or names; `ConfigError` for none, or equal names."""
    metrics: list[Metric] = []
    for item in [wanted] if isinstance(wanted, str) else wanted:
        if isinstance(item, str):
            metrics += METRIC_SETS[item]() if item in METRIC_SETS else (metric(item),)
        else:
            metrics.append(_checked(item))
    names = [metric.name for metric in metrics]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ConfigError(f"metrics named twice: {', '.join(twice)}; give each its own name=...")
    if not metrics:
        raise ConfigError("no metrics; name at least one, or 'default'")
    return tuple(metrics)


def with_thresholds(
    metrics: Iterable[Metric], thresholds: Mapping[str, float]
) -> tuple[Metric, ...]:
    """Return ``metrics`` with ``thresholds``; `ConfigError` if a name or a value does not fit."""
    by_name: dict[str, Any] = {metric.name: metric for metric in metrics}
    for name, threshold in thresholds.items():
        require_measured(name, by_name, option="a threshold")
        if "threshold" not in getattr(by_name[name], "__dataclass_fields__", {}):
            raise ConfigError(f"the metric {name!r} has no threshold that could be set")
        low, high = scale_of(by_name[name])
        if not low <= threshold <= high:
            bounds = f"from {low:g} to {high:g}"
            raise ConfigError(f"the threshold of {name} must be {bounds}, not {threshold:g}")
        by_name[name] = replace(by_name[name], threshold=threshold)
    return tuple(by_name.values())


def require_measured(name: str, measured: Collection[str], *, option: str) -> None:
    if name not in measured:
        near = get_close_matches(name, measured, n=1)
        meant = f"; did you mean {near[0]}?" if near else "."
        listed = ", ".join(sorted(measured))
        text = f"there is {option} of {name!r}, which is not measured{meant}"
        raise ConfigError(f"{text} Measured are: {listed}")


def scale_of(metric: Metric) -> tuple[float, float]:
    """Return the lowest and the highest score of ``metric``; infinite if it states no scale."""
    low, high = getattr(metric, "scale", (-math.inf, math.inf))
    return float(low), float(high)


def metric_names() -> tuple[str, ...]:
    return tuple(dict.fromkeys((*METRICS, *_PACKAGES.names())))


def _checked(wanted: Metric | MetricFunction) -> Metric:
    candidate: Any = wanted
    if callable(wanted) and not isinstance(wanted, type) and not hasattr(wanted, "measure"):
        candidate = FunctionMetric(function=wanted)
    if isinstance(candidate, type):
        raise ConfigError(f"{candidate.__name__} is a class; pass {candidate.__name__}()")
    missing = [part for part in ("name", "needs", "measure") if not hasattr(candidate, part)]
    if missing:
        raise ConfigError(f"{candidate!r} is no metric: it has no {', '.join(missing)}")
    if not _NAME.fullmatch(candidate.name) or candidate.name in _RESERVED:
        msg = f"a metric can't be named {candidate.name!r}; use a-z, 0-9 and _, and none of "
        raise ConfigError(msg + ", ".join(sorted(_RESERVED)))
    checked: Metric = candidate
    return checked
