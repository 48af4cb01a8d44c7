"""The sinks of a live pipeline: those its options ask for, and those found by name."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, cast

from rag_eval_otel.config import Config
from rag_eval_otel.drift.options import DriftOptions
from rag_eval_otel.errors import ConfigError
from rag_eval_otel.metrics import resolve_metrics
from rag_eval_otel.registry import Registry
from rag_eval_otel.sinks.drift import DriftSink, DriftTelemetry
from rag_eval_otel.sinks.events import EventSink
from rag_eval_otel.types import Sink

if TYPE_CHECKING:
    from opentelemetry._logs import LoggerProvider
    from opentelemetry.metrics import MeterProvider

SINKS = Registry(kind="sink", built_in={})
"""Sinks that are named in ``instrument(sinks=[...])``; the built-in ones are always there."""


def find_sinks(sinks: Iterable[Sink | str]) -> tuple[Sink, ...]:
    """Return ``sinks``, with an instance of the named class or function for each name.

    Raises `ConfigError` for an unknown name, and for an object without a method ``emit``.
    """
    found = tuple(SINKS.find(sink)() if isinstance(sink, str) else sink for sink in sinks)
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
    """Yield the sinks that ``config`` asks for.

    The resource of ``provider`` has the name of the service. ``guard`` handles exceptions of the
    user's drift detectors.
    """
    yield EventSink(logs, explanations=config.explanations)
    if config.drift == "off" or config.sdk_disabled:
        return
    yield DriftSink(
        DriftOptions() if config.drift == "on" else cast("DriftOptions", config.drift),
        DriftTelemetry(meter_provider=meters, logger_provider=logs),
        service=service_name(provider),
        guard=guard,
    )


def check_targets(config: Config) -> None:
    """Raise `ConfigError` if a drift target names a metric that ``config`` does not measure."""
    known = {metric.name for metric in resolve_metrics(config.metrics)}
    unknown = ", ".join(sorted(set(getattr(config.drift, "targets", ())) - known))
    if unknown:
        msg = f"drift has targets for {unknown}, but metrics has {', '.join(sorted(known))}"
        raise ConfigError(msg)


def service_name(provider: Any) -> str:
    """Return ``service.name`` of the provider's resource, or ``""`` if there is none."""
    attributes = getattr(getattr(provider, "resource", None), "attributes", {})
    return str(attributes.get("service.name", ""))
