"""Read the spans and log records in messages of OTLP.

A *message* is one OTLP export request as a dict, in the field names of OTLP JSON. A *part* is one
span or one log record of a trace, with its scope and service.
"""

from __future__ import annotations

import binascii
import json
from base64 import b64decode
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from rag_eval_otel.capture.logs import may_be_read
from rag_eval_otel.capture.span import LogView
from rag_eval_otel.errors import ConfigError

Message: TypeAlias = Mapping[str, Any]
Signal: TypeAlias = Literal["span", "log"]

_TRACE_ID, _SPAN_ID = 16, 8  # bytes
_HAS_REMOTE, _IS_REMOTE = 0x100, 0x200  # flags of a span
_REMOTE_KINDS = (2, "SPAN_KIND_SERVER", 5, "SPAN_KIND_CONSUMER")
_ERROR = (2, "STATUS_CODE_ERROR")


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
