"""`TurnReader`: from the spans of a trace to its turns, in the background.

Whatever was held back for a turn is released here or by the scorer, whichever way it goes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from rag_eval_otel.background import GivenUp
from rag_eval_otel.capture.assemble import why_none
from rag_eval_otel.capture.dialects import dialect_of, read
from rag_eval_otel.capture.fragment import Fragment
from rag_eval_otel.capture.segment import Segment
from rag_eval_otel.capture.turns import Turn, find_turns
from rag_eval_otel.guard import Edge
from rag_eval_otel.scorer import Done, TurnScorer
from rag_eval_otel.sinks.instruments import DropReason, InstrumentSink
from rag_eval_otel.types import Evaluation, HoldStatus


class Release(Protocol):
    """Hands a held span on."""

    def __call__(
        self,
        key: tuple[int, int],
        status: HoldStatus | None,
        evaluation: Evaluation | None = None,
    ) -> bool:
        """Return False if it has been released already."""


class TurnReader:
    """Finds the turns in segments and has ``scorer`` score them; each refusal is counted."""

    def __init__(
        self,
        scorer: TurnScorer,
        *,
        release: Release,
        instruments: InstrumentSink,
        edge: Callable[[str], Edge],
    ) -> None:
        """Hand what is held to ``release``."""
        self._scorer = scorer
        self._release = release
        self._instruments = instruments
        self._edge = edge("reading")

    def submit(self, segment: Segment) -> None:
        """Read ``segment`` on the evaluator's thread."""
        evaluator = self._scorer.evaluator
        if not evaluator.submit(_Reading(self, segment)):
            why: DropReason = "shutdown" if evaluator.is_closed else "overload"
            for _ in range(_turns(segment)):
                self._scorer.drop(why)
            self.let_go(segment, why)

    def evicted(self, segment: Segment) -> None:
        """Count a segment that had to go before it was complete, and let its spans go."""
        self._instruments.turn("skipped", "evicted")
        self.let_go(segment, None)

    def let_go(self, segment: Segment, status: HoldStatus | None) -> None:
        """Release what is still held of ``segment``."""
        held, segment.held = segment.held, {}
        for span_id in held:
            self._release((segment.trace_id, span_id), status)

    def give_up(self, segment: Segment, why: GivenUp) -> None:
        """Let go what could not be read, and count it."""
        for _ in range(_turns(segment)):
            self._scorer.give_up(why, _nothing)
        self.let_go(segment, why)

    def read(self, segment: Segment) -> None:
        """Submit every turn of ``segment`` to the scorer."""
        try:
            with self._edge:
                self._tell_dialects(segment)
                if segment.lost:
                    self._instruments.turn("skipped", "evicted")
                else:
                    self._read(segment, [read(view) for view in segment.spans.values()])
        finally:
            self.let_go(segment, None)

    def _tell_dialects(self, segment: Segment) -> None:
        found = Counter(map(dialect_of, segment.spans.values()))
        for name, count in found.items():
            if name is not None:
                self._instruments.tally.add("source", name, count)

    def _read(self, segment: Segment, fragments: Sequence[Fragment]) -> None:
        turns = find_turns(fragments, loss="possible")
        for turn in turns:
            self._score(segment, turn)
        reason = None if turns else why_none(fragments)
        if reason is not None:
            self._instruments.turn("skipped", reason)

    def _score(self, segment: Segment, turn: Turn) -> None:
        ids = {step.id for step in turn.line}
        view = next((one for one in segment.held.values() if one.span_id in ids), None)
        done: Done = _nothing
        if view is not None:
            del segment.held[view.span_id]
            done = partial(self._release, (segment.trace_id, view.span_id))
        else:
            view = next(one for one in segment.spans.values() if one.span_id == turn.anchor.id)
        if not self._scorer.admit(segment.trace_id):
            done(None, None)
        elif not self._scorer.submit(turn, view.context, ended=view.end or 0, done=done):
            done("overload", None)


def _turns(segment: Segment) -> int:
    """Return how many turns a segment has that nobody reads, as far as can be told."""
    return max(len(segment.held), segment.has_turn)


def _nothing(_status: HoldStatus | None, _evaluation: Evaluation | None = None) -> None:
    """There is no span that waits."""


@dataclass(slots=True, eq=False)
class _Reading:
    """One segment on its way through the evaluator."""

    reader: TurnReader
    segment: Segment

    async def run(self) -> None:
        self.reader.read(self.segment)

    @property
    def size(self) -> int:
        return self.segment.size

    def give_up(self, why: GivenUp) -> None:
        self.reader.give_up(self.segment, why)
