"""Collect the samples in recorded traces, by the code that reads live traces."""

from __future__ import annotations

import hashlib
import re
import sqlite3
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import asdict, dataclass, field
from datetime import datetime
from itertools import chain
from typing import Any, Final, Literal

from rag_eval_otel import semconv
from rag_eval_otel.capture.sample import Outcome, RecentTurns, extract, steps_in, turns_in, why_none
from rag_eval_otel.capture.span import Span
from rag_eval_otel.capture.turns import Turn
from rag_eval_otel.config import MAX_TEXT_CHARS
from rag_eval_otel.errors import ConfigError
from rag_eval_otel.export.backends.annotation import backend_error
from rag_eval_otel.runtime.guard import require
from rag_eval_otel.tools.otlp import LONGEST, Message, TracePart, as_attributes, parts_of, spans_of
from rag_eval_otel.tools.rows import iso, moment
from rag_eval_otel.types import Sample

_ALWAYS: Final = ("question", "contexts", "answer")  # in each row, even if empty
_SPAN_BYTES: Final = 1000  # about what a span takes in memory without its texts


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Choose the traces and turns to collect, and say how long their texts can be.

    ``share`` is the fraction of traces; a larger share includes all traces of a smaller one. A text
    of ``value_limit`` characters, the application's ``OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT``, was cut,
    so its turn is skipped as ``truncated``.
    """

    share: float = 1.0
    seed: int = 0
    label: Literal["any", "fail"] = "any"
    contexts_from_prompt: bool = False
    max_text_chars: int = MAX_TEXT_CHARS
    value_limit: int | None = None

    def __post_init__(self) -> None:
        if not 0 < self.share <= 1:
            raise ConfigError(f"the share must be above 0 and at most 1, not {self.share!r}")

    def has_chosen(self, trace_id: str) -> bool:
        """Return True if the trace with this id, in hexadecimal digits, is in the share."""
        content = f"{self.seed}/{trace_id}".encode()
        drawn = int.from_bytes(hashlib.sha256(content).digest()[:8], "big")
        return drawn < self.share * 2**64


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectedTurn:
    """The sample of a turn, with trace id, span id, end time, service and label of its span."""

    sample: Sample
    trace_id: str
    span_id: str
    time: float
    service: str
    label: str | None

    def to_dict(self) -> dict[str, Any]:
        sample = self.sample
        cells = {
            "question": sample.question,
            "contexts": [
                p.text
                if p.id is None and p.score is None
                else {name: value for name, value in asdict(p).items() if value is not None}
                for p in sample.contexts
            ],
            "answer": sample.answer,
            "retrieved_ids": list(sample.retrieved_ids),
            "trace_id": self.trace_id,
            "span_id": self.span_id,
            "time": iso(self.time),
            "service": self.service,
            "live_label": self.label,
        }
        return {name: v for name, v in cells.items() if v not in (None, "", []) or name in _ALWAYS}


@dataclass(slots=True)
class Collected:
    """Counts of traces, samples, and skipped turns and traces, which `collect` fills."""

    traces: int = 0
    not_chosen: int = 0
    samples: int = 0
    other_label: int = 0
    skipped: Counter[str] = field(default_factory=Counter)

    def __str__(self) -> str:
        parts = [f"{self.samples:,} samples of {self.traces:,} traces"]
        if self.not_chosen:
            parts.append(f"{self.not_chosen:,} traces not in the share")
        if self.other_label:
            parts.append(f"{self.other_label:,} samples without the label fail")
        if self.skipped:
            reasons = ", ".join(f"{n:,} {why}" for why, n in self.skipped.most_common())
            parts.append(f"skipped: {reasons}")
        return "; ".join(parts)


def collect(
    messages: Iterable[Message], selection: Selection, counts: Collected
) -> Iterator[CollectedTurn]:
    recent = RecentTurns()
    with closing(_Spool()) as spool:
        counts.not_chosen = counts.traces = spool.fill(messages, selection)
        for parts in spool.traces():
            if not parts:
                counts.traces += 1
                counts.skipped["evicted"] += 1
                continue
            spans = spans_of(parts, value_limit=selection.value_limit)
            if not spans:
                continue
            counts.traces += 1
            for outcome in read_trace(spans, selection):
                sample, turn = outcome.result, outcome.turn
                if not isinstance(sample, Sample) or turn is None:
                    counts.skipped[str(sample)] += 1
                    continue
                if recent.is_repeated(sample, turn):
                    counts.skipped["duplicate"] += 1
                    continue
                collected = _collected(sample, turn, {span.span_id: span for span in spans})
                if selection.label == "fail" and collected.label != "fail":
                    counts.other_label += 1
                    continue
                counts.samples += 1
                yield collected


def read_trace(spans: Sequence[Span], selection: Selection) -> list[Outcome]:
    """Return a sample or skip reason for each turn in one trace, ordered by start time."""
    steps = steps_in(spans, most=selection.max_text_chars)
    if steps is None:
        return [Outcome(result="ambiguous")]
    turns = turns_in(steps, contexts_from_prompt=selection.contexts_from_prompt)
    if not turns:
        reason = why_none(steps)
        return [] if reason is None else [Outcome(result=reason)]
    outcomes = [Outcome(result=extract(turn), turn=turn) for turn in turns]
    return sorted(outcomes, key=lambda outcome: outcome.turn.anchor.start if outcome.turn else 0)


def _collected(sample: Sample, turn: Turn, spans: Mapping[Any, Span]) -> CollectedTurn:
    line = [spans[step.id] for step in turn.path if step.id in spans]
    scored = next((span for span in line if semconv.EVALUATION_STATUS in span.attributes), None)
    span = scored or spans[turn.anchor.id]
    return CollectedTurn(
        sample=sample,
        trace_id=f"{span.trace_id:032x}",
        span_id=f"{span.span_id:016x}",
        time=(span.end or span.start) / 1e9,
        service=span.service,
        label=span.attributes.get(semconv.EVALUATION_LABEL),
    )


class _Spool:
    """Stores the parts of traces in a temporary file until all messages are read."""

    def __init__(self) -> None:
        self._database = sqlite3.connect("")  # a private file, which SQLite deletes
        self._database.execute("CREATE TABLE parts (trace, signal, service, scope, content)")

    def fill(self, messages: Iterable[Message], selection: Selection) -> int:
        """Store the parts of the traces in ``selection``, and return the number of other traces."""
        dropped: set[str] = set()
        for part in chain.from_iterable(map(parts_of, messages)):
            if selection.has_chosen(part.trace_id):
                row = (part.trace_id, part.signal, part.service, part.scope, part.content)
                self._database.execute("INSERT INTO parts VALUES (?, ?, ?, ?, ?)", row)
            elif part.signal == "span":
                dropped.add(part.trace_id)
        return len(dropped)

    def traces(self) -> Iterator[list[TracePart]]:
        """Yield a list of the parts of each trace; it is empty if the trace is too large."""
        self._database.execute("CREATE INDEX traces ON parts (trace)")
        size = f"SUM(length(content) + {_SPAN_BYTES})"
        first = f"SELECT trace, {size} FROM parts GROUP BY trace ORDER BY MIN(rowid)"  # noqa: S608
        each = "SELECT signal, service, scope, content FROM parts WHERE trace = ? ORDER BY rowid"
        for trace, size in self._database.execute(first):
            rows = () if size > LONGEST else self._database.execute(each, (trace,))
            yield [
                TracePart(signal=sig, trace_id=trace, service=name, scope=scope, content=data)
                for sig, name, scope, data in rows
            ]

    def close(self) -> None:
        self._database.close()


_ALL: Final = 10**9  # the highest number of spans to read
_CREDENTIALS: Final = re.compile(r"//[^/@\s]*@")
_QUOTED: Final = 300  # characters of an error of the client


@contextmanager
def reading(
    backend: str, what: str, variables: Sequence[str], *errors: type[Exception]
) -> Iterator[None]:
    """Raise ``errors`` of a client as `ConfigError` that names ``variables``, the address first."""
    try:
        yield
    except errors as error:
        status = None if isinstance(error.__context__, OSError) else backend_error(error).status
        reason = _CREDENTIALS.sub("//", str(error) or type(error).__name__)[:_QUOTED]
        msg = f"{backend} cannot be reached: {reason}; set {variables[0]} to its address"
        if status is not None:
            msg = f"{backend} answered {status} for {what}; check {' and '.join(variables)}"
        raise ConfigError(msg) from error


def reading_phoenix(project: str) -> AbstractContextManager[None]:
    variables = ("PHOENIX_ENDPOINT", "PHOENIX_API_KEY")
    error = require("httpx", "phoenix").HTTPError
    return reading("Phoenix", f"the project {project!r}", variables, error)


def phoenix_messages(
    project: str, *, since: datetime | None = None, until: datetime | None = None
) -> Iterator[Message]:
    """Yield one message with the spans of ``project``, a name or id, in a Phoenix server.

    Phoenix's client reads the address and the key from ``PHOENIX_ENDPOINT`` and
    ``PHOENIX_API_KEY``.
    """
    client = require("phoenix.client", "phoenix").Client()
    with reading_phoenix(project):
        spans = client.spans.get_spans(
            project_identifier=project, start_time=since, end_time=until, limit=_ALL
        )
    yield {"resourceSpans": [_of_phoenix(span, project) for span in spans]}  # without scopes


def _of_phoenix(span: Mapping[str, Any], project: str) -> dict[str, Any]:
    events = [
        {"name": event["name"], "attributes": as_attributes(event.get("attributes") or {})}
        for event in span.get("events") or ()
    ]
    has_failed = span.get("status_code") == "ERROR"
    return resource_span(
        service=project,
        attributes=span.get("attributes") or {},
        failure=(span.get("status_message") or "") if has_failed else None,
        traceId=span["context"]["trace_id"],
        spanId=span["context"]["span_id"],
        parentSpanId=span.get("parent_id") or "",
        name=span["name"],
        startTimeUnixNano=nanoseconds(span["start_time"]),
        endTimeUnixNano=nanoseconds(span["end_time"]),
        events=events,
    )


def resource_span(
    *,
    service: str,
    attributes: Mapping[str, Any],
    failure: str | None,
    scope: str = "",
    **fields: Any,
) -> dict[str, Any]:
    """Return a span with its resource in OTLP JSON; ``failure`` is the message of its status."""
    status = {} if failure is None else {"code": 2, "message": failure}
    span = {**fields, "attributes": as_attributes(attributes), "status": status}
    return {
        "resource": {"attributes": as_attributes({"service.name": service})},
        "scopeSpans": [{"scope": {"name": scope}, "spans": [span]}],
    }


def nanoseconds(at: str | datetime) -> int:
    return round((moment(at) or 0.0) * 1e6) * 1000
