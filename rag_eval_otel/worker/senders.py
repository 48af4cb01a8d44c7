"""Send OTLP requests to a receiver, over gRPC or HTTP/protobuf.

A `Sender` sends one request, and says by `SendError` whether it is worth a repetition.
"""

from __future__ import annotations

import gzip
import threading
import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, Protocol, TypeAlias
from urllib.parse import urlsplit

import grpc  # type: ignore[import-untyped]
import requests
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from google.rpc.error_details_pb2 import RetryInfo  # type: ignore[import-untyped]
from google.rpc.status_pb2 import Status  # type: ignore[import-untyped]
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceResponse
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse

from rag_eval_otel.environment import OtlpTarget, otlp_target
from rag_eval_otel.errors import ConfigError

Signal: TypeAlias = Literal["traces", "logs"]
FailureKind: TypeAlias = Literal["transient", "denied", "too_large", "invalid"]

_RECONNECT: Final = [
    ("grpc.initial_reconnect_backoff_ms", 500),
    ("grpc.max_reconnect_backoff_ms", 5_000),
    ("grpc.max_send_message_length", -1),
]


class SendError(Exception):
    """A receiver has not accepted a request.

    The message names the receiver and the status. It quotes neither the answer, which may have a
    user's text, nor headers or the query of the address, which may have a key.

    ``kind`` says what a repetition would do. ``transient``: it may succeed. ``denied``: it fails
    until somebody changes the receiver or its credentials. ``too_large``: a smaller request may
    succeed. ``invalid``: the same content always fails. ``retry_after`` is the number of seconds
    that the receiver asks to wait, or None.
    """

    def __init__(
        self, message: str, *, kind: FailureKind, retry_after: float | None = None
    ) -> None:
        super().__init__(message)
        self.kind: FailureKind = kind
        self.retry_after = retry_after


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """An answer of a receiver that has accepted a request, but for ``rejected`` of its records."""

    rejected: int = 0


class Sender(Protocol):
    """Sends serialized OTLP requests of one signal to one receiver, from any number of threads."""

    def send(self, message: bytes) -> Reply:
        """Send one request. Raises `SendError` if the receiver does not accept it."""

    def close(self) -> None:
        """Close the connections; requests under way fail."""


_REPLIES: Final[Mapping[str, Any]] = {
    "traces": ExportTraceServiceResponse,
    "logs": ExportLogsServiceResponse,
}
_REJECTED: Final = {"traces": "rejected_spans", "logs": "rejected_log_records"}


def open_senders(
    environ: Mapping[str, str] | None = None,
) -> dict[Signal, Sender]:
    """Return a sender for each signal, as the variables ``OTEL_EXPORTER_OTLP_*`` say.

    Raises `ConfigError` if a variable cannot be used, or a file that it names cannot be read.
    """
    signals: tuple[Signal, ...] = ("traces", "logs")
    return {signal: open_sender(signal, otlp_target(signal, environ)) for signal in signals}


def open_sender(signal: Signal, target: OtlpTarget) -> Sender:
    """Return a sender of ``signal`` to ``target``. Raises `ConfigError` if it cannot be used."""
    for path in (target.certificate, target.client_key, target.client_certificate):
        if path and not Path(path).is_file():
            msg = f"{path} is named by a variable OTEL_EXPORTER_OTLP_*, but there is no such file"
            raise ConfigError(msg)
    if target.protocol != "grpc":
        return _HttpSender(signal, target)
    if "@" in urlsplit(target.endpoint).netloc:  # not quoted: it may have a password
        msg = "over gRPC, the endpoint of OTLP has no user and password; send them as headers: "
        msg += "OTEL_EXPORTER_OTLP_HEADERS=authorization=Basic%20..."
        raise ConfigError(msg)
    return _GrpcSender(signal, target)


def _read_reply(signal: Signal, content: bytes) -> Reply:
    """Return what ``content``, an OTLP response, says; a response that is none says nothing."""
    try:
        partial = _REPLIES[signal].FromString(content).partial_success
    except DecodeError:
        return Reply()
    rejected = int(getattr(partial, _REJECTED[signal]))
    return Reply(rejected=rejected)


_TRANSIENT: Final = frozenset(
    {
        grpc.StatusCode.CANCELLED,
        grpc.StatusCode.DEADLINE_EXCEEDED,
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        grpc.StatusCode.ABORTED,
        grpc.StatusCode.OUT_OF_RANGE,
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.DATA_LOSS,
    }
)
_TOO_LARGE_CODES: Final = frozenset(
    {grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.OUT_OF_RANGE}
)
_TOO_LARGE: Final = (
    "larger than max",  # gRPC for C++, Python and Go
    "exceeds maximum size",  # Java
    "exceeds the maximum configured message size",  # .NET
    "message length too large",  # tonic for Rust
)
"""What servers say of a message above their limit; other messages with these codes may pass."""
_RETRY_INFO: Final = ("google.rpc.retryinfo-bin", "grpc-status-details-bin")


class _GrpcSender:
    def __init__(self, signal: Signal, target: OtlpTarget) -> None:
        self._signal, self._target = signal, target
        gzips = target.compression == "gzip"
        options: dict[str, Any] = {
            "options": _RECONNECT,
            "compression": grpc.Compression.Gzip if gzips else grpc.Compression.NoCompression,
        }
        self._place = urlsplit(target.endpoint).netloc or target.endpoint
        self._channel = (
            grpc.insecure_channel(self._place, **options)
            if target.insecure
            else grpc.secure_channel(self._place, _credentials(target), **options)
        )
        service = f"opentelemetry.proto.collector.{_SERVICES[signal]}"
        self._export = self._channel.unary_unary(f"/{service}/Export")
        self._headers = tuple(target.headers.items())

    def send(self, message: bytes) -> Reply:
        try:
            content = self._export(message, metadata=self._headers, timeout=self._target.timeout)
        except grpc.RpcError as error:
            raise _grpc_failure(error, self._place) from None
        except ValueError:
            msg = f"{self._place}: a header has a stray character, or the connection is closed"
            raise SendError(msg, kind="transient") from None
        return _read_reply(self._signal, content)

    def close(self) -> None:
        self._channel.close()


_SERVICES: Final = {"traces": "trace.v1.TraceService", "logs": "logs.v1.LogsService"}


def _credentials(target: OtlpTarget) -> Any:
    paths = (target.certificate, target.client_key, target.client_certificate)
    root, key, chain = (Path(path).read_bytes() if path else None for path in paths)
    return grpc.ssl_channel_credentials(root, key, chain)


def _grpc_failure(error: Any, place: str) -> SendError:
    code, details = error.code(), error.details() or ""
    retry_after = _retry_info(error.trailing_metadata() or ())
    kind: FailureKind = "transient" if code in _TRANSIENT else "denied"
    if code is grpc.StatusCode.INVALID_ARGUMENT:
        kind = "invalid"
    elif code in _TOO_LARGE_CODES and any(text in details for text in _TOO_LARGE):
        kind = "too_large"
    return SendError(f"{place}: {code.name}", kind=kind, retry_after=retry_after)


def _retry_info(metadata: Iterable[tuple[str, Any]]) -> float | None:
    found = dict(metadata)
    info = RetryInfo()
    try:
        if _RETRY_INFO[0] in found:
            info.ParseFromString(found[_RETRY_INFO[0]])
        elif _RETRY_INFO[1] in found:
            details = Status.FromString(found[_RETRY_INFO[1]]).details
            if not any(detail.Unpack(info) for detail in details):
                return None
        else:
            return None
    except DecodeError:
        return None
    return float(info.retry_delay.seconds + info.retry_delay.nanos / 1e9)


_PACK: Final[Mapping[str, Callable[[bytes], bytes]]] = {
    "gzip": lambda raw: gzip.compress(raw, compresslevel=6),
    "deflate": zlib.compress,
}
_ACCEPTED: Final = range(200, 300)  # the standard has 200 only, but some backends answer 202 or 204
_RETRYABLE: Final = frozenset({408, 429, 502, 503, 504})


class _HttpSender:
    def __init__(self, signal: Signal, target: OtlpTarget) -> None:
        self._signal, self._target = signal, target
        self._place = urlsplit(target.endpoint).netloc.rpartition("@")[2]  # it may have a password
        self._pack = _PACK.get(target.compression)
        self._headers = {**target.headers, "Content-Type": "application/x-protobuf"}
        if self._pack:
            self._headers["Content-Encoding"] = target.compression
        pair = (target.client_certificate, target.client_key)
        self._certificate = pair if all(pair) else target.client_certificate or None
        self._of_thread = threading.local()
        self._sessions: list[requests.Session] = []

    def send(self, message: bytes) -> Reply:
        body = self._pack(message) if self._pack else message
        try:
            response = self._session().post(
                self._target.endpoint,
                data=body,
                headers=self._headers,
                timeout=self._target.timeout,
                allow_redirects=False,
                # Not set in the session: there a variable REQUESTS_CA_BUNDLE has precedence.
                verify=self._target.certificate or True,
                cert=self._certificate,
            )
        except ValueError as error:
            msg = f"{type(error).__name__}: is there a stray character in a header or the address?"
            raise SendError(msg, kind="denied") from None
        except requests.RequestException as error:  # its message has the address
            msg = f"{self._place}: {type(error).__name__}"
            raise SendError(msg, kind="transient") from None
        except OSError as error:  # a PEM file that is gone
            msg = f"{type(error).__name__}: {error}"
            raise SendError(msg, kind="transient") from None
        if response.status_code not in _ACCEPTED:
            raise _http_failure(response, self._place)
        return _read_reply(self._signal, response.content)

    def _session(self) -> requests.Session:
        """Return the session of this thread, because sessions are not thread-safe."""
        session: requests.Session | None = getattr(self._of_thread, "session", None)
        if session is None:
            session = self._of_thread.session = requests.Session()
            self._sessions.append(session)
        return session

    def close(self) -> None:
        for session in self._sessions:
            session.close()


def _http_failure(response: requests.Response, place: str) -> SendError:
    status = response.status_code
    kind: FailureKind = "transient" if status in _RETRYABLE else "denied"
    if status in {400, 422}:
        kind = "invalid"
    elif status == requests.codes.request_entity_too_large:
        kind = "too_large"
    wait = response.headers.get("Retry-After", "")
    retry_after = float(wait) if wait.isdecimal() else None
    return SendError(f"{place}: HTTP {status}", kind=kind, retry_after=retry_after)
