"""Whether an OTLP endpoint answers: a real export of nothing, which leaves no trace there."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from http import HTTPStatus
from http.client import HTTPException
from typing import Any, Literal
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

import grpc  # type: ignore[import-untyped]
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.logs.v1.logs_service_pb2_grpc import LogsServiceStub
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2_grpc import MetricsServiceStub
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2_grpc import TraceServiceStub

from rag_eval_otel.config import Signal
from rag_eval_otel.doctor.targets import PORTS, Protocol, Target

Verdict = Literal[
    "ok", "refused", "unknown_host", "protocol", "path", "key", "timeout", "tls", "address", "error"
]

_SERVICES: Mapping[Signal, tuple[Any, Any]] = {
    "traces": (TraceServiceStub, ExportTraceServiceRequest),
    "metrics": (MetricsServiceStub, ExportMetricsServiceRequest),
    "logs": (LogsServiceStub, ExportLogsServiceRequest),
}
_OTHER: Mapping[Protocol, Protocol] = {"grpc": "http", "http": "grpc"}
_QUOTED = 200  # characters of what was said that go into a report


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What came of an export; ``hint`` says where one would have been taken, if that was found."""

    target: Target
    verdict: Verdict
    told: str = ""
    hint: str = ""


def probe(target: Target, timeout: float) -> Answer:
    """Export nothing to ``target``; where that fails, look whether its neighbour would take it."""
    answer = _export(target, timeout)
    if answer.verdict in {"refused", "protocol", "timeout"}:
        return replace(answer, **_looked_around(answer, timeout))
    return answer


def _export(target: Target, timeout: float) -> Answer:
    return _BY_PROTOCOL[target.protocol](target, timeout)


def _looked_around(answer: Answer, timeout: float) -> Mapping[str, Any]:
    """Try the other protocol at the same port, where somebody listens, then the usual ports."""
    target = answer.target
    here = (_OTHER[target.protocol], target.port)
    places = [here] if answer.verdict != "refused" else []
    places += [one for one in PORTS.items() if one != (target.protocol, target.port)]
    for protocol, port in places:
        found = _neighbour(target, protocol, port)
        if _listens(target.host, port, timeout) and _export(found, timeout).verdict == "ok":
            name = "grpc" if protocol == "grpc" else "http/protobuf"
            is_here = (protocol, port) == here
            verdict = "protocol" if is_here else answer.verdict
            return {"hint": f"{name} at port {port} would be taken", "verdict": verdict}
    return {}


def _neighbour(target: Target, protocol: Protocol, port: int) -> Target:
    scheme = "http" if target.endpoint.startswith("http:") or target.is_plain else "https"
    path = f"/v1/{target.signal}" if protocol == "http" else ""
    return replace(
        target,
        protocol=protocol,
        endpoint=f"{scheme}://{target.host}:{port}{path}",
        is_plain=scheme == "http",
    )


def _listens(host: str, port: int, timeout: float) -> bool:
    try:
        with closing(socket.create_connection((host, port), timeout)):
            return True
    except OSError:
        return False


def _over_http(target: Target, timeout: float) -> Answer:
    verdict, told = _posted(target, timeout)
    return Answer(target=target, verdict=verdict, told=told)


def _posted(target: Target, timeout: float) -> tuple[Verdict, str]:
    if not target.endpoint.startswith(("http://", "https://")):
        return "address", "it begins with no http:// or https://"
    try:
        status = _post(target, timeout)
    except URLError as error:
        reason = error.reason if isinstance(error.reason, OSError) else OSError(error.reason)
        return _of_os_error(reason), _said(reason)
    except HTTPException as error:
        return "protocol", f"what answers there does not speak HTTP ({type(error).__name__})"
    except ValueError as error:
        return "address", _said(error)
    except OSError as error:  # while the reply was read
        return _of_os_error(error), _said(error)
    return _of_status(status), f"HTTP {status}"


def _post(target: Target, timeout: float) -> int:
    """Return the status of an export of nothing, an error's too."""
    headers = {"Content-Type": "application/x-protobuf", **target.headers}
    # The scheme has been looked at.
    request = Request(target.endpoint, data=b"", headers=headers, method="POST")  # noqa: S310
    tls = target.tls() if target.endpoint.startswith("https:") else None
    try:
        with urlopen(request, timeout=timeout, context=tls) as reply:  # noqa: S310
            return int(reply.status)
    except HTTPError as error:
        with closing(error):
            return int(error.code)


def _of_status(status: int) -> Verdict:
    """Sort a refusal; 400 is how some answer an export of nothing, so they are there."""
    if status < HTTPStatus.MULTIPLE_CHOICES or status == HTTPStatus.BAD_REQUEST:
        return "ok"
    found: Mapping[int, Verdict] = {
        401: "key",
        403: "key",
        404: "path",
        405: "path",
        415: "protocol",
    }
    return found.get(status, "error")


def _of_os_error(error: OSError) -> Verdict:
    kinds: tuple[tuple[type[OSError], Verdict], ...] = (
        (ConnectionRefusedError, "refused"),
        (socket.gaierror, "unknown_host"),
        (TimeoutError, "timeout"),
        (ssl.SSLError, "tls"),
        (ConnectionError, "protocol"),  # it hung up on us
        (FileNotFoundError, "tls"),
    )
    for kind, verdict in kinds:
        if isinstance(error, kind):
            return verdict
    return "error"


def _over_grpc(target: Target, timeout: float) -> Answer:
    stub, request = _SERVICES[target.signal]
    try:
        channel = _channel(target)
    except OSError as error:
        return Answer(target=target, verdict="tls", told=_said(error))
    with channel:
        try:
            metadata = tuple(target.headers.items())
            stub(channel).Export(request(), timeout=timeout, metadata=metadata)
        except ValueError as error:  # gRPC takes no such header
            return Answer(target=target, verdict="address", told=_said(error))
        except grpc.RpcError as error:
            verdict = _of_code(error.code().name, error.details() or "")
            told = f"{error.code().name}: {_said(_last(error.details() or ''))}"
            return Answer(target=target, verdict=verdict, told=told)
    return Answer(target=target, verdict="ok", told="OK")


def _channel(target: Target) -> Any:
    parts = urlsplit(target.endpoint)
    address = parts.netloc or target.endpoint
    if target.is_plain:
        return grpc.insecure_channel(address)
    files = (target.certificate, target.client_key, target.client_certificate)
    contents = [None if name is None else _bytes_of(name) for name in files]
    return grpc.secure_channel(address, grpc.ssl_channel_credentials(*contents))


def _bytes_of(name: str) -> bytes:
    with open(name, "rb") as file:  # noqa: PTH123  # a path of the user's, as he wrote it
        return file.read()


_SIGNS: tuple[tuple[str, Verdict], ...] = (
    ("connection refused", "refused"),
    ("resol", "unknown_host"),
    ("http/2", "protocol"),
    ("http1", "protocol"),
    ("socket closed", "protocol"),
    ("handshak", "tls"),
    ("ssl", "tls"),
    ("certificate", "tls"),
)
"""What gRPC says where it could not get through at all, and what that comes from."""


def _of_code(code: str, details: str) -> Verdict:
    found: Mapping[str, Verdict] = {
        "UNIMPLEMENTED": "path",
        "UNAUTHENTICATED": "key",
        "PERMISSION_DENIED": "key",
        "DEADLINE_EXCEEDED": "timeout",
        "INVALID_ARGUMENT": "ok",  # as HTTP's 400
    }
    if code in found:
        return found[code]
    for sign, verdict in _SIGNS:
        if sign in details.lower():
            return verdict
    return "error"


_BY_PROTOCOL: Mapping[Protocol, Callable[[Target, float], Answer]] = {
    "http": _over_http,
    "grpc": _over_grpc,
}


def _last(details: str) -> str:
    """Return what gRPC says of its last attempt, without what it says of having made some."""
    return details.rpartition("last error: ")[2]


def _said(error: object) -> str:
    return str(error).replace("\n", " ")[:_QUOTED]
