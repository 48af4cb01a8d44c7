"""What an OTLP receiver got, as plain records: spans, log records, metric points."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

if TYPE_CHECKING:
    from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
    from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
        ExportMetricsServiceRequest,
    )
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
    from opentelemetry.proto.common.v1.common_pb2 import (
        AnyValue,
        InstrumentationScope,
        KeyValue,
    )
    from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord
    from opentelemetry.proto.metrics.v1.metrics_pb2 import Metric

Attributes: TypeAlias = "dict[str, Any]"
MetricKind: TypeAlias = "Literal['histogram', 'sum', 'gauge', 'exponential_histogram']"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceivedEvent:
    """A span event; `time_ns` since the epoch."""

    name: str
    attributes: Attributes
    time_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceivedLink:
    """A span link."""

    trace_id: int
    span_id: int
    attributes: Attributes


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceivedSpan:
    """A span: `kind` as in `INTERNAL`, `status` as in `UNSET`, times in ns since the epoch.

    `trace_flags` are the W3C flags of the protocol's field, which the Python SDK's exporters
    leave 0 for sampled spans too.
    """

    name: str
    trace_id: int
    span_id: int
    parent_span_id: int | None
    kind: str
    status: str
    status_message: str
    attributes: Attributes
    events: tuple[ReceivedEvent, ...]
    links: tuple[ReceivedLink, ...]
    start_ns: int
    end_ns: int
    dropped_attributes: int
    dropped_events: int
    dropped_links: int
    trace_flags: int
    scope: str
    scope_version: str
    resource: Attributes


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceivedLog:
    """A log record or event; `severity` is the number, 0 if not given; no ids outside a span."""

    event_name: str
    body: Any
    attributes: Attributes
    trace_id: int | None
    span_id: int | None
    severity: int
    time_ns: int
    scope: str
    resource: Attributes


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceivedMetric:
    """One data point of a metric.

    `value` is of sums and gauges; `count`, `sum` and `bucket_counts` are of histograms, `bounds` of
    explicit ones; exponential ones show their positive buckets. An exemplar is
    (trace id, span id, value), its ids None outside a span.
    """

    name: str
    unit: str
    kind: MetricKind
    attributes: Attributes
    value: float | None = None
    count: int = 0
    sum: float = 0.0
    bounds: tuple[float, ...] = ()
    bucket_counts: tuple[int, ...] = ()
    exemplars: tuple[tuple[int | None, int | None, float], ...] = ()
    scope: str


Received: TypeAlias = "ReceivedSpan | ReceivedLog | ReceivedMetric"


def read_spans(request: ExportTraceServiceRequest) -> Iterator[ReceivedSpan]:
    """Yield the spans of a request."""
    for group in request.resource_spans:
        resource = _attributes(group.resource.attributes)
        for part in group.scope_spans:
            for span in part.spans:
                yield _span(span, part.scope, resource=resource)


def read_logs(request: ExportLogsServiceRequest) -> Iterator[ReceivedLog]:
    """Yield the log records of a request."""
    for group in request.resource_logs:
        resource = _attributes(group.resource.attributes)
        for part in group.scope_logs:
            for log in part.log_records:
                yield _log(log, scope=part.scope.name, resource=resource)


def read_metrics(request: ExportMetricsServiceRequest) -> Iterator[ReceivedMetric]:
    """Yield the data points of a request."""
    for group in request.resource_metrics:
        for part in group.scope_metrics:
            for metric in part.metrics:
                yield from _points(metric, scope=part.scope.name)


def _span(span: Span, scope: InstrumentationScope, *, resource: Attributes) -> ReceivedSpan:
    return ReceivedSpan(
        name=span.name,
        trace_id=int.from_bytes(span.trace_id, "big"),
        span_id=int.from_bytes(span.span_id, "big"),
        parent_span_id=_id(span.parent_span_id),
        kind=Span.SpanKind.Name(span.kind).removeprefix("SPAN_KIND_"),
        status=Status.StatusCode.Name(span.status.code).removeprefix("STATUS_CODE_"),
        status_message=span.status.message,
        attributes=_attributes(span.attributes),
        events=tuple(_event(event) for event in span.events),
        links=tuple(_link(link) for link in span.links),
        start_ns=span.start_time_unix_nano,
        end_ns=span.end_time_unix_nano,
        dropped_attributes=span.dropped_attributes_count,
        dropped_events=span.dropped_events_count,
        dropped_links=span.dropped_links_count,
        trace_flags=span.flags & 0xFF,
        scope=scope.name,
        scope_version=scope.version,
        resource=resource,
    )


def _event(event: Span.Event) -> ReceivedEvent:
    attributes = _attributes(event.attributes)
    return ReceivedEvent(name=event.name, attributes=attributes, time_ns=event.time_unix_nano)


def _link(link: Span.Link) -> ReceivedLink:
    return ReceivedLink(
        trace_id=int.from_bytes(link.trace_id, "big"),
        span_id=int.from_bytes(link.span_id, "big"),
        attributes=_attributes(link.attributes),
    )


def _log(log: LogRecord, *, scope: str, resource: Attributes) -> ReceivedLog:
    return ReceivedLog(
        event_name=log.event_name,
        body=_value(log.body),
        attributes=_attributes(log.attributes),
        trace_id=_id(log.trace_id),
        span_id=_id(log.span_id),
        severity=int(log.severity_number),
        time_ns=log.time_unix_nano,
        scope=scope,
        resource=resource,
    )


def _points(metric: Metric, *, scope: str) -> Iterator[ReceivedMetric]:
    kind = metric.WhichOneof("data")
    if kind is None or kind == "summary":  # summaries are of other SDKs, and left out
        return
    for point in getattr(metric, kind).data_points:
        yield ReceivedMetric(
            name=metric.name,
            unit=metric.unit,
            kind=kind,
            attributes=_attributes(point.attributes),
            exemplars=tuple((_id(e.trace_id), _id(e.span_id), _number(e)) for e in point.exemplars),
            scope=scope,
            **_figures(kind, point),
        )


def _figures(kind: MetricKind, point: Any) -> dict[str, Any]:
    """The fields in which the kinds of data points differ."""
    if kind in ("sum", "gauge"):
        return {"value": _number(point)}
    if kind == "histogram":
        buckets, bounds = point.bucket_counts, tuple(point.explicit_bounds)
    else:
        buckets, bounds = point.positive.bucket_counts, ()
    counts = tuple(buckets)
    return {"count": point.count, "sum": point.sum, "bounds": bounds, "bucket_counts": counts}


def _number(point: Any) -> Any:
    """An int or a float, as it was sent; None for a point marked as having no value."""
    which = point.WhichOneof("value")
    return which and getattr(point, which)


def _attributes(pairs: Iterable[KeyValue]) -> Attributes:
    return {pair.key: _value(pair.value) for pair in pairs}


def _value(value: AnyValue) -> Any:
    """The plain value: int and float stay apart, an array is a list, nothing set is None."""
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_value(item) for item in value.array_value.values]
    if kind == "kvlist_value":
        return _attributes(value.kvlist_value.values)
    return kind and getattr(value, kind)


def _id(raw: bytes) -> int | None:
    """A trace or span id; None if absent."""
    return int.from_bytes(raw, "big") or None
