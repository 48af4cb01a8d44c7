"""Refuse requests with too many parts, before memory and time are spent on them.

A part of two bytes becomes an object of hundreds of bytes, so that the size of a request does not
bound its memory. Parts are counted in the serialized request.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from typing import TYPE_CHECKING, Any, Final

from opentelemetry.proto.collector.logs.v1 import logs_service_pb2 as logs
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as traces

from rag_eval_otel.errors import RagEvalError

if TYPE_CHECKING:
    from google.protobuf.descriptor import Descriptor  # type: ignore[import-untyped]

_SPANS: Final = 32_768  # four usual batches of a collector, and 16 MiB of spans of 512 bytes
_EVENTS: Final = 100_000  # three for each of these spans
_PARTS: Final = 1_000_000  # 16 MiB of attributes of 32 bytes: each has a key and a value
_FIELDS: Final = 2 * _PARTS  # half of the fields of real spans are parts
_MOST: Final = {
    **dict.fromkeys(("ResourceSpans", "ScopeSpans", "Span"), _SPANS),
    **dict.fromkeys(("ResourceLogs", "ScopeLogs", "LogRecord"), _SPANS),
    **dict.fromkeys(("Event", "Link"), _EVENTS),
}
"""The most parts of a request, by the name of their message in OTLP; of others, ``_PARTS``."""


class TooManyPartsError(RagEvalError):
    """A request has more parts than it may have."""

    def __init__(self, *, name: str, most: int = _PARTS) -> None:
        # Senders look for "larger than max", gRPC's own words, before they divide a request.
        super().__init__(
            f"the request has more than {most} parts of the kind {name}, so it is larger than max; "
            "send fewer spans"
        )


class _Counts(dict[str, int]):
    """How many more parts there may be, by their names."""

    def __missing__(self, name: str) -> int:
        return _MOST.get(name, _PARTS)

    def add(self, name: str, parts: int = 1) -> None:
        """Count ``parts``; raise `TooManyPartsError` if they are too many."""
        self[name] = left = self[name] - parts
        if left < 0:
            raise TooManyPartsError(name=name, most=_MOST.get(name, _PARTS))


# --- protobuf -------------------------------------------------------------------------------------

_SIZED: Final = 2  # the wire type of texts, bytes and messages
_SIZES: Final = {1: 8, 5: 4}  # bytes of numbers, by their wire types
_ONE_BYTE: Final = 0x80  # numbers below take one byte


class _Table(dict[int, "tuple[str, _Table]"]):
    """The parts that a message may have, by their tags: their names, and their own tables."""


def _table(message: Descriptor, known: dict[str, _Table], *, closed: Collection[str]) -> _Table:
    """Return the table of ``message``, and add it to ``known``; those of ``closed`` are empty."""
    if message.full_name in known:
        return known[message.full_name]
    table = known[message.full_name] = _Table()
    for field in () if message.name in closed else message.fields:
        kind, tag = field.message_type, field.number << 3 | _SIZED
        if kind is not None:
            table[tag] = kind.name, _table(kind, known, closed=closed)
        elif field.default_value == []:  # repeated texts
            table[tag] = field.name, _Table()
    return table


_NO_PART: Final = ("", _Table())
_KINDS: Final = (traces.ExportTraceServiceRequest, logs.ExportLogsServiceRequest)
_ALL: Final[dict[str, _Table]] = {}
_FEW: Final[dict[str, _Table]] = {}
_DEEP: Final = {kind: _table(kind.DESCRIPTOR, _ALL, closed=()) for kind in _KINDS}
_FLAT: Final = {
    kind: _table(kind.DESCRIPTOR, _FEW, closed=("Span", "LogRecord")) for kind in _KINDS
}


def _first_bytes(names: Collection[str] = ()) -> bytes:
    """Return the bytes with which parts of these names may begin, or all parts."""
    parts = [(tag, name) for table in _ALL.values() for tag, (name, _) in table.items()]
    tags = {tag & 0x7F for tag, name in parts if not names or name in names}
    return bytes(tags | {tag | 0x80 for tag in tags})  # the second if the tag has more bytes


_BOUNDS: Final = ((_first_bytes(("Event", "Link")), _EVENTS), (_first_bytes(), _PARTS))
"""Bytes with which parts begin, and how often they may occur in spans that are not looked into."""


def check_parts(kind: Any, content: bytes) -> None:
    """Raise `TooManyPartsError` for a request with too many parts, `ValueError` for a broken one.

    ``content`` is a serialized message of the class ``kind``. Resources, scopes and spans are
    always counted. What is inside of spans is counted only if a fast upper bound is too large.
    """
    is_small = all(len(content) - len(content.translate(None, b)) <= most for b, most in _BOUNDS)
    table = (_FLAT if is_small else _DEEP)[kind]
    counts, fields = _Counts(), 0
    around: list[tuple[int, _Table]] = []
    at, end = 0, len(content)
    while at < end or around:
        if at == end:
            end, table = around.pop()
            continue
        tag, at = (content[at], at + 1) if content[at] < _ONE_BYTE else _varint(content, at)
        wire = tag & 7
        if wire in (_SIZED, 0):
            size, at = _varint(content, at)
        else:
            size = _SIZES.get(wire, len(content))  # a group is refused: OTLP has none
        inside = at + size if wire else at
        if inside > end:
            msg = "a field is longer than its message"
            raise ValueError(msg)
        fields += 1
        if fields > _FIELDS:
            raise TooManyPartsError(name="field", most=_FIELDS)
        name, inner = table.get(tag, _NO_PART)
        if name:
            counts.add(name)
        if inner:
            around.append((end, table))
            end, table = inside, inner
        else:
            at = inside


def _varint(content: bytes, at: int) -> tuple[int, int]:
    """Return the number at ``at``, and where it ends."""
    if at < len(content) and content[at] < _ONE_BYTE:
        return content[at], at + 1
    number, shift, last = 0, 0, min(at + 10, len(content))
    while at < last:
        byte = content[at]
        at += 1
        number |= (byte & 0x7F) << shift
        if byte < _ONE_BYTE:
            return number, at
        shift += 7
    msg = "a number is not complete"
    raise ValueError(msg)


# --- JSON -----------------------------------------------------------------------------------------

_IN_JSON: Final = {f"{name.lower().removesuffix('s')}s": name for name in _MOST}
"""The parts with limits of their own, by their names in lists of JSON, in small letters."""
_TEXT: Final = re.compile(rb'"[^"]*"')


def read_json(content: bytes) -> Any:
    """Return the JSON in ``content`` as plain data.

    Raises `TooManyPartsError` if it has too many parts, and `ValueError` or `RecursionError` if it
    is not JSON in UTF-8.
    """
    if b"\0" in content:
        msg = "JSON must be in UTF-8, and has no NUL"
        raise ValueError(msg)
    if not _is_small(content):
        unescaped = content.replace(rb"\\", b"").replace(rb"\"", b"")
        if not _is_small(_TEXT.sub(b"", unescaped)):
            raise TooManyPartsError(name="value")
    found = json.loads(content)
    counts, waiting = _Counts(), [found]
    while waiting:
        one = waiting.pop()
        if isinstance(one, list):
            waiting += one
        elif isinstance(one, dict):
            for name, inner in one.items():
                if isinstance(inner, list):
                    part = _IN_JSON.get(name.replace("_", "").lower()) or name
                    counts.add(part, len(inner))
            waiting += one.values()
    return found


def _is_small(content: bytes) -> bool:
    """Return True if ``content`` has few objects and lists, and few numbers in lists."""
    parts = content.count(b"{") + content.count(b"[")
    return parts <= _PARTS and content.count(b",") <= _FIELDS
