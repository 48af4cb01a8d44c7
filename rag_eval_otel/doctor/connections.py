"""Check that the judge, the embedder and the OTLP endpoints answer.

Judge, embedder and endpoints each get one small request with a time limit. An OTLP endpoint gets
an export request without content, which adds nothing to the backend.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import time
from collections.abc import Awaitable, Coroutine, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from http.client import HTTPException
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, Final, Literal
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

import grpc  # type: ignore[import-untyped]
from opentelemetry.util.re import parse_env_headers

from rag_eval_otel.config import Config
from rag_eval_otel.environment import Signal, exporter_names
from rag_eval_otel.errors import JudgeError, JudgeTimeoutError
from rag_eval_otel.judge.models import build_embedder, build_plain_judge
from rag_eval_otel.judge.tasks import STATEMENTS, Judge
from rag_eval_otel.runtime.providers import answers_http
from rag_eval_otel.runtime.workers import DaemonExecutor
from rag_eval_otel.types import Embedder

Part = Literal["judge", "embedder"]
PARTS: Final[tuple[Part, ...]] = ("judge", "embedder")
_QUESTION, _ANSWER = "What is the capital of France?", "Paris is the capital of France."

Protocol = Literal["grpc", "http"]
Verdict = Literal[
    "ok", "refused", "unknown_host", "protocol", "path", "key", "timeout", "tls", "address", "error"
]
_SIGNALS: Final[tuple[Signal, ...]] = ("traces", "metrics", "logs")
_PORTS: Final[Mapping[Protocol, int]] = {"grpc": 4317, "http": 4318}
_OTLP: Final[Mapping[str, Protocol]] = {"otlp_proto_grpc": "grpc", "otlp_proto_http": "http"}
_SERVICES: Final[Mapping[Signal, str]] = {
    "traces": "trace.v1.TraceService",
    "metrics": "metrics.v1.MetricsService",
    "logs": "logs.v1.LogsService",
}
_HTTP: Final = "set OTEL_EXPORTER_OTLP_PROTOCOL=http/protobuf"
_MAX_TEXT: Final = 200  # characters of an error's text in a report


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """The reply of the judge or the embedder to a test request.

    ``part`` is ``judge`` or ``embedder``. ``name`` is the name of the model. If the reply is not
    usable, ``error`` is the error.
    """

    part: Part
    name: str
    text: str
    seconds: float
    error: JudgeError | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """The OTLP endpoint to which one signal (traces, metrics or logs) is exported.

    ``source`` is the environment variable that sets the endpoint, or an empty string if no variable
    sets it.
    """

    signal: Signal
    protocol: Protocol
    url: str
    source: str = ""
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)  # may contain keys
    is_secure: bool = False
    certificate: str | None = None
    client_certificate: str | None = None
    client_key: str | None = None

    @property
    def server(self) -> str:
        """The host and port of the endpoint, ``host:port``."""
        return urlsplit(self.url if "://" in self.url else f"//{self.url}").netloc


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The result of a test export to an OTLP endpoint.

    ``text`` is the status or the error message of the server.
    """

    endpoint: Endpoint
    verdict: Verdict
    text: str = ""


def check_connections(
    config: Config | None, endpoints: Sequence[Endpoint], *, parts: Sequence[Part], timeout: float
) -> tuple[Sequence[Reply], Sequence[Answer]]:
    """Send a test request to the judge, the embedder and ``endpoints``, all at the same time.

    ``config`` names the judge and the embedder. ``parts`` says whether the judge, the embedder or
    both get a request. ``timeout`` is the time limit of each request in seconds. Return the replies
    of judge and embedder, and the results from the endpoints.
    """
    questions = [] if config is None else _questions(config, parts, timeout=timeout)
    return asyncio.run(_check(questions, endpoints, timeout=timeout))


async def _check(
    questions: Sequence[Awaitable[Reply]], endpoints: Sequence[Endpoint], *, timeout: float
) -> tuple[Sequence[Reply], Sequence[Answer]]:
    # Python does not wait for daemon threads at exit: one may hang in a DNS look-up.
    asyncio.get_running_loop().set_default_executor(DaemonExecutor())
    return await asyncio.gather(
        asyncio.gather(*questions), asyncio.gather(*(_answer(e, timeout) for e in endpoints))
    )


# --- judge and embedder ---------------------------------------------------------------------------


def _questions(
    config: Config, parts: Sequence[Part], *, timeout: float
) -> list[Coroutine[Any, Any, Reply]]:
    config = replace(config, judge_timeout=timeout, judge_retries=0)
    questions = []
    if "judge" in parts:
        question = _ask_judge(build_plain_judge(config))
        questions.append(_reply("judge", str(config.judge), question, timeout=timeout))
    if "embedder" in parts:
        question = _ask_embedder(build_embedder(config))
        questions.append(_reply("embedder", str(config.embedder), question, timeout=timeout))
    return questions


async def _reply(part: Part, name: str, question: Awaitable[str], *, timeout: float) -> Reply:
    start = time.monotonic()
    error: JudgeError | None = None
    try:
        text = await asyncio.wait_for(question, timeout)
    except asyncio.TimeoutError:
        error = JudgeTimeoutError(f"no reply within {timeout:g} s")
        text = str(error)
    except JudgeError as refusal:
        error, text = refusal, str(refusal)
    return Reply(part=part, name=name, text=text, seconds=time.monotonic() - start, error=error)


async def _ask_judge(judge: Judge) -> str:
    replies = await judge.reply([STATEMENTS.task({"question": _QUESTION, "answer": _ANSWER})])
    first = replies.parts[0]
    if isinstance(first, JudgeError):
        raise first
    return f"{replies.model} answers"


async def _ask_embedder(embedder: Embedder) -> str:
    rows = await embedder.embed([_ANSWER])
    return f"vectors of {rows.shape[1]}"


# --- OTLP endpoints of the OTEL_* variables -------------------------------------------------------


def otlp_endpoints(environ: Mapping[str, str]) -> list[Endpoint]:
    """Return the OTLP endpoint of each signal (traces, metrics, logs) that is exported over OTLP.

    ``environ`` has the environment variables, which name the exporters and endpoints.
    """
    return [
        endpoint_of(signal, _OTLP[name], environ)
        for signal in _SIGNALS
        for name in exporter_names(signal, environ)
        if name in _OTLP
    ]


def missing_exporters(environ: Mapping[str, str]) -> list[tuple[Signal, str]]:
    """Return the exporters that ``OTEL_*`` variables name but that are not installed.

    ``environ`` has the environment variables. Each result is a pair of the signal (traces, metrics
    or logs) and the name of the exporter.
    """
    return [
        (signal, name)
        for signal in _SIGNALS
        for name in exporter_names(signal, environ)
        if not entry_points(group=f"opentelemetry_{signal}_exporter", name=name)
    ]


def endpoint_of(signal: Signal, protocol: Protocol, environ: Mapping[str, str]) -> Endpoint:
    """Return the OTLP endpoint for ``signal`` that the environment variables in ``environ`` set.

    A variable for one signal, such as ``OTEL_EXPORTER_OTLP_TRACES_ENDPOINT``, has precedence over
    ``OTEL_EXPORTER_OTLP_ENDPOINT``, which is for all signals. Over HTTP, a path such as
    ``/v1/traces`` is added to an endpoint for all signals, and not to an endpoint for one signal.
    """
    path = f"/v1/{signal}" if protocol == "http" else ""

    def variable(suffix: str) -> tuple[str, str]:
        own, common = (
            f"OTEL_EXPORTER_OTLP_{signal.upper()}_{suffix}",
            f"OTEL_EXPORTER_OTLP_{suffix}",
        )
        name = own if environ.get(own) else common
        return name, environ.get(name, "")

    source, url = variable("ENDPOINT")
    if not url:
        source, url = "", f"http://localhost:{_PORTS[protocol]}{path}"
    elif source == "OTEL_EXPORTER_OTLP_ENDPOINT":
        url = url.rstrip("/") + path
    scheme = url.partition("://")[0] if "://" in url else ""
    insecure = variable("INSECURE")[1].lower()
    return Endpoint(
        signal=signal,
        protocol=protocol,
        url=url,
        source=source,
        headers=parse_env_headers(variable("HEADERS")[1], liberal=True),
        is_secure=scheme == "https" or (insecure != "true" if insecure else scheme != "http"),
        certificate=variable("CERTIFICATE")[1] or None,
        client_certificate=variable("CLIENT_CERTIFICATE")[1] or None,
        client_key=variable("CLIENT_KEY")[1] or None,
    )


# --- export requests ------------------------------------------------------------------------------


async def _answer(endpoint: Endpoint, timeout: float) -> Answer:
    request = asyncio.get_running_loop().run_in_executor(None, export_nothing, endpoint, timeout)
    try:
        return await asyncio.wait_for(request, 2 * timeout)  # a DNS look-up has no limit
    except asyncio.TimeoutError:
        return Answer(endpoint=endpoint, verdict="timeout", text="no answer in time")


def export_nothing(endpoint: Endpoint, timeout: float) -> Answer:
    """Send an export request without content to ``endpoint``, and return the result."""
    export = _export_over_http if endpoint.protocol == "http" else _export_over_grpc
    try:
        verdict, text = export(endpoint, timeout)
    except URLError as error:
        reason = error.reason if isinstance(error.reason, OSError) else OSError(error.reason)
        verdict, text = _verdict_of_error(reason), str(reason)
    except HTTPException as error:
        verdict, text = "protocol", f"the server does not speak HTTP ({type(error).__name__})"
    except (OSError, ValueError) as error:
        verdict, text = _verdict_of_error(error), str(error)
    return Answer(endpoint=endpoint, verdict=verdict, text=text.replace("\n", " ")[:_MAX_TEXT])


_ERRORS: Final[Sequence[tuple[type[Exception], Verdict]]] = (
    (ConnectionRefusedError, "refused"),
    (socket.gaierror, "unknown_host"),
    (TimeoutError, "timeout"),
    (ssl.SSLError, "tls"),
    (ConnectionError, "protocol"),  # closed by the server
    (FileNotFoundError, "tls"),  # a certificate file is missing
    (ValueError, "address"),
)
_STATUSES: Final[Mapping[int, Verdict]] = {
    400: "ok",  # some servers refuse a request without content
    401: "key",
    403: "key",
    404: "path",
    405: "path",
    415: "protocol",
}
_CODES: Final[Mapping[str, Verdict]] = {
    "INVALID_ARGUMENT": "ok",  # like HTTP 400
    "UNAUTHENTICATED": "key",
    "PERMISSION_DENIED": "key",
    "UNIMPLEMENTED": "path",
    "DEADLINE_EXCEEDED": "timeout",
}
_DETAILS: Final[Sequence[tuple[str, Verdict]]] = (
    ("connection refused", "refused"),
    ("resol", "unknown_host"),
    ("http/2", "protocol"),
    ("http1", "protocol"),
    ("socket closed", "protocol"),
    ("handshak", "tls"),
    ("ssl", "tls"),
    ("certificate", "tls"),
)
"""Verdicts by words in the details that gRPC gives on a failed connection."""


def _verdict_of_error(error: Exception) -> Verdict:
    return next((verdict for kind, verdict in _ERRORS if isinstance(error, kind)), "error")


def _export_over_http(endpoint: Endpoint, timeout: float) -> tuple[Verdict, str]:
    if not endpoint.url.startswith(("http://", "https://")):
        return "address", "the URL does not begin with http:// or https://"
    headers = {"Content-Type": "application/x-protobuf", **endpoint.headers}
    request = Request(endpoint.url, data=b"", headers=headers)  # noqa: S310  # http or https
    tls = None
    if endpoint.url.startswith("https:"):
        tls = ssl.create_default_context(cafile=endpoint.certificate)
        if endpoint.client_certificate:
            tls.load_cert_chain(endpoint.client_certificate, endpoint.client_key)
    try:
        with urlopen(request, timeout=timeout, context=tls) as reply:  # noqa: S310
            status = int(reply.status)
    except HTTPError as error:
        with closing(error):
            status = error.code
    return _STATUSES.get(status, "ok" if status < 300 else "error"), f"HTTP {status}"  # noqa: PLR2004


def _export_over_grpc(endpoint: Endpoint, timeout: float) -> tuple[Verdict, str]:
    method = f"/opentelemetry.proto.collector.{_SERVICES[endpoint.signal]}/Export"
    try:
        with _channel(endpoint) as channel:
            export = channel.unary_unary(method)
            export(b"", timeout=timeout, metadata=tuple(endpoint.headers.items()))
    except grpc.RpcError as error:
        code, details = error.code().name, error.details() or ""
        found = [_CODES[code]] if code in _CODES else []
        found += [verdict for words, verdict in _DETAILS if words in details.lower()]
        if answers_http(endpoint.url, timeout=timeout):
            return "protocol", f"the server speaks HTTP; {_HTTP}"
        last = details.rpartition("last error: ")[2]
        return next(iter(found), "error"), f"{code}: {last}"
    return "ok", "OK"


def _channel(endpoint: Endpoint) -> Any:
    if not endpoint.is_secure:
        return grpc.insecure_channel(endpoint.server)
    files = (endpoint.certificate, endpoint.client_key, endpoint.client_certificate)
    contents = [None if name is None else Path(name).read_bytes() for name in files]
    return grpc.secure_channel(endpoint.server, grpc.ssl_channel_credentials(*contents))
