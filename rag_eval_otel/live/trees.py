"""Write the spans of finished LangChain run trees, and have the turns in them scored.

A run tree is a root run of LangChain and all runs below it. A *turn* is one question of a user and
its answer. When a root run has ended, the application's thread submits one `TreeJob`. On the
evaluator's thread, the job finds the turns, writes the spans with the recorded times
(`SpanWriter`), and has the turns scored. The span of a turn ends after the turn is scored.
"""

from __future__ import annotations

import threading
import time
import zlib
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

from opentelemetry import context as otel_context
from opentelemetry.trace import (
    Span,
    SpanContext,
    get_current_span,
)

from rag_eval_otel.capture.runs import Run, RunTree
from rag_eval_otel.capture.step import Step
from rag_eval_otel.capture.text import Keys
from rag_eval_otel.capture.turn import Turn, find_turns
from rag_eval_otel.live.hold import Awaited, Holdback
from rag_eval_otel.live.score import TurnJob, TurnScorer, given_up
from rag_eval_otel.live.tree_spans import SpanWriter, end_span
from rag_eval_otel.runtime.background import GivenUp
from rag_eval_otel.runtime.guard import Edge
from rag_eval_otel.sinks.events import SpanScores
from rag_eval_otel.sinks.instruments import DropReason
from rag_eval_otel.types import UNTOUCHED, ContextsFromPrompt, Ending

if TYPE_CHECKING:
    from opentelemetry.util.types import AttributeValue

    Attributes = Mapping[str, AttributeValue | None]

TreeUse: TypeAlias = Literal["read", "joined", "evicted"]
"""How a run tree is used. ``read``: turns are looked for in the tree alone. ``joined``: turns are
looked for in the trace around it. ``evicted``: its spans are written, no turn is looked for."""

_OVERHEAD = 4096  # bytes of a held tree without its texts
_WRITING_SECONDS = 2.0  # the most time to wait for another thread that writes the spans


class UncountedTurns:
    """The number of turns of a trace or of a LangChain run tree that have no outcome yet.

    An exporter or a log handler may block the thread that reads the turns. Another thread then
    gives the job up, and the first thread may go on later. Each turn is taken by one of them only,
    and so is counted once.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._left: int | None = None
        self.given_up: GivenUp | None = None
        """Why the job was given up, or None."""

    def found(self, turns: int) -> bool:
        """Add ``turns``; return False if the job was given up before, so that all are lost."""
        with self._lock:
            self._left = (self._left or 0) + (turns if self.given_up is None else 0)
            return self.given_up is None

    def take(self) -> bool:
        """Take a turn, to give it an outcome; return False if no turn is left."""
        with self._lock:
            left = self._left or 0
            self._left = max(0, left - 1)
            return left > 0

    def put_back(self) -> None:
        """Put back a turn that got no outcome."""
        with self._lock:
            self._left = (self._left or 0) + 1

    def give_up(self, why: GivenUp) -> int | None:
        """Take all turns that are left, and all that are found later.

        Return the number of those that are left, or None if `found` has not been called.
        """
        with self._lock:
            self.given_up = self.given_up or why
            left, self._left = self._left, 0
            return left


@dataclass(frozen=True, slots=True)
class _Reading:
    """The steps (calls) of a run tree, its turns, and how its root span ends.

    ``steps`` maps the id of a run to its step. ``turns`` maps the id of the run whose span gets the
    scores to the turn. ``root`` is the status that is written on the span of the root run.
    """

    steps: Mapping[Hashable, Step]
    turns: Mapping[Hashable, Turn]
    root: Ending = UNTOUCHED


_FAILED = _Reading({}, {}, Ending("error"))
_UNKNOWN = _Reading({}, {})


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeParts:
    """The parts of a pipeline that the jobs for all LangChain run trees share."""

    writer: SpanWriter
    scorer: TurnScorer
    hold: Holdback
    keys: Keys
    contexts_from_prompt: ContextsFromPrompt
    scores: SpanScores
    edge: Edge


class TreeJob:
    """A job of `BackgroundEvaluator` that writes the spans of one finished LangChain run tree.

    The job also waits in `Holdback`, the store of spans that wait for scores, with a deadline. The
    spans are written once. They are written when the job runs, or at the deadline, a flush or a
    shutdown, whichever comes first. The spans of RAG turns stay open until the turns have scores.
    When the last of these spans has ended, the job is removed from `Holdback`.
    """

    __slots__ = (
        "_contexts",
        "_ending",
        "_held",
        "_lock",
        "_open",
        "_parts",
        "_reading",
        "_uncounted",
        "_use",
        "tree",
    )

    def __init__(self, tree: RunTree, parts: TreeParts, use: TreeUse) -> None:
        self.tree = tree
        self._parts = parts
        self._use: TreeUse = use
        self._lock = threading.RLock()
        self._reading: _Reading | None = None
        self._held: Awaited | None = None
        self._open: dict[Hashable, tuple[Span, Run]] = {}
        self._contexts: dict[Hashable, SpanContext] = {}
        self._uncounted = UncountedTurns()
        self._ending: Ending | None = None

    @property
    def key(self) -> tuple[int, int]:
        """The key of this run tree in `Holdback`, the store of spans that wait for scores."""
        return (0, id(self))

    @property
    def size(self) -> int:
        """About how many bytes this tree keeps in memory."""
        return _OVERHEAD + self.tree.size

    @property
    def seconds_left(self) -> float:
        """Seconds until the spans are released at their deadline; see `Awaited`."""
        return float("inf") if self._held is None else self._held.seconds_left

    def begin(self) -> bool:
        """Write the spans of the run tree, and have its turns scored by a job each.

        The span of a RAG turn (a question and its answer) stays open until the turn has scores.
        """
        turns = self._write().turns
        if self._open:
            self._held = self._parts.hold.start_scoring(self.key)
        else:
            self._parts.hold.release(self.key, UNTOUCHED)
        for run_id, turn in turns.items():
            if self._uncounted.take():
                self._submit(run_id, turn)
        return False

    def _submit(self, run_id: Hashable, turn: Turn) -> None:
        is_made = False
        try:
            job = self._turn_job(run_id, turn)
            is_made = True
        finally:
            if not is_made:
                self._uncounted.put_back()
        if job is not None:
            self._parts.scorer.submit(job)

    async def run(self) -> None:
        """Do nothing, because each turn has a job of its own."""

    def _turn_job(self, run_id: Hashable, turn: Turn) -> TurnJob | None:
        """Return a job that scores ``turn``; for a refused turn, end the span and return None."""
        scorer, held = self._parts.scorer, _TurnSpan(self, run_id)
        around = get_current_span(self.tree.context).get_span_context()
        context = self._contexts.get(run_id, around)
        if context.is_valid and not context.trace_flags.sampled:
            scorer.refuse("not_sampled")
            held.release(UNTOUCHED)
            return None
        trace_id = context.trace_id or zlib.crc32(repr(turn.anchor.id).encode())  # any number does
        job = TurnJob(scorer, turn, context, turn.path[-1].end or time.time_ns(), held)
        scorer.feedback.note(context, runs=(self.tree.root.id, turn.path[-1].id))
        outer = getattr(get_current_span(self.tree.context), "attributes", None) or {}
        return job if job.admit(trace_id, lambda: [outer]) else None

    def give_up(self, why: GivenUp) -> None:
        """Count the RAG turns of this job as dropped or failed, and end their spans."""
        self.release(given_up(why))
        self._parts.scorer.count_given_up(why, self._uncounted.give_up(why) or 0)

    def drop(self, why: DropReason) -> None:
        """Count the RAG turns of this tree as dropped, because there was no room for the tree."""
        self._parts.scorer.drop(why, self._uncounted.give_up(why) or 0)

    def release(self, ending: Ending) -> None:
        """Write the spans that are not written yet, and end open spans with ``ending``.

        ``ending`` has the scores, or the reason why there are none. If another thread writes the
        spans and is blocked by an exporter, return without waiting for it; that thread then ends
        the spans with ``ending``.
        """
        self._ending = ending
        for run_id in self._write(timeout=_WRITING_SECONDS).turns:
            self.end_turn(run_id, ending)

    def _write(self, timeout: float = -1) -> _Reading:
        """Read the run tree and write its spans, at the first call only.

        The spans of RAG turns stay open. Later calls return the same result. If another thread has
        not written the spans within ``timeout`` seconds, the result has no turns.
        """
        if not self._lock.acquire(timeout=timeout):
            return _UNKNOWN
        try:
            if self._reading is not None:
                return self._reading
            edge, scorer = self._parts.edge, self._parts.scorer
            self._reading = _FAILED
            with edge:  # an error in reading must not keep the spans from being written
                self._reading = self._read()
            if self._reading is _FAILED:
                with edge:
                    scorer.instruments.found()
                    scorer.instruments.turn("error", "internal")
            turns = self._reading.turns
            scorer.instruments.found(len(turns))
            if not self._uncounted.found(len(turns)):
                scorer.count_given_up(self._uncounted.given_up or "error", len(turns))
            token = otel_context.attach(self.tree.context)
            try:
                self._write_spans(self._reading)
            finally:
                otel_context.detach(token)
            for run_id in turns if self._ending is not None else ():
                self.end_turn(run_id, self._ending or UNTOUCHED)
            return self._reading
        finally:
            self._lock.release()

    def _read(self) -> _Reading:
        tree, parts = self.tree, self._parts
        steps = tree.steps(parts.keys)
        by_id = {step.id: step for step in steps}
        if self._use != "read":
            return _Reading(by_id, {})
        if tree.lost:
            parts.scorer.instruments.found()
            parts.scorer.refuse("evicted")
            return _Reading(by_id, {}, Ending("skipped", "evicted"))
        found = find_turns(steps, contexts_from_prompt=parts.contexts_from_prompt)
        turns = {turn.path[-1].id: turn for turn in found}
        reason = None if turns else parts.scorer.refuse_steps(steps)
        return _Reading(by_id, turns, UNTOUCHED if reason is None else Ending("skipped", reason))

    def _write_spans(self, reading: _Reading) -> None:
        tree, edge = self.tree, self._parts.edge
        turns = reading.turns.keys()
        spans = self._parts.writer.start(tree, reading.steps, also=turns, edge=edge)
        if reading.root.status is not None and tree.root.id in spans:
            with edge:
                self._parts.scores.write(spans[tree.root.id], reading.root)
        for run in sorted(tree.runs, key=lambda r: (r.end or tree.root.end or 0, -r.start)):
            span = spans.get(run.id)
            if span is None:
                continue
            self._contexts[run.id] = span.get_span_context()
            if run.id in turns and span.is_recording():
                self._open[run.id] = (span, run)
            else:
                with edge:
                    end_span(span, run)

    def end_turn(self, run_id: Hashable, ending: Ending) -> None:
        """End the span of one RAG turn, with its scores or the reason in ``ending``.

        The span ends in the context in which the root run started. A second call for the same turn
        does nothing.
        """
        found = self._open.pop(run_id, None)
        if found is None:
            return
        span, run = found
        parts = self._parts
        token = otel_context.attach(self.tree.context)
        try:
            if ending.status is not None:
                with parts.edge:
                    parts.scorer.instruments.released(ending.status)
                    parts.scores.write(span, ending)
            with parts.edge:
                end_span(span, run)
        finally:
            otel_context.detach(token)
        if not self._open:
            parts.hold.release(self.key, UNTOUCHED)


@dataclass(frozen=True, slots=True)
class _TurnSpan:
    """The open span of one turn in a LangChain run tree."""

    tree: TreeJob
    run_id: Hashable

    @property
    def seconds_left(self) -> float:
        return self.tree.seconds_left

    def release(self, ending: Ending) -> None:
        self.tree.end_turn(self.run_id, ending)
