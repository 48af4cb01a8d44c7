"""Find, make and instrument the providers of the OpenTelemetry SDK."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

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
    from opentelemetry.context import Context
    from opentelemetry.sdk.trace import ReadableSpan, Span, SpanProcessor
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


class Downstream(Protocol):
    """What comes after: a span processor."""

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:
        """See a span start."""

    def on_end(self, span: ReadableSpan) -> None:
        """Take an ended span."""

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """Export what was taken."""

    def shutdown(self) -> None:
        """Take no more."""


P = TypeVar("P", bound="SpanProcessor")

_MARK = "_rag_eval_otel"
_BEFORE = "_rag_eval_otel_before"
_OVERRIDDEN = ("shutdown", "force_flush", "on_start", "on_end")


class Saved:
    """A provider's processor as it was before ours stood in front: its methods, bound."""

    def __init__(self, multi: SpanProcessor) -> None:
        """Remember the methods of ``multi`` before they are overridden."""
        self.on_start: Callable[..., None] = multi.on_start
        self.on_end: Callable[[ReadableSpan], None] = multi.on_end
        self._force_flush = multi.force_flush
        self._shutdown = multi.shutdown

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """Export what was taken."""
        return self._force_flush(timeout_millis)

    def shutdown(self) -> None:
        """Take no more."""
        self._shutdown()


@dataclass(frozen=True, slots=True, kw_only=True)
class Seat:
    """The place in front of a provider's processors. ``owner`` marks it as taken.

    Tracers and live spans all hold the provider's multi-processor, so overriding its methods on the
    instance reaches spans in flight and processors that are added later, too. A provider of another
    make has no such place; its own seat, ``multi``, can only be marked.
    """

    multi: Any

    @property
    def sees_spans(self) -> bool:
        """Tell whether spans come past here, or the provider is of another make."""
        return all(hasattr(self.multi, name) for name in _OVERRIDDEN)

    @property
    def owner(self) -> object | None:
        """Whoever has taken the seat."""
        return getattr(self.multi, _MARK, None)

    @property
    def processors(self) -> tuple[str, ...] | None:
        """The types of the provider's own processors; None where that cannot be told."""
        found = getattr(self.multi, "_span_processors", None)
        return None if found is None else tuple(type(one).__name__ for one in found)

    def take(self, processor: Callable[[Downstream], P]) -> P:
        """Put ``processor(downstream)`` in front; it gets every span from now on."""
        ours = processor(Saved(self.multi))
        methods = vars(self.multi)
        methods[_BEFORE] = {name: methods[name] for name in _OVERRIDDEN if name in methods}
        methods.update((name, getattr(ours, name)) for name in _OVERRIDDEN)
        return ours

    def sign(self, owner: object) -> None:
        """Mark the seat as taken by ``owner``."""
        with suppress(AttributeError):  # slots: then nobody will know
            setattr(self.multi, _MARK, owner)

    def leave(self, ours: SpanProcessor | None) -> None:
        """Let spans go to the provider's processors again, as if we had never been there.

        Where another library stands in front of us by now it stays, and we, closed, behind it.
        """
        with suppress(AttributeError):
            delattr(self.multi, _MARK)
        if ours is None:
            return
        methods = vars(self.multi)
        before = methods.pop(_BEFORE)
        for name in reversed(_OVERRIDDEN):
            if methods.get(name) == getattr(ours, name):
                methods.pop(name)
                if name in before:
                    methods[name] = before[name]


def find_seat(provider: object) -> Seat:
    """Return the seat of an SDK ``provider``, a proxy unwrapped, or the one of another make."""
    inner = getattr(provider, "provider", provider)
    seat = Seat(multi=getattr(inner, "_active_span_processor", None))
    return seat if seat.sees_spans else Seat(multi=provider)
