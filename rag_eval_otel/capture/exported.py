"""Read spans and log records from OTLP files, as the file exporter of a collector writes them.

A *message* is one OTLP export request as a dict, in the field names of OTLP JSON. A *part* is one
span or one log record of a trace, with its scope and service.
"""

from __future__ import annotations

import binascii
import gzip
import json
from base64 import b64decode
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from io import BufferedReader
from itertools import chain
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Literal, TypeAlias, cast

from google.protobuf.json_format import MessageToDict  # type: ignore[import-untyped]
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

from rag_eval_otel.capture.buffer import may_be_read
from rag_eval_otel.capture.span import LogView
from rag_eval_otel.errors import ConfigError

if TYPE_CHECKING:
    from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

Message: TypeAlias = Mapping[str, Any]
ProtoRequest: TypeAlias = "ExportTraceServiceRequest | ExportLogsServiceRequest"
Signal: TypeAlias = Literal["span", "log"]

_TRACE_ID, _SPAN_ID = 16, 8  # bytes
_LENGTH = 4  # bytes before each protobuf message of a file
_LARGEST = 2**30  # bytes of one protobuf message
_HAS_REMOTE, _IS_REMOTE = 0x100, 0x200  # flags of a span
_REMOTE_KINDS = (2, "SPAN_KIND_SERVER", 5, "SPAN_KIND_CONSUMER")
_ERROR = (2, "STATUS_CODE_ERROR")
_HEAD = 64  # bytes by which JSON is recognised
_BLANK = b" \t\r\n\xef\xbb\xbf"  # white space and the byte order mark
_GZIP, _ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"


@dataclass(frozen=True, slots=True, kw_only=True)
class TracePart:
    """One span or log record of a trace: ``content`` is its object in OTLP JSON.

    ``trace_id`` is the id of the trace in hexadecimal digits.
    """

    signal: Signal
    trace_id: str
    service: str
    scope: str
    content: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportedSpan:
    """A span from a file or a recording: a `rag_eval_otel.capture.span.SpanView` of plain data."""

    name: str
    scope: str
    trace_id: int
    span_id: int
    parent_id: int | None
    parent_is_remote: bool
    start: int
    end: int | None
    error: str | None
    attributes: Mapping[str, Any]
    events: Sequence[tuple[str, Mapping[str, Any]]]
    service: str = ""
    logs: Sequence[LogView] = ()
    dropped: int = 0
    dropped_events: int = 0
    value_limit: int | None = None


# --- the messages of a file -----------------------------------------------------------------------


def read_messages(path: Path) -> Iterator[Message]:
    """Yield the messages in the file ``path``, one at a time, those in protobuf as dicts.

    Raises `ConfigError` for files that `read_requests` refuses.
    """
    for one in read_requests(path):
        yield one if isinstance(one, Mapping) else MessageToDict(one)


def read_requests(path: Path) -> Iterator[Message | ProtoRequest]:
    """Yield the messages in the file ``path``, one at a time, each as it is in the file.

    The file has one message in JSON, one in each line, or protobuf messages, each after its length
    in four bytes. It may be compressed by gzip. If the last line of JSON is incomplete, as in a
    file that is being written, it is left out. Raises `ConfigError` for any other file.
    """
    try:
        with path.open("rb") as raw:
            start = raw.read(_LENGTH)
        if start == _ZSTD:
            msg = f"{path} is compressed by zstd; decompress it first: zstd -d {path}"
            raise ConfigError(msg)
        is_gzip = start.startswith(_GZIP)
        with cast("BufferedReader", gzip.open(path) if is_gzip else path.open("rb")) as file:
            is_json = file.peek(_HEAD)[:_HEAD].lstrip(_BLANK).startswith(b"{")
            yield from (_json_messages if is_json else _protobuf_messages)(path, file)
    except (EOFError, OSError) as error:
        msg = f"{path} cannot be read: {error}"
        raise ConfigError(msg) from error


def _json_messages(path: Path, file: IO[bytes]) -> Iterator[Message]:
    line = next(line for line in file if line.strip(_BLANK)).lstrip(_BLANK)
    message = _parsed(line)
    if message is None:  # one message in several lines, or a single line that is incomplete
        content = line + file.read()
        message = _parsed(content)
        if message is None and content.count(b"\n") > 0:
            msg = f"{path}, line 1: is not JSON; use the OTLP JSON of a collector's file exporter"
            raise ConfigError(msg)
        yield from () if message is None else [_checked(message, f"{path}")]
        return
    yield _checked(message, f"{path}, line 1")
    for number, line in enumerate(file, start=2):
        if not line.strip():
            continue
        message = _parsed(line)
        if message is None and line.endswith(b"\n"):
            msg = f"{path}, line {number}: is not JSON"
            raise ConfigError(msg)
        if message is not None:
            yield _checked(message, f"{path}, line {number}")


def _parsed(text: bytes) -> Any:
    try:
        return json.loads(text)
    except (RecursionError, ValueError):
        return None


def _checked(message: Any, place: str) -> Message:
    """Return ``message`` if it is an export request, else raise `ConfigError`."""
    if not (
        isinstance(message, dict)
        and message.keys() & {"resourceSpans", "resourceLogs", "resourceMetrics"}
    ):
        msg = (
            f"{place}: is no OTLP export request: an object with resourceSpans, resourceLogs or"
            " resourceMetrics, as the file exporter of an OpenTelemetry Collector writes them"
        )
        raise ConfigError(msg)
    return message


def _protobuf_messages(path: Path, file: IO[bytes]) -> Iterator[ProtoRequest]:
    length = file.read(_LENGTH)
    if length.startswith(b"\x0a"):  # field 1 of a request: a file with one message and no lengths
        yield from _decoded(path, length + file.read())
        return
    while length:
        size = int.from_bytes(length, "big")
        if len(length) < _LENGTH or size > _LARGEST:
            msg = f"{path}: is neither OTLP JSON nor OTLP protobuf of a collector's file exporter"
            raise ConfigError(msg)
        content = file.read(size)
        if len(content) < size:  # the file is being written
            return
        yield from _decoded(path, content)
        length = file.read(_LENGTH)


def _decoded(path: Path, content: bytes) -> Iterator[ProtoRequest]:
    """Yield the request of spans or of log records in ``content``; leave out those of metrics.

    The requests of all signals look alike. Spans have ids, and metrics have names.
    """
    from opentelemetry.proto.collector.logs.v1 import logs_service_pb2 as logs  # noqa: PLC0415
    from opentelemetry.proto.collector.metrics.v1 import (  # noqa: PLC0415  # slow to import
        metrics_service_pb2 as metrics,
    )
    from opentelemetry.proto.collector.trace.v1 import (  # noqa: PLC0415
        trace_service_pb2 as traces,
    )

    with suppress(DecodeError):
        found = traces.ExportTraceServiceRequest.FromString(content)
        spans = (s for one in found.resource_spans for sc in one.scope_spans for s in sc.spans)
        if all((len(s.trace_id), len(s.span_id)) == (_TRACE_ID, _SPAN_ID) for s in spans):
            yield found
            return
    with suppress(DecodeError):
        other = metrics.ExportMetricsServiceRequest.FromString(content)
        scopes = (scope for one in other.resource_metrics for scope in one.scope_metrics)
        if any(one.name for scope in scopes for one in scope.metrics):
            return
    try:
        yield logs.ExportLogsServiceRequest.FromString(content)
    except DecodeError as error:
        msg = f"{path}: is neither OTLP JSON nor OTLP protobuf: {error}"
        raise ConfigError(msg) from error


# --- the parts of a message -----------------------------------------------------------------------


def parts_of(message: Message) -> Iterator[TracePart]:
    """Yield the spans in ``message``, and its log records that may have texts of a RAG turn.

    Raises `ConfigError` if ``message`` is not valid.
    """
    try:
        yield from _parts_of(message)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        msg = f"is not valid OTLP: {error!r}"
        raise ConfigError(msg) from error


def _parts_of(message: Message) -> Iterator[TracePart]:
    for service, scope, span in _contents(message, "resourceSpans", "scopeSpans", name="spans"):
        trace, _ = _id(span["traceId"], _TRACE_ID), _id(span["spanId"], _SPAN_ID)
        yield TracePart(
            signal="span", trace_id=f"{trace:032x}", service=service, scope=scope, content=span
        )
    for service, scope, log in _contents(message, "resourceLogs", "scopeLogs", name="logRecords"):
        if log.get("traceId") and log.get("spanId") and may_be_read(_event_name(log)):
            trace = _id(log["traceId"], _TRACE_ID)
            yield TracePart(
                signal="log", trace_id=f"{trace:032x}", service=service, scope=scope, content=log
            )


def _contents(
    message: Message, resources: str, scopes: str, *, name: str
) -> Iterator[tuple[str, str, Mapping[str, Any]]]:
    for resource in message.get(resources) or ():
        service = str(_attributes(resource.get("resource") or {}).get("service.name") or "")
        for scope in resource.get(scopes) or ():
            scope_name = str((scope.get("scope") or {}).get("name") or "")
            for content in scope.get(name) or ():
                yield service, scope_name, content


def _event_name(log: Mapping[str, Any]) -> object:
    return log.get("eventName") or _attributes(log).get("event.name")


def _id(text: object, size: int) -> int:
    """Return the id ``text`` of ``size`` bytes, in hexadecimal digits or, from protobuf, base64."""
    if not isinstance(text, str):
        msg = f"an id must be text, not {type(text).__name__}"
        raise TypeError(msg)
    is_hex = len(text) == 2 * size
    try:
        content = bytes.fromhex(text) if is_hex else b64decode(text, validate=True)
    except binascii.Error as error:
        msg = f"{text!r} is no id: {error}"
        raise ValueError(msg) from error
    if len(content) != size:
        msg = f"{text!r} is no id of {size} bytes"
        raise ValueError(msg)
    return int.from_bytes(content, "big")


def _attributes(holder: Mapping[str, Any]) -> dict[str, Any]:
    return {one["key"]: _value(one.get("value") or {}) for one in holder.get("attributes") or ()}


def _value(value: Mapping[str, Any]) -> Any:
    """Return ``value``, an ``AnyValue`` of OTLP, as plain data."""
    found: Any
    kind, found = next(iter(value.items()), ("", None))
    if kind == "intValue":
        return int(found)
    if kind == "doubleValue":
        return float(found)  # also "NaN" and "Infinity"
    if kind == "arrayValue":
        return [_value(one) for one in (found or {}).get("values") or ()]
    if kind == "kvlistValue":
        values = (found or {}).get("values") or ()
        return {one["key"]: _value(one.get("value") or {}) for one in values}
    return b64decode(found) if kind == "bytesValue" else found


def as_attributes(values: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return ``values``, plain data by name, as a list of attributes in OTLP JSON."""
    return [{"key": name, "value": _as_value(value)} for name, value in values.items()]


_KINDS: Mapping[type, str] = {
    str: "stringValue",
    bool: "boolValue",
    int: "intValue",
    float: "doubleValue",
}


def _as_value(value: Any) -> dict[str, Any]:
    if value is None:
        return {}
    if isinstance(value, Mapping):
        return {"kvlistValue": {"values": as_attributes(value)}}
    if isinstance(value, list | tuple):
        return {"arrayValue": {"values": [_as_value(one) for one in value]}}
    return {_KINDS[type(value)]: value}


# --- the spans of a trace -------------------------------------------------------------------------


def spans_of(parts: Iterable[TracePart], *, value_limit: int | None = None) -> list[ExportedSpan]:
    """Return the spans in ``parts``, which are of one trace, each with its log records.

    A part that is there twice, because its export was repeated, counts once. ``value_limit`` is the
    length to which the SDK of the application cut attribute values, if it did. Raises `ConfigError`
    for a part that is not valid.
    """
    parts = list(parts)
    try:
        logs: dict[int, dict[str, LogView]] = {}
        for part in parts:
            if part.signal == "log":
                same = logs.setdefault(_id(part.content["spanId"], _SPAN_ID), {})
                same[json.dumps(part.content, sort_keys=True)] = _log(part.content)
        spans = {
            json.dumps(part.content, sort_keys=True): part
            for part in parts
            if part.signal == "span"
        }
        return [_span(part, logs, value_limit=value_limit) for part in spans.values()]
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        msg = f"trace {parts[0].trace_id}: is not valid OTLP: {error!r}"
        raise ConfigError(msg) from error


def _log(log: Mapping[str, Any]) -> LogView:
    return LogView(
        event=str(_event_name(log) or ""),
        body=_value(log.get("body") or {}),
        attributes=_attributes(log),
    )


def _span(
    part: TracePart, logs: Mapping[int, Mapping[str, LogView]], *, value_limit: int | None
) -> ExportedSpan:
    raw = part.content
    attributes, span_id = _attributes(raw), _id(raw["spanId"], _SPAN_ID)
    parent_id = _id(raw["parentSpanId"], _SPAN_ID) if raw.get("parentSpanId") else 0
    return ExportedSpan(
        name=str(raw.get("name") or ""),
        scope=part.scope,
        service=part.service,
        trace_id=int(part.trace_id, 16),
        span_id=span_id,
        parent_id=parent_id or None,
        parent_is_remote=bool(parent_id) and _is_remote(raw),
        start=int(raw.get("startTimeUnixNano") or 0),
        end=int(raw["endTimeUnixNano"]) if raw.get("endTimeUnixNano") else None,
        error=_error(raw.get("status") or {}, attributes),
        attributes=attributes,
        events=[(str(one.get("name")), _attributes(one)) for one in raw.get("events") or ()],
        logs=tuple(logs.get(span_id, {}).values()),
        dropped=int(raw.get("droppedAttributesCount") or 0),
        dropped_events=int(raw.get("droppedEventsCount") or 0),
        value_limit=value_limit,
    )


def _is_remote(raw: Mapping[str, Any]) -> bool:
    """Return True if the parent of the span is in another service."""
    flags = int(raw.get("flags") or 0)
    if flags & _HAS_REMOTE:
        return bool(flags & _IS_REMOTE)
    return raw.get("kind") in _REMOTE_KINDS  # an SDK that does not say


def _error(status: Mapping[str, Any], attributes: Mapping[str, Any]) -> str | None:
    if status.get("code") not in _ERROR:
        return None
    return str(attributes.get("error.type") or status.get("message") or "error")


def messages_in(paths: Iterable[Path]) -> Iterator[Message]:
    """Yield the messages of all files ``paths``, in their order."""
    return chain.from_iterable(map(read_messages, paths))
