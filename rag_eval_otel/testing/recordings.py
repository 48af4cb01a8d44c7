"""Recorded traces: spans in the order in which a processor was called, as `SpanView`s."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from rag_eval_otel.capture.span import LogView


@dataclass(frozen=True, kw_only=True)
class RecordedSpan:
    """A recorded span; satisfies `rag_eval_otel.capture.span.SpanView`."""

    name: str
    scope: str
    trace_id: int
    span_id: int
    parent_id: int | None
    parent_is_remote: bool
    start: int
    end: int | None
    error: str | None
    dropped: int
    value_limit: int | None
    attributes: Mapping[str, Any]
    events: Sequence[tuple[str, Mapping[str, Any]]]
    logs: Sequence[LogView] = ()
    dropped_events: int = 0


@dataclass(frozen=True, kw_only=True)
class Call:
    """One call of a processor, at ``at`` nanoseconds."""

    operation: Literal["start", "end"]
    span: RecordedSpan
    at: int


@dataclass(frozen=True, kw_only=True)
class Truth:
    """A sample that a trace truly holds; None where it is not stated."""

    question: str | None
    contexts: tuple[str, ...] | None
    answer: str | None


@dataclass(frozen=True, kw_only=True)
class Recording:
    """A recorded run of an application. ``truths`` is None where nothing is stated."""

    path: Path
    instrumentation: str
    app: str
    calls: tuple[Call, ...]
    truths: tuple[Truth, ...] | None
    spans: tuple[RecordedSpan, ...] = field(default=())


def load(path: Path) -> Recording:
    """Read the recording at ``path``."""
    data = json.loads(path.read_text(encoding="utf-8"))
    limit = (data.get("env") or {}).get("OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT")
    logs: dict[str | None, list[LogView]] = {}
    for record in data.get("logs") or ():
        logs.setdefault(record.get("span_id"), []).append(_log(record))
    spans = {
        raw["span_id"]: _span(
            raw, logs=logs.get(raw["span_id"], ()), limit=int(limit) if limit else None
        )
        for raw in data["spans"]
    }
    expected = data.get("expected")
    return Recording(
        path=path,
        instrumentation=data["instrumentation"],
        app=data["app"],
        calls=tuple(_calls(data, spans)),
        truths=None if expected is None else tuple(map(_truth, expected)),
        spans=tuple(spans.values()),
    )


def _calls(data: Mapping[str, Any], spans: Mapping[str, RecordedSpan]) -> list[Call]:
    found = []
    for raw in data["processor_sequence"]:
        span = spans.get(raw["span_id"]) or _unended(raw, data)
        if raw["op"] == "start":
            span = _as_started(span, raw.get("attributes_at_start") or {})
        found.append(Call(operation=raw["op"], span=span, at=int(raw["t"])))
    return found


def _as_started(span: RecordedSpan, attributes: Mapping[str, Any]) -> RecordedSpan:
    """Return ``span`` as a processor sees it start."""
    return replace(span, attributes=attributes, end=None, error=None, dropped=0, events=(), logs=())


def _unended(raw: Mapping[str, Any], data: Mapping[str, Any]) -> RecordedSpan:
    """Return the span of a start without an end."""
    known: Mapping[str, Any] = next(
        (s for s in data["never_ended"] if s.get("span_id") == raw["span_id"]), {}
    )
    traces = [span["trace_id"] for span in data["spans"]]
    trace = known.get("trace_id") or (traces[0] if traces else "0")
    parent = known.get("parent_span_id")
    return RecordedSpan(
        name=str(raw.get("name") or known.get("name") or ""),
        scope="",
        trace_id=int(trace, 16),
        span_id=int(raw["span_id"], 16),
        parent_id=int(parent, 16) if parent else None,
        parent_is_remote=False,
        start=int(raw["t"]),
        end=None,
        error=None,
        dropped=0,
        value_limit=None,
        attributes=raw.get("attributes_at_start") or {},
        events=(),
    )


def _span(raw: Mapping[str, Any], *, logs: Sequence[LogView], limit: int | None) -> RecordedSpan:
    parent = raw.get("parent_span_id")
    return RecordedSpan(
        name=raw["name"],
        scope=(raw.get("scope") or {}).get("name") or "",
        trace_id=int(raw["trace_id"], 16),
        span_id=int(raw["span_id"], 16),
        parent_id=int(parent, 16) if parent else None,
        parent_is_remote=bool(raw.get("parent_is_remote")),
        start=int(raw["start_time_unix_nano"]),
        end=int(raw["end_time_unix_nano"]) if raw.get("end_time_unix_nano") else None,
        error=_error(raw),
        dropped=int(raw.get("dropped_attributes") or 0),
        value_limit=limit,
        attributes=raw["attributes"],
        events=[(event["name"], event.get("attributes") or {}) for event in raw["events"]],
        logs=logs,
        dropped_events=int(raw.get("dropped_events") or 0),
    )


def _error(raw: Mapping[str, Any]) -> str | None:
    status = raw.get("status") or {}
    if status.get("code") != "ERROR":
        return None
    return str(raw["attributes"].get("error.type") or status.get("description") or "error")


def _log(record: Mapping[str, Any]) -> LogView:
    return LogView(
        event=record.get("event_name") or "",
        body=record.get("body"),
        attributes=record.get("attributes") or {},
    )


def _truth(expected: Mapping[str, Any]) -> Truth:
    contexts = expected.get("contexts")
    return Truth(
        question=expected.get("question"),
        contexts=None if contexts is None else tuple(contexts),
        answer=expected.get("answer"),
    )
