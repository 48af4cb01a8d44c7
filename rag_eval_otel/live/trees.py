"""`RunTurns`: from finished LangChain run trees to spans and scored turns, in the background.

The application's thread submits one job when a root run has ended. On the evaluator's thread the
job finds the turns, writes the spans with the noted times, and has the turns scored. The span of a
turn is ended after its scores: until then the tree is held, with the guarantees of held spans.
"""

from __future__ import annotations

import threading
import time
import zlib
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

from opentelemetry import context as otel_context
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import Span, SpanContext, get_current_span

from rag_eval_otel.capture.buffer import TraceBuffer
from rag_eval_otel.capture.dialects import dialect_of
from rag_eval_otel.capture.runs import Run, RunTree
from rag_eval_otel.capture.span import SdkSpan
from rag_eval_otel.capture.step import Step
from rag_eval_otel.capture.text import Keys
from rag_eval_otel.capture.turn import Turn, find_turns
from rag_eval_otel.live.hold import Holdback
from rag_eval_otel.live.score import TurnScorer
from rag_eval_otel.live.writer import SpanWriter, end
from rag_eval_otel.runtime.background import GivenUp
from rag_eval_otel.runtime.guard import Edge
from rag_eval_otel.sinks.attributes import score_attributes
from rag_eval_otel.sinks.instruments import DropReason
from rag_eval_otel.types import UNTOUCHED, ContextsFromPrompt, Ending, HoldStatus, Reasons

if TYPE_CHECKING:
    from opentelemetry.util.types import AttributeValue

Fate: TypeAlias = Literal["read", "joined", "evicted"]
"""A tree is read by itself, together with the span around it, or only written."""

_OVERHEAD = 4096  # bytes of a held tree without its texts


class RunTurns:
    """Takes finished run trees; every span of theirs is ended exactly once."""

    def __init__(
        self,
        writer: SpanWriter,
        scorer: TurnScorer,
        *,
        hold: Holdback,
        buffer: TraceBuffer | None,
        keys: Keys,
        contexts_from_prompt: ContextsFromPrompt = "off",
        explanations: Reasons,
        edge: Callable[[str], Edge],
    ) -> None:
        """Write spans with ``writer``, have turns scored by ``scorer``, and hold trees in ``hold``.

        Runs that make a turn only together with others go to ``buffer``, where there is one.
        """
        self.writer = writer
        self.scorer = scorer
        self.hold = hold
        self.keys = keys
        self.contexts_from_prompt: ContextsFromPrompt = contexts_from_prompt
        self.explanations = explanations
        self.edge = edge("callback")
        self._buffer = buffer

    def finished(self, tree: RunTree) -> None:
        """Have ``tree`` read, written and scored; on the application's thread."""
        item = FinishedTree(tree, self, self._fate(tree))
        why: HoldStatus | None = None
        if not self.hold.hold(item.key, item, size=item.size):
            why = "overload" if self.hold.is_open else "shutdown"
            item.release(Ending(why))
        elif not self.scorer.evaluator.submit(item):
            why = "shutdown" if self.scorer.evaluator.is_closed else "overload"
            self.hold.release(item.key, Ending(why))
        if why is not None:
            item.drop("shutdown" if why == "shutdown" else "overload")

    def evicted(self, tree: RunTree) -> None:
        """Write the spans of ``tree``, which was given up before its root ended."""
        with self.edge:
            self.scorer.refuse("evicted")
        FinishedTree(tree, self, "evicted").release(UNTOUCHED)

    def _fate(self, tree: RunTree) -> Fate:
        """Tell whether ``tree`` is read by itself, or with the span of the application around it.

        Runs that hold no call after a retrieval may be part of a turn of the span that was current,
        if that is no step of another instrumentation, which knows better what belongs to it.
        """
        if self._buffer is None or tree.root.error is not None or tree.lost:
            return "read"
        if tree.may_be_turn and self.writer.spans != "none":
            return "read"
        span = get_current_span(tree.context)
        if not isinstance(span, ReadableSpan) or not span.is_recording():
            return "read"
        view = SdkSpan(span)
        if dialect_of(view) not in {None, "native"}:
            return "read"
        return "joined" if self._buffer.join(tree, view) else "read"


@dataclass(frozen=True, slots=True)
class _Read:
    """A tree that was read: its steps, its turns by the run that stands for each, or why none."""

    steps: Mapping[Hashable, Step]
    turns: Mapping[Hashable, Turn]
    root: Ending = UNTOUCHED
    """What the root's span says of a tree without turns."""


_NOTHING_READ = _Read({}, {}, Ending("error"))


class FinishedTree:
    """One finished tree: a job of the evaluator, and an item that is held.

    Its spans are written once, by the job or by whoever releases it first. The spans of turns stay
    open until `_end_turn`.
    """

    __slots__ = ("_contexts", "_fate", "_lock", "_open", "_owner", "_read", "_unscored", "tree")

    def __init__(self, tree: RunTree, owner: RunTurns, fate: Fate) -> None:
        self.tree = tree
        self._owner = owner
        self._fate: Fate = fate
        self._lock = threading.RLock()
        self._read: _Read | None = None
        self._open: dict[Hashable, tuple[Span, Run]] = {}
        self._contexts: dict[Hashable, SpanContext] = {}
        self._unscored = 0
        """Turns that nobody has counted yet."""

    @property
    def scorer(self) -> TurnScorer:
        """What scores its turns."""
        return self._owner.scorer

    @property
    def key(self) -> tuple[int, int]:
        """Its key while it is held."""
        return (0, id(self))

    @property
    def size(self) -> int:
        """About how many bytes it keeps alive."""
        return _OVERHEAD + self.tree.size

    def begin(self) -> None:
        """Write the spans, but for those of turns."""
        self._write()
        if not self._open:
            self._owner.hold.release(self.key, UNTOUCHED)

    async def run(self) -> None:
        """Have the turns scored."""
        read = self._write()
        jobs = [_TreeTurn(self, run_id, turn) for run_id, turn in read.turns.items()]
        for job in jobs[1:]:
            self._unscored -= 1
            if not self._owner.scorer.evaluator.submit(job):
                self._owner.scorer.drop("overload")
                job.done(Ending("overload"))
        for job in jobs[:1]:
            await job.run()
            self._unscored -= 1

    def give_up(self, why: GivenUp) -> None:
        """Count the turns of a job that was cancelled or failed, and end their spans."""
        self.release(Ending(why))
        for _ in range(self._unscored):
            self._owner.scorer.count_given_up(why)
        self._unscored = 0

    def drop(self, why: DropReason) -> None:
        """Count the turns of a tree for which there was no room."""
        for _ in range(self._unscored):
            self._owner.scorer.drop(why)
        self._unscored = 0

    def release(self, ending: Ending) -> None:
        """Write the spans that are not written, and end those that are open with ``ending``."""
        read = self._write()
        for run_id in read.turns:
            self.end_turn(run_id, ending)

    def _write(self) -> _Read:
        """Read the tree and write its spans, once; keep the spans of its turns open."""
        with self._lock:
            if self._read is not None:
                return self._read
            self._read = _NOTHING_READ
            with self._owner.edge:  # whatever happens here, the spans are written
                self._read = self._reading()
            if self._read is _NOTHING_READ:
                with self._owner.edge:
                    self._owner.scorer.instruments.turn("error", "internal")
            self._unscored = len(self._read.turns)
            token = otel_context.attach(self.tree.context)
            try:
                self._write_spans(self._read)
            finally:
                otel_context.detach(token)
            return self._read

    def _reading(self) -> _Read:
        tree, scorer = self.tree, self._owner.scorer
        steps = tree.steps(self._owner.keys)
        by_id = {step.id: step for step in steps}
        if self._fate != "read":
            return _Read(by_id, {})
        if tree.lost:
            scorer.refuse("evicted")
            return _Read(by_id, {}, Ending("skipped", "evicted"))
        found = find_turns(steps, contexts_from_prompt=self._owner.contexts_from_prompt)
        turns = {turn.line[-1].id: turn for turn in found}
        reason = None if turns else scorer.refuse_steps(steps)
        return _Read(by_id, turns, UNTOUCHED if reason is None else Ending("skipped", reason))

    def _write_spans(self, read: _Read) -> None:
        tree, edge = self.tree, self._owner.edge
        spans = self._owner.writer.start(tree, read.steps, also=read.turns.keys(), edge=edge)
        if read.root.status is not None and tree.root.id in spans:
            with edge:
                _set(spans[tree.root.id], score_attributes(read.root))
        for run in sorted(tree.runs, key=lambda r: (r.end or tree.root.end or 0, -r.start)):
            span = spans.get(run.id)
            if span is not None and run.id in read.turns and span.is_recording():
                self._open[run.id] = (span, run)
            elif span is not None:
                with edge:
                    end(span, run)
            if span is not None:
                self._contexts[run.id] = span.get_span_context()

    def context_of(self, run_id: Hashable) -> SpanContext:
        """Return the identity of a turn's span; without one, that of the span around the root."""
        around = get_current_span(self.tree.context).get_span_context()
        return self._contexts.get(run_id, around)

    def end_turn(self, run_id: Hashable, ending: Ending) -> None:
        """End the span of a turn, once, in the context in which the root started."""
        found = self._open.pop(run_id, None)
        if found is None:
            return
        span, run = found
        token = otel_context.attach(self.tree.context)
        try:
            if ending.status is not None:
                with self._owner.edge:
                    self._owner.scorer.instruments.tally.add("released", ending.status)
                    explanations = self._owner.explanations
                    _set(span, score_attributes(ending, explanations=explanations))
            with self._owner.edge:
                end(span, run)
        finally:
            otel_context.detach(token)
        if not self._open:
            self._owner.hold.release(self.key, UNTOUCHED)

    async def score(self, run_id: Hashable, turn: Turn) -> Ending:
        """Return how the evaluation of ``turn`` ends."""
        scorer, context = self._owner.scorer, self.context_of(run_id)
        if context.is_valid and not context.trace_flags.sampled:
            scorer.refuse("not_sampled")
            return UNTOUCHED
        trace = context.trace_id or zlib.crc32(repr(turn.anchor.id).encode())  # any will do
        refusal = scorer.admission(trace)
        if refusal is not None:
            return Ending("skipped", refusal)
        ended = turn.line[-1].end or time.time_ns()
        return await scorer.score(turn, context, ended=ended)


@dataclass(frozen=True, slots=True, eq=False)
class _TreeTurn:
    """One turn of a tree on its way through the evaluator."""

    tree: FinishedTree
    run_id: Hashable
    turn: Turn

    @property
    def size(self) -> int:
        return self.turn.size

    def begin(self) -> None:
        """Nothing can be done without the judge."""

    async def run(self) -> None:
        self.done(await self.tree.score(self.run_id, self.turn))

    def done(self, ending: Ending) -> None:
        self.tree.end_turn(self.run_id, ending)

    def give_up(self, why: GivenUp) -> None:
        self.tree.scorer.count_given_up(why)
        self.done(Ending(why))


def _set(span: Span, attributes: Mapping[str, AttributeValue]) -> None:
    for name, value in attributes.items():
        span.set_attribute(name, value)
