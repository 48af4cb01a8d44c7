"""`TurnReader`: from the spans of a trace to its turns, in the background.

Whatever was held back for a turn is released here or by the scorer, whichever way it goes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import cast

from opentelemetry.trace import INVALID_SPAN_CONTEXT

from rag_eval_otel.capture.dialects import dialect_of, read
from rag_eval_otel.capture.text import Keys
from rag_eval_otel.capture.trace import Trace
from rag_eval_otel.capture.turn import Turn, find_turns
from rag_eval_otel.live.hold import Holdback
from rag_eval_otel.live.score import Done, TurnScorer
from rag_eval_otel.runtime.background import GivenUp
from rag_eval_otel.runtime.guard import Edge
from rag_eval_otel.sinks.instruments import DropReason, Outcome
from rag_eval_otel.types import UNTOUCHED, ContextsFromPrompt, Ending, Reason, SkipReason

_STEPS = 300  # calls and retrievals of one turn; to compare them takes the square of their number


class TurnReader:
    """Finds the turns in traces and has ``scorer`` score them; each refusal is counted."""

    def __init__(
        self,
        scorer: TurnScorer,
        *,
        hold: Holdback,
        keys: Keys,
        contexts_from_prompt: ContextsFromPrompt = "off",
        edge: Callable[[str], Edge],
    ) -> None:
        """Release what ``hold`` holds; ``keys`` find questions and answers."""
        self._scorer = scorer
        self._hold = hold
        self._keys = keys
        self._contexts_from_prompt: ContextsFromPrompt = contexts_from_prompt
        self._edge = edge("reading")

    def submit(self, trace: Trace) -> None:
        """Read ``trace`` on the evaluator's thread."""
        evaluator = self._scorer.evaluator
        if evaluator.submit(_Reading(self, trace)):
            return
        why: DropReason = "shutdown" if evaluator.is_closed else "overload"
        try:
            with self._edge:
                for _ in range(_turns(trace)):
                    self._scorer.drop(why)
        finally:
            self.let_go(trace, Ending(why))

    def evicted(self, trace: Trace) -> None:
        """Count a trace that had to go before it was complete, and release its spans."""
        self._count(max(1, _turns(trace)), "skipped", "evicted")
        self.let_go(trace, Ending("skipped", "evicted"))

    def let_go(self, trace: Trace, ending: Ending) -> None:
        """Release what is still held of ``trace``."""
        held, trace.held = trace.held, {}
        for span_id in held:
            self._hold.release((trace.trace_id, span_id), ending)

    def give_up(self, trace: Trace, why: GivenUp) -> None:
        """Release what could not be read, and count it."""
        for _ in range(_turns(trace)):
            self._scorer.count_given_up(why)
        self.let_go(trace, Ending(why))

    def read(self, trace: Trace) -> None:
        """Submit every turn of ``trace`` to the scorer; tell on its span why there is none."""
        ending = UNTOUCHED
        turns: list[Turn] | None = None
        try:
            with self._edge:
                turns, reason = self._find(trace)
                if reason is not None:
                    ending = Ending("skipped", reason)
            if turns is None:
                self._count(max(1, _turns(trace)), "error", "internal")
            for turn in turns or ():
                self._score(trace, turn)
        finally:
            self.let_go(trace, ending)

    def _find(self, trace: Trace) -> tuple[list[Turn], SkipReason | None]:
        found = Counter(map(dialect_of, trace.spans.values()))
        for name, count in found.items():
            if name is not None:
                self._scorer.instruments.tally.add("source", name, count)
        if trace.is_doubled:
            for _ in range(max(1, _turns(trace))):
                self._scorer.refuse("ambiguous")
            return [], "ambiguous"
        steps = [read(view, self._keys) for view in trace.spans.values()]
        for span_id, tree in trace.trees:
            steps += tree.steps(self._keys, parent=span_id)
        turns = find_turns(steps, loss="possible", contexts_from_prompt=self._contexts_from_prompt)
        return turns, None if turns else self._scorer.refuse_steps(steps)

    def _score(self, trace: Trace, turn: Turn) -> None:
        is_through = False
        with self._edge:
            self._submit_turn(trace, turn)
            is_through = True
        if not is_through:
            self._count(1, "error", "internal")

    def _submit_turn(self, trace: Trace, turn: Turn) -> None:
        if turn.anchor.end is None:  # more of it may be to come
            turn = replace(turn, doubt="partial")
        elif len(turn.calls) + len(turn.retrievers) > _STEPS:
            turn = replace(turn, doubt="ambiguous")
        around = [one for step in turn.line if (one := trace.spans.get(cast("int", step.id)))]
        waits = next((one.span_id for one in around if one.span_id in trace.held), None)
        done: Done = _nothing
        if waits is not None:
            trace.held.pop(waits)
            done = partial(self._hold.release, (trace.trace_id, waits))
        view = next((one for one in around if waits is None or one.span_id == waits), None)
        context = INVALID_SPAN_CONTEXT if view is None else view.context
        ended = (view.end if view is not None else turn.anchor.end) or 0
        refusal = self._scorer.admission(trace.trace_id)
        if refusal is not None:
            done(Ending("skipped", refusal))
        elif not self._scorer.submit(turn, context, ended=ended, done=done):
            done(Ending("overload"))

    def _count(self, turns: int, outcome: Outcome, reason: SkipReason | Reason) -> None:
        with self._edge:
            for _ in range(turns):
                self._scorer.instruments.turn(outcome, reason)


def _turns(trace: Trace) -> int:
    """Return how many turns a trace has that nobody reads, as far as can be told."""
    return max(len(trace.held), len(trace.turns))


def _nothing(_ending: Ending) -> None:
    """There is no span that waits."""


@dataclass(slots=True, eq=False)
class _Reading:
    """One trace on its way through the evaluator."""

    reader: TurnReader
    trace: Trace

    def begin(self) -> None:
        self.reader.read(self.trace)

    async def run(self) -> None:
        """Nothing is left: the turns are jobs of their own."""

    @property
    def size(self) -> int:
        return self.trace.size

    def give_up(self, why: GivenUp) -> None:
        self.reader.give_up(self.trace, why)
