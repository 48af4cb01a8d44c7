"""`TurnScorer`: evaluate RAG turns on the background thread, and pass the scores to the sinks.

A *turn* is one question of a user and its answer. A *sink* is an object that gets each evaluation,
for example to write an event or a metric.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import TYPE_CHECKING, Any

from rag_eval_otel.capture.sample import RecentTurns, extract, why_none
from rag_eval_otel.capture.span import about
from rag_eval_otel.capture.step import Step
from rag_eval_otel.capture.trace import Held
from rag_eval_otel.capture.turns import Turn
from rag_eval_otel.config import Config
from rag_eval_otel.errors import RedactionError
from rag_eval_otel.evaluation import Measurement, failed_evaluation
from rag_eval_otel.export.metrics import Agreement, DropReason, InstrumentSink
from rag_eval_otel.judge.limits import title_of
from rag_eval_otel.live.admission import Admission, facts_of
from rag_eval_otel.live.clock import Clock
from rag_eval_otel.live.feedback import FeedbackIntake
from rag_eval_otel.live.repeats import SharedEvaluations
from rag_eval_otel.live.spending import (
    Spending,
    build_measurement,
    build_offline,
    build_spending,
)
from rag_eval_otel.redaction import Redactor, redactor
from rag_eval_otel.runtime.background import BackgroundEvaluator, GivenUp
from rag_eval_otel.runtime.guard import Edge
from rag_eval_otel.runtime.limited_log import LimitedLog
from rag_eval_otel.sampling import Facts, Sampling
from rag_eval_otel.types import (
    UNTOUCHED,
    Ending,
    Evaluation,
    Feedback,
    Reason,
    Sample,
    Sink,
    SkipReason,
    SpanRef,
)

if TYPE_CHECKING:
    from opentelemetry.trace import SpanContext


_INTENDED = frozenset({"budget", "duplicate", "not_sampled", "sample_rate"})
"""Reasons that are not logged: the configuration wants them, or the turn is scored elsewhere."""


class TurnScorer:
    """Evaluate RAG turns in the background, and pass the scores to ``sinks``.

    A turn is one question of a user and its answer. Each turn is counted once, with its outcome.
    In a cascade, ``offline`` measures all turns, and ``measurement`` a sample of them.
    ``metadata_keys`` names the metadata of a turn that goes to the sinks together with the scores.
    ``raise_errors`` says whether an error of a sink is logged or raised. ``redactor`` redacts
    comments of people.
    """

    def __init__(
        self,
        measurement: Measurement,
        *,
        offline: Measurement | None = None,
        evaluator: BackgroundEvaluator,
        instruments: InstrumentSink,
        sinks: Sequence[Sink] = (),
        admission: Admission | None = None,
        metadata_keys: Sequence[str] = (),
        raise_errors: bool,
        spending: Spending | None = None,
        redactor: Redactor = Redactor(),  # noqa: B008  # frozen
    ) -> None:
        self._measurement = measurement
        self._spending = spending or Spending(measurement, budget=None)
        self._offline = offline
        self.evaluator = evaluator
        self.instruments = instruments
        self.feedback = FeedbackIntake(
            instruments=instruments,
            evaluator=evaluator,
            pass_on=self._pass_on,
            redactor=redactor,
        )
        # Counted first: another sink may block.
        self.sinks: tuple[Sink, ...] = (instruments, self.feedback, *sinks)
        self._admission = admission or Admission()
        self._metadata_keys = metadata_keys
        self._recent = RecentTurns()
        self._shared = None if offline is None else SharedEvaluations(offline)
        edge = partial(Edge, on_error=instruments.internal_error, raise_errors=raise_errors)
        self._edge = edge("evaluation")
        self._edge_of = cache(lambda sink: edge("sink", part=sink))
        self._log = LimitedLog()
        self._is_closed = False
        # A worker sets both: its spans are of several services, and may be taken from it.
        self.service_of: Callable[[SpanRef], str | None] = lambda _: None
        self.is_wanted: Callable[[SpanContext], bool] = lambda _: True

    @property
    def measurements(self) -> tuple[Measurement, ...]:
        """The measurement with the judge, and in a cascade that with the offline judge."""
        return (self._measurement, *filter(None, [self._offline]))

    def choose(self, trace_id: int, facts: Callable[[], Facts]) -> Sampling | SkipReason:
        """Return how a RAG turn in this trace was chosen, or the reason why it is not evaluated.

        ``facts()`` returns what sampling rules can match.
        """
        return self._admission.draw(trace_id, facts)

    def refuse(self, reason: SkipReason, *, turns: int = 1) -> None:
        """Count RAG turns as skipped because of ``reason``; log one such turn in a minute."""
        for _ in range(turns):
            self.instruments.turn("skipped", reason)
        if reason not in _INTENDED:
            self._log.write(
                f"skipped {reason}",
                "a RAG turn is not scored: %s; docs/doctor.md says why; logged once a minute",
                reason,
            )

    def refuse_steps(self, steps: Sequence[Step]) -> SkipReason | None:
        """Count a trace in which no RAG turn was found as skipped, and return the reason.

        ``steps`` are the calls in the trace (retrievals, model calls, ...). The caller writes the
        reason on the kept-back spans of the trace. Return None for a trace without RAG, and for a
        chat without retrieval in which the application has recorded no text.
        """
        reason = why_none(steps)
        if reason is None:
            return None
        self.instruments.found()
        if reason == "no_retrieval" and not any(step.recorded for step in steps):
            self.instruments.turn("skipped", reason)
            return None
        self.refuse(reason)
        return reason

    def submit(self, job: TurnJob) -> bool:
        """Have a RAG turn evaluated in the background; return False if there is no room for it.

        If there is no room, the turn is counted as dropped, and its span is exported without
        scores.
        """
        if self.evaluator.submit(job):
            return True
        why: DropReason = "shutdown" if self.evaluator.is_closed else "overload"
        self.drop(why)
        job.release(Ending(why))
        return False

    def _pass_on(self, found: Feedback | Agreement) -> None:
        """Pass feedback, or its agreement with the judge, to the sinks that take it."""
        method = "emit_feedback" if isinstance(found, Feedback) else "emit_agreement"
        for sink in self.sinks:
            emit = getattr(sink, method, None)
            if emit is not None:
                self._call(sink, partial(emit, found))

    def _call(self, sink: Sink, call: Callable[[], object]) -> None:
        """Call ``call`` of ``sink``; its errors are counted and logged."""
        with self._edge_of(f"sink {getattr(sink, '__name__', type(sink).__name__)}"):
            call()

    def drop(self, reason: DropReason, turns: int = 1) -> None:
        """Count ``turns`` RAG turns as dropped, with ``reason`` ``overload`` or ``shutdown``."""
        for _ in range(turns):
            self.instruments.turn("dropped", reason)

    def leave_open(self, sinks: Sequence[Sink]) -> None:
        """Do not use or close those of ``sinks``, because another pipeline uses them."""
        self.sinks = tuple(sink for sink in self.sinks if all(sink is not one for one in sinks))

    def close(self) -> None:
        """Call the method ``close`` of each sink that has one, at the first call only."""
        sinks, self._is_closed = () if self._is_closed else self.sinks, True
        for sink in sinks:
            self._call(sink, getattr(sink, "close", lambda: None))

    @property
    def delivers(self) -> bool:
        """Whether a sink has a method ``flush``, as a sink has that sends to a backend."""
        return any(hasattr(sink, "flush") for sink in self.sinks)

    def flush(self, timeout: float) -> bool:
        """Call the method ``flush`` of each sink that has one; return False if any is not done."""
        done: list[bool] = []
        for sink in self.sinks:
            flush: Callable[[float], object] = getattr(sink, "flush", lambda _: True)
            self._call(sink, partial(_note, done, flush, timeout))
        return all(done)

    def _log_failures(self, evaluation: Evaluation) -> None:
        """Log why scores in ``evaluation`` are missing, once a minute for each reason."""
        models = title_of("judge", self._measurement.judge)
        if evaluation.is_useless:
            told = "the %s answers, but no metric can use what it says (%s); logged once a minute"
            self._log.write(f"unscored {evaluation.reason}", told, models, evaluation.reason)
        models = f"{models}, {title_of('embedder', self._measurement.embedder)}"
        failed = {one.reason for one in evaluation.scores if one.status == "error"}
        for reason in failed - {"internal"}:  # the exception that it stands for is logged
            told = "scores are failing (%s): %s; see rag-eval-otel doctor; logged once a minute"
            self._log.write(f"error {reason}", told, reason, models)

    def count_given_up(self, why: GivenUp, turns: int = 1) -> None:
        """Count RAG turns that a shutdown has cancelled, or that an exception has ended."""
        if why in {"shutdown", "overload"}:
            self.drop(why, turns)
            return
        for _ in range(turns):
            self.instruments.turn("error", "internal")

    async def score(self, job: TurnJob) -> Ending:
        """Evaluate a turn, pass the scores to the sinks, and return what to write on its span.

        The result has the scores, or the reason why there are none. The turn is counted, unless it
        was given up and counted before.
        """
        turn, span = job.turn, job.span
        flags = int(span.trace_flags)
        ref = SpanRef(trace_id=span.trace_id, span_id=span.span_id, trace_flags=flags)
        result = await self._evaluation(job, ref)
        if not isinstance(result, Evaluation):
            ending = Ending("skipped", result, feedback=self.feedback.of(ref))
            if job.claim(ending):
                self.refuse(result)
            return ending
        result = replace(result, is_span_missed=job.chosen.is_missed)
        reason: SkipReason | Reason | None = result.sampling.reason if result.sampling else None
        reason = result.reason if result.status == "unscored" else reason
        ending = Ending(
            result.status,
            reason,
            evaluation=result,
            contexts=turn.contexts_source,
            feedback=self.feedback.of(ref),
        )
        if job.claim(ending):
            self._emit(result)
        return ending

    async def _evaluation(self, job: TurnJob, span: SpanRef) -> Evaluation | SkipReason:
        turn = job.turn
        with self._edge:
            if turn.is_complete:
                self.instruments.tally.add("source", "callback")
            sample = extract(turn)
            if not isinstance(sample, Sample):
                return sample
            if self._recent.is_repeated(sample, turn):
                return "duplicate"
            try:
                evaluation = await self._measured(
                    sample, job.chosen.sampling or Sampling(), trace_id=job.trace_id
                )
            except RedactionError as error:
                self._log.write("redact", "%s", error)
                return "redaction_error"
            if not isinstance(evaluation, Evaluation):
                return evaluation
            located = partial(
                replace,
                span=span,
                lag=seconds_since(job.ended),
                about=about(_metadata(turn), self._metadata_keys),
                answer_length=len(sample.answer),
                service=self.service_of(span),
            )
            offline = evaluation.offline
            return located(evaluation, offline=None if offline is None else located(offline))
        return failed_evaluation(self._measurement.metrics, "internal")

    async def _measured(
        self, sample: Sample, chosen: Sampling, *, trace_id: int
    ) -> Evaluation | SkipReason:
        """Return the scores of ``sample``: in a cascade, the offline scores or both judges'."""
        if self._shared is None:
            return await self._spending.of(sample, chosen)
        cheap = await self._shared.of(sample)
        offline = replace(cheap, sampling=Sampling(stage="offline"))
        sampling = self._admission.judged(trace_id, chosen, offline=offline)
        if sampling is None:
            return offline
        refused = replace(offline, sampling=Sampling(stage="offline", reason="budget"))
        if self._admission.is_over_budget():
            return refused
        judged = await self._spending.of(sample, sampling, otherwise=refused)
        if not isinstance(judged, Evaluation) or judged.sampling is not sampling:
            return judged
        return replace(judged, offline=offline)

    def _emit(self, result: Evaluation) -> None:
        """Pass ``result`` to the sinks, on this thread."""
        self._log_failures(result)
        for sink in self.sinks:
            self._call(sink, partial(sink, result))


def _note(done: list[bool], flush: Callable[[float], object], timeout: float) -> None:
    done.append(bool(flush(timeout)))


@dataclass(frozen=True, slots=True)
class Chosen:
    """How a turn was chosen (None: not decided yet), and whether its span left without it."""

    sampling: Sampling | None = None
    is_missed: bool = False


@dataclass(slots=True, kw_only=True, eq=False)
class TurnJob:
    """A job of `BackgroundEvaluator` that scores one RAG turn and then lets its span leave.

    ``span`` identifies the span to which the scores belong, and ``ended`` is the time in ns at
    which the turn ended. ``held`` is the kept-back span, which ``clock`` exports, or None if no
    span waits for the scores. ``attributes()`` returns the attributes of the spans of the turn and
    around it. ``runs`` are the ids of its LangChain runs.
    """

    scorer: TurnScorer
    turn: Turn
    span: SpanContext
    ended: int
    clock: Clock | None = None
    held: Held | None = None
    chosen: Chosen = Chosen()
    trace_id: int = 0
    attributes: Callable[[], Iterable[Mapping[str, Any]]] = tuple
    runs: Sequence[Hashable] = ()
    _endings: list[Ending] = field(default_factory=list, init=False)

    @property
    def size(self) -> int:
        return self.turn.size

    @property
    def seconds_left(self) -> float:
        if self.held is None or self.clock is None:
            return float("inf")
        return self.clock.seconds_left(self.held)

    def begin(self) -> bool:
        """Return True if the turn is to be evaluated; otherwise count it and release its span."""
        if self.chosen.sampling is not None:
            return True
        if self.span.is_valid and not self.span.trace_flags.sampled:  # recorded, never exported
            self._refuse("not_sampled", UNTOUCHED)
            return False
        feedback = self.scorer.feedback
        if self.runs:
            feedback.note(self.span, runs=self.runs)
        sampling = self.scorer.choose(self.trace_id, self._facts)
        feedback.note(self.span)
        if isinstance(sampling, Sampling):
            self.chosen = replace(self.chosen, sampling=sampling)
            return True
        self._refuse(sampling, Ending("skipped", sampling))
        return False

    def _refuse(self, reason: SkipReason, ending: Ending) -> None:
        if self.claim(ending):
            self.scorer.refuse(reason)
        self.release(ending)

    def _facts(self) -> Facts:
        return facts_of(self.turn, [*self.attributes(), self.scorer.feedback.facts(self.span)])

    async def run(self) -> None:
        if not self.scorer.is_wanted(self.span):
            self.give_up("shutdown")
            return
        ending = await self.scorer.score(self)
        self.release(ending)

    def give_up(self, why: GivenUp) -> None:
        """Count the turn, unless `run` has counted it, and release its span."""
        if self.claim(given_up(why)):
            self.scorer.count_given_up(why)
        self.release(self._endings[0])

    def claim(self, ending: Ending) -> bool:
        """Return True at the first call only, so that one thread counts the turn.

        The event loop may be blocked in a sink while another thread gives the turn up.
        """
        self._endings.append(ending)
        return self._endings[0] is ending

    def release(self, ending: Ending) -> None:
        if self.held is not None and self.clock is not None:
            self.clock.release(self.held, ending)


def given_up(why: GivenUp) -> Ending:
    """Return what to write on the span of a turn that was given up because of ``why``."""
    return Ending(why)


def _metadata(turn: Turn) -> Iterator[Mapping[str, Any]]:
    for step in (*turn.path, *turn.calls, *turn.retrievers):
        yield step.metadata


_EPOCH = time.time_ns() - time.monotonic_ns()
"""The wall-clock time at the start of the monotonic clock, as the wall clock was at the import."""


def seconds_since(
    ended: int,
    *,
    wall: Callable[[], int] = time.time_ns,
    monotonic: Callable[[], int] = time.monotonic_ns,
    epoch: int = _EPOCH,
) -> float:
    """Return the seconds since the wall-clock time ``ended`` in ns, also if the clock was set.

    If the wall clock was set after ``ended`` (or before, since the import), only one of the two
    clocks gives the right time; the other gives a negative or a longer one.
    """
    ages = (wall() - ended, epoch + monotonic() - ended)
    return min((age for age in ages if age >= 0), default=0) / 1e9


def build_scorer(
    config: Config, *, instruments: InstrumentSink, sinks: Sequence[Sink] = ()
) -> TurnScorer:
    """Return the scorer of turns that ``config`` describes, with an evaluator of its own."""
    measurement = build_measurement(config)
    spending = build_spending(config, measurement, instruments=instruments)
    instruments.watch_budget(spending.observe_left)
    return TurnScorer(
        measurement,
        offline=None if config.cascade is None else build_offline(config, config.cascade),
        evaluator=BackgroundEvaluator(
            concurrency=config.concurrency,
            capacity=config.max_held,
            max_bytes=config.max_held_bytes,
        ),
        instruments=instruments,
        sinks=sinks,
        admission=Admission.of(config),
        metadata_keys=config.metadata_keys,
        raise_errors=config.raise_errors,
        spending=spending,
        redactor=redactor(config.redact),
    )
