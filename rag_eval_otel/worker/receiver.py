"""Receive OTLP: traces and logs, over gRPC, HTTP/protobuf and HTTP/JSON.

`Receiver` listens for exporters and collectors, and hands their requests to the engine. It also
answers the probes ``/livez`` and ``/readyz``.
"""

from __future__ import annotations

import asyncio
import logging
import math
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import grpc  # type: ignore[import-untyped]
from google.protobuf.json_format import MessageToJson  # type: ignore[import-untyped]
from google.rpc import code_pb2  # type: ignore[import-untyped]
from google.rpc.error_details_pb2 import RetryInfo  # type: ignore[import-untyped]
from google.rpc.status_pb2 import Status  # type: ignore[import-untyped]

from rag_eval_otel.errors import ConfigError
from rag_eval_otel.log import cause_of, log
from rag_eval_otel.runtime.guard import require
from rag_eval_otel.worker.intake import Desk, Intake, RefusalKind, RefusedError
from rag_eval_otel.worker.listening import (
    ReceiverOptions,
    grpc_credentials,
    no_port,
    tls_context,
)

if TYPE_CHECKING:
    from aiohttp import web
    from opentelemetry.metrics import MeterProvider
    from typing_extensions import Self


_THREADS: Final = 8  # that parse requests, for each protocol
_WAITING: Final = 24  # calls over gRPC that wait for their message, each on a thread
_PROTOBUF, _JSON = "application/x-protobuf", "application/json"
_PACKED: Final = (b"\x1f\x8b", b"\x78")  # how gzip and zlib begin
_SLOWEST: Final = 30.0  # seconds in which the body of a request must arrive
_LATE: Final = f"the request has not arrived, or not within {_SLOWEST:.0f} s"
_LOOK: Final = 1.0  # seconds between looks for slow requests over gRPC
_HANDSHAKE: Final = 10.0  # seconds in which a new connection must begin: many round trips
_IDLE: Final = 30.0  # seconds without a request; exporters send every few seconds, or connect again
_CLOSING: Final = 1.0  # seconds that `stop` waits for open HTTP requests
_OPEN: Final = (
    "the worker listens at %s without a token: whoever can reach it can send spans, which cost "
    "requests to the judge. Name --token-file or --client-ca, or listen at 127.0.0.1"
)
_SIGNALS: Final = ("traces", "logs", "metrics")


_GRPC_CODES: Final[Mapping[RefusalKind, Any]] = {
    "unauthorized": grpc.StatusCode.UNAUTHENTICATED,
    "malformed": grpc.StatusCode.INVALID_ARGUMENT,
    "too_large": grpc.StatusCode.RESOURCE_EXHAUSTED,
    "content_type": grpc.StatusCode.INVALID_ARGUMENT,
    "overloaded": grpc.StatusCode.RESOURCE_EXHAUSTED,
    "draining": grpc.StatusCode.UNAVAILABLE,
    "unknown": grpc.StatusCode.UNIMPLEMENTED,
    "slow": grpc.StatusCode.DEADLINE_EXCEEDED,
}
_HTTP_STATUSES: Final[Mapping[RefusalKind, int]] = {
    "unauthorized": 401,
    "malformed": 400,
    "too_large": 413,
    "content_type": 415,
    "overloaded": 429,
    "draining": 503,
    "unknown": 404,
    "slow": 408,
}


# --- gRPC -----------------------------------------------------------------------------------------


class _GrpcServer:
    def __init__(self, desk: Desk, options: ReceiverOptions, *, port: int) -> None:
        self._desk = desk
        self._reading: dict[Any, float] = {}  # calls whose message is awaited, and until when
        self._lock = threading.Lock()
        self._parsing = threading.Semaphore(_THREADS)
        self._stopping = threading.Event()
        self._pool = ThreadPoolExecutor(
            _THREADS + _WAITING, thread_name_prefix="rag-eval-otel-grpc"
        )
        self._server = grpc.server(
            self._pool,
            handlers=[self._service(*service) for service in _SERVICES],
            options=[
                ("grpc.so_reuseport", 0),
                ("grpc.max_receive_message_length", options.max_request),
                # Old versions of gRPC decompress without a limit, so `unpacked` does it.
                ("grpc.per_message_decompression", 0),
                ("grpc.server_handshake_timeout_ms", int(_HANDSHAKE * 1000)),
                ("grpc.max_connection_idle_ms", int(_IDLE * 1000)),
            ],
        )
        place = f"{options.address}:{port}"
        try:
            self.port = int(
                self._server.add_secure_port(place, grpc_credentials(options))
                if options.certificate
                else self._server.add_insecure_port(place)
            )
        except RuntimeError as error:
            raise no_port(place, error) from error
        self._server.start()
        target = self._cancel_slow
        threading.Thread(target=target, name="rag-eval-otel-grpc-slow", daemon=True).start()

    def _service(self, signal: str, service: str) -> Any:
        def export(messages: Iterator[bytes], context: Any) -> bytes:
            try:
                return self._answer(signal, messages, context)
            except RefusedError as error:
                return _abort(context, error)

        # A handler of a single message would be called after the message was read: without a token,
        # and without a time limit.
        handler = grpc.stream_unary_rpc_method_handler(export)
        name = f"opentelemetry.proto.collector.{service}"
        return grpc.method_handlers_generic_handler(name, {"Export": handler})

    def _answer(self, signal: str, messages: Iterator[bytes], context: Any) -> bytes:
        with self._desk.request(signal):
            metadata = dict(context.invocation_metadata())
            self._desk.check_token(str(metadata.get("authorization", "")))
            self._desk.check_open(signal)
            content = self._read(messages, context)
            # No request begins like gzip or zlib, and gRPC does not say whether it is compressed.
            is_packed = content.startswith(_PACKED)
            with self._parsing:
                response = self._desk.take(signal, content, is_packed=is_packed)
            return bytes(response.SerializeToString())

    def _read(self, messages: Iterator[bytes], context: Any) -> bytes:
        """Return the message of a call, if it arrives in time.

        If too many calls wait, the oldest is cancelled, so that there is a thread for the next.
        """
        with self._lock:
            oldest = next(iter(self._reading)) if len(self._reading) >= _WAITING else None
            self._reading.pop(oldest, None)
            self._reading[context] = time.monotonic() + _SLOWEST
        if oldest is not None:
            oldest.cancel()
        try:
            return next(messages)
        except (StopIteration, grpc.RpcError) as error:
            raise RefusedError(_LATE, kind="slow") from error
        finally:
            self._reading.pop(context, None)

    def _cancel_slow(self) -> None:
        """Cancel the calls whose message does not arrive in time: each occupies a thread."""
        while not self._stopping.wait(_LOOK):
            now = time.monotonic()
            for context, until in list(self._reading.items()):
                if now > until:
                    context.cancel()

    def stop(self, timeout: float) -> None:
        """Refuse new requests, and give those under way ``timeout`` seconds to end."""
        self._stopping.set()
        self._server.stop(timeout).wait(timeout + 1)
        self._pool.shutdown(wait=False)


_SERVICES: Final = (
    ("traces", "trace.v1.TraceService"),
    ("logs", "logs.v1.LogsService"),
    ("metrics", "metrics.v1.MetricsService"),
)


def _abort(context: Any, error: RefusedError) -> bytes:
    """End the call with ``error``. It does not return, because ``abort`` raises an exception."""
    if error.retry_after is not None:
        info = _retry_info(error.retry_after)
        code = code_pb2.RESOURCE_EXHAUSTED if error.kind == "overloaded" else code_pb2.UNAVAILABLE
        status = Status(code=code, message=str(error))
        status.details.add().Pack(info)
        # The first is what the exporters of the Python SDK read, the second is gRPC's standard.
        context.set_trailing_metadata(
            (
                ("google.rpc.retryinfo-bin", info.SerializeToString()),
                ("grpc-status-details-bin", status.SerializeToString()),
            )
        )
    return bytes(context.abort(_GRPC_CODES[error.kind], str(error)))


def _retry_info(seconds: float) -> Any:
    info = RetryInfo()
    info.retry_delay.FromNanoseconds(int(seconds * 1e9))
    return info


# --- HTTP -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Probes:
    """Whether the worker is alive, and whether it takes requests, for ``/livez``, ``/readyz``."""

    is_live: Callable[[], bool] = lambda: True
    is_ready: Callable[[], bool] = lambda: True


class _HttpServer:
    """An aiohttp server with an event loop on a thread of its own."""

    def __init__(self, desk: Desk, options: ReceiverOptions, *, probes: Probes) -> None:
        require("aiohttp", "worker")
        from aiohttp import http, web  # noqa: PLC0415  # optional

        self._web, self._desk, self._options, self._probes = web, desk, options, probes
        self._broken = http.HttpProcessingError
        self._logger = logging.Logger(__name__)  # noqa: LOG001  # of this aiohttp
        self._logger.addFilter(self._log_limited)
        self._tls = tls_context(options)
        self._runners: list[web.AppRunner] = []
        self._reading = 0  # bytes of requests
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="rag-eval-otel-http")
        self.port: int | None = None
        self.probe_port: int | None = None
        self._loop = asyncio.new_event_loop()
        self._loop.set_exception_handler(self._report)
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="rag-eval-otel-http", daemon=True
        )
        self._thread.start()
        try:
            self._run(self._listen())
        except OSError as error:
            self.stop()
            raise no_port(options.host, error) from error

    def _log_limited(self, record: logging.LogRecord) -> bool:
        """Log what aiohttp says, at most once a minute, without the bytes of broken requests."""
        error = record.exc_info[1] if record.exc_info else None
        shown = None if isinstance(error, self._broken) else error
        told = record.getMessage(), type(error).__name__
        self._desk.log.write(told[1], "the HTTP server: %s (%s)", *told, error=shown)
        return False

    def _report(self, _: object, context: Mapping[str, Any]) -> None:
        """Log a failure of the server, such as too many open files, at most once a minute."""
        error = context.get("exception")
        cause = "" if error is None else cause_of(error)
        self._desk.log.write("http", "the HTTP server: %s %s", context["message"], cause)

    def _run(self, call: Any) -> None:
        asyncio.run_coroutine_threadsafe(call, self._loop).result()

    async def _listen(self) -> None:
        web, options = self._web, self._options
        probes = [web.get("/livez", self._livez), web.get("/readyz", self._readyz)]
        if options.http_port is not None:
            routes = [*probes, web.post("/v1/{signal}", self._export)]
            self.port = await self._open(routes, options.http_port, tls=self._tls)
        if options.probe_port is not None:
            self.probe_port = await self._open(probes, options.probe_port, tls=None)

    async def _open(
        self, routes: list[web.RouteDef], port: int, *, tls: ssl.SSLContext | None
    ) -> int:
        app = self._web.Application()
        app.add_routes(routes)
        runner = self._web.AppRunner(
            app,
            access_log=None,
            logger=self._logger,
            auto_decompress=False,
            keepalive_timeout=_IDLE,  # also of a connection without a first request
            shutdown_timeout=_CLOSING,
        )
        self._runners.append(runner)
        await runner.setup()
        await self._web.TCPSite(runner, self._options.host, port, ssl_context=tls).start()
        return int(runner.addresses[0][1])

    async def _livez(self, _request: web.Request) -> web.Response:
        return self._probe(self._probes.is_live())

    async def _readyz(self, _request: web.Request) -> web.Response:
        return self._probe(self._probes.is_ready() and not self._desk.is_draining)

    def _probe(self, is_well: object) -> web.Response:
        return self._web.Response(status=200 if is_well else 503, text="ok" if is_well else "no")

    async def _export(self, request: web.Request) -> web.Response:
        is_json = request.content_type == _JSON
        try:
            response = await self._answer(request, is_json=is_json)
        except RefusedError as error:
            status = Status(code=_GRPC_CODES[error.kind].value[0], message=str(error))
            reply = self._reply(status, _HTTP_STATUSES[error.kind], is_json=is_json)
            if error.retry_after is not None:
                reply.headers["Retry-After"] = str(math.ceil(error.retry_after))
            return reply
        return self._reply(response, 200, is_json=is_json)

    def _reply(self, message: Any, status: int, *, is_json: bool) -> web.Response:
        if is_json:
            return self._web.Response(
                status=status, text=MessageToJson(message), content_type=_JSON
            )
        body = message.SerializeToString()
        return self._web.Response(status=status, body=body, content_type=_PROTOBUF)

    async def _answer(self, request: web.Request, *, is_json: bool) -> Any:
        signal = request.match_info["signal"]
        with self._desk.request(signal if signal in _SIGNALS else "other"):
            self._desk.check_token(request.headers.get("Authorization", ""))
            self._desk.check_open(signal)
            is_packed = self._check_headers(request)
            take = partial(self._desk.take, is_json=is_json, is_packed=is_packed)
            body = bytearray()
            try:
                await self._read(request, body)
                return await self._loop.run_in_executor(self._pool, take, signal, bytes(body))
            finally:
                self._reading -= len(body)

    def _check_headers(self, request: web.Request) -> bool:
        """Return True if the body is compressed; raise `RefusedError` for what cannot be read."""
        if request.content_type not in {_PROTOBUF, _JSON}:
            msg = f"send the content type {_PROTOBUF} or {_JSON}"
            raise RefusedError(msg, kind="content_type")
        encoding = request.headers.get("Content-Encoding", "identity").strip().lower()
        if encoding not in {"identity", "none", "gzip", "deflate"}:
            msg = "send the content encoding gzip, deflate or none"
            raise RefusedError(msg, kind="content_type")
        return encoding in {"gzip", "deflate"}

    async def _read(self, request: web.Request, body: bytearray) -> None:
        """Read the body, if it is not too large, arrives in time, and there is room for it.

        Only what has arrived takes room, not what a sender announces.
        """
        if (request.content_length or 0) > self._options.max_request:
            raise self._too_large()
        try:
            await asyncio.wait_for(self._append(request, body), _SLOWEST)
        except (asyncio.TimeoutError, ConnectionError) as error:
            raise RefusedError(_LATE, kind="slow") from error

    async def _append(self, request: web.Request, body: bytearray) -> None:
        async for part in request.content.iter_any():
            if len(body) + len(part) > self._options.max_request:
                raise self._too_large()
            if self._reading + len(part) > self._options.max_reading:
                busy = "this worker is reading as many requests as it has memory for"
                raise RefusedError(busy, kind="overloaded", retry_after=1.0)
            body += part
            self._reading += len(part)

    def _too_large(self) -> RefusedError:
        limit = self._options.max_request
        msg = f"the request has more than {limit} bytes; send fewer spans"
        return RefusedError(msg, kind="too_large")

    def stop(self) -> None:
        """Close the ports and all connections."""
        self._run(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        self._pool.shutdown(wait=False)

    async def _close(self) -> None:
        for runner in self._runners:
            await runner.cleanup()


class Receiver:
    """Receive OTLP requests of traces and logs, and hand them to ``intake``.

    Raises `ConfigError` if a port is taken or a PEM file cannot be used, and
    `MissingDependencyError` if ``aiohttp`` is not installed and an HTTP port is wanted.
    """

    def __init__(
        self,
        intake: Intake,
        options: ReceiverOptions | None = None,
        *,
        probes: Probes | None = None,
        meter_provider: MeterProvider | None = None,
    ) -> None:
        self._options = options or ReceiverOptions()
        self._probes = probes or Probes()
        self._desk = Desk(
            intake,
            max_request=self._options.max_request,
            token=self._options.token,
            meter_provider=meter_provider,
        )
        self._grpc: _GrpcServer | None = None
        self._http: _HttpServer | None = None

    def start(self) -> Self:
        """Listen at the ports, and receive requests."""
        options = self._options
        if options.is_open_to_all and (options.grpc_port, options.http_port) != (None, None):
            log.warning(_OPEN, options.host)
        tls_context(options)  # gRPC has no clear message for files that cannot be used
        if options.http_port is not None or options.probe_port is not None:
            self._http = _HttpServer(self._desk, options, probes=self._probes)
        try:
            if options.grpc_port is not None:
                self._grpc = _GrpcServer(self._desk, options, port=options.grpc_port)
        except ConfigError:
            self.stop()
            raise
        return self

    @property
    def grpc_port(self) -> int | None:
        return None if self._grpc is None else self._grpc.port

    @property
    def http_port(self) -> int | None:
        return None if self._http is None else self._http.port

    @property
    def probe_port(self) -> int | None:
        return None if self._http is None else self._http.probe_port

    @property
    def requests(self) -> Mapping[tuple[str, str], int]:
        """Number of requests by signal and outcome, such as ``("traces", "accepted")``."""
        return dict(self._desk.counts)

    def refuse(self) -> None:
        """Refuse new requests; from now on ``/readyz`` answers 503."""
        self._desk.is_draining = True

    def drain(self, timeout: float) -> bool:
        """Refuse new requests, and let those under way end.

        Returns False if a request is still under way after ``timeout`` seconds.
        """
        self.refuse()
        deadline = time.monotonic() + timeout
        if self._grpc is not None:
            self._grpc.stop(timeout)
        return self._desk.wait_idle(max(0.0, deadline - time.monotonic()))

    def stop(self) -> None:
        """Close all ports at once; requests under way fail, unless `drain` was called before."""
        self._desk.is_draining = True
        if self._grpc is not None:
            self._grpc.stop(0)
            self._grpc = None
        if self._http is not None:
            self._http.stop()
            self._http = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *exception: object) -> None:
        self.stop()
