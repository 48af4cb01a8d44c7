"""`RagEvalSpanProcessor`: holds turn spans back until they are scored, passes all others on.

It wraps the processors that export. Added beside them it would export every scored span twice;
a `Seat` puts it in front of those that a provider already has.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from threading import get_ident
from typing import TYPE_CHECKING

from opentelemetry import context as otel_context
from opentelemetry.sdk.trace import ReadableSpan, Span, SpanProcessor
from opentelemetry.trace import INVALID_SPAN_CONTEXT

from rag_eval_otel.capture.dialects import native
from rag_eval_otel.capture.span import SdkSpan, attribute_names
from rag_eval_otel.capture.turn import Turn
from rag_eval_otel.capture.watch import SpanWatch
from rag_eval_otel.config import Explanations
from rag_eval_otel.live.assembler import TraceAssembler
from rag_eval_otel.live.hold import Held, Holdback, Key
from rag_eval_otel.live.reader import TurnReader
from rag_eval_otel.live.score import TurnScorer
from rag_eval_otel.runtime.background import Sweeper
from rag_eval_otel.runtime.fork import call_in_child
from rag_eval_otel.runtime.guard import Edge
from rag_eval_otel.runtime.providers import Downstream
from rag_eval_otel.sinks.attributes import enrich, score_attributes
from rag_eval_otel.sinks.content import ContentFilter
from rag_eval_otel.sinks.instruments import DropReason
from rag_eval_otel.types import Evaluation, HoldStatus

if TYPE_CHECKING:
    from opentelemetry.context import Context


_FLUSH_WAIT = 5.0  # seconds a flush waits for scores, at most


class RagEvalSpanProcessor(SpanProcessor):
    """Every span that enters leaves exactly once, scored or not.

    A span that stands for a turn waits in ``hold``, at most until its deadline, while ``scorer``
    works; then a copy with the scores goes on to ``downstream``, in the context the span ended in.
    """

    def __init__(
        self,
        downstream: Downstream,
        *,
        assembler: TraceAssembler,
        scorer: TurnScorer,
        edge: Callable[[str], Edge],
        hold_seconds: float = 10.0,
        max_held: int = 1024,
        max_held_bytes: int = 64 * 1024 * 1024,
        shutdown_seconds: float = 10.0,
        explanations: Explanations = "off",
        content: ContentFilter | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Stand in front of ``downstream``."""
        self._downstream = downstream
        self._content = content or ContentFilter()
        self._pass_on = downstream.on_end if self._content.foreign == "keep" else self._export
        self._start_next = downstream.on_start
        self._assembler = assembler
        assembler.is_open = True
        self._expected = assembler.expected
        self._own_threads = scorer.evaluator.threads
        self._scorer = scorer
        self._edge = edge("on_end")
        self._release_edge = edge("release")
        self._shutdown_seconds = shutdown_seconds
        self._explanations = explanations
        self._clock = clock
        self._hold = Holdback(
            self._forward,
            seconds=hold_seconds,
            max_spans=max_held,
            max_bytes=max_held_bytes,
            clock=clock,
        )
        self._reader = TurnReader(
            scorer, release=self._hold.release, instruments=scorer.instruments, edge=edge
        )
        self.sweeper = Sweeper(self._sweep)
        self.watch = SpanWatch(
            self._reader.submit,
            hold=self._hold_for_reader,
            on_begun=self.sweeper.wake,
            on_evicted=self._reader.evicted,
            clock=clock,
        )
        self._note_start = self.watch.note_start
        self._concerns = self.watch.concerns
        call_in_child(self._after_fork)

    @property
    def held(self) -> int:
        """How many spans wait for their scores."""
        return len(self._hold)

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:
        """Note that it has started, and pass on."""
        self._note_start(span)
        self._start_next(span, parent_context)

    def on_end(self, span: ReadableSpan) -> None:
        """Hold ``span`` if it stands for a turn, else pass it on at once.

        Spans that end on the evaluator's threads are the judge's own, made by an instrumentation
        that does not respect suppression: they go nowhere.
        """
        if get_ident() in self._own_threads:
            return
        if self._expected and self._hold_for_turn(span):
            return
        try:
            concerns = self._concerns(span)
        except (AttributeError, RuntimeError, TypeError):  # not as the SDK makes spans
            concerns = True  # looked at again, at an edge: one for every span is too dear
        if not concerns:
            self._pass_on(span)
        elif not self._hold_for_watch(span):
            self._export(span)

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """Give scores under way half of the time (5 s at most), release the rest, then export.

        Called by a judge or a sink, which hold the scores up, it exports what has left already.
        """
        if self._scorer.evaluator.is_current():
            self._downstream.force_flush(timeout_millis)
            return not self.held
        deadline = self._clock() + timeout_millis / 1000
        with self._release_edge:
            self.watch.flush()
        self._hold.wait_empty(min(_FLUSH_WAIT, timeout_millis / 2000))
        released = self._release_all("flushed", deadline)
        left = max(0, int((deadline - self._clock()) * 1000))
        return self._downstream.force_flush(left) and released

    def shutdown(self) -> None:
        """Give scores under way their grace, release the rest, and shut the next one down."""
        try:
            self.drain(self._shutdown_seconds)
        finally:
            self._downstream.shutdown()

    def drain(self, timeout: float) -> bool:
        """Hold nothing any more: wait up to ``timeout`` seconds for scores, then release all.

        What is left after that gets as long again to be exported chunk by chunk. Evaluations that
        no span waits for have the same ``timeout`` seconds; after them they are given up.
        """
        deadline = self._clock() + timeout
        for _ in range(self._assembler.close()):  # their spans have not ended
            self._scorer.drop("shutdown")
        self.sweeper.stop()
        with self._release_edge:
            self.watch.close()
        self._hold.close()
        patient = False
        try:
            self._hold.wait_empty(0.0 if self._scorer.evaluator.is_current() else timeout)
            patient = True
        finally:  # an interrupt means that nobody waits any longer
            released = self._release_all("shutdown", self._clock() + max(timeout, 1.0))
            self._scorer.close(max(0.0, deadline - self._clock()) if patient else 0.0)
        return released

    def _release_all(self, status: HoldStatus, deadline: float) -> bool:
        def flush(left: float) -> None:
            with self._release_edge:
                self._downstream.force_flush(int(left * 1000))

        return self._hold.release_all(status, deadline=deadline, flush=flush)

    def _hold_for_watch(self, span: ReadableSpan) -> bool:
        """Show ``span`` to the watch, which may hold it."""
        with self._edge:
            return self.watch.ended(span)
        context = span.context or INVALID_SPAN_CONTEXT  # something failed, maybe after it was held
        return self._hold.release((context.trace_id, context.span_id), None)

    def _sweep(self) -> None:
        with self._release_edge:
            self.watch.sweep()

    def _hold_for_reader(self, span: ReadableSpan, size: int) -> bool:
        context = span.context or INVALID_SPAN_CONTEXT
        return self._hold.hold((context.trace_id, context.span_id), span, size=size)

    def _hold_for_turn(self, span: ReadableSpan) -> bool:
        """Hold ``span`` if a turn expects it, or pass it on; False if none does."""
        context = span.context or INVALID_SPAN_CONTEXT
        key = (context.trace_id, context.span_id)
        turn = self._assembler.take(key)
        if turn is None:
            return False
        if not native.NAMES.isdisjoint(attribute_names(span)):
            turn = replace(turn, span=SdkSpan(span))
        held = settled = False
        try:
            with self._edge:
                span, held = self._hold_and_submit(span, turn, key=key)
                settled = True
        finally:
            if not settled:  # something of ours failed, maybe with the span held already
                held = self._hold.release(key, "error")
            if not held:
                self._export(span)
        return True

    def _hold_and_submit(
        self, span: ReadableSpan, turn: Turn, *, key: Key
    ) -> tuple[ReadableSpan, bool]:
        """Let ``span`` wait while its turn is evaluated; False, and the span to pass on, if not."""
        if not self._scorer.admit(key[0]):
            return span, False
        if not self._hold.hold(key, span, size=turn.size):
            why: DropReason = "overload" if self._hold.is_open else "shutdown"
            self._scorer.drop(why)
            return enrich(span, score_attributes(None, why)), False
        done = partial(self._hold.release, key)
        context = span.context or INVALID_SPAN_CONTEXT
        if not self._scorer.submit(turn, context, ended=span.end_time or 0, done=done):
            self._hold.release(key, "overload")
        return span, True

    def _forward(
        self, held: Held, status: HoldStatus | None, evaluation: Evaluation | None
    ) -> None:
        """Hand a span on, in the context it ended in: the releasing thread's is suppressed."""
        span = held.span
        with self._release_edge:
            if status is not None:
                self._scorer.instruments.tally.add("released", status)
                added = score_attributes(evaluation, status, explanations=self._explanations)
                span = enrich(held.span, added)
        token = otel_context.attach(held.context)
        try:
            with self._release_edge:
                self._export(span)
        finally:
            otel_context.detach(token)

    def _export(self, span: ReadableSpan) -> None:
        """Hand ``span`` on with what of its texts may be exported; in doubt none."""
        shown = None
        with self._release_edge:
            shown = self._content.shown(span)
        self._downstream.on_end(self._content.bare(span) if shown is None else shown)

    def _after_fork(self) -> None:
        """Forget what is the parent's: it exports its spans itself."""
        self._assembler.clear()
        self.watch.clear()
        self._note_start = self.watch.note_start
        self.sweeper.reset()
        self._hold.reset()
