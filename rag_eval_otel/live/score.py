"""`TurnScorer`: evaluate RAG turns on the background thread, and pass the scores to the sinks.

A *turn* is one question of a user and its answer. A *sink* is an object that gets each evaluation,
for example to write an event or a metric.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from rag_eval_otel.capture.sample import RecentTurns, extract, why_none
from rag_eval_otel.capture.span import about
from rag_eval_otel.capture.step import Step
from rag_eval_otel.capture.turn import Turn
from rag_eval_otel.config import Config, ErrorMode
from rag_eval_otel.errors import PartBlockedError, RedactionError
from rag_eval_otel.evaluation import Measurement, failed_evaluation
from rag_eval_otel.live.admission import Admission, facts_of
from rag_eval_otel.live.feedback import FeedbackIntake, KeptTurn
from rag_eval_otel.live.hold import Awaited
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
from rag_eval_otel.runtime.watchdog import running
from rag_eval_otel.sampling import Facts, Sampling
from rag_eval_otel.sinks.health import endpoints_of
from rag_eval_otel.sinks.instruments import Agreement, DropReason, InstrumentSink
from rag_eval_otel.types import (
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
    ``errors`` says whether an error of a sink is logged or raised. ``kept_turns`` is the number of
    turns that are kept for evaluation after bad feedback. ``redactor`` redacts comments of people.
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
        errors: ErrorMode,
        spending: Spending | None = None,
        kept_turns: int = 0,
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
            evaluate=self._evaluate_kept,
            max_kept=kept_turns,
            redactor=redactor,
        )
        # Counted first: another sink may block.
        self.sinks: tuple[Sink, ...] = (instruments, self.feedback, *sinks)
        self._admission = admission or Admission()
        self._metadata_keys = metadata_keys
        self._recent = RecentTurns()
        self._shared = SharedEvaluations()
        self._edge = Edge("evaluation", on_error=instruments.internal_error, mode=errors)
        self._sink_edge = Edge(
            "sink", on_error=instruments.internal_error, mode=errors, messages="debug"
        )
        self._log = LimitedLog()
        self._is_closed = False
        # A worker sets both: its spans are of several services, and may be taken from it.
        self.service_of: Callable[[SpanRef], str | None] = lambda _: None
        self.is_wanted: Callable[[SpanContext], bool] = lambda _: True

    @property
    def measurements(self) -> tuple[Measurement, ...]:
        """The measurement with the judge, and in a cascade that with the offline judge."""
        return (self._measurement, *filter(None, [self._offline]))

    def share(self, workers: float) -> None:
        """Divide the limits a minute of judges and embedders among ``workers`` processes."""
        for endpoint in endpoints_of(self.measurements):
            endpoint.share(workers)

    def admit(self, trace_id: int, facts: Callable[[], Facts]) -> Sampling | SkipReason:
        """Return how a RAG turn in this trace was chosen, or the reason why it is not evaluated.

        ``facts()`` returns what sampling rules can match. A turn that is not evaluated is counted
        as skipped.
        """
        found = self._admission.draw(trace_id, facts)
        if not isinstance(found, Sampling):
            self.instruments.turn("skipped", found)
        return found

    def refuse(self, reason: SkipReason, *, turns: int = 1) -> None:
        """Count RAG turns as skipped because of ``reason``; log one such turn in a minute."""
        for _ in range(turns):
            self.instruments.turn("skipped", reason)
        if reason not in _INTENDED:
            self._log.write(
                f"skipped {reason}",
                "a RAG turn is not scored: %s; docs/doctor.md says what to do (logged at most once"
                " a minute)",
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
        is_taken = self.evaluator.submit(job)
        if not is_taken:
            why: DropReason = "shutdown" if self.evaluator.is_closed else "overload"
            self.drop(why)
            job.release(Ending(why))
        return is_taken

    def _pass_on(self, found: Feedback | Agreement) -> None:
        """Pass feedback, or its agreement with the judge, to the sinks that take it."""
        method = "emit_feedback" if isinstance(found, Feedback) else "emit_agreement"
        for sink in self.sinks:
            emit = getattr(sink, method, None)
            if emit is not None:
                with self._sink_edge, suppress(PartBlockedError), running(f"sink {_name_of(sink)}"):
                    emit(found)

    def _evaluate_kept(self, kept: KeptTurn) -> bool:
        """Have a turn evaluated that was skipped before; return False if there is no room for it.

        Its scores go to the sinks. The turn is not counted again.
        """
        chosen = Chosen(kept.span.trace_id, Sampling(stage="feedback", is_targeted=True))
        job = TurnJob(self, kept.turn, kept.span, kept.ended, held=None, chosen=chosen)
        return self.evaluator.submit(job)

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
            with self._sink_edge:
                getattr(sink, "close", lambda: None)()

    @property
    def delivers(self) -> bool:
        """Whether a sink has a method ``flush``, as a sink has that sends to a backend."""
        return any(hasattr(sink, "flush") for sink in self.sinks)

    def flush(self, timeout: float) -> bool:
        """Call the method ``flush`` of each sink that has one; return False if any is not done."""
        done = True
        for sink in self.sinks:
            with self._sink_edge:
                done = getattr(sink, "flush", lambda _: True)(timeout) and done
        return done

    def _log_failures(self, evaluation: Evaluation) -> None:
        """Log why scores in ``evaluation`` are missing, once a minute for each reason."""
        if evaluation.is_useless:
            self._log.write(
                f"unscored {evaluation.reason}",
                "the judge %s answers, but no metric can use what it says (%s); logged at most once"
                " a minute",
                evaluation.judge or self._measurement.judge.model,
                evaluation.reason,
            )
        failed = [score for score in reversed(evaluation.scores) if score.status == "error"]
        for reason, error in {one.reason: one.detail.get("error") for one in failed}.items():
            self._log.write(
                f"error {reason}",
                "scores are failing (%s): %s; logged at most once a minute",
                reason,
                error or "no details",
            )

    def count_given_up(self, why: GivenUp, turns: int = 1) -> None:
        """Count RAG turns that a shutdown has cancelled, or that an exception has ended."""
        for _ in range(turns):
            if why in {"shutdown", "overload"}:
                self.instruments.turn("dropped", why)
            else:
                self.instruments.turn("error", "blocked" if why == "blocked" else "internal")

    async def score(
        self,
        turn: Turn,
        span: SpanContext,
        *,
        ended: int,
        chosen: Chosen | None = None,
        claim: Callable[[Ending], bool] = lambda _: True,
    ) -> Ending:
        """Evaluate ``turn``, pass the scores to the sinks, and return what to write on the span.

        The result has the scores, or the reason why there are none. ``span`` identifies the span of
        the turn. ``ended`` is the time in ns at which the turn ended. ``chosen`` says how the turn
        was chosen. ``claim`` is called with the result before the turn is counted. If it returns
        False, the turn was given up and counted before.
        """
        ref = SpanRef(
            trace_id=span.trace_id, span_id=span.span_id, trace_flags=int(span.trace_flags)
        )
        chosen = chosen or Chosen()
        result = await self._evaluation(turn, ref, ended=ended, chosen=chosen)
        is_recounted = chosen.sampling.is_by_feedback
        if not isinstance(result, Evaluation):
            ending = Ending("skipped", result, feedback=self.feedback.of(ref))
            if claim(ending) and not is_recounted:
                self.refuse(result)
            return ending
        shown = replace(result, question_embedding=None)  # the question may be guessed from it
        reason: SkipReason | Reason | None = shown.sampling.reason if shown.sampling else None
        reason = shown.reason if shown.status == "unscored" else reason
        ending = Ending(
            shown.status,
            reason,
            evaluation=shown,
            contexts=turn.contexts_source,
            feedback=self.feedback.of(ref),
        )
        if claim(ending):
            self._emit(result, shown)
        return ending

    async def _evaluation(
        self, turn: Turn, span: SpanRef, *, ended: int, chosen: Chosen
    ) -> Evaluation | SkipReason:
        with self._edge:
            if turn.is_complete:
                self.instruments.tally.add("source", "callback")
            sample = extract(turn)
            if not isinstance(sample, Sample):
                return sample
            if self._recent.is_repeated(sample, turn):
                return "duplicate"
            try:
                evaluation = await self._measured(sample, chosen)
            except RedactionError:
                return "redaction_error"
            if not isinstance(evaluation, Evaluation):
                return evaluation
            located = partial(
                replace,
                span=span,
                lag=seconds_since(ended),
                about=about(_metadata(turn), self._metadata_keys),
                answer_length=len(sample.answer),
                service=self.service_of(span),
            )
            offline = evaluation.offline
            return located(evaluation, offline=None if offline is None else located(offline))
        return failed_evaluation(self._measurement.metrics, "internal")

    async def _measured(self, sample: Sample, chosen: Chosen) -> Evaluation | SkipReason:
        """Return the scores of ``sample``: in a cascade, the offline scores or both judges'."""
        if self._offline is None or chosen.sampling.is_by_feedback:
            return await self._spending.of(sample, chosen.sampling)
        cheap = await self._shared.of(self._offline, sample)
        offline = replace(cheap, sampling=Sampling(stage="offline"))
        sampling = self._admission.judged(chosen.trace_id, chosen.sampling, offline=offline)
        if sampling is None:
            return offline
        refused = replace(offline, sampling=Sampling(stage="offline", reason="budget"))
        if self._admission.is_over_budget():
            return refused
        judged = await self._spending.of(sample, sampling, otherwise=refused)
        if not isinstance(judged, Evaluation) or judged.sampling is not sampling:
            return judged
        return replace(judged, offline=offline)

    def _emit(self, result: Evaluation, shown: Evaluation) -> None:
        """Pass ``result`` to sinks that take embeddings, and ``shown`` to the other sinks.

        The sinks are called on this thread. A sink that blocks it is disabled, as a metric is.
        """
        self._log_failures(result)
        for sink in self.sinks:
            with self._sink_edge, suppress(PartBlockedError), running(f"sink {_name_of(sink)}"):
                sees_embedding = getattr(sink, "takes_question_embeddings", False)
                sink.emit(result if sees_embedding else shown)


def _name_of(sink: Sink) -> str:
    return type(sink).__name__


@dataclass(frozen=True, slots=True)
class Chosen:
    """How a turn of the trace ``trace_id`` was chosen for evaluation."""

    trace_id: int = 0
    sampling: Sampling = Sampling()  # noqa: RUF009  # frozen


@dataclass(slots=True, eq=False)  # not frozen: that costs the application a microsecond
class TurnJob:
    """A job of `BackgroundEvaluator` that scores one RAG turn and then exports its span.

    ``held`` is the kept-back span, or None if no span waits for the scores. ``span`` identifies the
    span to which the scores belong. ``ended`` is the time in ns at which the turn ended.
    """

    scorer: TurnScorer
    turn: Turn
    span: SpanContext
    ended: int
    held: Awaited | None
    chosen: Chosen = Chosen()
    _endings: list[Ending] = field(default_factory=list, init=False)

    def admit(self, trace_id: int, attributes: Callable[[], Iterable[Mapping[str, Any]]]) -> bool:
        """Return True if the turn is to be evaluated; otherwise count it and release its span.

        ``attributes()`` returns the attributes of the spans of the turn and around it.
        """
        feedback = self.scorer.feedback

        def facts() -> Facts:
            return facts_of(self.turn, [*attributes(), feedback.facts(self.span)])

        found = self.scorer.admit(trace_id, facts)
        if isinstance(found, Sampling):
            feedback.note(self.span)
            self.chosen = Chosen(trace_id, found)
            return True
        self._keep()
        self.release(Ending("skipped", found))
        return False

    def _keep(self) -> None:
        """Keep the turn, to evaluate it if bad feedback comes."""
        self.scorer.feedback.keep(KeptTurn(turn=self.turn, span=self.span, ended=self.ended))

    @property
    def size(self) -> int:
        return self.turn.size

    @property
    def seconds_left(self) -> float:
        return float("inf") if self.held is None else self.held.seconds_left

    def begin(self) -> bool:
        """Return True, because the whole evaluation waits for the judge and so is in `run`."""
        return True

    async def run(self) -> None:
        if not self.scorer.is_wanted(self.span):
            self.give_up("shutdown")
            return
        ending = await self.scorer.score(
            self.turn, self.span, ended=self.ended, chosen=self.chosen, claim=self._claim
        )
        sampling = ending.evaluation.sampling if ending.evaluation is not None else None
        if sampling is not None and sampling.stage == "offline":
            self._keep()
        self.release(ending)

    def give_up(self, why: GivenUp) -> None:
        """Count the turn, unless `run` has counted it, and export its span."""
        if self._claim(given_up(why)) and not self.chosen.sampling.is_by_feedback:
            self.scorer.count_given_up(why)
        self.release(self._endings[0])

    def _claim(self, ending: Ending) -> bool:
        """Return True at the first call only, so that one thread counts the turn.

        The event loop may be blocked in a sink or an exporter while another thread gives the turn
        up.
        """
        self._endings.append(ending)
        return self._endings[0] is ending

    def release(self, ending: Ending) -> None:
        if self.held is not None:
            self.held.release(ending)


def given_up(why: GivenUp) -> Ending:
    """Return what to write on the span of a turn that was given up because of ``why``."""
    return Ending("error", "blocked") if why == "blocked" else Ending(why)


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
    measurement = build_measurement(config, partial(instruments.internal_error, "redis"))
    spending = build_spending(config, measurement, instruments=instruments)
    instruments.watch_budget(spending.observe_left)
    is_off = config.sample_rate <= 0 and not config.chosen_rules
    return TurnScorer(
        measurement,
        offline=None if config.cascade is None else build_offline(config, config.cascade),
        evaluator=BackgroundEvaluator(
            concurrency=config.concurrency,
            capacity=config.max_held,
            max_bytes=config.max_held_bytes,
            on_blocked=instruments.blocked,
        ),
        instruments=instruments,
        sinks=sinks,
        admission=Admission.of(config, pace=spending.pace),
        metadata_keys=config.metadata_keys,
        errors=config.errors,
        spending=spending,
        kept_turns=0 if is_off else config.feedback_turns,
        redactor=redactor(config.redact),
    )
