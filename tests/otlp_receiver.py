"""An OTLP receiver for tests that runs in the test process, over gRPC and HTTP/protobuf.

`OtlpReceiver` listens on free loopback ports and returns spans, log records and metric points as
plain records (`ReceivedSpan`, `ReceivedLog`, `ReceivedMetric`).
"""

import gzip
import threading
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar

import grpc  # type: ignore[import-untyped]
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from google.rpc.error_details_pb2 import RetryInfo  # type: ignore[import-untyped]
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTracePartialSuccess,
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from openai_server import HttpReply, LoopbackServer

if TYPE_CHECKING:
    from opentelemetry.proto.common.v1.common_pb2 import AnyValue, InstrumentationScope, KeyValue
    from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord
    from opentelemetry.proto.metrics.v1.metrics_pb2 import Metric
    from typing_extensions import Self

Attributes: TypeAlias = "dict[str, Any]"
MetricKind: TypeAlias = "Literal['histogram', 'sum', 'gauge', 'exponential_histogram']"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceivedEvent:
    """A span event that `OtlpReceiver` received; `time_ns` counts from the epoch."""

    name: str
    attributes: Attributes
    time_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceivedSpan:
    """A span that `OtlpReceiver` received."""

    name: str
    trace_id: int
    span_id: int
    parent_span_id: int | None
    kind: str
    status: str
    status_message: str
    attributes: Attributes
    events: tuple[ReceivedEvent, ...]
    links: tuple[Attributes, ...]
    start_ns: int
    end_ns: int
    dropped_attributes: int
    dropped_events: int
    dropped_links: int
    scope: str
    resource: Attributes


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceivedLog:
    """A log record or event that `OtlpReceiver` received."""

    event_name: str
    body: Any
    attributes: Attributes
    trace_id: int | None
    span_id: int | None
    time_ns: int
    scope: str
    resource: Attributes


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceivedMetric:
    """One data point of a metric that `OtlpReceiver` received."""

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
    for group in request.resource_spans:
        resource = _attributes(group.resource.attributes)
        for part in group.scope_spans:
            for span in part.spans:
                yield _span(span, part.scope, resource=resource)


def read_logs(request: ExportLogsServiceRequest) -> Iterator[ReceivedLog]:
    for group in request.resource_logs:
        resource = _attributes(group.resource.attributes)
        for part in group.scope_logs:
            for log in part.log_records:
                yield _log(log, scope=part.scope.name, resource=resource)


def read_metrics(request: ExportMetricsServiceRequest) -> Iterator[ReceivedMetric]:
    """Yield the data points of all metrics in an OTLP export request."""
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
        links=tuple(_attributes(link.attributes) for link in span.links),
        start_ns=span.start_time_unix_nano,
        end_ns=span.end_time_unix_nano,
        dropped_attributes=span.dropped_attributes_count,
        dropped_events=span.dropped_events_count,
        dropped_links=span.dropped_links_count,
        scope=scope.name,
        resource=resource,
    )


def _event(event: Span.Event) -> ReceivedEvent:
    attributes = _attributes(event.attributes)
    return ReceivedEvent(name=event.name, attributes=attributes, time_ns=event.time_unix_nano)


def _log(log: LogRecord, *, scope: str, resource: Attributes) -> ReceivedLog:
    return ReceivedLog(
        event_name=log.event_name,
        body=_value(log.body),
        attributes=_attributes(log.attributes),
        trace_id=_id(log.trace_id),
        span_id=_id(log.span_id),
        time_ns=log.time_unix_nano,
        scope=scope,
        resource=resource,
    )


def _points(metric: Metric, *, scope: str) -> Iterator[ReceivedMetric]:
    kind = metric.WhichOneof("data")
    if kind is None or kind == "summary":  # the Python SDK makes no summaries
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
    """Return the fields of a data point that depend on the kind of the metric."""
    if kind in ("sum", "gauge"):
        return {"value": _number(point)}
    if kind == "histogram":
        buckets, bounds = point.bucket_counts, tuple(point.explicit_bounds)
    else:
        buckets, bounds = point.positive.bucket_counts, ()
    counts = tuple(buckets)
    return {"count": point.count, "sum": point.sum, "bounds": bounds, "bucket_counts": counts}


def _number(point: Any) -> Any:
    which = point.WhichOneof("value")
    return which and getattr(point, which)


def _attributes(pairs: Iterable[KeyValue]) -> Attributes:
    return {pair.key: _value(pair.value) for pair in pairs}


def _value(value: AnyValue) -> Any:
    """Convert an OTLP ``value`` to a value of Python: an array to a list, no value to None."""
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_value(item) for item in value.array_value.values]
    if kind == "kvlist_value":
        return _attributes(value.kvlist_value.values)
    return kind and getattr(value, kind)


def _id(raw: bytes) -> int | None:
    return int.from_bytes(raw, "big") or None


@dataclass(frozen=True, slots=True)
class _Signal:
    """One signal (traces, logs or metrics): its HTTP path, gRPC service and request type."""

    path: str
    service: str
    request: Any
    read: Callable[[Any], Iterator[Received]]


_SIGNALS = tuple(
    _Signal(f"/v1/{path}", f"opentelemetry.proto.collector.{service}", request, read)
    for path, service, request, read in (
        ("traces", "trace.v1.TraceService", ExportTraceServiceRequest, read_spans),
        ("logs", "logs.v1.LogsService", ExportLogsServiceRequest, read_logs),
        ("metrics", "metrics.v1.MetricsService", ExportMetricsServiceRequest, read_metrics),
    )
)
_UNPACK: dict[str, Callable[[bytes], bytes]] = {"gzip": gzip.decompress, "deflate": zlib.decompress}
_R = TypeVar("_R", ReceivedSpan, ReceivedLog, ReceivedMetric)


_GRPC_CODES = {
    400: grpc.StatusCode.INVALID_ARGUMENT,
    401: grpc.StatusCode.UNAUTHENTICATED,
    403: grpc.StatusCode.PERMISSION_DENIED,
    404: grpc.StatusCode.UNIMPLEMENTED,
    413: grpc.StatusCode.RESOURCE_EXHAUSTED,
    429: grpc.StatusCode.RESOURCE_EXHAUSTED,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Verdict:
    """What one request is answered: a HTTP status, and the number of records that are rejected."""

    status: int = 200
    retry_after: float | None = None
    rejected: int = 0

    def response(self) -> bytes:
        if not self.rejected:
            return b""
        # Every signal has the number of rejected records in field 1, and the message in field 2.
        partial = ExportTracePartialSuccess(rejected_spans=self.rejected, error_message="rejected")
        return bytes(ExportTraceServiceResponse(partial_success=partial).SerializeToString())

    def abort(self, context: Any) -> None:
        code = _GRPC_CODES.get(self.status, grpc.StatusCode.UNAVAILABLE)
        if self.retry_after is not None:
            info = RetryInfo()
            info.retry_delay.FromNanoseconds(int(self.retry_after * 1e9))
            key = "google.rpc.retryinfo-bin"
            context.set_trailing_metadata(((key, info.SerializeToString()),))
        reason = ": message larger than max" if self.status == 413 else ""
        context.abort(code, f"refused with {self.status}{reason}")


class OtlpReceiver:
    """A receiver of telemetry that stores what OTLP exporters send, for tests."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._received: list[Received] = []
        self._verdicts: deque[_Verdict] = deque()
        self._paused = False
        self._stopping = False

    def start(self) -> Self:
        self._stopping = False
        self._http = LoopbackServer(self._answer)
        self._pool = ThreadPoolExecutor(max_workers=32, thread_name_prefix="otlp-receiver")
        options = [("grpc.so_reuseport", 0), ("grpc.max_receive_message_length", -1)]
        self._grpc = grpc.server(self._pool, [self._service(s) for s in _SIGNALS], options=options)
        self._grpc_port: int = self._grpc.add_insecure_port("127.0.0.1:0")
        self._grpc.start()
        self._http.start()
        return self

    def stop(self) -> None:
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        self._http.stop()
        self._grpc.stop(grace=None).wait()
        self._pool.shutdown()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *exception: object) -> None:
        self.stop()

    @property
    def grpc_endpoint(self) -> str:
        return f"http://127.0.0.1:{self._grpc_port}"

    @property
    def http_endpoint(self) -> str:
        return self._http.url

    def spans(self) -> list[ReceivedSpan]:
        return self._of_type(ReceivedSpan)

    def logs(self) -> list[ReceivedLog]:
        return self._of_type(ReceivedLog)

    def metrics(self) -> list[ReceivedMetric]:
        return self._of_type(ReceivedMetric)

    def clear(self) -> None:
        with self._changed:
            self._received.clear()

    def wait_for_spans(self, count: int, timeout: float = 10.0) -> list[ReceivedSpan]:
        """Wait until ``count`` spans have arrived, and return all spans."""
        self.wait_for(lambda receiver: len(receiver.spans()) >= count, timeout)
        return self.spans()

    def wait_for(self, predicate: Callable[[OtlpReceiver], bool], timeout: float = 10.0) -> None:
        """Wait until ``predicate(self)`` is true; raise `TimeoutError` after ``timeout`` seconds.

        ``predicate`` gets this receiver, and is called at once and after each stored request.
        """
        with self._changed:
            if not self._changed.wait_for(lambda: predicate(self), timeout):
                msg = f"after {timeout} s there were {self._summary()}"
                raise TimeoutError(msg)

    def fail_next(self, n: int, status: int = 503, *, retry_after: float | None = None) -> None:
        """Refuse the next ``n`` requests, with ``status`` over HTTP."""
        with self._changed:
            self._verdicts.extend([_Verdict(status=status, retry_after=retry_after)] * n)

    def reject_next(self, records: int) -> None:
        """Answer the next request with a partial success: ``records`` of its records are rejected.

        The first records of the request are then not stored.
        """
        with self._changed:
            self._verdicts.append(_Verdict(rejected=records))

    def pause(self) -> None:
        """Let export requests wait for an answer until `resume` is called."""
        with self._changed:
            self._paused = True

    def resume(self) -> None:
        with self._changed:
            self._paused = False
            self._changed.notify_all()

    def _of_type(self, kind: type[_R]) -> list[_R]:
        with self._changed:
            return [record for record in self._received if isinstance(record, kind)]

    def _summary(self) -> str:
        spans = [span.name for span in self.spans()]
        logs = [log.event_name for log in self.logs()]
        return f"spans {spans}, logs {logs}, metrics {[m.name for m in self.metrics()]}"

    def _admit(self, records: Iterable[Received]) -> _Verdict:
        read = list(records)
        with self._changed:
            self._changed.wait_for(lambda: self._stopping or not self._paused)
            if self._stopping:
                return _Verdict(status=503)
            verdict = self._verdicts.popleft() if self._verdicts else _Verdict()
            if verdict.status == 200:
                self._received.extend(read[verdict.rejected :])
                self._changed.notify_all()
            return verdict

    def _answer(self, path: str, headers: Mapping[str, str], body: bytes) -> HttpReply:
        signal = next((signal for signal in _SIGNALS if signal.path == path), None)
        if signal is None:
            return HttpReply(status=404)
        unpack = _UNPACK.get(headers.get("content-encoding", ""), bytes)
        try:
            message = signal.request.FromString(unpack(body))
        except (DecodeError, OSError, EOFError, zlib.error):
            return HttpReply(status=400)
        verdict = self._admit(signal.read(message))
        told = {"Content-Type": "application/x-protobuf"}
        if verdict.retry_after is not None:
            told["Retry-After"] = f"{verdict.retry_after:.0f}"
        return HttpReply(status=verdict.status, headers=told, body=verdict.response())

    def _service(self, signal: _Signal) -> Any:
        def export(request: Any, context: Any) -> bytes:
            verdict = self._admit(signal.read(request))
            if verdict.status != 200:
                verdict.abort(context)
            return verdict.response()

        read = signal.request.FromString
        method = grpc.unary_unary_rpc_method_handler(export, request_deserializer=read)
        return grpc.method_handlers_generic_handler(signal.service, {"Export": method})
