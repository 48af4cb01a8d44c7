"""`Exporter`: send serialized OTLP requests to the next receiver, until it has taken them."""

from __future__ import annotations

import asyncio
import gzip
import random
import re
import ssl
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol
from urllib.parse import unquote, urlsplit

import grpc  # type: ignore[import-untyped]
import grpc.aio  # type: ignore[import-untyped]
import httpx
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from google.rpc.error_details_pb2 import RetryInfo  # type: ignore[import-untyped]
from google.rpc.status_pb2 import Status  # type: ignore[import-untyped]
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse

from rag_eval_otel import semconv
from rag_eval_otel.errors import ConfigError
from rag_eval_otel.runtime.guard import LimitedLog

if TYPE_CHECKING:
    from rag_eval_otel.export.metrics import Meters

_HTTP_PORT: Final = 4318  # of OTLP
_AT_ONCE: Final = 16  # requests under way
_FIRST, _LONGEST = 0.5, 30.0  # seconds before the first retry, and at most
_MOST_ASKED: Final = 300.0  # seconds that a receiver may ask to wait
_HEADER_NAME: Final = re.compile(r"[a-z0-9_.-]+").fullmatch
_METHOD: Final = "/opentelemetry.proto.collector.trace.v1.TraceService/Export"
_HTTP_RETRIES: Final = {429, 502, 503, 504}  # as of the OTLP specification, like the codes of gRPC
_GRPC_RETRIES: Final = {
    "ABORTED",
    "CANCELLED",
    "DATA_LOSS",
    "DEADLINE_EXCEEDED",
    "OUT_OF_RANGE",
    "UNAVAILABLE",
}


@dataclass(frozen=True, slots=True)
class Rejection:
    """Why a request was not taken; ``retry_after``: seconds to wait, None if no retry can help."""

    cause: str
    retry_after: float | None = 0.0


class _Sender(Protocol):
    async def send(self, content: bytes) -> bytes | Rejection:
        """Send a request, and return the body of the response, or why it was not taken."""

    async def close(self) -> None: ...


@dataclass(eq=False, repr=False)
class Exporter:
    """Sends requests, 16 at once, and repeats what may succeed later until `close`.

    ``spans`` counts those that were ``sent``, ``refused`` by the receiver for good, or ``given_up``
    at the end.
    """

    sender: _Sender
    meters: Meters
    spans: Counter[str] = field(default_factory=Counter)  # by outcome
    _slots: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(_AT_ONCE))
    _log: LimitedLog = field(default_factory=LimitedLog)
    _is_ending: asyncio.Event = field(default_factory=asyncio.Event)

    async def send(self, content: bytes, spans: int) -> None:
        """Send a request of ``spans`` spans until the receiver takes or finally refuses it."""
        outcome = "given_up"
        try:
            async with self._slots:
                outcome = await self._send(content)
        finally:
            self.spans[outcome] += spans
            self.meters.record(semconv.WORKER_SPANS, spans, {semconv.OUTCOME: outcome})

    async def _send(self, content: bytes) -> str:
        pause = _FIRST
        while isinstance(answer := await self.sender.send(content), Rejection):
            if answer.retry_after is None:
                self._log.write("refused", "spans are lost: the receiver says %s", answer.cause)
                return "refused"
            text = "spans wait: %s; they are sent again; logged once a minute"
            self._log.write("waits", text, answer.cause)
            asked = min(answer.retry_after, _MOST_ASKED)
            await self._wait(max(asked, pause * random.uniform(0.5, 1)))  # noqa: S311
            pause = min(2 * pause, _LONGEST)
        self._read(answer)
        return "sent"

    async def _wait(self, seconds: float) -> None:
        if self._is_ending.is_set():
            await asyncio.sleep(_FIRST)
            return
        with suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._is_ending.wait(), seconds)

    def hurry(self) -> None:
        """From now on, wait at most half a second before a retry, because the worker ends."""
        self._is_ending.set()

    def _read(self, response: bytes) -> None:
        """Log and count spans that the receiver rejected; OTLP forbids to send these again."""
        if not response:
            return
        try:
            partial = ExportTraceServiceResponse.FromString(response).partial_success
        except DecodeError:
            return
        if partial.rejected_spans:
            self.meters.record(
                semconv.WORKER_SPANS, partial.rejected_spans, {semconv.OUTCOME: "rejected"}
            )
            self._log.write("rejected", "the receiver rejects %d spans", partial.rejected_spans)

    async def close(self) -> None:
        await self.sender.close()


def build_sender(variables: Mapping[str, str], endpoint: str | None = None) -> _Sender:
    """Make the sender of the ``OTEL_EXPORTER_OTLP_*`` variables; ``endpoint`` takes precedence."""
    options = {
        name: variables.get(f"OTEL_EXPORTER_OTLP_TRACES_{name}")
        or variables.get(f"OTEL_EXPORTER_OTLP_{name}", "")
        for name in ("ENDPOINT", "PROTOCOL", "HEADERS", "CERTIFICATE", "TIMEOUT", "COMPRESSION")
    }
    url = endpoint or options["ENDPOINT"]
    if not url:
        raise ConfigError(
            "where are the spans to be sent? Name --endpoint or OTEL_EXPORTER_OTLP_ENDPOINT"
        )
    try:
        parts = urlsplit(url if "://" in url else f"http://{url}")
        port = parts.port
    except ValueError as error:
        raise ConfigError(f"the endpoint is no URL: {error}") from None
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise ConfigError(f"the endpoint must be an http or https URL, not {parts.scheme}")
    protocol = options["PROTOCOL"] or ("http" if port == _HTTP_PORT else "grpc")
    special = None if endpoint else variables.get("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
    try:
        seconds = float(options["TIMEOUT"] or 10)
    except ValueError as error:
        raise ConfigError(
            f"OTEL_EXPORTER_OTLP_TIMEOUT must be seconds, not {options['TIMEOUT']!r}"
        ) from error
    shared: dict[str, Any] = {
        "headers": _headers(options["HEADERS"]),
        "certificate": options["CERTIFICATE"],
        "seconds": seconds,
        "is_packed": options["COMPRESSION"] == "gzip",
    }
    try:
        if not protocol.startswith("http"):
            return _GrpcSender(parts.netloc, is_secure=parts.scheme == "https", **shared)
        if not special:
            parts = parts._replace(path=f"{parts.path.rstrip('/')}/v1/traces")
        return _HttpSender(parts.geturl(), **shared)
    except OSError as error:
        msg = f"the certificate {options['CERTIFICATE']} cannot be read"
        raise ConfigError(msg) from error


def _headers(text: str) -> dict[str, str]:
    """Return the headers in a variable, or raise `ConfigError` without their secret values."""
    pairs = [part.partition("=") for part in text.split(",") if part.strip()]
    headers = {name.strip().lower(): unquote(value.strip()) for name, _, value in pairs}
    for name, value in headers.items():
        is_text = value.isascii() and value.isprintable() and not name.endswith("-bin")
        if not (is_text and _HEADER_NAME(name)):
            raise ConfigError("OTEL_EXPORTER_OTLP_HEADERS must be NAME=VALUE, with commas between")
    return headers


class _HttpSender:
    def __init__(
        self,
        url: str,
        *,
        headers: Mapping[str, str],
        certificate: str,
        seconds: float,
        is_packed: bool,
    ) -> None:
        self._url, self._is_packed = url, is_packed
        self._client = httpx.AsyncClient(
            timeout=seconds,
            verify=ssl.create_default_context(cafile=certificate) if certificate else True,
            headers={**headers, "content-type": "application/x-protobuf"},
        )

    async def send(self, content: bytes) -> bytes | Rejection:
        packed = {"content-encoding": "gzip"} if self._is_packed else {}
        body = gzip.compress(content, 1) if self._is_packed else content
        try:
            response = await self._client.post(self._url, content=body, headers=packed)
        except httpx.HTTPError as error:
            return Rejection(f"the receiver cannot be reached ({type(error).__name__})")
        if response.is_success:
            return response.content
        wait = response.headers.get("retry-after", "")
        may_retry = response.status_code in _HTTP_RETRIES
        seconds = float(wait) if wait.isdecimal() else 0.0
        return Rejection(f"HTTP {response.status_code}", seconds if may_retry else None)

    async def close(self) -> None:
        await self._client.aclose()


class _GrpcSender:
    def __init__(
        self,
        address: str,
        *,
        is_secure: bool,
        headers: Mapping[str, str],
        certificate: str,
        seconds: float,
        is_packed: bool,
    ) -> None:
        options = [("grpc.max_send_message_length", -1), ("grpc.max_reconnect_backoff_ms", 5000)]
        if is_secure or certificate:
            roots = Path(certificate).read_bytes() if certificate else None
            self._channel = grpc.aio.secure_channel(
                address, grpc.ssl_channel_credentials(roots), options
            )
        else:
            self._channel = grpc.aio.insecure_channel(address, options)
        self._call = self._channel.unary_unary(_METHOD)
        self._metadata = tuple(headers.items())
        self._seconds = seconds
        self._compression = grpc.Compression.Gzip if is_packed else None

    async def send(self, content: bytes) -> bytes | Rejection:
        try:
            return bytes(
                await self._call(
                    content,
                    timeout=self._seconds,
                    metadata=self._metadata,
                    compression=self._compression,
                )
            )
        except grpc.aio.AioRpcError as error:
            name, wait = error.code().name, _retry_delay(error.trailing_metadata())
            may_retry = name in _GRPC_RETRIES or wait is not None
            return Rejection(f"gRPC {name}", (wait or 0.0) if may_retry else None)

    async def close(self) -> None:
        await self._channel.close()


def _retry_delay(metadata: Any) -> float | None:
    """Return the seconds in the `RetryInfo` of a gRPC refusal, or None if it has none."""
    info = RetryInfo()
    with suppress(DecodeError):
        for name, value in metadata or ():
            if name == "google.rpc.retryinfo-bin":
                return _seconds(RetryInfo.FromString(value))
            if name == "grpc-status-details-bin":
                for detail in Status.FromString(value).details:
                    if detail.Unpack(info):
                        return _seconds(info)
    return None


def _seconds(info: Any) -> float:
    return float(info.retry_delay.seconds + info.retry_delay.nanos / 1e9)
