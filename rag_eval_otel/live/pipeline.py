"""`Pipeline`: the parts of live scoring, built from a `Config`, and how it is flushed and ended."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from opentelemetry.trace import INVALID_SPAN_CONTEXT, TracerProvider

from rag_eval_otel import semconv
from rag_eval_otel.capture.buffer import TraceBuffer
from rag_eval_otel.capture.runs import RunRecorder
from rag_eval_otel.capture.text import USUAL
from rag_eval_otel.config import Config
from rag_eval_otel.live.hold import Holdback, Waiting
from rag_eval_otel.live.reader import TurnReader
from rag_eval_otel.live.score import Admission, TurnScorer, build_measurement
from rag_eval_otel.live.trees import RunTurns
from rag_eval_otel.live.writer import SpanWriter
from rag_eval_otel.redaction import redactor
from rag_eval_otel.runtime.background import BackgroundEvaluator, Sweeper
from rag_eval_otel.runtime.fork import call_in_child
from rag_eval_otel.runtime.guard import Edge
from rag_eval_otel.sinks.instruments import InstrumentSink
from rag_eval_otel.types import HoldStatus, Sink

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan

_FLUSH_WAIT = 5.0  # seconds a flush waits for scores, at most


class Exit(Protocol):
    """The processor through which held spans leave."""

    def held(self, span: ReadableSpan) -> Waiting:
        """Return ``span`` as an item to hold."""

    def flush_next(self, timeout_millis: int) -> bool:
        """Export what has left already."""


class Pipeline:
    """Everything between a source and its scored span; one for each instrumented provider.

    The sources are the recorder of LangChain runs and the buffer of foreign spans. What waits for
    scores is in ``hold``; ``evaluator`` runs all that is not done on the application's thread.
    """

    def __init__(
        self,
        config: Config,
        *,
        provider: TracerProvider,
        instruments: InstrumentSink,
        sinks: Sequence[Sink] = (),
        scorer: TurnScorer | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Build the parts; nothing is attached and no thread is started.

        ``scorer`` replaces the one that ``config`` asks for.
        """
        self.config = config
        self.instruments = instruments
        self._clock = clock
        self._exit: Exit | None = None
        self.hold = Holdback(
            seconds=config.hold_seconds,
            max_spans=config.max_held,
            max_bytes=config.max_held_bytes,
            clock=clock,
        )
        self.scorer = scorer or self._scorer(sinks)
        self.evaluator = self.scorer.evaluator
        self.keys = USUAL.after(
            question=(config.question_key,) if config.question_key else (),
            answer=(config.answer_key,) if config.answer_key else (),
        )
        self.sweeper = Sweeper(self._sweep)
        reader = TurnReader(
            self.scorer,
            hold=self.hold,
            keys=self.keys,
            contexts_from_prompt=config.contexts_from_prompt,
            edge=self.edge,
        )
        self.buffer = TraceBuffer(
            reader.submit,
            hold=self._hold_span,
            on_begun=self.sweeper.wake,
            on_evicted=reader.evicted,
            contexts_from_prompt=config.contexts_from_prompt,
            clock=clock,
        )
        self.recorder = RunRecorder(
            self._run_turns(provider), on_waiting=self.sweeper.wake, clock=clock
        )
        self._release_edge = self.edge("release")
        call_in_child(self._after_fork)

    def edge(self, place: str) -> Edge:
        """Return the border to the application at ``place``."""
        return Edge(place, on_error=self.instruments.internal_error, mode=self.config.errors)

    def _scorer(self, sinks: Sequence[Sink]) -> TurnScorer:
        config = self.config
        return TurnScorer(
            build_measurement(config),
            evaluator=BackgroundEvaluator(
                concurrency=config.concurrency,
                capacity=config.max_held,
                max_bytes=config.max_held_bytes,
            ),
            instruments=self.instruments,
            sinks=sinks,
            admission=Admission(
                sample_rate=config.sample_rate, max_per_minute=config.max_turns_per_minute
            ),
            metadata_keys=config.metadata_keys,
            edge=self.edge,
        )

    def _run_turns(self, provider: TracerProvider) -> RunTurns:
        config = self.config
        writer = SpanWriter(
            tracer=provider.get_tracer(
                semconv.SCOPE, semconv.VERSION, schema_url=semconv.GEN_AI_SCHEMA_URL
            ),
            spans=config.spans,
            content=config.capture_content,
            redactor=redactor(config.redact),
            metadata_keys=config.metadata_keys,
        )
        return RunTurns(
            writer,
            self.scorer,
            hold=self.hold,
            buffer=self.buffer,
            keys=self.keys,
            contexts_from_prompt=config.contexts_from_prompt,
            explanations=config.explanations,
            edge=self.edge,
        )

    # --- spans of other instrumentations ----------------------------------------------------------

    def attach(self, exit_: Exit) -> None:
        """Let held spans leave through ``exit_``."""
        self._exit = exit_
        self.buffer.is_fed = True

    @property
    def has_spans(self) -> bool:
        """Whether spans of the application come past a processor of this pipeline."""
        return self._exit is not None

    def count_held(self) -> int:
        """Return how many spans, and run trees, wait for their scores."""
        return len(self.hold)

    def _hold_span(self, span: ReadableSpan, size: int) -> bool:
        if self._exit is None:
            return False
        context = span.context or INVALID_SPAN_CONTEXT
        key = (context.trace_id, context.span_id)
        return self.hold.hold(key, self._exit.held(span), size=size)

    def _sweep(self) -> None:
        with self._release_edge:
            if self.recorder.runs:
                self.recorder.sweep()
        with self._release_edge:
            self.buffer.sweep()

    # --- flush and end ----------------------------------------------------------------------------

    def flush(self, timeout: float) -> bool:
        """Finish what has ended, wait for its scores, and export; False if time ran out."""
        deadline = self._clock() + timeout
        if self.recorder.runs:
            self.recorder.flush()
        flushed = self.force_flush(int(timeout * 1000))
        return self.evaluator.flush(max(0.0, deadline - self._clock())) and flushed

    def force_flush(self, timeout_millis: int) -> bool:
        """Give scores under way half of the time (5 s at most), release the rest, then export.

        Called by a judge or a sink, which hold the scores up, it exports what has left already.
        """
        if self.evaluator.is_current():
            self._flush_next(timeout_millis)
            return not self.hold
        deadline = self._clock() + timeout_millis / 1000
        with self._release_edge:
            if self.buffer.traces:
                self.buffer.flush()
        self.hold.wait_empty(min(_FLUSH_WAIT, timeout_millis / 2000))
        released = self._release_all("flushed", deadline)
        left = max(0, int((deadline - self._clock()) * 1000))
        return self._flush_next(left) and released

    def drain(self, timeout: float | None = None) -> bool:
        """Hold nothing any more: wait up to ``timeout`` seconds for scores, then release all.

        What is left after that gets as long again to be exported chunk by chunk. Evaluations that
        no span waits for have the same ``timeout`` seconds; after them they are given up.
        """
        timeout = self.config.shutdown_seconds if timeout is None else timeout
        deadline = self._clock() + timeout
        self.recorder.flush()
        self.sweeper.stop()
        with self._release_edge:
            self.buffer.close()
        self.hold.close()
        patient = False
        try:
            self.hold.wait_empty(0.0 if self.evaluator.is_current() else timeout)
            patient = True
        finally:  # an interrupt means that nobody waits any longer
            released = self._release_all("shutdown", self._clock() + max(timeout, 1.0))
            left = max(0.0, deadline - self._clock()) if patient else 0.0
            self.evaluator.shutdown(left)
        return released

    def _flush_next(self, timeout_millis: int) -> bool:
        return self._exit is None or self._exit.flush_next(timeout_millis)

    def _release_all(self, status: HoldStatus, deadline: float) -> bool:
        def flush(left: float) -> None:
            with self._release_edge:
                self._flush_next(int(left * 1000))

        return self.hold.release_all(status, deadline=deadline, flush=flush)

    def _after_fork(self) -> None:
        """Forget what is the parent's: it exports its spans itself."""
        self.buffer.clear()
        self.sweeper.reset()
        self.hold.reset()
