"""Read OTLP requests, hand them to the engine, and say why others are refused.

`Desk` has all that the receivers of the protocols share. `RefusedError` has a kind, from which they
make a status of theirs.
"""

from __future__ import annotations

import hmac
import re
import threading
import zlib
from base64 import b64encode
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol, TypeAlias

from google.protobuf.json_format import ParseDict, ParseError  # type: ignore[import-untyped]
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from opentelemetry.proto.collector.logs.v1 import logs_service_pb2 as logs
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as traces

from rag_eval_otel import semconv
from rag_eval_otel.export.metrics import meter_of
from rag_eval_otel.runtime.guard import LimitedLog
from rag_eval_otel.worker.parts import TooManyPartsError, check_parts, read_json
from rag_eval_otel.worker.wire import OverloadedError

if TYPE_CHECKING:
    from opentelemetry.metrics import MeterProvider
    from opentelemetry.proto.trace.v1.trace_pb2 import Span

RefusalKind: TypeAlias = Literal[
    "unauthorized",
    "malformed",
    "too_large",
    "content_type",
    "overloaded",
    "draining",
    "unknown",
    "slow",
]

_NO_TRACE, _NO_SPAN = bytes(16), bytes(8)
_TRACE_ID, _SPAN_ID = attrgetter("trace_id"), attrgetter("span_id")
_NO_METRICS: Final = (
    "this worker takes traces and logs; send metrics to their backend, without the worker"
)
_MEMBERS: Final = 64  # of gzip content; each one makes a copy of the rest
_DRAIN_AGAIN: Final = 5.0  # seconds after which a sender tries again while this worker drains


class Intake(Protocol):
    """What takes the requests of a receiver: the engine of the worker.

    The methods are called from several threads. They raise `OverloadedError` if there is no memory
    for a request.
    """

    def accept(self, request: traces.ExportTraceServiceRequest) -> None:
        """Take the spans in ``request``."""

    def accept_logs(self, request: logs.ExportLogsServiceRequest) -> None:
        """Take the log records in ``request``."""


class RefusedError(Exception):
    """A request is refused; the message is sent to the sender.

    ``retry_after`` is the number of seconds after which the sender may try again.
    """

    def __init__(
        self, message: str, *, kind: RefusalKind, retry_after: float | None = None
    ) -> None:
        super().__init__(message)
        self.kind: RefusalKind = kind
        self.retry_after = retry_after


def otlp_of(kind: Any, found: Any) -> Any:
    """Return ``found``, OTLP JSON, as a message of the class ``kind``. ``found`` is changed.

    In OTLP JSON the ids of traces and spans are hexadecimal, while protobuf's own JSON has base64.
    Raises `ValueError` or `RecursionError` if ``found`` is not OTLP JSON.
    """
    if not isinstance(found, dict):
        msg = "an OTLP request is a JSON object"
        raise ValueError(msg)  # noqa: TRY004  # the caller reports it like other wrong content
    try:
        _ids_to_base64(found)
    except (AttributeError, TypeError, ValueError) as error:
        msg = "ids must be hexadecimal digits, and spans and log records must be lists of objects"
        raise ValueError(msg) from error
    return message_of(kind, found)


def message_of(kind: Any, found: dict[str, Any]) -> Any:
    """Return ``found``, protobuf's own JSON, as a message of the class ``kind``.

    Raises `ValueError`, which names the field, if a value does not fit.
    """
    try:
        return ParseDict(found, kind(), ignore_unknown_fields=True)
    except (ParseError, OverflowError) as error:  # an infinite number
        path = ".".join(_FIELD.findall(str(error))) or "the request"
        msg = f"{path} has a value that does not fit"
        raise ValueError(msg) from None  # the message quotes the value, which may be a user's text


_FIELD: Final = re.compile(r"Failed to parse (\w+) field: ")

_PARTS: Final = (
    "resourceSpans",
    "scopeSpans",
    "spans",
    "links",
    *("resourceLogs", "scopeLogs", "logRecords"),
)
_IDS: Final = ("traceId", "spanId", "parentSpanId")


def _ids_to_base64(part: dict[str, Any]) -> None:
    """Rewrite the ids in ``part`` and in its spans, links and log records."""
    for name in _IDS:
        if part.get(name):
            part[name] = b64encode(bytes.fromhex(part[name])).decode("ascii")
    for name in _PARTS:
        for inner in part.get(name) or ():
            _ids_to_base64(inner)


def take_invalid(request: traces.ExportTraceServiceRequest) -> int:
    """Remove the spans without valid ids from ``request``, and return their number."""
    removed = 0
    for resource in request.resource_spans:
        for scope in resource.scope_spans:
            if _are_valid(scope.spans):
                continue
            wrong = [i for i, span in enumerate(scope.spans) if not _are_valid([span])]
            for index in reversed(wrong):
                del scope.spans[index]
            removed += len(wrong)
    return removed


def _are_valid(spans: Collection[Span]) -> bool:
    """Return True if all spans have valid ids; this takes less time than to look at each span."""
    return all(
        none not in ids and {len(none)}.issuperset(map(len, ids))
        for none, ids in (
            (_NO_TRACE, set(map(_TRACE_ID, spans))),
            (_NO_SPAN, set(map(_SPAN_ID, spans))),
        )
    )


def unpacked(content: bytes, *, limit: int) -> bytes:
    """Return ``content`` without its compression by gzip or zlib.

    Content of gzip may have several members, which are joined. At most ``limit`` bytes are
    decompressed. Raises `RefusedError` for longer or broken content.
    """
    found, rest = b"", content
    for _ in range(_MEMBERS):
        unpacker = zlib.decompressobj(wbits=zlib.MAX_WBITS | 32)  # gzip or zlib, by the header
        try:
            found += unpacker.decompress(rest, limit + 1 - len(found))
        except zlib.error as error:
            msg = f"the compressed content is broken: {error}"
            raise RefusedError(msg, kind="malformed") from error
        if len(found) > limit:
            # Senders look for "larger than max", gRPC's own words, before they divide a request.
            msg = f"the request has more than {limit} bytes when it is decompressed, so it is "
            msg += "larger than max_request; send fewer spans"
            raise RefusedError(msg, kind="too_large")
        if not unpacker.eof:
            msg = "the compressed content is incomplete"
            raise RefusedError(msg, kind="malformed")
        rest = unpacker.unused_data.lstrip(b"\0")  # members may be followed by zeros
        if not rest:
            return found
    msg = f"the compressed content has more than {_MEMBERS} parts"
    raise RefusedError(msg, kind="malformed")


class Desk:
    """Reads requests of both protocols, hands them to the intake, and counts them by outcome."""

    def __init__(
        self,
        intake: Intake,
        *,
        max_request: int,
        token: str | None,
        meter_provider: MeterProvider | None,
    ) -> None:
        self._intake = intake
        self._limit = max_request
        self._token = token and token.encode()
        self.log = LimitedLog()
        self._idle = threading.Condition()
        self._open = 0
        self.is_draining = False
        self.counts: Counter[tuple[str, str]] = Counter()
        self._requests = meter_of(meter_provider).create_counter(
            semconv.WORKER_REQUESTS,
            unit="{request}",
            description="OTLP requests that arrived, by signal and outcome.",
        )

    def check_token(self, header: str) -> None:
        """Raise `RefusedError` unless ``header``, the header Authorization, has the token."""
        scheme, _, given = header.partition(" ")
        is_bearer = scheme.lower() == "bearer"  # the name of a scheme has no case
        content = given.strip().encode("utf-8", "replace")
        if self._token and not (hmac.compare_digest(content, self._token) and is_bearer):
            msg = "send the worker's token in the header Authorization: Bearer <token>"
            raise RefusedError(msg, kind="unauthorized")

    def check_open(self, signal: str) -> None:
        """Raise `RefusedError` if requests of ``signal`` are not taken, now or at all."""
        if signal not in _REQUESTS:
            raise RefusedError(_NO_METRICS, kind="unknown")
        if self.is_draining:
            msg = "this worker is shutting down"
            raise RefusedError(msg, kind="draining", retry_after=_DRAIN_AGAIN)

    @contextmanager
    def request(self, signal: str) -> Iterator[None]:
        """Count one request by its outcome, and keep `wait_idle` waiting for its end."""
        with self._idle:
            self._open += 1
        outcome = "error"
        try:
            yield
            outcome = "accepted"
        except RefusedError as error:
            outcome = error.kind
            self.log.write(error.kind, "refused an OTLP request of %s: %s", signal, error)
            raise
        finally:
            with self._idle:
                self._open -= 1
                self.counts[signal, outcome] += 1
                self._idle.notify_all()
            self._requests.add(1, {semconv.SIGNAL: signal, semconv.OUTCOME: outcome})

    def wait_idle(self, timeout: float) -> bool:
        """Wait until no request is being read; return False after ``timeout`` seconds."""
        with self._idle:
            return self._idle.wait_for(lambda: not self._open, timeout)

    def take(self, signal: str, content: bytes, *, is_packed: bool, is_json: bool = False) -> Any:
        """Hand the request ``content`` to the intake, and return the response."""
        if is_packed:
            content = unpacked(content, limit=self._limit)
        request = self._read(_REQUESTS[signal], content, is_json=is_json)
        response = _RESPONSES[signal]()
        try:
            if signal == "logs":
                self._intake.accept_logs(request)
                return response
            rejected = take_invalid(request)
            self._intake.accept(request)
        except OverloadedError as error:
            raise RefusedError(
                str(error), kind="overloaded", retry_after=error.retry_after
            ) from error
        if rejected:
            response.partial_success.rejected_spans = rejected
            response.partial_success.error_message = (
                "a span needs a trace id of 16 bytes and a span id of 8 bytes, which are not all 0"
            )
            self.log.write("ids", "refused %d spans without valid ids", rejected)
        return response

    def _read(self, kind: Any, content: bytes, *, is_json: bool) -> Any:
        try:
            if is_json:
                return otlp_of(kind, read_json(content))
            check_parts(kind, content)
            return kind.FromString(content)
        except TooManyPartsError as error:
            raise RefusedError(str(error), kind="too_large") from error
        except (DecodeError, ValueError, RecursionError) as error:
            form = "OTLP JSON" if is_json else "an OTLP request in protobuf"
            msg = f"the content is not {form}: {error}"
            raise RefusedError(msg, kind="malformed") from error


_REQUESTS: Final[Mapping[str, Any]] = {
    "traces": traces.ExportTraceServiceRequest,
    "logs": logs.ExportLogsServiceRequest,
}
_RESPONSES: Final[Mapping[str, Any]] = {
    "traces": traces.ExportTraceServiceResponse,
    "logs": logs.ExportLogsServiceResponse,
}
