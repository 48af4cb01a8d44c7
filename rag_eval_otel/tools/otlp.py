"""Read OTLP export requests from files, and split them into the spans and log records of traces."""

from __future__ import annotations

import gzip
import json
import zlib
from base64 import b64decode
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache, partial
from io import BufferedReader
from itertools import count
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, AnyStr, Final, Literal, TypeAlias, cast

from rag_eval_otel.capture.span import LogView, Span, attributes_of_otlp
from rag_eval_otel.capture.trace import may_be_read
from rag_eval_otel.capture.values import exportable
from rag_eval_otel.errors import ConfigError

if TYPE_CHECKING:
    from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

LONGEST: Final = 2**26  # bytes or characters: 8,192 spans, a collector's usual batch, of 8 kB each
_VALUES: Final = 2**21  # of JSON: 8,192 spans of 256; 20 million empty objects take 1.6 GB
SIGNALS: Final = ("resourceSpans", "resourceLogs", "resourceMetrics")

_HEAD = 64  # bytes by which JSON is recognised
_BLANK = b" \t\r\n\xef\xbb\xbf"  # white space and the byte order mark
_GZIP = b"\x1f\x8b"

Request: TypeAlias = "ExportTraceServiceRequest | ExportLogsServiceRequest"
Message: TypeAlias = Mapping[str, Any]  # of OTLP JSON


@dataclass(frozen=True, slots=True, kw_only=True)
class TracePart:
    """A span or log record in protobuf. ``trace_id`` is in hexadecimal digits."""

    signal: Literal["span", "log"]
    trace_id: str
    service: str
    scope: str
    content: bytes


def parts_of(message: Message) -> Iterator[TracePart]:
    """Yield the spans in ``message``, and log records with texts; `ConfigError` if not valid."""
    try:
        for request in _requests(message):
            yield from parts_in(request)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ConfigError(f"is not valid OTLP: {error!r}") from error


def _requests(message: Message) -> Iterator[Request]:
    from opentelemetry.proto.collector.logs.v1 import logs_service_pb2 as logs  # noqa: PLC0415
    from opentelemetry.proto.collector.trace.v1 import (  # noqa: PLC0415
        trace_service_pb2 as traces,
    )

    for name, kind in (
        ("resourceSpans", traces.ExportTraceServiceRequest),
        ("resourceLogs", logs.ExportLogsServiceRequest),
    ):
        if message.get(name):
            request = kind()
            _fill(request, {name: message[name]})
            yield request


def _fill(message: Any, content: Mapping[str, Any]) -> None:
    """Set the fields of ``message`` from OTLP JSON. Protobuf's parser takes ten times as long."""
    fields = _fields(message.DESCRIPTOR)
    for name, value in content.items():
        field, convert = fields.get(name, ("", None))
        if not field or value is None:
            continue
        if convert is not None:
            setattr(message, field, convert(value))
        elif isinstance(value, list):
            items = getattr(message, field)
            for item in value:
                _fill(items.add(), item)
        else:
            inner = getattr(message, field)
            inner.SetInParent()
            _fill(inner, value)


@cache
def _fields(descriptor: Any) -> Mapping[str, tuple[str, Callable[[Any], Any] | None]]:
    fields: dict[str, tuple[str, Callable[[Any], Any] | None]] = {}
    for field in descriptor.fields:
        convert = None if field.message_type is not None else _CONVERT.get(field.type, int)
        if field.enum_type is not None:
            convert = partial(_number, field.enum_type)
        elif field.name == "bytes_value":
            convert = b64decode
        fields[field.camelcase_name] = (field.name, convert)
    return fields


def _number(enum: Any, value: int | str) -> int:
    return enum.values_by_name[value].number if isinstance(value, str) else value


# Conversions by the type of a field in its descriptor: double, bool, string, and bytes for ids.
_CONVERT: Final[Mapping[int, Any]] = {1: float, 8: bool, 9: str, 12: bytes.fromhex}


def parts_in(request: Any) -> Iterator[TracePart]:
    is_of_spans = hasattr(request, "resource_spans")
    for resource in request.resource_spans if is_of_spans else request.resource_logs:
        service = str(attributes_of_otlp(resource.resource).get("service.name") or "")
        for scope in resource.scope_spans if is_of_spans else resource.scope_logs:
            for item in scope.spans if is_of_spans else scope.log_records:
                has_ids = (len(item.trace_id), len(item.span_id)) == (16, 8)
                if is_of_spans and not (has_ids and len(item.parent_span_id) in {0, 8}):
                    raise ValueError(f"ids of the span {item.name!r} do not have 16 and 8 bytes")
                if is_of_spans or (has_ids and may_be_read(LogView.from_otlp(item).event)):
                    yield TracePart(
                        signal="span" if is_of_spans else "log",
                        trace_id=item.trace_id.hex(),
                        service=service,
                        scope=scope.scope.name,
                        content=item.SerializeToString(),
                    )


def spans_of(parts: Iterable[TracePart], *, value_limit: int | None = None) -> list[Span]:
    """Return the spans in ``parts``, which are of one trace, each with its log records."""
    from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord  # noqa: PLC0415
    from opentelemetry.proto.trace.v1.trace_pb2 import Span as SpanMessage  # noqa: PLC0415

    spans: dict[bytes, TracePart] = {}
    logs: dict[bytes, dict[bytes, LogView]] = defaultdict(dict)
    for part in parts:
        if part.signal == "span":
            spans[part.content] = part
        else:
            record = LogRecord.FromString(part.content)
            logs[record.span_id][part.content] = LogView.from_otlp(record)
    return [
        Span.from_otlp(
            message := SpanMessage.FromString(content),
            scope=part.scope,
            service=part.service,
            logs=tuple(logs[message.span_id].values()),
            value_limit=value_limit,
        )
        for content, part in spans.items()
    ]


def as_attributes(values: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [{"key": exportable(name), "value": _as_value(value)} for name, value in values.items()]


def _as_value(value: Any) -> dict[str, Any]:
    if isinstance(value, Mapping):
        return {"kvlistValue": {"values": as_attributes(value)}}
    if isinstance(value, list | tuple):
        return {"arrayValue": {"values": [_as_value(item) for item in value]}}
    if isinstance(value, bool):
        return {"boolValue": value}
    if isinstance(value, int):
        return {"intValue": value}
    if isinstance(value, float):
        return {"doubleValue": value}
    return {} if value is None else {"stringValue": exportable(value)}


def read_messages(path: Path) -> Iterator[Message]:
    """Yield the messages in the file ``path``, one at a time, each as it is in the file."""
    with _opened(path) as file:
        if not file.peek(_HEAD)[:_HEAD].lstrip(_BLANK).startswith(b"{"):
            raise ConfigError(f"{path}: must be OTLP JSON, an object with {' or '.join(SIGNALS)}")
        yield from _json_messages(path, file)


@contextmanager
def _opened(path: Path) -> Iterator[BufferedReader]:
    try:
        with path.open("rb") as raw:
            start = raw.read(len(_GZIP))
        is_gzip = start == _GZIP
        with cast("BufferedReader", gzip.open(path) if is_gzip else path.open("rb")) as file:
            yield file
    except (EOFError, OSError, zlib.error) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error


def check_size(text: str | bytes, place: object = "") -> None:
    """Raise `ConfigError` if ``text``, to be parsed at once, is too long; ``place`` says where."""
    counts = map(text.count, b"[{,") if isinstance(text, bytes) else map(text.count, "[{,")
    if len(text) > LONGEST or (len(text) > _VALUES and sum(counts) > _VALUES):
        msg = (
            f"{place}: has more than {LONGEST >> 20} MiB or {_VALUES:,} values, which is too much"
            " for one line; divide it, for example by"
            " jq -c '.resourceSpans[] | {resourceSpans: [.]}'"
        )
        raise ConfigError(msg.removeprefix(": "))


def lines_of(path: Path, file: IO[AnyStr]) -> Iterator[AnyStr]:
    """Yield the lines of ``file``; raise `ConfigError` for a line that `check_size` refuses."""
    for number in count(1):
        line = file.readline(LONGEST + 1)
        if not line:
            return
        check_size(line, f"{path}, line {number}")
        yield line


def _json_messages(path: Path, file: IO[bytes]) -> Iterator[Message]:
    for number, line in enumerate(lines_of(path, file), start=1):
        message = None
        with suppress(RecursionError, ValueError):
            message = json.loads(line.lstrip(_BLANK))
        if message is not None:
            yield _checked(message, f"{path}, line {number}")
        elif line.strip(_BLANK) and line.endswith(b"\n"):  # else a write that was cut off
            raise ConfigError(
                f"{path}, line {number}: is not JSON; a line is a message of OTLP, as a collector's"
                f" file exporter writes it: jq -c . {path}"
            )


def _checked(message: Any, place: str) -> Message:
    if not (isinstance(message, dict) and not message.keys().isdisjoint(SIGNALS)):
        raise ConfigError(
            f"{place}: is no OTLP export request: an object with resourceSpans, resourceLogs or"
            " resourceMetrics, as the file exporter of an OpenTelemetry Collector writes them"
        )
    return message
