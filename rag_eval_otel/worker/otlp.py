"""`OtlpSource`: receive spans over gRPC and HTTP, and pass whole traces to the engine."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal, NoReturn, TypeAlias

import grpc  # type: ignore[import-untyped]
import grpc.aio  # type: ignore[import-untyped]
from google.rpc import code_pb2  # type: ignore[import-untyped]
from google.rpc.error_details_pb2 import RetryInfo  # type: ignore[import-untyped]
from google.rpc.status_pb2 import Status  # type: ignore[import-untyped]

from rag_eval_otel import semconv
from rag_eval_otel.errors import ConfigError
from rag_eval_otel.log import log
from rag_eval_otel.runtime.guard import LimitedLog, require
from rag_eval_otel.worker.traces import Traces
from rag_eval_otel.worker.wire import (
    LARGEST,
    TooLargeError,
    UnreadableError,
    count_spans,
    divided,
    from_json,
    parsed,
    unpacked,
)

if TYPE_CHECKING:
    from aiohttp import web

    from rag_eval_otel.export.metrics import Meters
    from rag_eval_otel.worker.engine import Engine

Reason: TypeAlias = Literal["full", "closing", "too_large", "unreadable", "slow", "content_type"]

_CODES: Final[Mapping[Reason, tuple[Any, int]]] = {  # of gRPC and HTTP
    "full": (grpc.StatusCode.RESOURCE_EXHAUSTED, 429),
    "closing": (grpc.StatusCode.UNAVAILABLE, 503),
    "too_large": (grpc.StatusCode.RESOURCE_EXHAUSTED, 413),
    "unreadable": (grpc.StatusCode.INVALID_ARGUMENT, 400),
    "slow": (grpc.StatusCode.DEADLINE_EXCEEDED, 408),
    "content_type": (grpc.StatusCode.INVALID_ARGUMENT, 415),
}
_SERVICE: Final = "opentelemetry.proto.collector.trace.v1.TraceService"
_PROTOBUF, _JSON = "application/x-protobuf", "application/json"
_RETRY_AFTER: Final = 1.0  # seconds
_BODY_SECONDS: Final = 30.0  # in which the body of a request must arrive
_IDLE: Final = 60.0  # seconds without a request after which a connection is closed
_SWEEP: Final = 0.2  # seconds between two looks for complete traces


@dataclass(slots=True)
class _Refused(Exception):  # noqa: N818  # an answer
    reason: Reason
    cause: str

    @property
    def may_retry(self) -> bool:
        return self.reason in {"full", "closing"}


class OtlpSource:
    """Receives OTLP at ``host`` over gRPC and HTTP, without TLS and without a password.

    A request is acknowledged when it is accepted. It is refused, and the sender asked to repeat it
    a second later, while more bytes or traces wait than the engine may keep. Port 0 takes a free
    port. The HTTP server also answers the probes ``/livez`` and ``/readyz``.
    """

    has_failed = False

    def __init__(self, engine: Engine, meters: Meters, traces: Traces | None = None) -> None:
        self.engine, self._meters = engine, meters
        self.traces = Traces() if traces is None else traces
        self._log = LimitedLog()
        self._is_closed = False

    async def start(self, host: str, grpc_port: int, http_port: int) -> tuple[int, int]:
        """Listen, and return the ports for gRPC and HTTP; `ConfigError` if a port is taken."""
        if host not in {"127.0.0.1", "::1", "localhost"}:
            log.warning(
                "the worker listens at %s without TLS or a password: who reaches it can send spans,"
                " which cost requests to the judge; put a collector before it",
                host,
            )
        self._grpc = grpc.aio.server(
            options=[
                ("grpc.so_reuseport", 0),
                ("grpc.max_receive_message_length", LARGEST),
                ("grpc.per_message_decompression", 0),  # gRPC decompresses without a limit
                ("grpc.max_connection_idle_ms", int(_IDLE * 1000)),
            ]
        )
        handlers = {"Export": grpc.unary_unary_rpc_method_handler(self._export_grpc)}
        self._grpc.add_generic_rpc_handlers(
            [grpc.method_handlers_generic_handler(_SERVICE, handlers)]
        )
        place = f"[{host}]" if ":" in host else host
        try:
            grpc_port = self._grpc.add_insecure_port(f"{place}:{grpc_port}")
            self._http, http_port = await serve_http(
                host, http_port, self._is_ready, self._export_http
            )
        except (OSError, RuntimeError) as error:
            msg = f"cannot listen at {host}: {error}; is another process listening there?"
            raise ConfigError(msg) from error
        await self._grpc.start()
        self._sweeping = asyncio.create_task(self._sweep())
        return grpc_port, http_port

    def _is_ready(self) -> bool:
        return not self._is_closed and not self._is_full

    @property
    def _is_full(self) -> bool:
        engine, traces = self.engine, self.traces
        return self._lacks_memory() or len(traces) + engine.waiting >= engine.config.max_held

    def _lacks_memory(self, *, besides: int = 0) -> bool:
        return self.engine.size + self.traces.size - besides >= self.engine.max_bytes

    def _check_open(self) -> None:
        if self._is_closed:
            raise _Refused("closing", "the worker is shutting down")

    def _check_room(self) -> None:
        self._check_open()
        if self._is_full:
            self._refuse_full()

    def _refuse_full(self) -> NoReturn:
        if self.engine.waiting:  # else only the traces that wait for their roots can make room
            self.traces.wait_for_refused()
        raise _Refused("full", "the worker has no room; send the request again later")

    async def _take(self, content: bytes, *, is_json: bool = False) -> None:
        """Accept the request ``content``; raise `_Refused` if that is not possible."""
        self._check_room()
        work = self.engine.in_thread(len(content), self._read, content, is_json)
        reading = asyncio.ensure_future(work)  # goes on if the sender hangs up
        reading.add_done_callback(partial(self._forget, len(content)))
        self.engine.size += len(content)
        try:
            spans, rest, parts = await asyncio.shield(reading)
        except TooLargeError as error:
            raise _Refused("too_large", str(error)) from error
        except UnreadableError as error:
            raise _Refused("unreadable", str(error)) from error
        self._check_open()
        for trace_id, part in parts.items():
            self.traces.add(trace_id, part)
            spans -= part.spans
        if rest and spans:
            self.engine.send(rest, spans)

    def _forget(self, size: int, _: object) -> None:
        self.engine.size -= size

    def _read(self, content: bytes, is_json: bool) -> Any:  # noqa: FBT001
        content = unpacked(content)
        content = from_json(content) if is_json else content
        if self.engine.strips:
            parsed(content)  # what cannot be parsed could not be stripped later
        return count_spans(content), *divided(content, self.traces)

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(_SWEEP)
            with self.engine.edge:  # a failure must not end the look for complete traces
                self._pass_on()

    def _pass_on(self, *, all_traces: bool = False) -> None:
        for content, spans in self.traces.complete(all_traces=all_traces):
            self.engine.score(content, spans)

    async def stop(self) -> None:
        """Refuse new requests, and pass on all traces, even incomplete ones."""
        self._is_closed = True
        self._sweeping.cancel()
        self._pass_on(all_traces=True)

    async def close(self) -> None:
        await self._grpc.stop(0.5)
        await self._http.cleanup()

    def _refuse(self, refused: _Refused) -> None:
        self._meters.record(semconv.WORKER_REFUSED, 1, {semconv.REASON: refused.reason})
        self._log.write(refused.reason, "a request is refused: %s", refused.cause)

    async def _export_grpc(self, content: bytes, context: Any) -> bytes:
        try:
            await self._take(content)
        except _Refused as refused:
            self._refuse(refused)
            code, _ = _CODES[refused.reason]
            if refused.may_retry:  # without `RetryInfo`, a collector drops the spans
                info = RetryInfo()
                info.retry_delay.FromNanoseconds(int(_RETRY_AFTER * 1e9))
                number = code_pb2.Code.Value(code.name)
                status = Status(code=number, message=refused.cause)
                status.details.add().Pack(info)
                # The first is what the exporters of the Python SDK read.
                context.set_trailing_metadata(
                    (
                        ("google.rpc.retryinfo-bin", info.SerializeToString()),
                        ("grpc-status-details-bin", status.SerializeToString()),
                    )
                )
            await context.abort(code, refused.cause)
        return b""  # the response without any field

    async def _body(self, request: web.Request) -> bytes:
        encoding = request.headers.get("content-encoding", "identity")
        if request.content_type not in {_PROTOBUF, _JSON}:
            raise _Refused("content_type", f"send the content type {_PROTOBUF} or {_JSON}")
        if encoding.lower() not in {"identity", "gzip", "deflate"}:
            raise _Refused("content_type", "send the content encoding gzip, deflate or none")
        self._check_room()
        body = bytearray()

        async def read() -> None:
            async for chunk in request.content.iter_any():
                body.extend(chunk)
                self.engine.size += len(chunk)
                if len(body) > LARGEST:
                    raise _Refused("too_large", str(TooLargeError(f"more than {LARGEST} bytes")))
                if self._lacks_memory(besides=len(body)):
                    self._refuse_full()

        try:
            await asyncio.wait_for(read(), _BODY_SECONDS)
        except (asyncio.TimeoutError, OSError) as error:
            raise _Refused("slow", "the body of the request did not arrive in time") from error
        finally:
            self.engine.size -= len(body)
        return bytes(body)

    async def _export_http(self, request: web.Request) -> web.Response:
        from aiohttp import web  # noqa: PLC0415  # optional

        is_json = request.content_type == _JSON
        try:
            await self._take(await self._body(request), is_json=is_json)
        except _Refused as refused:
            self._refuse(refused)
            wait = {"retry-after": str(math.ceil(_RETRY_AFTER))} if refused.may_retry else {}
            _, status = _CODES[refused.reason]
            return web.Response(status=status, text=refused.cause, headers=wait)
        body = b"{}" if is_json else b""
        return web.Response(body=body, content_type=_JSON if is_json else _PROTOBUF)


def _may_log(record: logging.LogRecord) -> bool:
    """Return False for malformed HTTP requests, whose texts and keys aiohttp would log."""
    from aiohttp.http_exceptions import HttpProcessingError  # noqa: PLC0415  # optional

    return not (record.exc_info and isinstance(record.exc_info[1], HttpProcessingError))


async def serve_http(host: str, port: int, is_ready: Any, export: Any = None) -> tuple[Any, int]:
    """Serve ``/livez``, ``/readyz`` and, by ``export``, ``/v1/traces``; return server and port."""
    web = require("aiohttp.web", "worker")
    logging.getLogger("aiohttp.server").addFilter(_may_log)

    async def live(_: Any) -> Any:
        return web.Response(text="ok")

    async def ready(_: Any) -> Any:
        has_room = is_ready()
        return web.Response(status=200 if has_room else 503, text="ok" if has_room else "no")

    app = web.Application()
    app.add_routes([web.get("/livez", live), web.get("/readyz", ready)])
    if export is not None:
        app.add_routes([web.post("/v1/traces", export)])
    runner = web.AppRunner(
        app, access_log=None, auto_decompress=False, keepalive_timeout=_IDLE, shutdown_timeout=1.0
    )
    await runner.setup()
    await web.TCPSite(runner, host, port).start()
    return runner, int(runner.addresses[0][1])
