"""`Pipeline`: take ended spans and LangChain runs, find and score RAG turns, and export the spans.

A *turn* is one question of a user and its answer. Each tracer provider has one pipeline. Spans come
from `RagEvalSpanProcessor`, run trees of LangChain from the callback handler. What each thread
does::

    application   take(span)        add the span to its trace; hold it if it may stand for a turn
                  finished(tree)    hold a LangChain run tree whose root has ended
    clock         sweep()           submit the traces that are complete
                  leave(held)       export a held span, or end the spans of a run tree
    evaluator     read(trace)       find the turns of a trace; submit each, release the other spans
                  read_tree(held)   start the spans of a run tree, find its turns
                  TurnJob           score a turn, then release its span with the scores

`Store` has the traces and the held spans, and `Clock` exports each held span exactly once.
"""

from __future__ import annotations

import time
import zlib
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol, cast

from opentelemetry import context as otel_context
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import INVALID_SPAN_CONTEXT, SpanContext, TracerProvider, get_current_span

from rag_eval_otel import semconv
from rag_eval_otel.capture.conventions import convention_of, read
from rag_eval_otel.capture.runs import Run, RunRecorder, RunTree
from rag_eval_otel.capture.sample import turns_in
from rag_eval_otel.capture.span import Span as SpanRecord
from rag_eval_otel.capture.step import Step
from rag_eval_otel.capture.trace import Held, Trace, ids_above
from rag_eval_otel.capture.turns import Turn, find_turns
from rag_eval_otel.config import Config
from rag_eval_otel.export.attributes import ContentFilter, SpanScores
from rag_eval_otel.export.metrics import DropReason, InstrumentSink, Stats
from rag_eval_otel.live.langchain_spans import (
    EndedTree,
    RunSpans,
    SpanWriter,
    TreeUse,
    end_span,
)
from rag_eval_otel.live.recorded import register
from rag_eval_otel.live.scorer import (
    TurnJob,
    TurnScorer,
    attributes_around,
    build_scorer,
)
from rag_eval_otel.live.store import Clock, Fate, HoldLimits, Store, Taken
from rag_eval_otel.redaction import redactor
from rag_eval_otel.runtime.fork import call_in_child
from rag_eval_otel.runtime.guard import Edge
from rag_eval_otel.runtime.threads import GivenUp, Workers
from rag_eval_otel.types import UNTOUCHED, Ending, HoldStatus, Sink, SkipReason

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.sdk.trace import Span as StartedSpan
    from opentelemetry.trace import Span


_MAX_HUNG: Final = 4  # threads for flushes that hang
_GIVEN_UP: Final[Mapping[HoldStatus | None, GivenUp]] = {
    "overload": "overload",
    "shutdown": "shutdown",
    "error": "error",
}


class NextProcessor(Protocol):
    """The span processor that gets the spans after `RagEvalSpanProcessor`."""

    def on_start(self, span: StartedSpan, parent_context: Context | None = None) -> None: ...

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
        store: Store | None = None,
        has_logs: Callable[[], bool] = lambda: True,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """Build the parts, except those that are given; start no thread."""
        self.config = config
        self.instruments = instruments
        self.now = now
        self._next: NextProcessor | None = None
        self.content = ContentFilter(
            exported=config.export_content,
            redactor=redactor(config.redact),
        )
        self.scorer = scorer or build_scorer(config, instruments=instruments, sinks=sinks)
        self.evaluator = self.scorer.evaluator
        if store is None:
            store = Store(
                hold=HoldLimits.of(config),
                contexts_from_prompt=config.contexts_from_prompt,
                clock=now,
            )
        self.store = store
        self.recorder = RunRecorder(self, clock=now)
        self.clock = Clock(
            self.store,
            sweep=self.sweep,
            leave=self.leave,
            is_idle=lambda: not self.recorder.runs,
        )
        self.flushes = Workers(_MAX_HUNG)
        self.scorer.feedback.is_under_way = lambda number: (
            number in self.store.traces or number in self.recorder.runs
        )
        register(self.scorer.feedback)
        self.is_forked = False
        self._scores = SpanScores(
            explanations=config.explanations, events=config.score_events, has_logs=has_logs
        )
        self._writer = SpanWriter(
            tracer=provider.get_tracer(
                semconv.SCOPE, semconv.VERSION, schema_url=semconv.GEN_AI_SCHEMA_URL
            ),
            spans=config.spans,
            has_texts=config.export_content == "all",
            redactor=redactor(config.redact),
            metadata_keys=config.metadata_keys,
        )
        self._tree_edge = self.edge("callback")
        self._end_edge = self.edge("on_end")
        self._read_edge = self.edge("reading")
        self.release_edge = self.edge("release")
        call_in_child(self._after_fork)

    def edge(self, place: str) -> Edge:
        """Return an `Edge` that counts errors in the part ``place`` of this library."""
        on_error = self.instruments.internal_error
        return Edge(place, on_error=on_error, raise_errors=self.config.raise_errors)

    # --- spans of other instrumentations, on the application's thread -----------------------------

    def attach(self, next_processor: NextProcessor) -> None:
        """Export spans through ``next_processor`` from now on."""
        self._next = next_processor
        self.store.is_fed = True

    @property
    def has_spans(self) -> bool:
        """Whether a span processor passes spans to this pipeline, so that spans can be scored."""
        return self._next is not None

    def take(self, span: ReadableSpan) -> Fate:
        """Add an ended span to its trace. If the span may be that of a RAG turn, hold it."""
        with self._end_edge:
            taken = self.store.take(span, may_hold=self.clock.start())
            if taken.is_late:
                self.instruments.found()
                self.scorer.drop("shutdown")
                return "no room"
            self._follow_up(taken)
            return taken.fate
        # This library has raised an exception, perhaps after it had stored the span.
        context = span.context or INVALID_SPAN_CONTEXT
        held = self.store.find((context.trace_id, context.span_id))
        if held is None or held.item is not span:
            return "passes"
        self.clock.release(held, UNTOUCHED)
        return "held"

    def _follow_up(self, taken: Taken) -> None:
        if taken.is_new:
            self.prepare_calls()
            self.clock.wake()
        for turns in taken.evicted:
            with self._read_edge:
                self.instruments.found(turns)
                for _ in range(turns):
                    self.instruments.turn("skipped", "evicted")
        if taken.evicted:
            self.clock.export()

    def release_unheld(self, span: ReadableSpan) -> None:
        """Export a span that should have waited for scores, but for which there was no room."""
        why: HoldStatus = "overload" if self.store.is_open else "shutdown"
        self.export_enriched(span, Ending(why))

    def export(self, span: ReadableSpan) -> None:
        """Export ``span`` without the texts that must not be exported, or any on error."""
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

    # --- what was held leaves, on the clock's thread ----------------------------------------------

    def leave(self, held: Held) -> bool:
        """Export a held span, or end held spans of a run tree, in the context in which it ended.

        A run tree that is not read yet is read now; return False, as its spans leave by themselves.
        """
        item, ending = held.item, held.ending or UNTOUCHED
        if isinstance(item, EndedTree):
            self.read_tree(held)
            return False
        token = otel_context.attach(held.context)
        try:
            if isinstance(item, RunSpans):
                self._end_spans(item, ending)
            else:
                self.export_enriched(item, ending)
        finally:
            otel_context.detach(token)
        return True

    def _end_spans(self, item: RunSpans, ending: Ending) -> None:
        for span, run in item.spans:
            if ending.status is not None:
                with self._tree_edge:
                    self.instruments.released(ending.status)
                    self._scores.write(span, ending)
            with self._tree_edge:
                end_span(span, run)

    # --- run trees of LangChain -------------------------------------------------------------------

    def finished(self, tree: RunTree) -> None:
        """Hold a LangChain run tree whose root has ended, and have it read and scored."""
        use: TreeUse = "read"
        with self._tree_edge:
            self.prepare_calls()
            use = self._use_of(tree)
        held = self._hold_tree(EndedTree(tree, use))
        if held is None:
            self._pass_tree(EndedTree(tree, use))
            return

        def give_up(why: GivenUp) -> None:  # the clock writes the spans, and has the turns counted
            self.clock.release(held, Ending(why))

        if not self.evaluator.submit(_ReadJob(held.size, partial(self.read_tree, held), give_up)):
            give_up("shutdown" if self.evaluator.is_closed else "overload")

    def evicted(self, tree: RunTree) -> None:
        """Write the spans of a LangChain run tree that was given up before its root had ended."""
        with self._tree_edge:
            self.instruments.found()
            self.scorer.refuse("evicted")
        held = self._hold_tree(EndedTree(tree, "evicted"))
        if held is None:
            self._pass_tree(EndedTree(tree, "evicted"))
        else:
            self.clock.release(held, UNTOUCHED)

    def waiting(self) -> None:
        """Wake the clock: a LangChain root run has ended before runs below it."""
        self.clock.wake()

    def _hold_tree(self, item: EndedTree) -> Held | None:
        held = Held((0, id(item)), item, item.tree.context, item.size, is_likely=True)
        if not (self.clock.start() and self.store.hold(held)):
            return None
        self.clock.wake()
        return held

    def _use_of(self, tree: RunTree) -> TreeUse:
        """Return ``read`` to look for RAG turns in ``tree`` alone, ``joined`` for the whole trace.

        A tree without a model call after a retrieval may be part of a turn of the current span,
        unless another instrumentation made that span.
        """
        if tree.root.error is not None or tree.lost:
            return "read"
        if tree.may_be_turn and self._writer.spans != "none":
            return "read"
        span = get_current_span(tree.context)
        if not isinstance(span, ReadableSpan) or not span.is_recording():
            return "read"
        view = SpanRecord.from_sdk(span)
        if convention_of(view) not in {None, "native"}:
            return "read"
        taken = self.store.join(tree, view)
        with self._tree_edge:  # even after an error, a tree in a trace is not read alone, too
            self._follow_up(taken)
        return "joined" if taken.is_added else "read"

    def read_tree(self, held: Held) -> None:
        """Start the spans of a held run tree, and have its turns scored, at the first call only.

        The spans of the turns are held in place of the tree.
        """
        if not self.store.claim(held):
            return
        item: EndedTree = held.item
        started = _StartedTree()
        by_run: dict[Hashable, Held] = {}
        others: list[Held] = []
        try:
            started = self._start_tree(item)
            size = held.size // max(1, len(started.of_turns))
            for span, run in started.of_turns:
                of_turn = RunSpans(((span, run),))
                by_run[run.id] = Held((0, id(of_turn)), of_turn, held.context, size, is_likely=True)
            if started.others:
                rest = RunSpans(started.others)
                others.append(Held((0, id(rest)), rest, held.context, 0, is_likely=False))
        finally:
            self.store.replace(held, list(by_run.values()), others)
            self.clock.export()
        turns = started.turns
        why = None if held.ending is None else _GIVEN_UP.get(held.ending.status)
        if why is not None:  # the spans say it
            self.scorer.drop(why, len(turns))
            return
        for turn_id, turn in turns.items():
            job = self._tree_turn(item.tree, turn, started.contexts.get(turn_id))
            job.held = by_run.get(turn_id)
            self.scorer.submit(job)

    def _pass_tree(self, item: EndedTree) -> None:
        """Write the spans of a run tree for which there is no room, and count its turns."""
        why: DropReason = "overload" if self.store.is_open else "shutdown"
        started = self._start_tree(item)
        self.scorer.drop(why, len(started.turns))
        token = otel_context.attach(item.tree.context)
        try:
            self._end_spans(RunSpans(started.others), UNTOUCHED)
            self._end_spans(RunSpans(started.of_turns), Ending(why))
        finally:
            otel_context.detach(token)

    def _start_tree(self, item: EndedTree) -> _StartedTree:
        """Read a run tree, and start its spans."""
        started = _StartedTree(root=Ending("error"))
        with self._tree_edge:  # an error in reading must not keep the spans from being written
            started = self._read_tree(item)
        with self._tree_edge:
            is_read = started.root.status != "error"
            self.instruments.found(len(started.turns) if is_read else 1)
            if not is_read:
                self.instruments.turn("error", "internal")
        tree = item.tree
        token = otel_context.attach(tree.context)
        try:
            spans = self._writer.start(
                tree, started.steps, also=started.turns.keys(), edge=self._tree_edge
            )
        finally:
            otel_context.detach(token)
        if started.root.status is not None and tree.root.id in spans:
            with self._tree_edge:
                self._scores.write(spans[tree.root.id], started.root)
        for run in sorted(tree.runs, key=lambda r: (r.end or tree.root.end or 0, -r.start)):
            span = spans.get(run.id)
            if span is not None:
                started.contexts[run.id] = span.get_span_context()
                is_turn = run.id in started.turns and span.is_recording()
                (started.of_turns if is_turn else started.others).append((span, run))
        return started

    def _read_tree(self, item: EndedTree) -> _StartedTree:
        tree = item.tree
        steps = tree.steps(most=self.config.max_text_chars)
        by_id: Mapping[Hashable, Step] = {step.id: step for step in steps}
        if item.use != "read":
            return _StartedTree(by_id)
        if tree.lost:
            self.instruments.found()
            self.scorer.refuse("evicted")
            return _StartedTree(by_id, root=Ending("skipped", "evicted"))
        found = find_turns(steps, contexts_from_prompt=self.config.contexts_from_prompt)
        turns = {turn.path[-1].id: turn for turn in found}
        reason = None if turns else self.scorer.refuse_steps(steps)
        root = UNTOUCHED if reason is None else Ending("skipped", reason)
        return _StartedTree(by_id, turns, root)

    def _tree_turn(self, tree: RunTree, turn: Turn, context: SpanContext | None) -> TurnJob:
        around = get_current_span(tree.context)
        context = context or around.get_span_context()
        return TurnJob(
            scorer=self.scorer,
            turn=turn,
            span=context,
            ended=turn.path[-1].end or time.time_ns(),
            clock=self.clock,
            trace_id=context.trace_id or zlib.crc32(repr(turn.anchor.id).encode()),  # any number
            attributes=lambda: [getattr(around, "attributes", None) or {}],
            runs=(tree.root.id, turn.path[-1].id),
        )

    # --- complete traces: on the clock's thread, then on the evaluator's --------------------------

    def sweep(self) -> None:
        """Submit the LangChain run trees and the traces that are complete by now for scoring."""
        with self.release_edge:
            if self.recorder.runs:
                self.recorder.sweep()
        with self.release_edge:
            self._submit_all(self.store.sweep())

    def submit_ended(self) -> None:
        """Submit the traces in which no span is open for scoring, and wait for no more spans."""
        with self.release_edge:
            self._submit_all(self.store.flush())

    def _submit_all(self, traces: Iterable[Trace]) -> None:
        for trace in traces:
            job = _ReadJob(trace.size, partial(self.read, trace), partial(self.give_up, trace))
            if not self.evaluator.submit(job):
                why: DropReason = "shutdown" if self.evaluator.is_closed else "overload"
                try:
                    with self._read_edge:
                        self.instruments.found(trace.count_turns())
                        self.scorer.drop(why, trace.count_turns())
                finally:
                    self.release_held(trace, Ending(why))

    def read(self, trace: Trace) -> None:
        """Find the RAG turns in ``trace``, and have them scored; release the other held spans.

        A thread that has given the trace up meanwhile has counted the turns.
        """
        ending = UNTOUCHED
        turns: list[Turn] | None = None
        steps: list[Step] = []
        with self._read_edge:
            steps = self._steps_of(trace)
            chosen = self.config.contexts_from_prompt
            turns = [] if trace.is_doubled else turns_in(steps, contexts_from_prompt=chosen)
        if not self.store.claim(trace):
            return
        try:
            if turns is None:
                ending = Ending("error", "internal")
                with self._read_edge:
                    self.instruments.found(trace.count_turns())
                    self.scorer.drop("error", trace.count_turns())
            elif turns:
                with self._read_edge:
                    self.instruments.found(len(turns))
                for turn in turns:
                    self._submit_turn(trace, turn)
            else:
                with self._read_edge:
                    reason = self._refuse(trace, steps)
                    ending = UNTOUCHED if reason is None else Ending("skipped", reason)
        finally:
            self.release_held(trace, ending)

    def _steps_of(self, trace: Trace) -> list[Step]:
        for name, count in Counter(map(convention_of, trace.spans.values())).items():
            if name is not None:
                self.instruments.tally.add("source", name, number=count)
        if trace.is_doubled:
            return []
        most = self.config.max_text_chars
        steps = [read(view, most=most) for view in trace.spans.values()]
        for span_id, tree in trace.trees:
            steps += tree.steps(parent=span_id, most=most)
        return steps

    def _refuse(self, trace: Trace, steps: Sequence[Step]) -> SkipReason | None:
        """Count a trace without turns as skipped, and return the reason to write on its spans."""
        if not trace.is_doubled:
            return self.scorer.refuse_steps(steps)
        self.instruments.found(trace.count_turns())
        self.scorer.refuse("ambiguous", turns=trace.count_turns())
        return "ambiguous"

    def _submit_turn(self, trace: Trace, turn: Turn) -> None:
        is_submitted = False
        with self._read_edge:
            self.scorer.submit(self._turn_job(trace, turn))
            is_submitted = True
        if not is_submitted:
            self.scorer.drop("error")

    def _turn_job(self, trace: Trace, turn: Turn) -> TurnJob:
        """Return a job that scores ``turn`` for the first held span that can take scores.

        That is its anchor or a span around it, or below it the last LLM call or a span around that.
        If it has left at its deadline, or found no room, the turn is late. If there is none, the
        turn has missed its span.
        """
        ids = [cast("int", step.id) for step in turn.path]
        last = trace.spans.get(cast("int", turn.calls[-1].id)) if turn.calls else None
        below = [] if last is None else [*ids_above(last.span_id, trace.spans, {})]
        if ids[0] in below and trace.held.keys().isdisjoint(ids):  # an agent that ended too early
            ids += reversed(below[: below.index(ids[0])])
        line = [view for span_id in ids if (view := trace.spans.get(span_id))]
        spans = [held for view in line if (held := trace.held.get(view.span_id))]
        anchor = next((held for held in spans if held.ending is None), None)
        held = anchor or next((held for held in spans if held.is_late), None)
        view = next(iter(line), None) if anchor is None else trace.spans[anchor.key[1]]
        if anchor is not None:
            del trace.held[anchor.key[1]]
            self.store.start_scoring(anchor)
        has_left = any(each.ending is not None and each.ending.status for each in spans)
        return TurnJob(
            scorer=self.scorer,
            turn=turn,
            span=INVALID_SPAN_CONTEXT if view is None else view.context,
            ended=(view.end if view is not None else turn.anchor.end) or 0,
            held=held,
            clock=self.clock,
            is_missed=held is None and not has_left,
            trace_id=trace.trace_id,
            attributes=partial(attributes_around, turn, trace.spans),
        )

    def give_up(self, trace: Trace, why: GivenUp) -> None:
        """Count the turns of ``trace``, unless it was read, and release its held spans."""
        if self.store.claim(trace):
            self.instruments.found(trace.count_turns())
            self.scorer.drop(why, trace.count_turns())
        self.release_held(trace, Ending(why))

    def release_held(self, trace: Trace, ending: Ending) -> None:
        """Release the held spans of ``trace`` that belong to no submitted turn."""
        spans, trace.held = trace.held, {}
        for held in spans.values():
            self.store.decide(held, ending)
        self.clock.export()

    # --- flush and shutdown -----------------------------------------------------------------------

    @property
    def stats(self) -> Stats:
        """The counts of turns, waiting spans and errors up to now."""
        scoring = self.store.count("scoring")
        return self.instruments.tally.stats(held=len(self.store), scoring=scoring)

    def close(self) -> None:
        """Submit all traces and runs for scoring, complete or not, and hold no more spans."""
        self.recorder.flush()
        self.clock.stop()
        with self.release_edge:
            self._submit_all(self.store.close())

    def flush_next(self, timeout: float) -> bool:
        """Flush the next processor; return False if it does. It may return nothing."""
        return self._next is None or self._next.force_flush(int(timeout * 1000)) is not False

    def prepare_calls(self) -> None:
        """Start the threads that export and flush spans at the end; later none can be started."""
        self.clock.start()
        self.flushes.prepare()

    def is_own_thread(self) -> bool:
        """Return True on the threads of this pipeline, which must not wait for each other."""
        return self.evaluator.is_current() or self.clock.is_current()

    @property
    def is_idle_child(self) -> bool:
        """Whether this process was forked, and has taken no span and no LangChain run since."""
        taken = self.clock.is_awake or self.store.has_held or self.recorder.runs
        return self.is_forked and not taken

    def _after_fork(self) -> None:
        """Forget the spans of the parent process, because the parent exports them itself."""
        self.is_forked = True
        self.store.reset()
        self.clock.reset()


@dataclass(slots=True)
class _StartedTree:
    """A run tree whose spans have started: those of turns, and the others, in order of their end.

    ``steps``, ``contexts`` of spans, and ``turns`` are by run id. ``root`` is what is written on
    the span of the root run if there is no turn.
    """

    steps: Mapping[Hashable, Step] = field(default_factory=dict)
    turns: Mapping[Hashable, Turn] = field(default_factory=dict)
    root: Ending = UNTOUCHED
    contexts: dict[Hashable, SpanContext] = field(default_factory=dict)
    of_turns: list[tuple[Span, Run]] = field(default_factory=list)
    others: list[tuple[Span, Run]] = field(default_factory=list)


@dataclass(frozen=True, slots=True, eq=False)
class _ReadJob:
    """A background job that reads a trace or a run tree, and submits a job for each of its turns.

    If it is given up, ``on_given_up`` is called in place of ``read``.
    """

    size: int
    read: Callable[[], None]
    on_given_up: Callable[[GivenUp], object]
    seconds_left: float = float("inf")

    def begin(self) -> bool:
        self.read()
        return False

    async def run(self) -> None: ...

    def give_up(self, why: GivenUp) -> None:
        self.on_given_up(why)
