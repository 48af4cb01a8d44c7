"""`Pipeline`: take ended spans and LangChain runs, score RAG turns, and export the spans.

Threads of the application add spans and runs, that of `Clock` completes traces and exports spans,
and that of `BackgroundEvaluator` finds turns and scores them.
"""

from __future__ import annotations

import threading
import time
import zlib
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, cast
from weakref import ref

from opentelemetry import context as otel_context
from opentelemetry._logs import get_logger_provider
from opentelemetry.metrics import get_meter_provider
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor
from opentelemetry.trace import (
    INVALID_SPAN_CONTEXT,
    NoOpTracerProvider,
    Span,
    SpanContext,
    TracerProvider,
    get_current_span,
)

from rag_eval_otel import semconv
from rag_eval_otel.capture.conventions import convention_of, read
from rag_eval_otel.capture.joined import retrievals_before
from rag_eval_otel.capture.runs import Run, RunRecorder, RunTree
from rag_eval_otel.capture.sample import turns_in
from rag_eval_otel.capture.span import Span as SpanRecord
from rag_eval_otel.capture.step import Step
from rag_eval_otel.capture.trace import Held, Subtree, Trace, ids_above, is_own
from rag_eval_otel.capture.turns import Turn, find_turns
from rag_eval_otel.config import Config
from rag_eval_otel.export.attributes import ContentFilter, SpanScores, copied
from rag_eval_otel.export.carrier import Carrier
from rag_eval_otel.export.metrics import InstrumentSink, Stats
from rag_eval_otel.live.langchain_spans import SpanWriter, end_span
from rag_eval_otel.live.recorded import register
from rag_eval_otel.live.scorer import TurnJob, TurnScorer, attributes_around
from rag_eval_otel.live.store import CHUNK, Clock, Fate, Store, Taken
from rag_eval_otel.runtime.fork import call_in_child
from rag_eval_otel.runtime.guard import JUDGING, Edge, is_stand_in, judging
from rag_eval_otel.runtime.threads import Call, GivenUp, Workers
from rag_eval_otel.types import UNTOUCHED, Ending, Feedback, HoldStatus, Sink, SpanRef
from rag_eval_otel.untrusted import redactor

if TYPE_CHECKING:
    from opentelemetry._logs import LoggerProvider
    from opentelemetry.context import Context
    from opentelemetry.metrics import MeterProvider
    from opentelemetry.sdk.trace import Span as StartedSpan

_OF_TREE: Final = 4096  # bytes of a held run tree without its texts
_FLUSHES: Final = 2  # threads that are started early, as none can be at exit; one may hang
_MAX_FLUSH_WAIT: Final = 5.0  # seconds that a flush waits for scores
_GRACE: Final = 0.5  # seconds that spans have to leave if the time of a drain is up


@contextmanager
def _within(context: Context) -> Iterator[None]:
    token = otel_context.attach(context)
    try:
        yield
    finally:
        otel_context.detach(token)


class Pipeline:
    """Holds the spans of RAG turns until the turns are scored, and then exports the spans."""

    def __init__(
        self,
        config: Config,
        *,
        provider: TracerProvider,
        instruments: InstrumentSink,
        sinks: Sequence[Sink] = (),
        scorer: TurnScorer | None = None,
        logs: LoggerProvider | None = None,
        meters: MeterProvider | None = None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self.config = config
        self.logs, self.meters = logs, meters
        self.instruments = instruments
        self.now = now
        self.is_off = isinstance(provider, NoOpTracerProvider)
        self.is_forked = False
        self.next: SpanProcessor | None = None  # none if the provider passes on no spans
        redact = redactor(config.redact)
        self.content = ContentFilter(exported=config.export_content, redactor=redact)
        self.scorer = scorer or TurnScorer(config, instruments=instruments, sinks=sinks)
        self.evaluator = self.scorer.evaluator
        self.store = Store(config, clock=now, retrieving=self.scorer.retrieving)
        self.clock = Clock(
            self.store, sweep=self.sweep, leave=self.leave, is_idle=lambda: not self.recorder.runs
        )
        self.recorder = RunRecorder(self.finished, self.clock.wake, clock=now)
        self.flushes = Workers(4)  # for flushes, which may hang
        self.scorer.feedback.is_under_way = lambda number: (
            number in self.store.traces or number in self.recorder.runs
        )
        register(self.scorer.feedback)
        self._scores = SpanScores(
            explanations=config.explanations,
            form=config.score_attributes,
            events=config.score_events,
            on_omitted=instruments.omitted,
            has_logs=lambda: not is_stand_in(self.logger_provider),
        )
        tracer, of_judge = (
            provider.get_tracer(scope, semconv.VERSION, schema_url=semconv.GEN_AI_SCHEMA_URL)
            for scope in (semconv.SCOPE, semconv.JUDGE_SCOPE)
        )
        self._writer = SpanWriter(tracer=tracer, config=config, redactor=redact)
        self._carrier = Carrier(tracer=tracer, scores=self._scores)
        self._has_late = False  # whether a carrier was written since the last flush
        self.scorer.feedback.on_late = self._write_late_feedback
        self.scorer.judge_tracer = of_judge if config.judge_spans else None
        self._tree_edge, self._end_edge = self.edge("callback"), self.edge("on_end")
        self._read_edge, self.release_edge = self.edge("reading"), self.edge("release")
        self._sweeping = threading.RLock()
        call_in_child(self._after_fork)

    def edge(self, place: str) -> Edge:
        on_error = self.instruments.internal_error
        return Edge(place, on_error=on_error, raise_errors=self.config.raise_errors)

    def attach(self, next_processor: SpanProcessor) -> None:
        self.next = next_processor
        self.start_next: Callable[..., None] = next_processor.on_start
        is_content_exported = self.config.export_content != "none"
        self._pass_on = next_processor.on_end if is_content_exported else self.export
        self.store.is_fed = True
        self._bind()

    def _bind(self) -> None:
        # As attributes, because a look-up per span is slow.
        self._starts = self.store.open_spans.starts
        self._concerns = self.store.concerns

    def on_start(self, span: StartedSpan, parent_context: Context | None = None) -> None:
        self._starts.append(ref(span))
        self.start_next(span, parent_context)

    def on_end(self, span: ReadableSpan) -> None:
        """Hold the span of a possible RAG turn, drop spans of the judge's client, export others."""
        # On the evaluator's thread, foreign spans are dropped: they are of the judge's client.
        if JUDGING.get() is not None and judging() is not None:
            if is_own(span):
                self._pass_on(span)
            return
        try:
            concerns = self._concerns(span)
        except (AttributeError, RuntimeError, TypeError):  # the span is not the SDK's
            concerns = True  # `take` handles errors; an error handler here would cost too much time
        if concerns:
            self.take(span)
        else:
            self._pass_on(span)

    def take(self, span: ReadableSpan) -> None:
        """Add ``span`` to its trace, and hold it if it may get scores; otherwise export it."""
        taken = None
        with self._end_edge:
            taken = self.store.take(span, may_hold=self.clock.start())
            if taken.fate == "late":
                self.instruments.found()
                self.scorer.drop("shutdown")
            self._follow_up(taken)
        fate: Fate = "passes" if taken is None else taken.fate
        if taken is None:  # an error, perhaps after the span was stored
            context = span.context or INVALID_SPAN_CONTEXT
            held = self.store.held.get((context.trace_id, context.span_id))
            if held is not None and held.item is span:
                self.clock.release(held, UNTOUCHED)
                fate = "held"
        if fate == "passes":
            self.export(span)
        elif fate != "held":
            self.export_enriched(span, Ending("overload" if fate == "no room" else "shutdown"))

    def _follow_up(self, taken: Taken) -> None:
        if taken.is_new:
            self.flushes.prepare(_FLUSHES)
            self.clock.wake()
        if taken.evicted:
            with self._read_edge:
                self.instruments.found(sum(taken.evicted))
                self.instruments.turn("skipped", "evicted", turns=sum(taken.evicted))
            self.clock.export()

    def export(self, span: ReadableSpan) -> None:
        """Export ``span`` filtered by `ContentFilter`; without attributes if that fails."""
        shown = None
        with self.release_edge:
            shown = self.content.shown(span)
        if self.next is not None:
            self.next.on_end(copied(span, attributes={}, events=()) if shown is None else shown)

    def export_enriched(self, span: ReadableSpan, ending: Ending) -> None:
        with self.release_edge:
            if ending.status is not None:
                span = self._scores.copy(span, ending)
                self.instruments.released(ending.status)
        with self.release_edge:
            self.export(span)

    def leave(self, held: Held) -> bool:
        """Export the spans in ``held``, and return True; only read a run tree, and return False."""
        item, ending = held.item, held.ending or UNTOUCHED
        if isinstance(item, RunTree):
            self.read_tree(held)
            return False
        with _within(held.context):
            if isinstance(item, tuple):
                self._end_spans(item, ending)
            else:
                self.export_enriched(item, ending)
        return True

    def _end_spans(self, spans: Iterable[tuple[Span, Run]], ending: Ending) -> None:
        for span, run in spans:
            if ending.status is not None:
                with self._tree_edge:
                    self._scores.write(span, ending)
                    self.instruments.released(ending.status)
            with self._tree_edge:
                end_span(span, run)

    def finished(self, tree: RunTree) -> None:
        with self._tree_edge:
            self.flushes.prepare(_FLUSHES)
            tree.is_joined = self._join(tree)
        held = Held((0, id(tree)), tree, tree.context, _OF_TREE + tree.size, is_likely=True)
        if self.clock.start() and self.store.hold(held):
            # If the job is given up, the clock writes the spans and counts the turns.
            self._submit(
                held.size,
                partial(self.read_tree, held),
                lambda why: self.clock.release(held, Ending(why)),
            )
            return
        why: GivenUp = "overload" if self.store.is_open else "shutdown"
        turns, spans = self._start_tree(tree)
        self.scorer.drop(why, len(turns))
        with _within(tree.context):
            for run, span in spans.items():
                is_turn = run.id in turns and span.is_recording()
                self._end_spans([(span, run)], Ending(why) if is_turn else UNTOUCHED)

    def _join(self, tree: RunTree) -> bool:
        """Add ``tree`` to the trace around it if a turn there may need it; else return False."""
        is_turn = Subtree(tree.searched, tree.called).is_turn
        is_whole = is_turn and self.config.spans != "none"
        if tree.root.error is not None or tree.is_lost or is_whole:
            return False
        span = get_current_span(tree.context)
        if not isinstance(span, ReadableSpan) or not span.is_recording():
            return False
        view = SpanRecord.from_sdk(span)
        if convention_of(view) not in {None, "native"}:
            return False
        taken = self.store.join(tree, view)
        with self._tree_edge:  # even after an error, a tree in a trace is not read alone, too
            self._follow_up(taken)
        return taken.is_added

    def read_tree(self, held: Held) -> None:
        """Start the spans of a held run tree, and submit its turns for scoring; only once."""
        if not self.store.claim(held):
            return
        self.clock.wake()  # here, as it costs time
        tree: RunTree = held.item
        turns, spans = dict[Hashable, Turn](), dict[Run, Span]()
        of_turns, others = dict[Hashable, Held](), list[tuple[Span, Run]]()
        try:
            turns, spans = self._start_tree(tree)
            for run, span in spans.items():
                item = ((span, run),)
                if run.id in turns and span.is_recording():
                    size = held.size // len(turns)
                    of_turns[run.id] = Held((0, id(item)), item, held.context, size, is_likely=True)
                else:
                    others += item
        finally:
            rest = tuple(others)
            left = Held((0, id(rest)), rest, held.context, 0, is_likely=False)
            self.store.replace(held, list(of_turns.values()), [left] if others else [])
            self.clock.export()
        status = None if held.ending is None else held.ending.status
        if status in {"overload", "shutdown", "error"}:  # the spans say it
            self.scorer.drop(status, len(turns))
            return
        contexts: dict[Hashable, Any] = {run.id: s.get_span_context() for run, s in spans.items()}
        around = get_current_span(tree.context)
        for turn_id, turn in turns.items():
            context = contexts.get(turn_id) or around.get_span_context()
            job = self._job(
                of_turns.get(turn_id),
                turn=turn,
                span=context,
                ended=turn.path[-1].end or time.time_ns(),
                # Without a span, any number that does not change.
                trace_id=context.trace_id or zlib.crc32(repr(turn.anchor.id).encode()),
                attributes=lambda: [getattr(around, "attributes", None) or {}],
                runs=(tree.root.id, turn_id),
            )
            self.scorer.submit(job)

    def _start_tree(self, tree: RunTree) -> tuple[dict[Hashable, Turn], dict[Run, Span]]:
        steps, turns, root = dict[Hashable, Step](), dict[Hashable, Turn](), Ending("error")
        with self._tree_edge:  # an error in reading must not keep the spans from being written
            steps, turns, root = self._read_tree(tree)
        with self._tree_edge:
            self.instruments.found(1 if root.status == "error" else len(turns))
            if root.status == "error":
                self.instruments.turn("error", "internal")
        with _within(tree.context):
            spans = self._writer.start(tree, steps, also=turns.keys(), edge=self._tree_edge)
        if tree.root.id in spans:
            with self._tree_edge:
                span, texts = spans[tree.root.id], self.scorer.explanations
                if root is not UNTOUCHED:
                    self._scores.write(span, root)
                if tree.root.id in texts:
                    texts.keep(span.get_span_context().trace_id, texts.pop(tree.root.id))
        runs = [run for run in tree.runs if run.id in spans]
        for run in runs:
            run.end = run.end or tree.root.end
        runs.sort(key=lambda run: (run.end or 0, -run.start))
        return turns, {run: spans[run.id] for run in runs}

    def _read_tree(
        self, tree: RunTree
    ) -> tuple[dict[Hashable, Step], dict[Hashable, Turn], Ending]:
        """Return steps and turns by run id, and the ending of the root span if there is no turn."""
        steps = tree.steps(most=self.config.max_text_chars)
        by_id: dict[Hashable, Step] = {step.id: step for step in steps}
        if tree.is_joined:
            return by_id, {}, UNTOUCHED
        if tree.is_lost:
            self.instruments.found()
            self.scorer.refuse("evicted")
            return by_id, {}, Ending("skipped", "evicted")
        if tree.may_follow_search:
            steps += retrievals_before(tree, steps, most=self.config.max_text_chars)
        turns = find_turns(steps, contexts_from_prompt=self.config.contexts_from_prompt)
        endings = {} if turns else self.scorer.refuse_steps(steps, tree.root.id)
        root = endings.get(tree.root.id) or endings.get(None, UNTOUCHED)
        return by_id, {turn.path[-1].id: turn for turn in turns}, root

    def sweep(self) -> None:
        with self.release_edge:
            self.recorder.flush(self.recorder.grace)
        self._submit_all(self.store.sweep)

    def submit_ended(self) -> None:
        self._submit_all(self.store.flush)

    def _submit_all(self, complete: Callable[[], list[Trace]]) -> None:
        # Locked: a flush waits for the traces that the clock has just removed.
        with self.release_edge, self._sweeping:
            for trace in sorted(complete(), key=attrgetter("last")):  # a search before its reader
                give_up = partial(self.give_up, trace)
                function = partial(give_up, None) if trace.is_doubled else partial(self.read, trace)
                self._submit(trace.size, function, give_up)

    def _submit(
        self, size: int, function: Callable[[], object], give_up: Callable[[GivenUp], object]
    ) -> None:
        if not self.evaluator.submit(Call(size, function, give_up)):
            give_up("shutdown" if self.evaluator.is_closed else "overload")

    def read(self, trace: Trace) -> None:
        """Find the RAG turns in ``trace``, submit them for scoring, and export other held spans."""
        turns: Sequence[Turn] | None = None
        steps: list[Step] = []
        endings: Mapping[Hashable, Ending] = {}
        with self._read_edge:
            for name in filter(None, map(convention_of, trace.spans.values())):
                self.instruments.tally.add("sources", name)
            most = self.config.max_text_chars
            steps = [read(view, most=most) for view in trace.spans.values()]
            for span_id, tree in trace.trees:
                steps += tree.steps(parent=span_id, most=most)
            turns = turns_in(steps, contexts_from_prompt=self.config.contexts_from_prompt)
        if turns is None:
            self.give_up(trace, "error")
            return
        if not self.store.claim(trace):
            return
        with self._read_edge:
            if turns:
                self.instruments.found(len(turns))
            else:
                endings = self.scorer.refuse_steps(steps, trace.trace_id)
        for turn in turns:
            with self._read_edge:
                self.scorer.submit(self._turn_job(trace, turn))
                continue
            self.scorer.drop("error")
        self.release_held(trace, endings)

    def _turn_job(self, trace: Trace, turn: Turn) -> TurnJob:
        """Return the job that scores ``turn`` for the first held span that can get scores."""
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
        span = INVALID_SPAN_CONTEXT if view is None else view.context
        return self._job(
            held,
            release=partial(self._write_late, span, []),
            turn=turn,
            span=span,
            ended=(view.end if view is not None else turn.anchor.end) or 0,
            is_missed=held is None and not has_left,
            trace_id=trace.trace_id,
            attributes=partial(attributes_around, turn, trace.spans),
        )

    def _job(self, held: Held | None, **options: Any) -> TurnJob:
        if held is not None:
            options["release"] = partial(self._release, held, options["span"], [])
            options["is_late"] = lambda: held.is_late and self.config.hold_seconds > 0
        return TurnJob(scorer=self.scorer, **options)

    def _release(
        self, held: Held, span: SpanContext, written: list[Ending], ending: Ending
    ) -> None:
        if not self.clock.release(held, ending) and held.ending is not ending:
            self._write_late(span, written, ending)

    def _write_late(self, span: SpanContext, written: list[Ending], ending: Ending) -> None:
        """Write the scores in ``ending`` on a new span, unless ``written`` has scores already."""
        if ending.evaluation is None or written or not span.is_valid:
            return
        written.append(ending)
        ref = SpanRef(trace_id=span.trace_id, span_id=span.span_id, trace_flags=span.trace_flags)
        with self.release_edge:
            self._has_late = True
            self._carrier.write(ref, ending)

    def _write_late_feedback(self, feedback: Feedback, about: Mapping[str, Any]) -> None:
        with self.release_edge:
            self._has_late = True
            self._carrier.write_feedback(feedback, about)

    def give_up(self, trace: Trace, why: GivenUp | None) -> None:
        """Count the turns of ``trace`` as not scored, unless it was read, and export its spans."""
        if why is None:  # two of its spans have the same id
            ending, count = Ending("skipped", "ambiguous"), partial(self.scorer.refuse, "ambiguous")
        else:
            ending = Ending("error", "internal") if why == "error" else Ending(why)
            count = partial(self.scorer.drop, why)
        with self._read_edge:
            if self.store.claim(trace):
                turns = trace.count_turns()
                self.instruments.found(turns)
                count(turns=turns)
        self.release_held(trace, {None: ending})

    def release_held(self, trace: Trace, endings: Mapping[Hashable, Ending]) -> None:
        """Export the held spans of ``trace``; ``endings`` by span id (None: of all others)."""
        spans, trace.held = trace.held, {}
        for span_id, held in spans.items():
            self.store.decide(held, endings.get(span_id) or endings.get(None, UNTOUCHED))
        self.clock.export()

    @property
    def stats(self) -> Stats:
        scoring = self.store.count("scoring")
        return self.instruments.tally.stats(held=len(self.store), scoring=scoring)

    def close(self) -> None:
        """Submit all traces and runs for scoring, even incomplete ones, and hold no more spans."""
        self.recorder.flush()
        self._submit_all(self.store.close)
        self.clock.stop()

    def flush_next(self, timeout: float) -> bool:
        return self.next is None or self._flushed(self.next, timeout)

    def _flushed(self, target: Any, timeout: float) -> bool:
        with self.release_edge:
            return target.force_flush(int(timeout * 1000)) is not False
        return False

    def is_own_thread(self) -> bool:
        return self.evaluator.is_current() or self.clock.is_current()

    def _after_fork(self) -> None:
        """Drop the parent's spans in a forked child, because the parent exports them itself."""
        self.is_forked = True
        self._sweeping = threading.RLock()
        self.store.reset()
        self.clock.reset()
        self._bind()

    @property
    def logger_provider(self) -> LoggerProvider:
        return self.logs or get_logger_provider()

    def missing_providers(self) -> list[str]:
        kinds = [] if self.meters or not is_stand_in(get_meter_provider()) else ["MeterProvider"]
        needs_logs = self.logs is None and self.config.score_events != "span"
        if needs_logs and is_stand_in(get_logger_provider()):
            kinds.append("LoggerProvider")
        return kinds

    def flush(self, timeout: float) -> bool:
        """See `Handle.flush`."""
        deadline = self.now() + timeout
        self.recorder.flush()
        is_flushed = self.force_flush(self._left(deadline))
        is_scored = self.evaluator.flush(self._left(deadline))
        if self._has_late:
            self._has_late, left = False, self._left(deadline)
            is_flushed &= self._call_within(partial(self.flush_next, left), left)
        return self._flush_sinks(self._left(deadline)) and is_scored and is_flushed

    def flush_all(self, timeout: float) -> None:
        deadline = self.now() + timeout
        self.flush(timeout)
        self._flush_providers(deadline)

    def force_flush(self, timeout: float) -> bool:
        """Wait half of ``timeout`` (5 s at most) for scores, export; False if spans are left."""
        if self.is_own_thread():
            return self.flush_next(timeout) and not self.store.held
        deadline = self.now() + timeout
        self.submit_ended()
        self.clock.wait_left(min(_MAX_FLUSH_WAIT, timeout / 2))
        is_released = self._release_all("flushed", deadline)
        left = self._left(deadline)
        return self._call_within(partial(self.flush_next, left), left) and is_released

    def drain_and_flush(self, timeout: float) -> None:
        """Call `drain`, and flush the exporters of spans, logs and metrics."""
        if self.is_forked and not (self.clock.is_awake or self.recorder.runs):
            return  # the child has taken no span and no run
        end = self.now() + timeout
        self.drain(timeout, flushes=True)
        self._flush_providers(end)
        self.flushes.shutdown()

    def drain(self, timeout: float | None = None, *, flushes: bool = False) -> None:
        """Score and export what is possible in ``timeout`` seconds (``shutdown_seconds``), and end.

        ``flushes``: flush the next span processor even if no scores are late.
        """
        flush = partial(self.flush_next, _MAX_FLUSH_WAIT)
        timeout = self.config.shutdown_seconds if timeout is None else timeout
        reserve = min(1.0, timeout / 5)  # seconds to export the spans and to clean up
        end = self.now() + timeout
        self.close()
        wait = 0.0 if self.is_own_thread() else self._left(end - reserve)
        try:
            self.clock.wait_left(wait)
        finally:  # also if Ctrl-C has interrupted the wait
            self._release_all("shutdown", max(end - reserve / 2, self.now() + _GRACE))
        if flushes:
            self._call_within(flush, max(_GRACE, self._left(end - reserve / 2)))
        share = max(reserve, _GRACE) / 4
        wait = self._left(end - 2 * share)
        cancel = partial(self.evaluator.shutdown, wait, grace=share)
        self._call_within(cancel, wait + share + _GRACE)
        if self.scorer.delivers or self._has_late:  # a backend takes scores of a span that it has
            self._call_within(flush, max(share, self._left(end) / 2))
            self._flush_sinks(max(share, self._left(end)))
        self._call_within(self.scorer.close, max(2 * share, self._left(end)))
        self.flushes.shutdown()

    def _release_all(self, status: HoldStatus, deadline: float) -> bool:
        """Export all held spans with ``status``; return False if some are left at ``deadline``."""
        spans = list(self.store.held.copy().values())
        for i in range(0, len(spans), CHUNK):
            for held in spans[i : i + CHUNK]:
                self.store.decide(held, Ending(status))
            self.clock.export()
            if later := spans[i + CHUNK :]:
                self.clock.wait_left(self._left(deadline), number=later[0].number)
                if left := self._left(deadline):
                    self._call_within(partial(self.flush_next, left), left)
        return self.clock.wait_left(0.0 if self.is_own_thread() else self._left(deadline))

    def _flush_sinks(self, timeout: float) -> bool:
        timeout = 0.0 if self.is_own_thread() else timeout
        flush = partial(self.scorer.flush, timeout)
        return not self.scorer.delivers or self._call_within(flush, timeout)

    def _flush_providers(self, deadline: float) -> None:
        """Flush logger and meter provider; the application may have set the global ones late."""
        meters = None if self.is_forked else self.meters or get_meter_provider()
        for provider in (self.logger_provider, meters):
            if hasattr(provider, "force_flush"):  # the API's own providers have none
                flush = partial(self._flushed, provider, _MAX_FLUSH_WAIT)
                self._call_within(flush, max(_GRACE, self._left(deadline)))

    def _call_within(self, call: Callable[[], object], timeout: float) -> bool:
        """Run ``call()`` on a thread; return False after ``timeout``, or if it returns False."""
        if self.is_own_thread() or self.is_off:
            return call() is not False
        return self.flushes.wait_for(lambda: call() is not False, timeout)

    def _left(self, deadline: float) -> float:
        return max(0.0, deadline - self.now())
