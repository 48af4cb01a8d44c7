"""Create the sinks of a live pipeline, from its options and from the names of sinks.

A *sink* is called with each evaluation.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any, cast

from rag_eval_otel.config import Config
from rag_eval_otel.drift.monitor import DriftOptions
from rag_eval_otel.environment import sdk_disabled
from rag_eval_otel.errors import ConfigError
from rag_eval_otel.export.backends.delivery import BackendSink
from rag_eval_otel.export.drift import DriftSink, DriftTelemetry
from rag_eval_otel.export.events import EventSink
from rag_eval_otel.export.metrics import OVERALL
from rag_eval_otel.log import log
from rag_eval_otel.metrics import resolve_metrics
from rag_eval_otel.metrics.base import kinds_of
from rag_eval_otel.registry import Registry
from rag_eval_otel.runtime.providers import missing_providers
from rag_eval_otel.types import Evaluation, Score, Sink

if TYPE_CHECKING:
    from opentelemetry._logs import LoggerProvider
    from opentelemetry.metrics import MeterProvider


def print_scores(evaluation: Evaluation) -> None:
    """Print a line with the scores of a turn, for a first look: the sink ``"print"``."""
    scores = ", ".join(map(_score_text, evaluation.scores))
    sys.stdout.write(f"{evaluation.label or 'no label'}: {scores}\n")


def _score_text(score: Score) -> str:
    value = score.reason if score.value is None else f"{score.value:.2f}"
    return " ".join(filter(None, [score.name, value, score.label]))


def warn_of_missing_providers(needed: Collection[str], _: Evaluation) -> None:
    """Log once if one of the OpenTelemetry providers ``needed`` is not set.

    This is a sink, because the application may set providers until the first evaluation.
    """
    missing = set(needed).intersection(missing_providers())
    if missing:
        _warn_of_missing(*sorted(missing, reverse=True))


_LOST: Mapping[str, str] = {
    "MeterProvider": "metrics of scores, turns and drift are not exported",
    "LoggerProvider": "score events are written on the span, and events of drift and feedback lost",
}


@cache
def _warn_of_missing(*names: str) -> None:
    losses = "; ".join(f"no {name} is set: {_LOST[name]}" for name in names)
    log.warning("%s; docs/opentelemetry.md shows how to set one, or to do without", losses)


SINKS = Registry(kind="sink", built_in={"print": "rag_eval_otel.export.factory:print_scores"})
"""Finds a sink that the user names in ``instrument(sinks=[...])``: a function, or a class.

``print`` is for a first look. The other built-in sinks have no names: every pipeline has them.
"""


def find_sinks(sinks: Iterable[Sink | str]) -> tuple[Sink, ...]:
    """Return ``sinks``, in which each name is replaced by the sink of this name.

    Another package registers a function under the name, or a class, of which an instance is made.
    Raises `ConfigError` if a name is unknown, or if an object cannot be called.
    """
    value: object = sinks
    if isinstance(value, str) or not isinstance(value, Iterable):
        msg = f"sinks must be a sequence of sinks and names, not {value!r}"
        raise ConfigError(msg)
    return tuple(_named_sink(sink) if isinstance(sink, str) else _checked(sink) for sink in sinks)


def _named_sink(name: str) -> Sink:
    sink = SINKS.find(name)
    return _checked(SINKS.make(name) if isinstance(sink, type) else sink)


def _checked(sink: Any) -> Sink:
    if not callable(sink):
        msg = f"a sink must be a name, a function, or an object with __call__, not {sink!r}"
        raise ConfigError(msg)
    checked: Sink = sink
    return checked


def build_sinks(
    config: Config,
    *,
    provider: object,
    meters: MeterProvider | None = None,
    logs: LoggerProvider | None = None,
) -> Iterator[Sink]:
    """Yield the sinks for log events, for backends and for drift, as far as ``config`` asks.

    ``provider`` is the tracer provider; its resource has the name of the service.
    """
    if config.score_events != "span":
        yield EventSink(logs, explanations=config.explanations)
    if config.backends and not sdk_disabled():
        yield build_backends(config, meters)
    if config.drift is False or sdk_disabled():
        return
    yield DriftSink(
        DriftOptions() if config.drift is True else cast("DriftOptions", config.drift),
        DriftTelemetry(meter_provider=meters, logger_provider=logs),
        service=service_name(provider),
    )


def build_backends(config: Config, meters: MeterProvider | None = None) -> BackendSink:
    """Return the sink for the backends that ``config`` names."""
    metrics = resolve_metrics(config.metrics)
    return BackendSink(
        config.backends,
        asking=frozenset(metric.name for metric in metrics if kinds_of(metric)),
        explanations=config.explanations,
        meter_provider=meters,
    )


def check_targets(config: Config) -> None:
    """Raise `ConfigError` if a drift target names a metric that ``config`` does not measure."""
    known = {metric.name for metric in resolve_metrics(config.metrics)}
    compared = {f"{name}.agreement" for name in (*known, OVERALL)}
    unknown = ", ".join(sorted(set(getattr(config.drift, "targets", ())) - known - compared))
    if unknown:
        msg = f"drift has targets for {unknown}, but metrics has {', '.join(sorted(known))}"
        raise ConfigError(msg)


def service_name(provider: Any) -> str:
    """Return ``service.name`` from the resource of ``provider``, or ``""`` if there is none."""
    attributes = getattr(getattr(provider, "resource", None), "attributes", {})
    return str(attributes.get("service.name", ""))
