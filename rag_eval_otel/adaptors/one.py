"""The one metric that an evaluator of others can be."""

from __future__ import annotations

from rag_eval_otel.errors import ConfigError
from rag_eval_otel.metrics import resolve_metrics
from rag_eval_otel.metrics.outcome import Metric


def the_one(metric: str | Metric) -> Metric:
    """Return ``metric``, or the one of that name; `ConfigError` for the name of a set."""
    one, *others = resolve_metrics([metric])
    if others:
        names = ", ".join(each.name for each in (one, *others))
        msg = f"{metric!r} is a set of metrics; make an evaluator of each: {names}"
        raise ConfigError(msg)
    return one
