"""Offer the metrics behind the evaluator interfaces of Haystack, LangSmith and LangChain.

These frameworks are not imported.
"""

from __future__ import annotations

from rag_eval_otel.errors import ConfigError
from rag_eval_otel.metrics import resolve_metrics
from rag_eval_otel.metrics.outcome import Metric


def single_metric(metric: str | Metric) -> Metric:
    """Return ``metric``, or the metric with this name if ``metric`` is a name.

    Raises `ConfigError` if ``metric`` is the name of a set of several metrics.
    """
    first, *others = resolve_metrics([metric])
    if others:
        names = ", ".join(each.name for each in (first, *others))
        msg = f"{metric!r} is a set of metrics; make an evaluator of each: {names}"
        raise ConfigError(msg)
    return first
