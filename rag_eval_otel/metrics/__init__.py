"""The metrics: pure definitions over typed judge replies and embeddings."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rag_eval_otel.errors import ConfigError
from rag_eval_otel.metrics.context import ContextRelevance
from rag_eval_otel.metrics.groundedness import (
    Faithfulness,
    ResponseGroundedness,
    StatementFaithfulness,
)
from rag_eval_otel.metrics.relevancy import AnswerRelevancy

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from rag_eval_otel.protocols import Metric

__all__ = [
    "METRICS",
    "METRIC_SETS",
    "AnswerRelevancy",
    "ContextRelevance",
    "Faithfulness",
    "ResponseGroundedness",
    "StatementFaithfulness",
    "resolve_metrics",
]

METRICS: Mapping[str, Callable[[], Metric]] = {
    "answer_relevancy": AnswerRelevancy,
    "context_relevance": ContextRelevance,
    "faithfulness": Faithfulness,
    "response_groundedness": ResponseGroundedness,
    "statement_faithfulness": StatementFaithfulness,
}
"""Every metric by name, with its default parameters."""

METRIC_SETS: Mapping[str, Callable[[], tuple[Metric, ...]]] = {
    "default": lambda: (
        AnswerRelevancy(),
        ContextRelevance(),
        Faithfulness(),
        ResponseGroundedness(),
    ),
    "lean": lambda: (
        AnswerRelevancy(),
        ContextRelevance(judges=1),
        StatementFaithfulness(),
        ResponseGroundedness(judges=1),
    ),
}
"""Named sets: ``default`` takes 4 fused judge requests a sample, ``lean`` 2."""


def resolve_metrics(wanted: Iterable[str | Metric]) -> tuple[Metric, ...]:
    """Return the metrics meant by names of metrics, names of sets, and metrics themselves.

    Raises `ConfigError` for a name that is not known, for two metrics of one name, and for none.
    """
    found: list[Metric] = []
    for item in wanted:
        found += _named(item) if isinstance(item, str) else (item,)
    names = [metric.name for metric in found]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        msg = f"metrics named twice: {', '.join(twice)}; give each a name of its own (name=...)"
        raise ConfigError(msg)
    if not found:
        msg = "no metrics; name at least one, or 'default'"
        raise ConfigError(msg)
    return tuple(found)


def _named(name: str) -> tuple[Metric, ...]:
    if name in METRIC_SETS:
        return METRIC_SETS[name]()
    if name in METRICS:
        return (METRICS[name](),)
    msg = f"unknown metric {name!r}; there are {', '.join([*METRICS, *METRIC_SETS])}"
    raise ConfigError(msg)
