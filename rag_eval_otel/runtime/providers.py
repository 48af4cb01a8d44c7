"""Find and create the providers of the OpenTelemetry SDK, and attach to a tracer provider.

This is the only module that uses private names of the SDK.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from importlib.metadata import entry_points
from threading import Thread
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from opentelemetry import _logs, metrics, trace
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs.export import BatchLogRecordProcessor
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import MetricReader, PeriodicExportingMetricReader
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

from rag_eval_otel.environment import Signal, exporter_names, guessed_grpc_endpoint
from rag_eval_otel.errors import ConfigError
from rag_eval_otel.log import address_of, log

if TYPE_CHECKING:
    from opentelemetry.trace import TracerProvider as AnyTracerProvider


_SERVICE = "service.name"


def check_processor(given: object) -> None:
    """Raise `ConfigError` unless ``given`` has the methods of a span processor."""
    if not all(callable(getattr(given, name, None)) for name in _METHODS):
        msg = f"{given!r} is no span processor; wrap an exporter: BatchSpanProcessor(exporter)"
        raise ConfigError(msg)


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
        """Return providers that export through the given exporters, in batches.

        If the environment gives the service no name, ``service`` is the name.
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
        """Shut down all three; the last spans, whose scores make metrics and events, come first."""
        self.tracer_provider.shutdown()
        self.logger_provider.shutdown()
        self.meter_provider.shutdown()


def global_or_new_tracer_provider() -> AnyTracerProvider:
    """Return the application's tracer provider; if it has none, make and set the providers.

    Existing meter and logger providers of the application stay in place.
    """
    current = trace.get_tracer_provider()
    if not isinstance(current, trace.ProxyTracerProvider):
        return current
    log.info("no tracer provider is set: making one from the OTEL_* variables")
    has_meters = _is_set(metrics.get_meter_provider())
    has_logs = _is_set(_logs.get_logger_provider())
    made = Providers.exporting(
        traces=exporters("traces"),
        metrics=() if has_meters else exporters("metrics"),
        logs=() if has_logs else exporters("logs"),
    )
    trace.set_tracer_provider(made.tracer_provider)
    logging.getLogger(trace.__name__).addFilter(_explain_refusal)
    if not has_meters:
        metrics.set_meter_provider(made.meter_provider)
    if not has_logs:
        _logs.set_logger_provider(made.logger_provider)
    return made.tracer_provider


def _explain_refusal(record: logging.LogRecord) -> bool:
    """Log what to do if the API refuses a tracer provider, because there is ours already."""
    if str(record.msg).startswith("Overriding of current TracerProvider"):
        log.warning(
            "set_tracer_provider() came after instrument(), which has made a provider from the"
            " OTEL_* variables; the provider set now gets no spans. Call set_tracer_provider()"
            " first, or instrument(tracer_provider=...)"
        )
    return True


def logger_provider_or_global(given: _logs.LoggerProvider | None) -> _logs.LoggerProvider:
    """Return the logger provider ``given``; if it is None, return the global logger provider."""
    return given or _logs.get_logger_provider()


def missing_providers() -> list[str]:
    """Return which providers of metrics and of log records the application has not set by now."""
    found = {
        "MeterProvider": metrics.get_meter_provider(),
        "LoggerProvider": _logs.get_logger_provider(),
    }
    return [name for name, provider in found.items() if not _is_set(provider)]


def has_logger_provider(given: _logs.LoggerProvider | None) -> bool:
    """Return True if log records can be emitted: ``given`` or the global logger provider is set."""
    return _is_set(logger_provider_or_global(given))


def _is_set(provider: object) -> bool:
    """Return True if ``provider`` was set by the application, False if it is the API's stand-in."""
    return not any(word in type(provider).__name__ for word in ("Proxy", "NoOp"))


def _reader(exporter: Any) -> MetricReader:
    is_reader = isinstance(exporter, MetricReader)
    return exporter if is_reader else PeriodicExportingMetricReader(exporter)


def exporters(signal: Signal) -> Iterator[Any]:
    """Yield the exporters that the ``OTEL_*`` variables name; raise `ConfigError` without one."""
    for name in exporter_names(signal):
        found = entry_points(group=f"opentelemetry_{signal}_exporter", name=name)
        if not found:
            msg = (
                f"OTEL_{signal.upper()}_EXPORTER names {name!r}: no such exporter is installed;"
                " use otlp, console or none, or install the one that is meant"
            )
            raise ConfigError(msg)
        if name == "otlp_proto_grpc" and (url := guessed_grpc_endpoint(signal)):
            probe = "rag-eval-otel-probe"
            Thread(target=_warn_if_http, args=(url,), daemon=True, name=probe).start()
        yield next(iter(found)).load()()


def _warn_if_http(url: str) -> None:
    """Log which variable to set if the server at ``url``, to which gRPC is sent, speaks HTTP."""
    if answers_http(url, timeout=10.0):  # as long as the SDK's exporters wait by default
        log.warning(
            "the server at %s speaks HTTP, and OTLP is sent to it over gRPC, because its port is"
            " not 4318: set OTEL_EXPORTER_OTLP_PROTOCOL=http/protobuf",
            address_of(url if "://" in url else f"http://{url}"),
        )


def answers_http(url: str, *, timeout: float) -> bool:
    """Return True if the server at ``url``, which may have no scheme, answers HTTP/1.1 requests."""
    parts = urlsplit(url if "://" in url else f"//{url}")
    if parts.hostname is None:
        return False
    kind = HTTPSConnection if parts.scheme == "https" else HTTPConnection
    try:
        with closing(kind(parts.hostname, parts.port, timeout=timeout)) as connection:
            connection.request("HEAD", "/v1/traces")
            return connection.getresponse().status > 0
    except (OSError, ValueError, HTTPException):
        return False


# --- attaching to a tracer provider ---------------------------------------------------------------

_OWNER = "_rag_eval_otel"
_REPLACED = "_rag_eval_otel_before"
_METHODS = ("shutdown", "force_flush", "on_start", "on_end")


class OriginalProcessor:
    """The methods of a provider's span processor, before `Attachment` replaces them."""

    def __init__(self, multi: Any) -> None:
        self.on_start: Callable[..., None] = multi.on_start
        self.on_end: Callable[[ReadableSpan], None] = multi.on_end
        self.force_flush: Callable[..., bool] = multi.force_flush
        self.shutdown: Callable[[], None] = multi.shutdown


@dataclass(frozen=True, slots=True, kw_only=True)
class Attachment:
    """Put a span processor in front of all span processors of one tracer provider.

    In the SDK, all tracers and spans of a provider refer to one multi-processor, which calls the
    span processors. `attach` replaces its methods, also for spans that have started before, and
    before processors that are added later.

    ``target`` is the multi-processor. A provider that is not the SDK's has no multi-processor. For
    such a provider, ``target`` is the provider itself, and only `mark` and `owner` can be used.
    """

    target: Any

    @property
    def receives_spans(self) -> bool:
        """Whether `attach` can be called, which needs a provider of the OpenTelemetry SDK."""
        return all(hasattr(self.target, name) for name in _METHODS)

    @property
    def owner(self) -> object | None:
        """The object that `mark` has stored on the provider, or None."""
        return getattr(self.target, _OWNER, None)

    @property
    def others(self) -> tuple[Any, ...] | None:
        """The span processors that were added to the provider; None if they are not known."""
        return getattr(self.target, "_span_processors", None)

    def remove_repetitions(self, processor: SpanProcessor) -> bool:
        """Keep ``processor`` only once on the provider; return True if it was repeated."""
        others = self.others or ()
        if others.count(processor) <= 1:
            return False
        self.target._span_processors = tuple(dict.fromkeys(others))  # noqa: SLF001
        return True

    def mark(self, owner: object) -> None:
        """Store ``owner`` on the provider, so that the property `owner` finds it later."""
        with suppress(AttributeError):  # an object of a class with slots takes no new attribute
            setattr(self.target, _OWNER, owner)

    def attach(self, processor: SpanProcessor) -> None:
        """Replace the methods of the multi-processor by the methods of ``processor``."""
        methods = vars(self.target)
        methods[_REPLACED] = {name: methods[name] for name in _METHODS if name in methods}
        methods.update((name, getattr(processor, name)) for name in _METHODS)

    def detach(self, processor: SpanProcessor | None) -> None:
        """Undo `mark`, and `attach` if a ``processor`` was attached.

        If another library has replaced a method in the meantime, its method stays.
        """
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
    found = Attachment(target=getattr(inner, "_active_span_processor", None))
    return found if found.receives_spans else Attachment(target=provider)


def attachment_of_span(span: object) -> Attachment:
    """Return the `Attachment` of the provider that started ``span``."""
    return Attachment(target=getattr(span, "_span_processor", None))
