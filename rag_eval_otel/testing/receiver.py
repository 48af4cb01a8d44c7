"""An OTLP receiver inside the test process: gRPC and HTTP/protobuf, on free loopback ports."""

from __future__ import annotations

import gzip
import threading
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import grpc  # type: ignore[import-untyped]
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from rag_eval_otel.testing.openai_server import HttpReply, LoopbackServer
from rag_eval_otel.testing.otlp_records import (
    Received,
    ReceivedLog,
    ReceivedMetric,
    ReceivedSpan,
    read_logs,
    read_metrics,
    read_spans,
)

if TYPE_CHECKING:
    from typing_extensions import Self


@dataclass(frozen=True, slots=True)
class _Signal:
    """One kind of telemetry: where it arrives and how it is read."""

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


class OtlpReceiver:
    """Keeps what OTLP exporters send it; ready inside `with`, or between `start` and `stop`.

    Each start takes new ports; what was received stays readable after the stop. Thread-safe.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._received: list[Received] = []
        self._failures: deque[int] = deque()
        self._paused = False
        self._stopping = False

    def start(self) -> Self:
        """Open both ports."""
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
        """Refuse the requests that wait, and close both ports."""
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
        """For exporters over gRPC; insecure."""
        return f"http://127.0.0.1:{self._grpc_port}"

    @property
    def http_endpoint(self) -> str:
        """For exporters over HTTP, to which they, or you, append `/v1/traces` and the like."""
        return self._http.url

    def spans(self) -> list[ReceivedSpan]:
        """The spans, in arrival order."""
        return self._of_type(ReceivedSpan)

    def logs(self) -> list[ReceivedLog]:
        """The log records, in arrival order."""
        return self._of_type(ReceivedLog)

    def metrics(self) -> list[ReceivedMetric]:
        """The data points of every export, in arrival order."""
        return self._of_type(ReceivedMetric)

    def clear(self) -> None:
        """Forget what was received."""
        with self._changed:
            self._received.clear()

    def wait_for_spans(self, count: int, timeout: float = 10.0) -> list[ReceivedSpan]:
        """Every span, once there are at least `count`; `TimeoutError` after `timeout` seconds."""
        self.wait_for(lambda receiver: len(receiver.spans()) >= count, timeout)
        return self.spans()

    def wait_for(self, predicate: Callable[[OtlpReceiver], bool], timeout: float = 10.0) -> None:
        """Return once `predicate(self)` holds; `TimeoutError` after `timeout` seconds.

        It is asked at once and after each request that brought something.
        """
        with self._changed:
            if not self._changed.wait_for(lambda: predicate(self), timeout):
                msg = f"after {timeout} s there were {self._summary()}"
                raise TimeoutError(msg)

    def fail_next(self, n: int, status: int = 503) -> None:
        """Refuse `n` requests more: `status` over HTTP, UNAVAILABLE over gRPC. Nothing is kept."""
        with self._changed:
            self._failures.extend([status] * n)

    def pause(self) -> None:
        """Let requests wait until `resume`, which keeps them even if their client has left."""
        with self._changed:
            self._paused = True

    def resume(self) -> None:
        """Go on with the requests that wait."""
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

    def _admit(self, records: Iterable[Received]) -> int:
        """Keep one request's records, all or none; the HTTP status of the outcome."""
        read = list(records)
        with self._changed:
            self._changed.wait_for(lambda: self._stopping or not self._paused)
            if self._stopping:
                return 503
            if self._failures:
                return self._failures.popleft()
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
        # No body: an empty message is how both protocols say that all was accepted.
        status = self._admit(signal.read(message))
        return HttpReply(status=status, headers={"Content-Type": "application/x-protobuf"})

    def _service(self, signal: _Signal) -> Any:
        def export(request: Any, context: Any) -> bytes:
            status = self._admit(signal.read(request))
            if status != 200:  # noqa: PLR2004 - OK
                context.abort(grpc.StatusCode.UNAVAILABLE, f"refused with {status}")
            return b""

        read = signal.request.FromString
        method = grpc.unary_unary_rpc_method_handler(export, request_deserializer=read)
        return grpc.method_handlers_generic_handler(signal.service, {"Export": method})
