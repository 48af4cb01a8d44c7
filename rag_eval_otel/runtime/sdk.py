"""Find and create the providers of the OpenTelemetry SDK, and attach to a tracer provider."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any

from opentelemetry import _logs, metrics, trace
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs.export import BatchLogRecordProcessor
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import MetricReader, PeriodicExportingMetricReader
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

from rag_eval_otel.environment import Signal, exporter_names
from rag_eval_otel.errors import ConfigError
from rag_eval_otel.log import log
from rag_eval_otel.runtime.guard import is_stand_in

if TYPE_CHECKING:
    from opentelemetry.trace import TracerProvider as AnyTracerProvider

_OWNER = "_rag_eval_otel"
_REPLACED = "_rag_eval_otel_before"
_METHODS = ("shutdown", "force_flush", "on_start", "on_end")


def check_processor(processor: object) -> None:
    """Raise `ConfigError` unless ``processor`` has the methods of a span processor."""
    if not all(callable(getattr(processor, name, None)) for name in _METHODS):
        raise ConfigError(
            f"{processor!r} is no span processor; wrap an exporter: BatchSpanProcessor(exporter)"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Providers:
    """The tracer, meter and logger provider of one application."""

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
        """Return providers with these exporters (or readers). ``service`` is a default name."""
        resource = Resource.create()
        if service and str(resource.attributes["service.name"]).startswith("unknown_service"):
            resource = resource.merge(Resource({"service.name": service}))
        readers = [
            each if isinstance(each, MetricReader) else PeriodicExportingMetricReader(each)
            for each in metrics
        ]
        providers = cls(
            tracer_provider=TracerProvider(resource=resource),
            meter_provider=MeterProvider(readers, resource=resource),
            logger_provider=LoggerProvider(resource=resource),
        )
        for exporter in traces:
            providers.tracer_provider.add_span_processor(BatchSpanProcessor(exporter))
        for exporter in logs:
            processor = BatchLogRecordProcessor(exporter)
            providers.logger_provider.add_log_record_processor(processor)
        return providers

    def shutdown(self) -> None:
        """Shut down all three, tracers first, because the last spans make events and metrics."""
        self.tracer_provider.shutdown()
        self.logger_provider.shutdown()
        self.meter_provider.shutdown()


def global_or_new_tracer_provider() -> AnyTracerProvider:
    """Return the global tracer provider; if it is unset, set all unset providers by ``OTEL_*``."""
    current = trace.get_tracer_provider()
    if not isinstance(current, trace.ProxyTracerProvider):
        return current
    log.info("no tracer provider is set: making one from the OTEL_* variables")
    needs_meters = is_stand_in(metrics.get_meter_provider())
    needs_logs = is_stand_in(_logs.get_logger_provider())
    providers = Providers.exporting(
        traces=exporters("traces"),
        metrics=exporters("metrics") if needs_meters else (),
        logs=exporters("logs") if needs_logs else (),
    )
    trace.set_tracer_provider(providers.tracer_provider)
    if needs_meters:
        metrics.set_meter_provider(providers.meter_provider)
    if needs_logs:
        _logs.set_logger_provider(providers.logger_provider)
    return providers.tracer_provider


def exporters(signal: Signal) -> Iterator[Any]:
    for name in exporter_names(signal):
        entries = entry_points(group=f"opentelemetry_{signal}_exporter", name=name)
        if not entries:
            raise ConfigError(
                f"OTEL_{signal.upper()}_EXPORTER names {name!r}: no such exporter is installed;"
                " use otlp, console or none, or install the one that is meant"
            )
        yield next(iter(entries)).load()()


class OriginalProcessor(SpanProcessor):
    """The methods of a provider's span processor, before `Attachment` replaces them."""

    def __init__(self, multi: Any) -> None:
        vars(self).update((name, getattr(multi, name)) for name in _METHODS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Attachment:
    """Puts a span processor before all others, by replacing methods of a provider's ``target``."""

    target: Any

    @property
    def receives_spans(self) -> bool:
        """Whether `attach` can be called, which needs a provider of the OpenTelemetry SDK."""
        return all(hasattr(self.target, name) for name in _METHODS)

    @property
    def owner(self) -> object | None:
        return getattr(self.target, _OWNER, None)

    @property
    def others(self) -> tuple[Any, ...] | None:
        return getattr(self.target, "_span_processors", None)

    def mark(self, owner: object) -> None:
        with suppress(AttributeError):  # an object of a class with slots takes no new attribute
            setattr(self.target, _OWNER, owner)

    def attach(self, processor: SpanProcessor) -> None:
        methods = vars(self.target)
        methods[_REPLACED] = {name: methods[name] for name in _METHODS if name in methods}
        methods.update((name, getattr(processor, name)) for name in _METHODS)

    def detach(self, processor: SpanProcessor | None) -> None:
        """Undo `mark`, and `attach` unless ``processor`` is None; methods replaced since stay."""
        with suppress(AttributeError):
            delattr(self.target, _OWNER)
        if processor is None:
            return
        methods = vars(self.target)
        replaced = methods.pop(_REPLACED)
        for name in reversed(_METHODS):
            if methods.get(name) == getattr(processor, name):
                methods.pop(name)
                if name in replaced:
                    methods[name] = replaced[name]


def attachment_of(provider: object) -> Attachment:
    """Return the `Attachment` of ``provider``, or of the provider behind a proxy."""
    inner = getattr(provider, "provider", provider)
    attachment = Attachment(target=getattr(inner, "_active_span_processor", None))
    return attachment if attachment.receives_spans else Attachment(target=provider)
