"""`Pipeline`: take ended spans and LangChain runs, find and score RAG turns, and export the spans.

A *turn* is one question of a user and its answer. To *hold* a span is to keep it back from the
exporter until its turn is scored. To *release* it is to pass it on. Each tracer provider has one
pipeline. Spans come from `RagEvalSpanProcessor`, run trees of LangChain from the callback handler.
The methods and jobs, and the thread on which each runs::

    application   take(span)        add the span to its trace; hold it if it may stand for a turn
                  finished(tree)    hold a LangChain run tree whose root has ended
    sweeper       sweep()           submit the traces that are complete
    evaluator     TraceJob          find the turns of a trace; submit each, release the other spans
                  TreeJob           write the spans of a run tree, find its turns
                  TurnJob           score a turn, then release its span with the scores

`Holdback` stores the held spans and releases each exactly once.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias, cast

from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import INVALID_SPAN_CONTEXT, TracerProvider, get_current_span

from rag_eval_otel import semconv
from rag_eval_otel.capture.buffer import Taken, TraceBuffer
from rag_eval_otel.capture.dialects import dialect_of, read
from rag_eval_otel.capture.runs import RunRecorder, RunTree
from rag_eval_otel.capture.sample import turns_in
from rag_eval_otel.capture.span import SdkSpan
from rag_eval_otel.capture.text import USUAL
from rag_eval_otel.capture.trace import Trace
from rag_eval_otel.capture.turn import Turn
from rag_eval_otel.config import Config
from rag_eval_otel.live.admission import attributes_around
from rag_eval_otel.live.hold import HeldSpan, Holdback, Key
from rag_eval_otel.live.recorded import register
from rag_eval_otel.live.score import TurnJob, TurnScorer, build_scorer, given_up
from rag_eval_otel.live.tree_spans import SpanWriter
from rag_eval_otel.live.trees import TreeJob, TreeParts, TreeUse, UncountedTurns
from rag_eval_otel.redaction import redactor
from rag_eval_otel.runtime.background import GivenUp
from rag_eval_otel.runtime.fork import call_in_child
from rag_eval_otel.runtime.guard import Edge
from rag_eval_otel.runtime.workers import Sweeper, TimedCalls
from rag_eval_otel.sinks.attributes import ContentFilter
from rag_eval_otel.sinks.events import SpanScores
from rag_eval_otel.sinks.instruments import DropReason, InstrumentSink, Stats
from rag_eval_otel.types import UNTOUCHED, Ending, HoldStatus, Sink, SkipReason

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.sdk.trace import Span

Fate: TypeAlias = Literal["held", "no room", "passes"]
"""What happens to an ended span. ``no room``: it should wait for scores, but a limit is reached."""


class NextProcessor(Protocol):
    """The span processor that gets the spans after `RagEvalSpanProcessor`."""

    def on_start(self, span: Span, parent_context: Context | None = None) -> None: ...

    def on_end(self, span: ReadableSpan) -> None: ...

    def force_flush(self, timeout_millis: int = 30_000) -> bool: ...

    def shutdown(self) -> None: ...


class Pipeline:
    """Keep the spans of RAG turns back, have the turns scored, and then export the spans."""

    def __init__(
        self,
        config: Config,
        *,
        provider: TracerProvider,
        instruments: InstrumentSink,
        sinks: Sequence[Sink] = (),
        scorer: TurnScorer | None = None,
        buffer: TraceBuffer | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Build the parts, except those that are given; start no thread."""
        self.config = config
        self.instruments = instruments
        self.clock = clock
        self._next: NextProcessor | None = None
        self.content = ContentFilter(
            foreign=config.content,
            own=config.capture_content,
            redactor=redactor(config.redact),
            conventions=config.span_conventions,
        )
        self.hold = Holdback(
            seconds=config.hold_seconds,
            max_spans=config.max_held,
            max_bytes=config.max_held_bytes,
            clock=clock,
        )
        self.scorer = scorer or build_scorer(config, instruments=instruments, sinks=sinks)
        self.evaluator = self.scorer.evaluator
        if buffer is None:
            buffer = TraceBuffer(contexts_from_prompt=config.contexts_from_prompt, clock=clock)
        self.buffer = buffer
        self.recorder = RunRecorder(self, clock=clock)
        self.sweeper = Sweeper(self.sweep)
        self.flushes = TimedCalls()
        self.scorer.feedback.is_under_way = self._is_under_way
        register(self.scorer.feedback)
        self.releases = TimedCalls()  # apart, because a flush that hangs must not stop them
        self.is_forked = False
        self._evicted: deque[Trace] = deque()
        self._scores = SpanScores(explanations=config.explanations, events=config.score_events)
        self._trees = self._make_tree_parts(provider)
        self._keys = self._trees.keys
        self._end_edge = self.edge("on_end")
        self._read_edge = self.edge("reading")
        self.release_edge = self.edge("release")
        call_in_child(self._after_fork)

    def _is_under_way(self, number: int) -> bool:
        """Return True if ``number`` is the id of a trace or LangChain run that has not ended."""
        return number in self.buffer.traces or number in self.recorder.runs

    def edge(self, place: str) -> Edge:
        """Return a context manager that keeps errors of this library from the application.

        ``place`` names the part of this library in which an error is counted.
        """
        return Edge(place, on_error=self.instruments.internal_error, mode=self.config.errors)

    def _make_tree_parts(self, provider: TracerProvider) -> TreeParts:
        config = self.config
        writer = SpanWriter(
            tracer=provider.get_tracer(
                semconv.SCOPE, semconv.VERSION, schema_url=semconv.GEN_AI_SCHEMA_URL
            ),
            spans=config.spans,
            content=config.capture_content,
            conventions=config.span_conventions,
            redactor=redactor(config.redact),
            metadata_keys=config.metadata_keys,
        )
        return TreeParts(
            writer=writer,
            scorer=self.scorer,
            hold=self.hold,
            keys=USUAL.after(
                question=(config.question_key,) if config.question_key else (),
                answer=(config.answer_key,) if config.answer_key else (),
            ),
            contexts_from_prompt=config.contexts_from_prompt,
            scores=self._scores,
            edge=self.edge("callback"),
        )

    # --- spans of other instrumentations, on the application's thread -----------------------------

    def attach(self, next_processor: NextProcessor) -> None:
        """Export spans through ``next_processor`` from now on."""
        self._next = next_processor
        self.buffer.is_fed = True

    @property
    def has_spans(self) -> bool:
        """Whether a span processor passes spans to this pipeline, so that spans can be scored."""
        return self._next is not None

    def take(self, span: ReadableSpan) -> Fate:
        """Add an ended span to its trace. If the span may be that of a RAG turn, keep it back."""
        with self._end_edge:
            return self._take(span)
        # This library has raised an exception, perhaps after it had stored the span.
        return "held" if self.hold.release(_key_of(span), UNTOUCHED) else "passes"

    def _take(self, span: ReadableSpan) -> Fate:
        fate: Fate = "passes"
        with self.buffer.lock:
            taken = self.buffer.take(span)
            if taken.anchor is not None and taken.trace is not None and self._next is not None:
                size = taken.trace.unheld
                is_held = self.hold.hold(
                    _key_of(span), HeldSpan(self.export_enriched, span), size=size
                )
                fate = "held" if is_held else "no room"
                if is_held:
                    taken.trace.hold(taken.anchor)
        if taken.is_late:
            self.instruments.found()
            self.scorer.drop("shutdown")
            fate = "no room"
        self._follow_up(taken)
        return fate

    def _follow_up(self, taken: Taken) -> None:
        if taken.is_new:
            self.prepare_calls()
            self.sweeper.wake()
        for trace in taken.evicted:
            self._count_skipped(_count_turns(trace), "evicted")
            self._evicted.append(trace)  # the application's thread does not export a thousand spans
        if taken.evicted:
            self.sweeper.wake()

    def release_unheld(self, span: ReadableSpan) -> None:
        """Export a span that should have waited for scores, but for which there was no room."""
        why: HoldStatus = "overload" if self.hold.is_open else "shutdown"
        HeldSpan(self.export_enriched, span).release(Ending(why))

    def export(self, span: ReadableSpan) -> None:
        """Export ``span`` without the texts that the configuration excludes.

        If these texts cannot be removed because of an error, export the span without any text.
        """
        shown = None
        with self.release_edge:
            shown = self.content.shown(span)
        if self._next is not None:
            self._next.on_end(self.content.bare(span) if shown is None else shown)

    def export_enriched(self, span: ReadableSpan, ending: Ending) -> None:
        """Export a copy of ``span`` with the scores in ``ending``, or the reason for no scores."""
        with self.release_edge:
            if ending.status is not None:
                self.instruments.released(ending.status)
                span = self._scores.copy(span, ending)
        with self.release_edge:
            self.export(span)

    # --- run trees of LangChain, on the application's thread --------------------------------------

    def finished(self, tree: RunTree) -> None:
        """Keep back a LangChain run tree whose root has ended, and have it read and scored."""
        use: TreeUse = "read"
        with self._trees.edge:
            self.prepare_calls()
            use = self._use_of(tree)
        job = TreeJob(tree, self._trees, use)
        why: HoldStatus | None = None
        if not self.hold.hold(job.key, job, size=job.size):
            why = "overload" if self.hold.is_open else "shutdown"
            job.release(Ending(why))
        elif not self.evaluator.submit(job):
            why = "shutdown" if self.evaluator.is_closed else "overload"
            self.hold.release(job.key, Ending(why))
        if why is not None:
            job.drop("shutdown" if why == "shutdown" else "overload")

    def evicted(self, tree: RunTree) -> None:
        """Write the spans of a LangChain run tree that was given up before its root had ended."""
        with self._trees.edge:
            self.instruments.found()
            self.scorer.refuse("evicted")
        TreeJob(tree, self._trees, "evicted").release(UNTOUCHED)

    def waiting(self) -> None:
        """Start the thread of `sweep`: a LangChain root run has ended before runs below it."""
        self.sweeper.wake()

    def _use_of(self, tree: RunTree) -> TreeUse:
        """Return ``read`` to look for RAG turns in ``tree`` alone, ``joined`` for the whole trace.

        A tree without a model call after a retrieval may be part of a turn of the current span. If
        another instrumentation made that span, the result is ``read``.
        """
        if tree.root.error is not None or tree.lost:
            return "read"
        if tree.may_be_turn and self._trees.writer.spans != "none":
            return "read"
        span = get_current_span(tree.context)
        if not isinstance(span, ReadableSpan) or not span.is_recording():
            return "read"
        view = SdkSpan(span)
        if dialect_of(view) not in {None, "native"}:
            return "read"
        taken = self.buffer.join(tree, view)
        with self._trees.edge:  # even after an error, a tree in a trace is not read alone, too
            self._follow_up(taken)
        return "read" if taken.trace is None else "joined"

    # --- complete traces: on the sweeper's thread, then on the evaluator's ------------------------

    def sweep(self) -> None:
        """Submit the LangChain run trees and the traces that are complete by now for scoring."""
        with self.release_edge:
            if self.recorder.runs:
                self.recorder.sweep()
        with self.release_edge:
            self.release_evicted()
            self._submit_all(self.buffer.sweep())

    def submit_ended(self) -> None:
        """Submit the traces in which no span is open for scoring, and wait for no more spans."""
        self.release_evicted()
        self._submit_all(self.buffer.flush())

    def release_evicted(self) -> None:
        """Export the kept-back spans of traces that were removed to limit memory."""
        while self._evicted:
            with suppress(IndexError):  # another thread has taken the last one
                self.release_held(self._evicted.popleft(), Ending("skipped", "evicted"))

    def _submit_all(self, traces: Iterable[Trace]) -> None:
        for trace in traces:
            if not self.evaluator.submit(_TraceJob(self, trace)):
                why: DropReason = "shutdown" if self.evaluator.is_closed else "overload"
                try:
                    with self._read_edge:
                        self.instruments.found(_count_turns(trace))
                        self.scorer.drop(why, _count_turns(trace))
                finally:
                    self.release_held(trace, Ending(why))

    def read(self, trace: Trace, uncounted: UncountedTurns) -> None:
        """Find the RAG turns in ``trace``, and have them scored; export other kept-back spans.

        ``uncounted`` gets the number of turns. Each turn is taken from it before it is submitted.
        """
        ending = UNTOUCHED
        turns: list[Turn] | None = None
        try:
            with self._read_edge:
                turns, reason = self._find_turns(trace, uncounted)
                if reason is not None:
                    ending = Ending("skipped", reason)
            if turns is None and uncounted.found(0):
                self.instruments.found(_count_turns(trace))
                self.scorer.count_given_up("error", _count_turns(trace))
            for turn in turns or ():
                if not uncounted.take():  # given up
                    break
                is_submitted = False
                with self._read_edge:
                    self._submit_turn(trace, turn)
                    is_submitted = True
                if not is_submitted:
                    self.scorer.count_given_up("error")
        finally:
            self.release_held(trace, ending)

    def _find_turns(
        self, trace: Trace, uncounted: UncountedTurns
    ) -> tuple[list[Turn], SkipReason | None]:
        """Return the RAG turns in ``trace``, and if there is none, the reason to write on spans.

        If another thread has given the trace up, it has counted the turns, and none is returned.
        """
        for name, count in Counter(map(dialect_of, trace.spans.values())).items():
            if name is not None:
                self.instruments.tally.add("source", name, number=count)
        if trace.is_doubled:
            if not uncounted.found(0):
                return [], None
            self.instruments.found(_count_turns(trace))
            self.scorer.refuse("ambiguous", turns=_count_turns(trace))
            return [], "ambiguous"
        steps = [read(view, self._keys) for view in trace.spans.values()]
        for span_id, tree in trace.trees:
            steps += tree.steps(self._keys, parent=span_id)
        source = self.config.contexts_from_prompt
        turns = turns_in(steps, contexts_from_prompt=source)
        if not uncounted.found(len(turns)):
            return [], None
        self.instruments.found(len(turns))
        return turns, None if turns else self.scorer.refuse_steps(steps)

    def _submit_turn(self, trace: Trace, turn: Turn) -> None:
        line = [view for step in turn.path if (view := trace.spans.get(cast("int", step.id)))]
        anchor = next((view for view in line if view.span_id in trace.held), None)
        view = anchor or next(iter(line), None)
        context = INVALID_SPAN_CONTEXT if view is None else view.context
        if context.is_valid and not context.trace_flags.sampled:  # recorded, but never exported
            self.scorer.refuse("not_sampled")
            return
        key = self.hold.which_left((trace.trace_id, view.span_id) for view in line)
        if anchor is not None:
            del trace.held[anchor.span_id]
            key = (trace.trace_id, anchor.span_id)
        held = None if key is None else self.hold.start_scoring(key)
        ended = (view.end if view is not None else turn.anchor.end) or 0
        job = TurnJob(self.scorer, turn, context, ended, held)
        if job.admit(trace.trace_id, partial(attributes_around, turn, trace.spans)):
            self.scorer.submit(job)

    def give_up(self, trace: Trace, uncounted: UncountedTurns, *, why: GivenUp) -> None:
        """Count the turns of ``trace`` that have no outcome, and export its kept-back spans."""
        turns = uncounted.give_up(why)
        if turns is None:  # the trace was not read
            turns = _count_turns(trace)
            self.instruments.found(turns)
        self.scorer.count_given_up(why, turns)
        self.release_held(trace, given_up(why))

    def release_held(self, trace: Trace, ending: Ending) -> None:
        """Export the spans of ``trace`` that were kept back but belong to no submitted turn."""
        held, trace.held = trace.held, {}
        for span_id in held:
            self.hold.release((trace.trace_id, span_id), ending)

    def _count_skipped(self, turns: int, reason: SkipReason) -> None:
        with self._read_edge:
            self.instruments.found(turns)
            for _ in range(turns):
                self.instruments.turn("skipped", reason)

    # --- flush and shutdown -----------------------------------------------------------------------

    @property
    def stats(self) -> Stats:
        """The counts of turns, waiting spans and errors up to now."""
        scoring = self.hold.count("scoring")
        return self.instruments.stats(held=self.count_held(), scoring=scoring)

    def count_held(self) -> int:
        """Return the number of spans and LangChain run trees that wait for scores."""
        return len(self.hold)

    def close(self) -> None:
        """Submit all traces and runs for scoring, complete or not, and hold no more spans back."""
        self.recorder.flush()
        self.sweeper.stop()
        self.hold.close()
        with self.release_edge:
            self.release_evicted()
            self._submit_all(self.buffer.close())

    def flush_next(self, timeout: float) -> bool:
        """Flush the next processor, which may take longer than ``timeout`` seconds.

        Return False if the processor returns False. A processor that returns nothing did not fail.
        """
        return self._next is None or self._next.force_flush(int(timeout * 1000)) is not False

    def prepare_calls(self) -> None:
        """Start the threads that release and flush spans at the end; later none can be started."""
        self.flushes.prepare()
        self.releases.prepare()

    @property
    def is_idle_child(self) -> bool:
        """Whether this process was forked, and has taken no span and no LangChain run since."""
        taken = self.sweeper.is_awake or self.hold.has_held or self.recorder.runs
        return self.is_forked and not taken

    def _after_fork(self) -> None:
        """Forget the spans of the parent process, because the parent exports them itself."""
        self.is_forked = True
        self.buffer.clear()
        self._evicted.clear()
        self.sweeper.reset()
        self.hold.reset()


@dataclass(slots=True, eq=False)
class _TraceJob:
    """A background job that finds the RAG turns in one trace. Each turn is then another job."""

    pipeline: Pipeline
    trace: Trace
    uncounted: UncountedTurns = field(default_factory=UncountedTurns)
    seconds_left: float = float("inf")

    def begin(self) -> bool:
        self.pipeline.read(self.trace, self.uncounted)
        return False

    async def run(self) -> None: ...

    @property
    def size(self) -> int:
        return self.trace.size

    def give_up(self, why: GivenUp) -> None:
        self.pipeline.give_up(self.trace, self.uncounted, why=why)


def _key_of(span: ReadableSpan) -> Key:
    context = span.context or INVALID_SPAN_CONTEXT
    return context.trace_id, context.span_id


def _count_turns(trace: Trace) -> int:
    """Return the number of turns in a trace that is not read: at least one."""
    return max(1, len(trace.held), len(trace.turns))
