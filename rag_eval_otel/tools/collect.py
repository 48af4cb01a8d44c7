"""Collect the samples in recorded traces, by the code that reads the traces of live applications.

A *turn* is one question of a user and its answer. Its sample is what the metrics score.
"""

from __future__ import annotations

import hashlib
import sqlite3
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field
from typing import Any, Final, Literal

from rag_eval_otel import semconv
from rag_eval_otel.capture.conventions import read
from rag_eval_otel.capture.otlp import Message, TracePart, parts_of, spans_of
from rag_eval_otel.capture.otlp_files import LONGEST
from rag_eval_otel.capture.sample import Outcome, RecentTurns, extract, turns_in, why_none
from rag_eval_otel.capture.span import Span
from rag_eval_otel.capture.turns import Turn
from rag_eval_otel.config import MAX_TEXT_CHARS, Config
from rag_eval_otel.errors import ConfigError
from rag_eval_otel.tools.rows import iso
from rag_eval_otel.types import Passage, Sample

_DENOMINATOR: Final = 2**64
_SPAN_BYTES: Final = 1000  # about what a span takes in memory without its texts


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Say which traces and turns are collected, and how their texts are read.

    ``share`` is the fraction of traces that is chosen by a hash of ``seed`` and their ids, above 0
    and at most 1, so that the traces of a smaller share are also in a larger one. If ``label`` is
    "fail", only turns whose span has the overall label fail are collected. ``contexts_from_prompt``
    and ``max_text_chars`` are options of the application (see `Config`), and ``value_limit`` is its
    ``OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT``: turns with a text of this length are ``truncated``.
    """

    share: float = 1.0
    seed: int = 0
    label: Literal["any", "fail"] = "any"
    contexts_from_prompt: bool = False
    max_text_chars: int = MAX_TEXT_CHARS
    value_limit: int | None = None

    def __post_init__(self) -> None:
        if not 0 < self.share <= 1:
            msg = f"the share must be above 0 and at most 1, not {self.share!r}"
            raise ConfigError(msg)

    @classmethod
    def of_config(cls, config: Config, **chosen: Any) -> Selection:
        """Return a selection with the reading options of ``config``."""
        return cls(
            contexts_from_prompt=config.contexts_from_prompt,
            max_text_chars=config.max_text_chars,
            **chosen,
        )

    def has_chosen(self, trace_id: str) -> bool:
        """Return True if the trace is in the share. ``trace_id`` is in hexadecimal digits."""
        content = f"{self.seed}/{trace_id}".encode()
        drawn = int.from_bytes(hashlib.sha256(content).digest()[:8], "big")
        return drawn < self.share * _DENOMINATOR


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectedTurn:
    """The sample of a turn, with the ids, the end, the service and the label of its span.

    ``trace_id`` and ``span_id`` are in hexadecimal digits. ``time`` is in seconds since the epoch.
    ``label`` is the overall label that live evaluation has written on the span, or None.
    """

    sample: Sample
    trace_id: str
    span_id: str
    time: float
    service: str
    label: str | None

    def to_dict(self) -> dict[str, Any]:
        """Return the row of a dataset, which `evaluate` reads as it is."""
        sample = self.sample
        cells = {
            "question": sample.question,
            "contexts": list(map(_context, sample.contexts)),
            "answer": sample.answer,
            "retrieved_ids": list(sample.retrieved_ids),
            "trace_id": self.trace_id,
            "span_id": self.span_id,
            "time": iso(self.time),
            "service": self.service,
            "live_label": self.label,
        }
        return {name: v for name, v in cells.items() if v not in (None, "", []) or name in _ALWAYS}


_ALWAYS = ("question", "contexts", "answer")


def _context(passage: Passage) -> str | dict[str, Any]:
    """Return the text of ``passage``, or an object with its text, id and score, if it has one."""
    if passage.id is None and passage.score is None:
        return passage.text
    return {name: value for name, value in asdict(passage).items() if value is not None}


@dataclass(slots=True)
class Collected:
    """Counts of traces, samples, and skipped turns and traces, which `collect` fills.

    ``traces`` counts all traces, ``not_chosen`` those outside of the share. ``skipped`` counts
    turns without a sample by reason, and traces without a turn, such as ``no_retrieval``.
    ``other_label`` counts samples without the label of the selection. ``refused`` has the ids of
    traces that a backend did not keep as they were, and the reasons.
    """

    traces: int = 0
    not_chosen: int = 0
    samples: int = 0
    other_label: int = 0
    skipped: Counter[str] = field(default_factory=Counter)
    refused: dict[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        """Return the numbers in a sentence."""
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
    """Yield the turns in the spans and log records of ``messages``, trace by trace.

    The spans of a trace may be in any messages. They are kept in a temporary file until all
    messages are read. A trace that would take too much memory is skipped as ``evicted``. ``counts``
    is filled. Raises `ConfigError` for messages that are not valid.
    """
    recent = RecentTurns()
    with closing(_Spool()) as spool:
        dropped: set[str] = set()
        for message in messages:
            for part in parts_of(message):
                if selection.has_chosen(part.trace_id):
                    spool.add(part)
                elif part.signal == "span":
                    dropped.add(part.trace_id)
        refused = {
            trace: why for trace, why in counts.refused.items() if selection.has_chosen(trace)
        }
        counts.not_chosen = len(dropped)
        counts.traces = len(dropped) + len(refused)
        counts.skipped.update(refused.values())
        for trace, parts in spool.traces():
            if trace in refused:
                continue
            if not parts:
                counts.traces += 1
                counts.skipped["evicted"] += 1
                continue
            spans = spans_of(parts, value_limit=selection.value_limit)
            if not spans:
                continue
            counts.traces += 1
            for outcome in read_trace(spans, selection):
                yield from _turn(outcome, spans, selection=selection, counts=counts, recent=recent)


def _turn(
    outcome: Outcome,
    spans: Sequence[Span],
    *,
    selection: Selection,
    counts: Collected,
    recent: RecentTurns,
) -> Iterator[CollectedTurn]:
    """Count the outcome of a turn, and yield its sample if the sample is selected."""
    sample, turn = outcome.result, outcome.turn
    if not isinstance(sample, Sample) or turn is None:
        counts.skipped[str(sample)] += 1
        return
    if recent.is_repeated(sample, turn):
        counts.skipped["duplicate"] += 1
        return
    collected = _collected(sample, turn, {span.span_id: span for span in spans})
    if selection.label == "fail" and collected.label != "fail":
        counts.other_label += 1
        return
    counts.samples += 1
    yield collected


def read_trace(spans: Sequence[Span], selection: Selection) -> list[Outcome]:
    """Return the outcomes of the turns in ``spans``, all spans of one trace, by their start.

    A trace without a turn has one outcome, the reason, unless it has nothing to do with RAG.
    """
    spans = _without_repeats(spans)
    if len({span.span_id for span in spans}) < len(spans):
        return [Outcome(result="ambiguous")]
    spans = sorted(spans, key=lambda span: span.end or 0)
    steps = [read(span, most=selection.max_text_chars) for span in spans]
    turns = turns_in(steps, contexts_from_prompt=selection.contexts_from_prompt)
    if not turns:
        reason = why_none(steps)
        return [] if reason is None else [Outcome(result=reason)]
    outcomes = [Outcome(result=extract(turn), turn=turn) for turn in turns]
    return sorted(outcomes, key=lambda outcome: outcome.turn.anchor.start if outcome.turn else 0)


def _without_repeats(spans: Sequence[Span]) -> list[Span]:
    """Return ``spans`` without copies, and without our spans beside those of an instrumentation.

    Spans that this library writes for LangChain runs are read if one of them stands for a turn.
    """
    kept = {(span.span_id, span.name, span.start, span.end): span for span in spans}
    ours = [span for span in kept.values() if span.scope == semconv.SCOPE]
    if any(semconv.EVALUATION_STATUS in span.attributes for span in ours):
        return list(kept.values())
    return [span for span in kept.values() if span.scope != semconv.SCOPE]


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
    """Keeps the parts of traces in a temporary file until all parts of each trace are there."""

    def __init__(self) -> None:
        self._database = sqlite3.connect("")  # a private file, which SQLite deletes
        self._database.execute("CREATE TABLE parts (trace, signal, service, scope, content)")

    def add(self, part: TracePart) -> None:
        row = (part.trace_id, part.signal, part.service, part.scope, part.content)
        self._database.execute("INSERT INTO parts VALUES (?, ?, ?, ?, ?)", row)

    def traces(self) -> Iterator[tuple[str, list[TracePart]]]:
        """Yield each trace and its parts, or none if it is too large, in the order of the parts."""
        self._database.execute("CREATE INDEX traces ON parts (trace)")
        size = f"SUM(length(content) + {_SPAN_BYTES})"
        first = f"SELECT trace, {size} FROM parts GROUP BY trace ORDER BY MIN(rowid)"  # noqa: S608
        each = "SELECT signal, service, scope, content FROM parts WHERE trace = ? ORDER BY rowid"
        for trace, size in self._database.execute(first):
            rows = () if size > LONGEST else self._database.execute(each, (trace,))
            yield (
                trace,
                [
                    TracePart(signal=sig, trace_id=trace, service=name, scope=scope, content=data)
                    for sig, name, scope, data in rows
                ],
            )

    def close(self) -> None:
        self._database.close()
