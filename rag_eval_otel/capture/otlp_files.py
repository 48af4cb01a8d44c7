"""Read messages of OTLP from files, as the file exporter of a collector writes them.

A *message* is one OTLP export request as a dict, in the field names of OTLP JSON.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from io import BufferedReader
from itertools import chain, count
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, AnyStr, Final, TypeAlias, cast

from rag_eval_otel.errors import ConfigError

if TYPE_CHECKING:
    from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

Message: TypeAlias = Mapping[str, Any]
ProtoRequest: TypeAlias = "ExportTraceServiceRequest | ExportLogsServiceRequest"

LONGEST: Final = 2**26  # bytes or characters: 8,192 spans, a collector's usual batch, of 8 kB each
VALUES: Final = 2**21  # 8,192 spans of 256 values; JSON has seven in an attribute and its commas

SIGNALS: Final = ("resourceSpans", "resourceLogs", "resourceMetrics")

_TRACE_ID, _SPAN_ID = 16, 8  # bytes
_LENGTH = 4  # bytes before each protobuf message of a file
_HEAD = 64  # bytes by which JSON is recognised
_BLANK = b" \t\r\n\xef\xbb\xbf"  # white space and the byte order mark
_GZIP, _ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
_FIELDS = VALUES // 2  # of protobuf; an attribute has four, and seven values in JSON
_FORMS = "of a collector's file exporter, plain or compressed once by gzip"


def messages_in(paths: Iterable[Path]) -> Iterator[Message]:
    """Yield the messages of all files ``paths``, in their order."""
    return chain.from_iterable(map(read_messages, paths))


def read_messages(path: Path) -> Iterator[Message]:
    """Yield the messages in the file ``path``, one at a time, those in protobuf as dicts.

    Raises `ConfigError` for files that `read_requests` refuses.
    """
    from google.protobuf.json_format import (  # type: ignore[import-untyped]  # noqa: PLC0415
        MessageToDict,
    )

    for request in read_requests(path):
        yield request if isinstance(request, Mapping) else MessageToDict(request)


def read_requests(path: Path) -> Iterator[Message | ProtoRequest]:
    """Yield the messages in the file ``path``, one at a time, each as it is in the file.

    The file has one message in JSON, one in each line, or protobuf messages, each after its length
    in four bytes. It may be compressed by gzip. If the last line of JSON is incomplete, as in a
    file that is being written, it is left out. Raises `ConfigError` for any other file, and for a
    message that would take too much memory.
    """
    with _opened(path) as file:
        yield from (_json_messages if _is_json(file) else _protobuf_messages)(path, file)


def read_json_messages(path: Path) -> Iterator[Message]:
    """Yield the messages in the file ``path``, which must be JSON, as `read_requests` does."""
    with _opened(path) as file:
        if not _is_json(file):
            msg = f"{path}: must be OTLP JSON, an object with {' or '.join(SIGNALS)}"
            raise ConfigError(msg)
        yield from _json_messages(path, file)


@contextmanager
def _opened(path: Path) -> Iterator[BufferedReader]:
    try:
        with path.open("rb") as raw:
            start = raw.read(_LENGTH)
        if start == _ZSTD:
            msg = f"{path} is compressed by zstd; decompress it first: zstd -d {path}"
            raise ConfigError(msg)
        is_gzip = start.startswith(_GZIP)
        with cast("BufferedReader", gzip.open(path) if is_gzip else path.open("rb")) as file:
            yield file
    except (EOFError, OSError, zlib.error) as error:
        msg = f"{path} cannot be read: {error}"
        raise ConfigError(msg) from error


# --- limits of JSON -------------------------------------------------------------------------------

# A file of any size is read line by line. What is parsed at once is limited: 58 kB of gzip can hold
# 20 million empty objects, which take 1.6 GB.


def check_size(text: str | bytes, place: object = "") -> None:
    """Raise `ConfigError` if ``text``, JSON to be parsed at once, would take too much memory.

    ``place`` begins the message.
    """
    if len(text) > LONGEST or (len(text) > VALUES and values_in(text) > VALUES):
        msg = (
            f"{place}: has more than {LONGEST >> 20} MiB or {VALUES:,} values, which is too much"
            " for one line; divide it, for example by"
            " jq -c '.resourceSpans[] | {resourceSpans: [.]}'"
        )
        raise ConfigError(msg.removeprefix(": "))


def values_in(text: str | bytes) -> int:
    """Return the number of values in ``text``, JSON, by its brackets and commas.

    Those in texts are counted, too, because this is fast.
    """
    if isinstance(text, bytes):
        return sum(map(text.count, b"[{,"))
    return sum(map(text.count, "[{,"))


def lines_of(path: Path, file: IO[AnyStr]) -> Iterator[AnyStr]:
    """Yield the lines of ``file``; raise `ConfigError` for a line that `check_size` refuses."""
    for number in count(1):
        line = file.readline(LONGEST + 1)
        if not line:
            return
        check_size(line, f"{path}, line {number}")
        yield line


# --- JSON -----------------------------------------------------------------------------------------


def _is_json(file: BufferedReader) -> bool:
    return file.peek(_HEAD)[:_HEAD].lstrip(_BLANK).startswith(b"{")


def _json_messages(path: Path, file: IO[bytes]) -> Iterator[Message]:
    lines = enumerate(lines_of(path, file), start=1)
    line = next(line for _, line in lines if line.strip(_BLANK)).lstrip(_BLANK)
    message = _parsed(line)
    if message is None:  # one message in several lines, or a single line that is incomplete
        content = line + file.read(LONGEST)
        check_size(content, path)
        message = _parsed(content)
        if message is None and content.count(b"\n") > 0:
            msg = f"{path}, line 1: is not JSON; use the OTLP JSON of a collector's file exporter"
            raise ConfigError(msg)
        yield from () if message is None else [_checked(message, f"{path}")]
        return
    yield _checked(message, f"{path}, line 1")
    for number, line in lines:
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
    if not (isinstance(message, dict) and not message.keys().isdisjoint(SIGNALS)):
        msg = (
            f"{place}: is no OTLP export request: an object with resourceSpans, resourceLogs or"
            " resourceMetrics, as the file exporter of an OpenTelemetry Collector writes them"
        )
        raise ConfigError(msg)
    return message


# --- protobuf -------------------------------------------------------------------------------------


def _protobuf_messages(path: Path, file: IO[bytes]) -> Iterator[ProtoRequest]:
    length = file.read(_LENGTH)
    if length.startswith(b"\x0a"):  # field 1 of a request: a file with one message and no lengths
        yield from _decoded(path, length + file.read(LONGEST))
        return
    while length:
        size = int.from_bytes(length, "big")
        if len(length) < _LENGTH or size > LONGEST:
            msg = f"{path}: is neither OTLP JSON nor OTLP protobuf {_FORMS}"
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
    from google.protobuf.message import DecodeError  # type: ignore[import-untyped]  # noqa: PLC0415
    from opentelemetry.proto.collector.logs.v1 import logs_service_pb2 as logs  # noqa: PLC0415
    from opentelemetry.proto.collector.metrics.v1 import (  # noqa: PLC0415  # slow to import
        metrics_service_pb2 as metrics,
    )
    from opentelemetry.proto.collector.trace.v1 import (  # noqa: PLC0415
        trace_service_pb2 as traces,
    )

    def parsed(kind: Any) -> Any:
        if len(content) > LONGEST or _fields(content, kind.DESCRIPTOR) > _FIELDS:
            msg = (
                f"{path}: has a request of more than {LONGEST >> 20} MiB or {_FIELDS:,} fields;"
                " write fewer spans a request (send_batch_max_size of the collector's batch)"
            )
            raise ConfigError(msg)
        return kind.FromString(content)

    with suppress(DecodeError):
        spans = parsed(traces.ExportTraceServiceRequest)
        if _is_of_spans(spans):
            yield spans
            return
        del spans  # its memory is needed for the next
    with suppress(DecodeError):
        counters = parsed(metrics.ExportMetricsServiceRequest)
        if _is_of_metrics(counters):
            return
        del counters
    try:
        yield parsed(logs.ExportLogsServiceRequest)
    except DecodeError as error:
        msg = f"{path}: is neither OTLP JSON nor OTLP protobuf: {error}"
        raise ConfigError(msg) from error


def _is_of_spans(request: Any) -> bool:
    spans = (s for part in request.resource_spans for sc in part.scope_spans for s in sc.spans)
    return all((len(s.trace_id), len(s.span_id)) == (_TRACE_ID, _SPAN_ID) for s in spans)


def _is_of_metrics(request: Any) -> bool:
    scopes = (scope for part in request.resource_metrics for scope in part.scope_metrics)
    return any(metric.name for scope in scopes for metric in scope.metrics)


def _fields(content: bytes, kind: Any) -> int:
    """Return the number of fields in ``content``, a message with the descriptor ``kind``.

    Fields of messages within are counted, too, until there are more than `_FIELDS`. A message
    without fields has two bytes in ``content``, and about 150 when it is parsed.
    """
    count, parts = 0, [(0, len(content), kind)]
    while parts:
        at, end, kind = parts.pop()
        within = _messages_within(kind)
        while at < end:
            count += 1
            if count > _FIELDS:
                return count
            tag, at = _varint(content, at)
            size = _FIXED.get(tag & 7, 0)
            if tag & 7 in {_NUMBER, _SIZED}:
                number, at = _varint(content, at)
                size = number if tag & 7 == _SIZED else 0
            if size and tag >> 3 in within:
                parts += [(at + size, end, kind), (at, min(at + size, end), within[tag >> 3])]
                break
            at += size
    return count


_NUMBER, _SIZED = 0, 2  # wire types
_FIXED = {1: 8, 5: 4}  # bytes by wire type
_BITS = 70  # of the longest number, seven a byte


@cache
def _messages_within(kind: Any) -> Mapping[int, Any]:
    """Return the descriptors of the fields of ``kind`` that are messages, by their numbers."""
    return {part.number: part.message_type for part in kind.fields if part.message_type is not None}


def _varint(content: bytes, at: int) -> tuple[int, int]:
    """Return the number at the position ``at`` of ``content``, and the position after it."""
    number = shift = 0
    while at < len(content) and shift < _BITS:
        byte = content[at]
        number |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:  # noqa: PLR2004  # the last byte
            break
    return number, at
