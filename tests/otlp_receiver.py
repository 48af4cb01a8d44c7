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
from functools import partial
from typing import Any, TypeAlias, TypeVar

import grpc  # type: ignore[import-untyped]
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from typing_extensions import Self

from openai_server import HttpReply, LoopbackServer

Attributes: TypeAlias = "dict[str, Any]"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceivedSpan:
    """A span that `OtlpReceiver` received; ``events`` are those of OTLP."""

    name: str
    trace_id: int
    span_id: int
    parent_span_id: int | None
    attributes: Attributes
    events: tuple[Any, ...]
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


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceivedMetric:
    """A data point of a counter or gauge, which has a ``value``, or of a histogram."""

    name: str
    attributes: Attributes
    value: float | None = None
    count: int = 0


Received: TypeAlias = "ReceivedSpan | ReceivedLog | ReceivedMetric"


def _read(
    groups: str, scopes: str, items: str, made: Callable[..., Iterator[Received]], request: Any
) -> Iterator[Any]:
    """Yield what ``made`` makes of each item of an export request, its scope and resource."""
    for group in getattr(request, groups):
        resource = _attributes(group.resource.attributes)
        for part in getattr(group, scopes):
            for item in getattr(part, items):
                yield from made(item, part.scope.name, resource)


def _span(span: Any, scope: str, resource: Attributes) -> Iterator[ReceivedSpan]:
    yield ReceivedSpan(
        name=span.name,
        trace_id=int.from_bytes(span.trace_id, "big"),
        span_id=int.from_bytes(span.span_id, "big"),
        parent_span_id=_id(span.parent_span_id),
        attributes=_attributes(span.attributes),
        events=tuple(span.events),
        scope=scope,
        resource=resource,
    )


def _log(log: Any, _scope: str, _resource: Attributes) -> Iterator[ReceivedLog]:
    yield ReceivedLog(
        event_name=log.event_name,
        body=_value(log.body),
        attributes=_attributes(log.attributes),
        trace_id=_id(log.trace_id),
        span_id=_id(log.span_id),
    )


def _points(metric: Any, _scope: str, _resource: Attributes) -> Iterator[ReceivedMetric]:
    kind = metric.WhichOneof("data")
    if kind is None or kind == "summary":  # the Python SDK makes no summaries
        return
    for point in getattr(metric, kind).data_points:
        named = partial(ReceivedMetric, name=metric.name, attributes=_attributes(point.attributes))
        if kind in {"sum", "gauge"}:
            which = point.WhichOneof("value")
            yield named(value=which and getattr(point, which))
        else:
            yield named(count=point.count)


def _attributes(pairs: Iterable[Any]) -> Attributes:
    return {pair.key: _value(pair.value) for pair in pairs}


def _value(value: Any) -> Any:
    """Convert an OTLP ``value`` to a value of Python: an array to a list, no value to None."""
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_value(item) for item in value.array_value.values]
    if kind == "kvlist_value":
        return _attributes(value.kvlist_value.values)
    return kind and getattr(value, kind)


def _id(raw: bytes) -> int | None:
    return int.from_bytes(raw, "big") or None


read_spans = partial(_read, "resource_spans", "scope_spans", "spans", _span)


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
        (
            "logs",
            "logs.v1.LogsService",
            ExportLogsServiceRequest,
            partial(_read, "resource_logs", "scope_logs", "log_records", _log),
        ),
        (
            "metrics",
            "metrics.v1.MetricsService",
            ExportMetricsServiceRequest,
            partial(_read, "resource_metrics", "scope_metrics", "metrics", _points),
        ),
    )
)
_UNPACK: dict[str, Callable[[bytes], bytes]] = {"gzip": gzip.decompress, "deflate": zlib.decompress}
_R = TypeVar("_R", ReceivedSpan, ReceivedLog, ReceivedMetric)


class OtlpReceiver:
    """A receiver of telemetry that stores what OTLP exporters send, for tests."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._received: list[Received] = []
        self.requests: list[Any] = []
        self._failures: deque[int] = deque()

    def start(self) -> Self:
        self._http = LoopbackServer(self._answer)
        self._pool = ThreadPoolExecutor(max_workers=32, thread_name_prefix="otlp-receiver")
        options = [("grpc.so_reuseport", 0), ("grpc.max_receive_message_length", -1)]
        self._grpc = grpc.server(self._pool, [self._service(s) for s in _SIGNALS], options=options)
        self._grpc_port: int = self._grpc.add_insecure_port("127.0.0.1:0")
        self._grpc.start()
        self._http.start()
        return self

    def stop(self) -> None:
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
            self.requests.clear()

    def wait_for_spans(self, count: int, timeout: float = 10.0) -> list[ReceivedSpan]:
        self.wait_for(lambda receiver: len(receiver.spans()) >= count, timeout)
        return self.spans()

    def wait_for(self, predicate: Callable[[Self], bool], timeout: float = 10.0) -> None:
        """Wait until ``predicate(self)`` is true; `TimeoutError` after ``timeout`` seconds."""
        with self._changed:
            if not self._changed.wait_for(lambda: predicate(self), timeout):
                names = [getattr(one, "name", None) or one.event_name for one in self._received]
                msg = f"after {timeout} s there were {names}"
                raise TimeoutError(msg)

    def fail_next(self, n: int, status: int = 503) -> None:
        """Refuse the next ``n`` requests, with ``status`` over HTTP."""
        with self._changed:
            self._failures.extend([status] * n)

    def recover(self) -> None:
        """Refuse no more requests."""
        with self._changed:
            self._failures.clear()

    def _of_type(self, kind: type[_R]) -> list[_R]:
        with self._changed:
            return [record for record in self._received if isinstance(record, kind)]

    def _admit(self, signal: _Signal, request: Any) -> int:
        """Store a request and its records, and return its HTTP status."""
        read = list(signal.read(request))
        with self._changed:
            if self._failures:
                return self._failures.popleft()
            self.requests.append(request)
            self._received.extend(read)
            self._changed.notify_all()
            return 200

    def _answer(self, path: str, headers: Mapping[str, str], body: bytes) -> HttpReply:
        signal = next((signal for signal in _SIGNALS if signal.path == path), None)
        if signal is None:
            return HttpReply(status=404)
        unpack = _UNPACK.get(headers.get("content-encoding", ""), bytes)
        try:
            message = signal.request.FromString(unpack(body))
        except (DecodeError, OSError, EOFError, zlib.error):
            return HttpReply(status=400)
        status = self._admit(signal, message)
        return HttpReply(status=status, headers={"Content-Type": "application/x-protobuf"})

    def _service(self, signal: _Signal) -> Any:
        def export(request: Any, context: Any) -> bytes:
            status = self._admit(signal, request)
            if status != 200:
                is_wrong = status == 400
                code = grpc.StatusCode
                told = code.INVALID_ARGUMENT if is_wrong else code.UNAVAILABLE
                context.abort(told, f"refused with {status}")
            return b""

        read = signal.request.FromString
        method = grpc.unary_unary_rpc_method_handler(export, request_deserializer=read)
        return grpc.method_handlers_generic_handler(signal.service, {"Export": method})
