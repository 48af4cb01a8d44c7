"""Spans as OTLP carries them: taken out of requests, read, changed, and put into requests again.

Scores are written into the protobuf message of the span itself, so that fields that this library
does not know are exported as they came. A `Receipt` says when all spans of a request have arrived
at the next receiver.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, Protocol

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1 import trace_pb2
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, Status, StatusCode, TraceFlags

from rag_eval_otel.errors import RagEvalError
from rag_eval_otel.export.metrics import NAME_LENGTH

if TYPE_CHECKING:
    from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue

_ORIGINS: Final = 1024  # pairs of a resource and a scope that are kept
_ORIGIN_SIZE: Final = 64 * 1024  # bytes of the largest pair that is kept
_HAS_REMOTE, _IS_REMOTE = 0x100, 0x200  # flags of a span
_NO_VALUE: Final = object()


class OverloadedError(RagEvalError):
    """The worker has no memory for a request; the sender may try again after ``retry_after`` s."""

    def __init__(self, message: str, *, retry_after: float) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class Receipt:
    """Counts the spans of one request, and calls ``on_done()`` once all of them have left.

    A span has left when the next receiver has acknowledged it. ``spans`` is the number of spans. If
    it is 0, ``on_done()`` is called at once. The call is made on the thread that reports the last
    span. A receipt that `revoke` was called for never calls ``on_done()``.
    """

    __slots__ = ("_is_revoked", "_left", "_lock", "_on_done", "keys")

    def __init__(self, spans: int, on_done: Callable[[], None]) -> None:
        self._left = spans
        self._on_done = on_done
        self._lock = threading.Lock()
        self._is_revoked = False
        self.keys: list[tuple[int, int]] = []
        """Trace id and span id of each span of the request that the pipeline has taken."""
        if not spans:
            on_done()

    def note(self, key: tuple[int, int]) -> None:
        """Add ``key`` to ``keys``."""
        self.keys.append(key)

    @property
    def is_revoked(self) -> bool:
        """Whether the spans are dropped, because another worker exports them."""
        return self._is_revoked

    def left(self, spans: int = 1) -> None:
        """Record that the receiver has acknowledged one span, or as many as ``spans``."""
        with self._lock:
            was_open = self._left > 0
            self._left -= spans
            is_done = was_open and self._left <= 0 and not self._is_revoked
        if is_done:
            self._on_done()

    def revoke(self) -> None:
        """Drop the spans of the request that have not left: they are no longer exported."""
        with self._lock:
            self._is_revoked = True


class _Untracked(Receipt):
    """A receipt that counts nothing, for requests that are acknowledged when they arrive."""

    __slots__ = ()

    def left(self, spans: int = 1) -> None:
        """Do nothing."""

    def note(self, key: tuple[int, int]) -> None:
        """Do nothing: these spans are never dropped."""


_UNTRACKED: Final = _Untracked(1, lambda: None)


def untracked() -> Receipt:
    """Return the receipt for requests that are acknowledged when they arrive."""
    return _UNTRACKED


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Origin:
    """The resource and the scope of spans, with their schema URLs and unknown fields.

    ``resource_spans`` and ``scope_spans`` are the messages around the spans, without the spans.
    ``service`` is the attribute ``service.name`` of the resource, cut, or ``""``.
    """

    resource_key: bytes
    resource_spans: trace_pb2.ResourceSpans
    scope_spans: trace_pb2.ScopeSpans
    service: str
    scope: str


@dataclass(slots=True, kw_only=True, eq=False)
class WireSpan:
    """A span as it came: its protobuf message, where it is from, and the receipt of its request."""

    message: trace_pb2.Span
    origin: Origin
    receipt: Receipt

    @property
    def key(self) -> tuple[int, int]:
        """Trace id and span id."""
        message = self.message
        return int.from_bytes(message.trace_id, "big"), int.from_bytes(message.span_id, "big")

    def detached(self) -> WireSpan:
        """Return a copy that does not keep the memory of the whole request in use."""
        message = trace_pb2.Span()
        message.CopyFrom(self.message)
        return WireSpan(message=message, origin=self.origin, receipt=self.receipt)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class WireGroup:
    """Spans of one resource and one scope, which are passed on together.

    ``content`` is their serialized ``ScopeSpans``: the spans with the scope.
    """

    origin: Origin
    messages: Sequence[trace_pb2.Span]
    content: bytes
    receipt: Receipt

    def spans(self) -> list[WireSpan]:
        """Return the spans as they are passed on one by one."""
        return [
            WireSpan(message=one, origin=self.origin, receipt=self.receipt) for one in self.messages
        ]

    def of(self, messages: Sequence[trace_pb2.Span]) -> WireGroup:
        """Return a group of some of the spans only."""
        scope = trace_pb2.ScopeSpans()
        scope.CopyFrom(self.origin.scope_spans)
        scope.spans.extend(messages)
        content = scope.SerializeToString()
        return replace(self, messages=messages, content=content)


class Output(Protocol):
    """Exports spans and log records, and reports to the receipt of each span when it has arrived.

    `put` and `put_logs` return at once. The engine takes no further requests while ``size`` is
    above its limit. A span whose receipt is revoked is not exported.
    """

    @property
    def size(self) -> int:
        """About how many bytes of spans and log records wait for their export or are under way."""

    def put(self, span: WireSpan) -> None:
        """Queue ``span``. After the receiver has acknowledged it, call ``span.receipt.left()``."""

    def put_group(self, group: WireGroup) -> None:
        """Queue the spans of ``group``, like `put`. They may leave in one piece."""

    def put_logs(self, request: ExportLogsServiceRequest) -> None:
        """Queue the log records in ``request``."""

    def flush(self, timeout: float) -> bool:
        """Export what is queued; return False if something is left after ``timeout`` seconds."""

    def close(self, timeout: float) -> None:
        """Export what is queued for at most ``timeout`` seconds, and stop."""


# --- requests -------------------------------------------------------------------------------------


def count_spans(request: ExportTraceServiceRequest) -> int:
    """Return the number of spans in ``request``, for its `Receipt`."""
    return sum(
        len(scope.spans) for resource in request.resource_spans for scope in resource.scope_spans
    )


def spans_in(request: ExportTraceServiceRequest, receipt: Receipt) -> list[WireSpan]:
    """Return the spans in ``request``. They are taken out of it, so that it is empty afterwards."""
    return [span for group in groups_in(request, receipt) for span in group.spans()]


def groups_in(request: ExportTraceServiceRequest, receipt: Receipt) -> list[WireGroup]:
    """Return the spans in ``request`` by resource and scope; take them out of it."""
    found: list[WireGroup] = []
    for resource in request.resource_spans:
        scopes = list(resource.scope_spans)
        resource.ClearField("scope_spans")
        about = resource.SerializeToString(deterministic=True)
        for scope in scopes:
            content, messages = scope.SerializeToString(), list(scope.spans)
            scope.ClearField("spans")
            origin = _origin(about, scope.SerializeToString(deterministic=True))
            found.append(
                WireGroup(origin=origin, messages=messages, content=content, receipt=receipt)
            )
    return found


def _origin(resource: bytes, scope: bytes) -> Origin:
    is_usual = len(resource) + len(scope) <= _ORIGIN_SIZE
    return (_kept_origin if is_usual else _read_origin)(resource, scope)


def _read_origin(resource: bytes, scope: bytes) -> Origin:
    resource_spans = trace_pb2.ResourceSpans.FromString(resource)
    scope_spans = trace_pb2.ScopeSpans.FromString(scope)
    service = plain_attributes(resource_spans.resource.attributes).get("service.name") or ""
    return Origin(
        resource_key=resource,
        resource_spans=resource_spans,
        scope_spans=scope_spans,
        service=str(service)[:NAME_LENGTH],
        scope=scope_spans.scope.name,
    )


_kept_origin = lru_cache(maxsize=_ORIGINS)(_read_origin)


def log_records_in(request: ExportLogsServiceRequest) -> list[ExportLogsServiceRequest]:
    """Return a request for each log record in ``request``, which is empty afterwards."""
    found: list[ExportLogsServiceRequest] = []
    for resource in request.resource_logs:
        scopes = list(resource.scope_logs)
        resource.ClearField("scope_logs")
        for scope in scopes:
            records = list(scope.log_records)
            scope.ClearField("log_records")
            for record in records:
                made = ExportLogsServiceRequest(resource_logs=[resource])
                made.resource_logs[0].scope_logs.append(scope)
                made.resource_logs[0].scope_logs[0].log_records.append(record)
                found.append(made)
    return found


def request_of(batch: Sequence[WireSpan]) -> ExportTraceServiceRequest:
    """Return a request with copies of the spans in ``batch``, grouped by resource and scope."""
    request = ExportTraceServiceRequest()
    resources: dict[bytes, trace_pb2.ResourceSpans] = {}
    groups: dict[Origin, list[trace_pb2.Span]] = {}
    for span in batch:
        groups.setdefault(span.origin, []).append(span.message)
    for origin, messages in groups.items():
        resource = resources.get(origin.resource_key)
        if resource is None:
            resource = resources[origin.resource_key] = request.resource_spans.add()
            resource.CopyFrom(origin.resource_spans)
        scope = resource.scope_spans.add()
        scope.CopyFrom(origin.scope_spans)
        scope.spans.extend(messages)
    return request


def serialized_request(
    spans: Iterable[tuple[Origin, bytes]], groups: Iterable[tuple[Origin, bytes]] = ()
) -> bytes:
    """Return a serialized request of serialized spans and of the contents of groups.

    The bytes are used as they are, so no span is parsed or copied.
    """
    scopes: dict[Origin, list[bytes]] = {}
    for origin, content in spans:
        scopes.setdefault(origin, []).append(content)
    whole = [
        (origin, b"".join((origin.scope_spans.SerializeToString(), *map(_as_field_2, contents))))
        for origin, contents in scopes.items()
    ]
    resources: dict[bytes, list[bytes]] = {}
    for origin, content in (*groups, *whole):
        parts = resources.setdefault(origin.resource_key, [origin.resource_key])
        parts.append(_as_field_2(content))
    return b"".join(_as_field_1(b"".join(parts)) for parts in resources.values())


def _as_field_2(content: bytes) -> bytes:
    """Return ``content`` as a field 2: the scopes of a resource, and the spans of a scope."""
    return b"\x12" + _varint(len(content)) + content


def _as_field_1(content: bytes) -> bytes:
    """Return ``content`` as a field 1: the resources of a request."""
    return b"\x0a" + _varint(len(content)) + content


def _varint(number: int) -> bytes:
    if number < 0x80:  # noqa: PLR2004  # seven bits a byte
        return _SMALL[number]
    return _SMALL[number & 0x7F | 0x80] + _varint(number >> 7)


_SMALL: Final = [bytes([number]) for number in range(256)]


# --- values ---------------------------------------------------------------------------------------


def plain_attributes(attributes: Iterable[KeyValue]) -> dict[str, Any]:
    """Return attributes as a dict of plain data. Of equal names, the last one counts."""
    return {one.key: plain_value(one.value) for one in attributes}


def plain_value(value: AnyValue) -> Any:
    """Return ``value`` as plain data: a scalar, bytes, a list or a dict; None if it is empty."""
    kind = value.WhichOneof("value")
    if kind is None:
        return None
    found = getattr(value, kind)
    if kind == "array_value":
        return [plain_value(one) for one in found.values]
    return plain_attributes(found.values) if kind == "kvlist_value" else found


def set_value(target: AnyValue, value: Any) -> None:
    """Write ``value``, plain data as `plain_value` returns it, into ``target``."""
    target.Clear()
    if isinstance(value, bool):
        target.bool_value = value
    elif isinstance(value, str):
        target.string_value = value
    elif isinstance(value, int):
        target.int_value = value
    elif isinstance(value, float):
        target.double_value = value
    elif isinstance(value, bytes):
        target.bytes_value = value
    elif isinstance(value, Mapping):
        target.kvlist_value.SetInParent()
        add_attributes(target.kvlist_value.values, value)
    elif value is not None:
        target.array_value.SetInParent()
        for one in value:
            set_value(target.array_value.values.add(), one)


def add_attributes(target: Any, values: Mapping[str, Any]) -> None:
    """Append ``values``, plain data by name, to ``target``, a repeated field of attributes."""
    for name, value in values.items():
        set_value(target.add(key=name).value, value)


# --- the span as the pipeline reads it ------------------------------------------------------------

_SAMPLED = TraceFlags(TraceFlags.SAMPLED)
_NO_RESOURCE = Resource.get_empty()


class ReadableWireSpan(ReadableSpan):
    """A span of OTLP in the form in which the pipeline reads spans of the SDK.

    ``wire`` is the span itself. Copies with other attributes or events (`with_content`) have the
    same ``wire``, and `written` writes their differences into its message. ``value_limit`` is the
    length to which the SDK of the application cuts attribute values, or None.
    """

    def __init__(self, wire: WireSpan, *, value_limit: int | None = None) -> None:
        message = wire.message
        trace_id, span_id = wire.key
        attributes = _Attributes(plain_attributes(message.attributes))
        attributes.max_value_len = value_limit
        super().__init__(
            name=message.name,
            resource=_NO_RESOURCE,
            context=SpanContext(trace_id, span_id, is_remote=False, trace_flags=_SAMPLED),
            parent=_parent(message, trace_id),
            attributes=attributes,
            events=tuple(_event(one) for one in message.events),
            status=Status(StatusCode(message.status.code), message.status.message or None)
            if message.status.code == message.status.STATUS_CODE_ERROR
            else Status(),
            start_time=message.start_time_unix_nano,
            end_time=message.end_time_unix_nano,
            instrumentation_scope=InstrumentationScope(wire.origin.scope),
        )
        self.wire = wire
        self._read = (self._attributes, self._events)
        self._dropped = (message.dropped_attributes_count, message.dropped_events_count)

    @property
    def dropped_attributes(self) -> int:
        return self._dropped[0]

    @property
    def dropped_events(self) -> int:
        return self._dropped[1]

    def let_go(self) -> None:
        """Free the memory of the message, because the span has been exported."""
        vars(self).pop("wire", None)

    def with_content(
        self, attributes: Mapping[str, Any], events: Sequence[Event]
    ) -> ReadableWireSpan:
        """Return a copy in which ``attributes`` and ``events`` replace those of the span."""
        made = copy(self)
        vars(made).update(_attributes=attributes, _events=tuple(events))
        return made

    def written(self) -> WireSpan:
        """Write the attributes and events that differ from those that came into the message.

        What did not change is left as it came. Return the span.
        """
        attributes, events = self._read
        message = self.wire.message
        if self._attributes is not attributes:
            _update(message.attributes, attributes or {}, self._attributes or {})
        if self._events is not events:
            _update_events(message.events, events, self._events)
        return self.wire


class _Attributes(dict[str, Any]):
    """The attributes of a span, and the length to which the SDK cut their values."""

    max_value_len: int | None = None


def parent_is_remote(message: trace_pb2.Span) -> bool:
    """Return True if the parent of the span, if it has one, is in another service."""
    if message.flags & _HAS_REMOTE:
        return bool(message.flags & _IS_REMOTE)
    # An SDK that does not say.
    return message.kind in {message.SPAN_KIND_SERVER, message.SPAN_KIND_CONSUMER}


def _parent(message: trace_pb2.Span, trace_id: int) -> SpanContext | None:
    if not any(message.parent_span_id):  # like the collector: zeros are no id
        return None
    span_id = int.from_bytes(message.parent_span_id, "big")
    is_remote = parent_is_remote(message)
    return SpanContext(trace_id, span_id, is_remote=is_remote, trace_flags=_SAMPLED)


def _event(message: trace_pb2.Span.Event) -> Event:
    return Event(message.name, plain_attributes(message.attributes), message.time_unix_nano)


def _update(target: Any, before: Mapping[str, Any], after: Mapping[str, Any]) -> None:
    """Change ``target``, a repeated field with the attributes ``before``, to those in ``after``.

    A value that is the same object as before is left as it came. Of several attributes with one
    name, all are removed if the value changes.
    """
    same = {name for name, v in after.items() if before.get(name, _NO_VALUE) is v}
    if len(same) < len(before):
        kept = [one for one in target if one.key in same]
        del target[:]
        target.extend(kept)
    add_attributes(target, {name: v for name, v in after.items() if name not in same})


def _update_events(target: Any, before: Sequence[Event], after: Sequence[Event]) -> None:
    """Change ``target``, the repeated field with the events ``before``, to those in ``after``.

    Each of the first events in ``after`` stands for the event ``before`` in its place.
    """
    if len(after) < len(before):
        del target[:]
        before = ()
    for message, old, new in zip(target, before, after, strict=False):
        if old is not new:
            _update(message.attributes, old.attributes or {}, new.attributes or {})
    for new in after[len(before) :]:
        message = target.add(name=new.name, time_unix_nano=new.timestamp)
        add_attributes(message.attributes, new.attributes or {})
