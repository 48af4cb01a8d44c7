"""`TurnReader`: from the spans of a trace to its turns, in the background.

Whatever was held back for a turn is released here or by the scorer, whichever way it goes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol, cast

from rag_eval_otel.capture.dialects import dialect_of, read
from rag_eval_otel.capture.sample import why_none
from rag_eval_otel.capture.trace import AnyView, Segment
from rag_eval_otel.capture.turn import Turn, find_turns
from rag_eval_otel.live.score import Done, TurnScorer
from rag_eval_otel.runtime.background import GivenUp
from rag_eval_otel.runtime.guard import Edge
from rag_eval_otel.sinks.instruments import DropReason, InstrumentSink, Outcome
from rag_eval_otel.types import Evaluation, HoldStatus, Reason, SkipReason

_STEPS = 300  # calls and retrievals of one turn; to compare them takes the square of their number


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
        if evaluator.submit(_Reading(self, segment)):
            return
        why: DropReason = "shutdown" if evaluator.is_closed else "overload"
        try:
            with self._edge:
                for _ in range(_turns(segment)):
                    self._scorer.drop(why)
        finally:
            self.let_go(segment, why)

    def evicted(self, segment: Segment) -> None:
        """Count a segment that had to go before it was complete, and let its spans go."""
        self._count(max(1, _turns(segment)), "skipped", "evicted")
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
        turns: list[Turn] | None = None
        try:
            with self._edge:
                turns = self._find(segment)
            if turns is None:
                self._count(max(1, _turns(segment)), "error", "internal")
            for turn in turns or ():
                self._score(segment, turn)
        finally:
            self.let_go(segment, None)

    def _tell_dialects(self, segment: Segment) -> None:
        found = Counter(map(dialect_of, segment.spans.values()))
        for name, count in found.items():
            if name is not None:
                self._instruments.tally.add("source", name, count)

    def _find(self, segment: Segment) -> list[Turn]:
        self._tell_dialects(segment)
        if segment.is_doubled:
            self._count(max(1, _turns(segment)), "skipped", "ambiguous")
            return []
        fragments = [read(view) for view in segment.spans.values()]
        turns = find_turns(fragments, loss="possible")
        reason = None if turns else why_none(fragments)
        if reason is not None:
            self._count(1, "skipped", reason)
        return turns

    def _score(self, segment: Segment, turn: Turn) -> None:
        is_through = False
        with self._edge:
            self._submit_turn(segment, turn)
            is_through = True
        if not is_through:
            self._count(1, "error", "internal")

    def _submit_turn(self, segment: Segment, turn: Turn) -> None:
        if turn.anchor.end is None:  # more of it may be to come
            turn = replace(turn, doubt="partial")
        elif len(turn.calls) + len(turn.retrievers) > _STEPS:
            turn = replace(turn, doubt="ambiguous")
        ids = (cast("int", step.id) for step in turn.line)  # dialects take those of the spans
        waits = next((one for one in ids if one in segment.held), None)
        done: Done = _nothing
        if waits is None:
            view: AnyView = segment.spans[cast("int", turn.anchor.id)]
        else:
            view = segment.held.pop(waits)
            done = partial(self._release, (segment.trace_id, waits))
        if not self._scorer.admit(segment.trace_id):
            done(None, None)
        elif not self._scorer.submit(turn, view.context, ended=view.end or 0, done=done):
            done("overload", None)

    def _count(self, turns: int, outcome: Outcome, reason: SkipReason | Reason) -> None:
        with self._edge:
            for _ in range(turns):
                self._instruments.turn(outcome, reason)


def _turns(segment: Segment) -> int:
    """Return how many turns a segment has that nobody reads, as far as can be told."""
    return max(len(segment.held), len(segment.turns))


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
