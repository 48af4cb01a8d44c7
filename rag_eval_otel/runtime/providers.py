"""Find, make and instrument the providers of the OpenTelemetry SDK."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any

from opentelemetry import _logs, metrics, trace
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs.export import BatchLogRecordProcessor
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import MetricReader, PeriodicExportingMetricReader
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

from rag_eval_otel.config import Signal, exporter_names
from rag_eval_otel.errors import ConfigError

if TYPE_CHECKING:
    from opentelemetry.trace import TracerProvider as AnyTracerProvider


_log = logging.getLogger(__name__)

_SERVICE = "service.name"


@dataclass(frozen=True, slots=True, kw_only=True)
class Providers:
    """The three providers of one application."""

    tracer_provider: TracerProvider
    meter_provider: MeterProvider
    logger_provider: LoggerProvider

    @classmethod
    def exporting(
        cls,
        *,
        traces: Iterable[Any],
        metrics: Iterable[Any],
        logs: Iterable[Any],
        service: str | None = None,
    ) -> Providers:
        """Return providers that export in batches through these exporters.

        ``service`` is the name of a service to which the environment gives none.
        """
        resource = Resource.create()
        if service and str(resource.attributes[_SERVICE]).startswith("unknown_service"):
            resource = resource.merge(Resource({_SERVICE: service}))
        made = cls(
            tracer_provider=TracerProvider(resource=resource),
            meter_provider=MeterProvider([_reader(e) for e in metrics], resource=resource),
            logger_provider=LoggerProvider(resource=resource),
        )
        for exporter in traces:
            made.tracer_provider.add_span_processor(BatchSpanProcessor(exporter))
        for exporter in logs:
            made.logger_provider.add_log_record_processor(BatchLogRecordProcessor(exporter))
        return made

    def shutdown(self) -> None:
        """Export what is left, traces first: scoring them makes metrics and events."""
        self.tracer_provider.shutdown()
        self.logger_provider.shutdown()
        self.meter_provider.shutdown()


def global_or_new_tracer_provider() -> AnyTracerProvider:
    """Return the application's tracer provider; where it has none, make all three and set them.

    Meter and logger providers that the application has are left alone.
    """
    current = trace.get_tracer_provider()
    if not isinstance(current, trace.ProxyTracerProvider):
        return current
    _log.info("no tracer provider is set: making one from the OTEL_* variables")
    has_meters, has_logs = (
        _is_set(metrics.get_meter_provider()),
        _is_set(_logs.get_logger_provider()),
    )
    made = Providers.exporting(
        traces=exporters("traces"),
        metrics=() if has_meters else exporters("metrics"),
        logs=() if has_logs else exporters("logs"),
    )
    trace.set_tracer_provider(made.tracer_provider)
    if not has_meters:
        metrics.set_meter_provider(made.meter_provider)
    if not has_logs:
        _logs.set_logger_provider(made.logger_provider)
    return made.tracer_provider


def logger_provider_or_global(given: _logs.LoggerProvider | None) -> _logs.LoggerProvider:
    """Return the logger provider that was ``given``, or the application's."""
    return given or _logs.get_logger_provider()


def _is_set(provider: object) -> bool:
    """Tell a provider that was set from the API's stand-in."""
    return not any(word in type(provider).__name__ for word in ("Proxy", "NoOp"))


def _reader(exporter: Any) -> MetricReader:
    return (
        exporter if isinstance(exporter, MetricReader) else PeriodicExportingMetricReader(exporter)
    )


def exporters(signal: Signal) -> Iterator[Any]:
    """Yield the exporters that the ``OTEL_*`` variables ask for; `ConfigError` for unknown ones."""
    for name in exporter_names(signal):
        found = entry_points(group=f"opentelemetry_{signal}_exporter", name=name)
        if not found:
            msg = (
                f"OTEL_{signal.upper()}_EXPORTER names {name!r}: no such exporter is installed;"
                " use otlp, console or none, or install the one that is meant"
            )
            raise ConfigError(msg)
        yield next(iter(found)).load()()
