"""Check OTLP requests, convert them from JSON, divide them by trace, and add scores to spans."""

from __future__ import annotations

import json
import re
import zlib
from base64 import b64encode
from collections.abc import Container, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from google.protobuf.json_format import ParseDict, ParseError  # type: ignore[import-untyped]
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from google.protobuf.unknown_fields import UnknownFieldSet  # type: ignore[import-untyped]
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, ScopeSpans, Span

from rag_eval_otel.capture.conventions import MARKS, UNMARKED_SCOPES, owner_of
from rag_eval_otel.errors import RagEvalError

if TYPE_CHECKING:
    from google.protobuf.descriptor import Descriptor  # type: ignore[import-untyped]
    from opentelemetry.sdk.trace import Event

LARGEST: Final = 16 * 1024 * 1024  # bytes of a request after decompression
_PIECE: Final = 2 * 1024 * 1024  # bytes of a request of several resources
_SPANS: Final = 32_768  # four usual batches of a collector
_PARTS: Final = 500_000  # of a request; each takes about 64 bytes in memory, and 2 in the request
_LIMITS: Final = {
    **dict.fromkeys(("ResourceSpans", "ScopeSpans", "Span"), _SPANS),
    "message": _PARTS,
    "field": 4 * _PARTS,  # counting them takes about a second
}
# What parsing arbitrary JSON may raise; protobuf raises `SystemError` for half a surrogate pair.
_NO_JSON: Final = (
    AttributeError,
    OverflowError,
    ParseError,
    RecursionError,
    SystemError,
    TypeError,
    ValueError,
)
_LENGTHS: Final = {1: 8, 5: 4}  # bytes of numbers, by their wire types

# Names of attributes as protobuf writes them: field 1, length, text. The set of first letters comes
# before the names, because most names differ there.
_IS_MARKED: Final = re.compile(
    b"\n.[%b](?:%b)"
    % (
        "".join(sorted({mark[0] for mark in MARKS})).encode(),
        b"|".join(re.escape(mark[1:].encode()) for mark in sorted(MARKS)),
    ),
    re.DOTALL,
).search
# Trace ids: field 1 of a span, 16 bytes, and before field 2, 8 bytes, as all libraries write them.
_TRACE_IDS: Final = re.compile(b"\n\x10(.{16})\x12\x08", re.DOTALL).findall


class UnreadableError(RagEvalError):
    """A request that cannot be read, however often it is sent."""


class TooLargeError(UnreadableError):
    """A request with too many bytes or parts."""

    def __init__(self, what: str) -> None:
        # Senders look for "larger than max", gRPC's own words, before they divide a request.
        super().__init__(f"the request has {what}, so it is larger than max; send fewer spans")


def unpacked(content: bytes) -> bytes:
    """Return ``content``, decompressed if it begins as gzip or zlib do, and protobuf never does."""
    if not content.startswith((b"\x1f\x8b", b"\x78")):
        return content
    reader = zlib.decompressobj(zlib.MAX_WBITS | 32)
    try:
        text = reader.decompress(content, LARGEST + 1)
    except zlib.error as error:
        raise UnreadableError(f"the request cannot be decompressed: {error}") from error
    if len(text) > LARGEST:
        raise TooLargeError(f"more than {LARGEST} bytes")
    if not reader.eof or reader.unused_data:
        raise UnreadableError("the compressed request does not end where its data ends")
    return text


def parsed(content: bytes) -> ExportTraceServiceRequest:
    """Return the message in ``content``; call `count_spans` first, which limits its parts."""
    request: ExportTraceServiceRequest
    try:
        request = ExportTraceServiceRequest.FromString(content)
    except DecodeError as error:
        raise UnreadableError(f"the request is no OTLP in protobuf: {error}") from error
    return request


def from_json(content: bytes) -> bytes:
    """Return the request in the OTLP JSON ``content``, serialized in protobuf."""
    if content.count(b"{") + content.count(b"[") > _PARTS:
        raise TooLargeError(f"more than {_PARTS} objects and lists")
    try:
        data = json.loads(content)
        for span in _spans_in(data):
            for part in (span, *span.get("links", ())):
                for name in part.keys() & {"traceId", "spanId", "parentSpanId"}:
                    part[name] = b64encode(bytes.fromhex(part[name])).decode()
        request = ParseDict(data, ExportTraceServiceRequest(), ignore_unknown_fields=True)
    except _NO_JSON as error:
        raise UnreadableError(f"the request is no OTLP JSON: {type(error).__name__}") from error
    return bytes(request.SerializeToString())


def _spans_in(data: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    for resource in data.get("resourceSpans", ()):
        for scope in resource.get("scopeSpans", ()):
            yield from scope.get("spans", ())


# --- limits ---------------------------------------------------------------------------------------


class _Table(dict[int, "tuple[str, _Table]"]):
    """The fields of a protobuf message that are messages, by tag: name and table of their type."""


def _table(message: Descriptor, known: dict[str, _Table], *, closed: str = "") -> _Table:
    """Return the table of ``message``, and add it to ``known``; that of ``closed`` is empty."""
    if message.full_name in known:
        return known[message.full_name]
    table = known[message.full_name] = _Table()
    for field in () if message.name == closed else message.fields:
        inner = field.message_type
        if inner is not None:
            table[field.number << 3 | 2] = inner.name, _table(inner, known, closed=closed)
    return table


_ALL: Final[dict[str, _Table]] = {}
_DEEP: Final = _table(ExportTraceServiceRequest.DESCRIPTOR, _ALL)
_FLAT: Final = _table(ExportTraceServiceRequest.DESCRIPTOR, {}, closed="Span")
_TAGS: Final = bytes({tag & 0x7F | more for t in _ALL.values() for tag in t for more in (0, 0x80)})


def count_spans(content: bytes) -> int:
    """Return the number of spans in a serialized request, without memory for its parts.

    Raises `TooLargeError` if it has too many parts, and `UnreadableError` if it is broken. Parts of
    spans are counted only if enough bytes could begin a part to exceed the limit.
    """
    if len(content) > LARGEST:
        raise TooLargeError(f"more than {LARGEST} bytes")
    is_flat = len(content) - len(content.translate(None, _TAGS)) <= _PARTS
    table, around = _FLAT if is_flat else _DEEP, list[tuple[int, _Table]]()
    left = dict(_LIMITS)
    at, end = 0, len(content)
    while at < end or around:
        if at == end:
            end, table = around.pop()
            continue
        tag, at = _varint(content, at)
        wire = tag & 7
        size, at = _varint(content, at) if wire in {0, 2} else (_LENGTHS.get(wire, LARGEST), at)
        inside = at + size if wire else at
        if inside > end:
            raise UnreadableError("a field of the request is longer than its message")
        name, inner = table.get(tag, ("", _FLAT))
        kind = name if name in left else "message" if name else "field"
        left[kind] = last = left[kind] - 1
        if last < 0:
            raise TooLargeError(f"more than {_LIMITS[kind]} parts of the kind {kind}")
        at = inside
        if name and inner:
            around.append((end, table))
            at, end, table = inside - size, inside, inner
    return _SPANS - left["Span"]


def _varint(content: bytes, at: int) -> tuple[int, int]:
    """Return the number at ``at``, and where it ends."""
    if at < len(content) and content[at] < 0x80:  # noqa: PLR2004
        return content[at], at + 1
    number, shift = 0, 0
    for byte in content[at : at + 10]:
        number |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:  # noqa: PLR2004
            return number, at + shift // 7
    raise UnreadableError("a number in the request is not complete")


# --- traces ---------------------------------------------------------------------------------------

Located: TypeAlias = "tuple[ResourceSpans, ScopeSpans, Span]"


def located(request: ExportTraceServiceRequest) -> Iterator[Located]:
    """Yield the spans of ``request``, each with the messages around it."""
    for resource in request.resource_spans:
        for scope in resource.scope_spans:
            for span in scope.spans:
                yield resource, scope, span


def may_have_rag(content: bytes) -> bool:
    """Return True if the serialized request ``content`` may have a span that is part of RAG."""
    named = any(scope.encode() in content for scope in UNMARKED_SCOPES)
    return named or _IS_MARKED(content) is not None


def _is_marked(scope: ScopeSpans, span: Span) -> bool:
    in_scope = scope.scope.name in UNMARKED_SCOPES
    return in_scope or not MARKS.isdisjoint([item.key for item in span.attributes])


class Part(NamedTuple):
    """The spans of one trace in a request: serialized, their number, and if the root is there."""

    content: bytes
    spans: int
    has_root: bool

    @classmethod
    def of(cls, request: ExportTraceServiceRequest) -> Part:
        parents = [span.parent_span_id for *_, span in located(request)]
        return cls(bytes(request.SerializeToString()), len(parents), not all(map(any, parents)))


def divided(content: bytes, traces: Container[bytes]) -> tuple[bytes, dict[bytes, Part]]:
    """Divide a serialized request into the spans to send on, and those of each RAG trace by id.

    A trace is of RAG if a span has marks of a convention, or if its id is in ``traces``.
    """
    has_marks = may_have_rag(content)
    if not has_marks and not any(trace_id in traces for trace_id in set(_TRACE_IDS(content))):
        return content, {}  # most requests, which need not be parsed
    request = parsed(content)
    spans = list(located(request))
    ids = {span.trace_id for *_, span in spans}
    chosen = {trace_id for trace_id in ids if trace_id in traces}
    if has_marks:
        chosen |= {span.trace_id for _, scope, span in spans if _is_marked(scope, span)}
    chosen = {trace_id for trace_id in chosen if len(trace_id) == 16 and any(trace_id)}  # noqa: PLR2004
    if not chosen:
        return content, {}
    parts = _taken_out(request, chosen)
    rest = bytes(request.SerializeToString()) if len(ids) > len(chosen) else b""
    return rest, {trace_id: Part.of(part) for trace_id, part in parts.items()}


def _taken_out(
    request: ExportTraceServiceRequest, chosen: Container[bytes]
) -> dict[bytes, ExportTraceServiceRequest]:
    """Move the spans of the traces ``chosen`` from ``request`` into a request for each trace."""
    parts: dict[bytes, ExportTraceServiceRequest] = {}
    size = 0
    for resource in request.resource_spans:
        outer: ResourceSpans | None = None
        for scope in resource.scope_spans:
            numbers = [n for n, span in enumerate(scope.spans) if span.trace_id in chosen]
            if not numbers:
                continue
            outer = outer or _without(resource, "scope_spans")
            inner, here = _without(scope, "spans"), dict[bytes, ScopeSpans]()
            for span in map(scope.spans.__getitem__, numbers):
                target = here.get(span.trace_id)
                if target is None:
                    part = parts.setdefault(span.trace_id, ExportTraceServiceRequest())
                    target = here[span.trace_id] = _copied(part, outer, inner)
                    size += outer.ByteSize() + inner.ByteSize()
                    if size > LARGEST:  # of resources and scopes, which each trace needs
                        raise TooLargeError("too many traces of a large resource")
                target.spans.append(span)
            for number in reversed(numbers):
                del scope.spans[number]
    return parts


def _without(message: Any, field: str) -> Any:
    """Return a copy of ``message`` without the parts in ``field``, but with unknown fields."""
    copy = type(message)()
    if len(UnknownFieldSet(message)):
        copy.CopyFrom(message)
        copy.ClearField(field)
        return copy
    for known, value in message.ListFields():  # the parts, which may be many, are not copied
        if known.message_type is None:
            setattr(copy, known.name, value)
        elif known.name != field:
            getattr(copy, known.name).CopyFrom(value)
    return copy


def _copied(part: ExportTraceServiceRequest, outer: ResourceSpans, inner: ScopeSpans) -> ScopeSpans:
    part.resource_spans.append(outer)
    target: ScopeSpans = part.resource_spans[-1].scope_spans.add()
    target.CopyFrom(inner)
    return target


def pieces(content: bytes) -> Iterator[bytes]:
    """Divide a request of over 2 MiB between its resources: receivers refuse more than 4 MiB.

    The requests of a trace have been joined to one here. A resource is kept whole.
    """
    first = at = 0
    while at < len(content) and len(content) - first > _PIECE:
        tag, size_at = _varint(content, at)
        size, inside = _varint(content, size_at)
        if tag & 7 != 2:  # noqa: PLR2004  # no message, which no version of OTLP has here
            break
        if first < at and inside + size - first > _PIECE:
            yield content[first:at]
            first = at
        at = inside + size
    yield content[first:]


# --- scores ---------------------------------------------------------------------------------------


def write(span: Span, attributes: Mapping[str, Any], events: Iterable[Event]) -> None:
    """Add ``attributes`` and ``events`` to the message ``span``."""
    for name, value in attributes.items():
        _set(span.attributes.add(key=name).value, value)
    for event in events:
        added = span.events.add(name=event.name, time_unix_nano=event.timestamp)
        for name, value in (event.attributes or {}).items():
            _set(added.attributes.add(key=name).value, value)


def _set(message: Any, value: Any) -> None:
    if isinstance(value, bool):
        message.bool_value = value
    elif isinstance(value, int):
        message.int_value = value
    elif isinstance(value, float):
        message.double_value = value
    elif isinstance(value, str):
        message.string_value = value
    else:
        for item in value:
            _set(message.array_value.values.add(), item)


def strip(request: ExportTraceServiceRequest) -> None:
    """Remove the attributes with texts of users and models from all spans of ``request``."""
    for *_, span in located(request):
        for part, event in ((span, None), *((event, event.name) for event in span.events)):
            for number in reversed(range(len(part.attributes))):
                if owner_of(part.attributes[number].key, event):
                    del part.attributes[number]
