"""Create the sinks of a live pipeline, from its options and from the names of sinks.

A *sink* is an object with a method ``emit`` that is called with each evaluation.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, cast

from rag_eval_otel.config import Config
from rag_eval_otel.drift.options import DriftOptions
from rag_eval_otel.errors import ConfigError
from rag_eval_otel.metrics import resolve_metrics
from rag_eval_otel.registry import Registry
from rag_eval_otel.sinks.backends.sink import BackendSink
from rag_eval_otel.sinks.drift import DriftSink, DriftTelemetry
from rag_eval_otel.sinks.events import EventSink
from rag_eval_otel.sinks.instruments import OVERALL
from rag_eval_otel.types import Evaluation, Score, Sink

if TYPE_CHECKING:
    from opentelemetry._logs import LoggerProvider
    from opentelemetry.metrics import MeterProvider


class PrintSink:
    """The sink ``"print"``: it prints a line with the scores of each turn, for a first look."""

    def emit(self, evaluation: Evaluation) -> None:
        scores = ", ".join(map(_told, evaluation.scores))
        sys.stdout.write(f"{evaluation.label or 'no label'}: {scores}\n")


def _told(score: Score) -> str:
    value = score.reason if score.value is None else f"{score.value:.2f}"
    return " ".join(filter(None, [score.name, value, score.label]))


SINKS = Registry(kind="sink", built_in={"print": "rag_eval_otel.sinks.factory:PrintSink"})
"""Finds the class of a sink that the user names in ``instrument(sinks=[...])``.

``print`` is for a first look. The other built-in sinks have no names: every pipeline has them.
"""


def find_sinks(sinks: Iterable[Sink | str]) -> tuple[Sink, ...]:
    """Return ``sinks``, in which each name is replaced by a new sink.

    Another package registers a class, or a function that makes a sink, under the name. The class or
    function is called without arguments. Raises `ConfigError` if a name is unknown, or if an object
    has no method ``emit``.
    """
    given: object = sinks
    if isinstance(given, str) or not isinstance(given, Iterable):
        msg = f"sinks must be a sequence of sinks and names, not {given!r}"
        raise ConfigError(msg)
    found = tuple(SINKS.make(sink) if isinstance(sink, str) else sink for sink in sinks)
    for sink in found:
        if not callable(getattr(sink, "emit", None)):
            msg = f"a sink must be a name, or an object with a method emit(), not {sink!r}"
            raise ConfigError(msg)
    return found


def build_sinks(
    config: Config,
    *,
    provider: object,
    meters: MeterProvider | None = None,
    logs: LoggerProvider | None = None,
    guard: AbstractContextManager[object, bool | None] | None = None,
) -> Iterator[Sink]:
    """Yield the sinks for log events, for backends and for drift, as far as ``config`` asks.

    ``provider`` is the tracer provider; its resource has the name of the service. ``guard`` is a
    context manager that handles exceptions of drift detectors that the user provides.
    """
    if config.score_events != "span":
        yield EventSink(logs, explanations=config.explanations)
    if config.backends and not config.sdk_disabled:
        yield build_backends(config, meters)
    if config.drift == "off" or config.sdk_disabled:
        return
    yield DriftSink(
        DriftOptions() if config.drift == "on" else cast("DriftOptions", config.drift),
        DriftTelemetry(meter_provider=meters, logger_provider=logs),
        service=service_name(provider),
        guard=guard,
    )


def build_backends(config: Config, meters: MeterProvider | None = None) -> BackendSink:
    """Return the sink for the backends that ``config`` names."""
    metrics = resolve_metrics(config.metrics)
    return BackendSink(
        config.backends,
        asking=frozenset(metric.name for metric in metrics if metric.asks),
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
