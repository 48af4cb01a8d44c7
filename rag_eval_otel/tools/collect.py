"""Collect the samples in recorded traces, by the code that reads live traces."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
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
from rag_eval_otel.live.scorer import sampling_point
from rag_eval_otel.tools.otlp import LONGEST, Message, TracePart, parts_of, spans_of
from rag_eval_otel.tools.rows import iso
from rag_eval_otel.types import Sample

_ALWAYS: Final = ("question", "contexts", "answer")  # in each row, even if empty
_SPAN_BYTES: Final = 1000  # about what a span takes in memory without its texts


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Choose the traces and turns to collect, and say how long their texts can be.

    ``share`` is the fraction of traces, those that live evaluation chooses with this rate. Turns
    that ended before ``since`` or from ``until`` on are left out. A text of ``value_limit``
    characters, the application's ``OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT``, was cut, so its turn is
    skipped as ``truncated``.
    """

    share: float = 1.0
    since: datetime | None = None
    until: datetime | None = None
    label: Literal["any", "fail"] = "any"
    contexts_from_prompt: bool = False
    max_text_chars: int = MAX_TEXT_CHARS
    value_limit: int | None = None

    def __post_init__(self) -> None:
        if not 0 < self.share <= 1:
            raise ConfigError(f"the share must be above 0 and at most 1, not {self.share!r}")

    def has_chosen(self, trace_id: str) -> bool:
        """Return True if the trace with this id, in hexadecimal digits, is in the share."""
        return sampling_point(int(trace_id, 16)) < self.share

    def has_turn(self, turn: CollectedTurn) -> bool:
        """Return True if ``turn`` has the label, and ended in the period."""
        is_late = self.until is not None and turn.time >= self.until.timestamp()
        is_early = self.since is not None and turn.time < self.since.timestamp()
        return not (is_early or is_late) and self.label in {"any", turn.label}


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
    others: int = 0
    skipped: Counter[str] = field(default_factory=Counter)

    def __str__(self) -> str:
        parts = [f"{self.samples:,} samples of {self.traces:,} traces"]
        if self.not_chosen:
            parts.append(f"{self.not_chosen:,} traces not in the share")
        if self.others:
            parts.append(f"{self.others:,} samples of another label or period")
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
                if not selection.has_turn(collected):
                    counts.others += 1
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
