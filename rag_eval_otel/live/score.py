"""`TurnScorer`: from a recognised turn to its scores, in the background."""

from __future__ import annotations

import logging
import threading
import time
import zlib
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeAlias

from rag_eval_otel.capture.sample import extract, why_none
from rag_eval_otel.capture.span import about
from rag_eval_otel.capture.step import Step
from rag_eval_otel.capture.turn import Turn
from rag_eval_otel.config import Config
from rag_eval_otel.evaluation import Measurement, chosen_labelling, failed_evaluation
from rag_eval_otel.judge.ask import ReplyCache
from rag_eval_otel.judge.models import build_embedder, build_judge
from rag_eval_otel.judge.prompting import BUILT_IN, load_prompts
from rag_eval_otel.metrics import resolve_metrics, with_thresholds
from rag_eval_otel.redaction import redactor
from rag_eval_otel.runtime.background import BackgroundEvaluator, GivenUp
from rag_eval_otel.runtime.fork import call_in_child
from rag_eval_otel.runtime.guard import Edge
from rag_eval_otel.sinks.instruments import DropReason, InstrumentSink
from rag_eval_otel.types import (
    Ending,
    Evaluation,
    Sample,
    Sink,
    SkipReason,
    SpanRef,
)

if TYPE_CHECKING:
    from opentelemetry.trace import SpanContext


_log = logging.getLogger("rag_eval_otel")

Done: TypeAlias = Callable[[Ending], object]
"""Called once when the evaluation of a turn has ended."""

_MINUTE = 60.0
_ON_PURPOSE = frozenset({"budget", "duplicate", "not_sampled", "sample_rate"})
"""Reasons that need no advice: nothing is missing."""


class Admission:
    """Which turns are evaluated: a share of them by trace id, and so many a minute."""

    def __init__(
        self,
        *,
        sample_rate: float = 1.0,
        max_per_minute: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Start with a full minute's allowance."""
        self.takes_all = sample_rate >= 1 and max_per_minute is None
        self._rate = sample_rate
        self._per_minute = max_per_minute
        self._clock = clock
        self._left = max_per_minute or 0.0
        self._at = clock()
        self._unlock()
        call_in_child(self._unlock)

    def _unlock(self) -> None:
        """Make the lock; in a forked child nobody would release the parent's."""
        self._lock = threading.RLock()

    def refuse(self, trace_id: int) -> SkipReason | None:
        """Return why a turn of this trace is not evaluated; None admits it."""
        if self._rate < 1 and _share(trace_id) >= self._rate:
            return "sample_rate"
        return None if self._per_minute is None or self._spend(self._per_minute) else "budget"

    def _spend(self, per_minute: float) -> bool:
        with self._lock:
            now = self._clock()
            earned = (now - self._at) * per_minute / _MINUTE
            self._left, self._at = min(max(per_minute, 1.0), self._left + earned), now
            if self._left < 1:
                return False
            self._left -= 1
            return True


def _share(trace_id: int) -> float:
    """Place a trace in [0, 1), not by the bits samplers look at: we see what they let through."""
    return zlib.crc32(trace_id.to_bytes(16, "big")) / 2**32


class TurnScorer:
    """Evaluates turns on ``evaluator`` and tells ``sinks``; every turn is counted once."""

    def __init__(
        self,
        measurement: Measurement,
        *,
        evaluator: BackgroundEvaluator,
        instruments: InstrumentSink,
        sinks: Sequence[Sink] = (),
        admission: Admission | None = None,
        metadata_keys: Sequence[str] = (),
        edge: Callable[[str], Edge],
    ) -> None:
        """Score with ``measurement``; ``edge(place)`` guards the calls to sinks.

        ``metadata_keys``: what of a turn's metadata is told with its scores.
        """
        self._measurement = measurement
        self.evaluator = evaluator
        self.instruments = instruments
        self.sinks = (*sinks, instruments)
        self._admission = admission or Admission()
        self._metadata_keys = metadata_keys
        self._recent = RecentTurns()
        self._edge = edge("evaluation")
        self._sink_edge = edge("sink")
        self._logged: set[str | None] = set()

    def admission(self, trace_id: int) -> SkipReason | None:
        """Return why a turn of this trace is not evaluated, and count it; None admits it."""
        refusal = None if self._admission.takes_all else self._admission.refuse(trace_id)
        if refusal is not None:
            self.instruments.turn("skipped", refusal)
        return refusal

    def refuse(self, reason: SkipReason) -> None:
        """Count a turn that is not evaluated, and log each reason once."""
        self.instruments.turn("skipped", reason)
        if reason not in self._logged and reason not in _ON_PURPOSE:
            self._logged.add(reason)
            _log.warning(
                "a RAG turn is not scored: %s; docs/doctor.md says what to do (logged once)", reason
            )

    def refuse_steps(self, steps: Sequence[Step]) -> SkipReason | None:
        """Count steps that are no turn, if they might have been one.

        Return the reason, if a span should say it: a plain chat is only counted.
        """
        reason = why_none(steps)
        if reason is None:
            return None
        if reason == "no_retrieval" and not any(step.explicit for step in steps):
            self.instruments.turn("skipped", reason)
            return None
        self.refuse(reason)
        return reason

    def submit(self, turn: Turn, span: SpanContext, *, ended: int, done: Done) -> bool:
        """Evaluate ``turn``, which ended at ``ended`` ns; False, counted, where there's no room."""
        taken = self.evaluator.submit(_Scoring(self, turn, span, ended, done))
        if not taken:
            self.drop("shutdown" if self.evaluator.is_closed else "overload")
        return taken

    def drop(self, reason: DropReason) -> None:
        """Count a turn for which there was no room, or nobody any more."""
        self.instruments.turn("dropped", reason)

    def close(self, timeout: float = 0.0) -> None:
        """Take no more turns; give up those that are not through after ``timeout`` seconds."""
        self.evaluator.shutdown(timeout)

    def _log_failures(self, evaluation: Evaluation) -> None:
        """Say once for each reason that scores are failing; the counters say how often."""
        if evaluation.is_useless and (key := f"unscored {evaluation.reason}") not in self._logged:
            self._logged.add(key)
            _log.warning(
                "the judge %s answers, but no metric can use what it says (%s); said once",
                evaluation.judge or self._measurement.judge.model,
                evaluation.reason,
            )
        for score in evaluation.scores:
            if score.status == "error" and score.reason not in self._logged:
                self._logged.add(score.reason)
                told = score.detail.get("error", "no details")
                _log.warning("scores are failing (%s): %s; said once", score.reason, told)

    def count_given_up(self, why: GivenUp) -> None:
        """Count a turn that a shutdown has cancelled, or that failed past all edges."""
        if why == "shutdown":
            self.instruments.turn("dropped", "shutdown")
        else:
            self.instruments.turn("error", "internal")

    async def score(self, turn: Turn, span: SpanContext, *, ended: int) -> Ending:
        """Evaluate ``turn``, tell the sinks, and return what its span should say."""
        ref = SpanRef(
            trace_id=span.trace_id, span_id=span.span_id, trace_flags=int(span.trace_flags)
        )
        result = await self._evaluation(turn, ref, ended=ended)
        if not isinstance(result, Evaluation):
            self.refuse(result)
            return Ending("skipped", result)
        return replace(self._told(result), contexts=turn.contexts_source)

    async def _evaluation(
        self, turn: Turn, span: SpanRef, *, ended: int
    ) -> Evaluation | SkipReason:
        with self._edge:
            if turn.is_whole:
                self.instruments.tally.add("source", "callback")
            sample = extract(turn)
            if not isinstance(sample, Sample):
                return sample
            if self._recent.is_repeated(sample, turn):
                return "duplicate"
            evaluation = await self._measurement.of(sample)
            whose = about(_metadata(turn), self._metadata_keys)
            return replace(
                evaluation,
                span=span,
                lag=_seconds_since(ended),
                about=whose,
                answer_length=len(sample.answer),
            )
        return failed_evaluation(self._measurement.metrics, "internal")

    def _told(self, result: Evaluation) -> Ending:
        """Tell the sinks of ``result``."""
        self._log_failures(result)
        shown = replace(result, question_embedding=None)  # it gives away what was asked
        for sink in self.sinks:
            with self._sink_edge:
                sees_embedding = getattr(sink, "takes_question_embeddings", False)
                sink.emit(result if sees_embedding else shown)
        reason = shown.reason if shown.status == "unscored" else None
        return Ending(shown.status, reason, evaluation=shown)


@dataclass(slots=True, eq=False)  # not frozen: that costs the application a microsecond
class _Scoring:
    """One turn on its way through the evaluator."""

    scorer: TurnScorer
    turn: Turn
    span: SpanContext
    ended: int
    done: Done

    @property
    def size(self) -> int:
        return self.turn.size

    def begin(self) -> None:
        """Nothing can be done without the judge."""

    async def run(self) -> None:
        self.done(await self.scorer.score(self.turn, self.span, ended=self.ended))

    def give_up(self, why: GivenUp) -> None:
        self.scorer.count_given_up(why)
        self.done(Ending(why))


def _metadata(turn: Turn) -> Iterator[Mapping[str, Any]]:
    for step in (*turn.line, *turn.calls, *turn.retrievers):
        yield step.metadata


def _seconds_since(ended: int) -> float:
    return max(0.0, (time.time_ns() - ended) / 1e9)


_SAME = 64  # turns remembered in which the same was asked and answered

_Seen: TypeAlias = "tuple[str, int, int]"
"""Who recorded it, and when it began and ended."""


class RecentTurns:
    """The last turns, by what was asked and answered.

    The callback handler and an instrumentation, or two instrumentations, may both record what an
    application does. Of two records of one turn the first counts. Two requests for the same at
    once, both recorded by one of them, are two turns.
    """

    def __init__(self, max_turns: int = 1024) -> None:
        """Remember at most ``max_turns``."""
        self._max = max_turns
        self._seen: OrderedDict[int, deque[_Seen]] = OrderedDict()

    def is_repeated(self, sample: Sample, turn: Turn) -> bool:
        """Tell whether ``turn``, with this ``sample``, was recorded by somebody else before."""
        key = hash((sample.question, sample.answer))
        steps = (step for step in reversed(turn.line) if step.kind != "other")
        outermost = next(steps, turn.anchor)  # of what they recorded; around it may be a session
        seen = (outermost.source, outermost.start, outermost.end or time.time_ns())
        others = self._seen.setdefault(key, deque(maxlen=_SAME))
        self._seen.move_to_end(key)
        repeated = next((other for other in others if _is_other_record(seen, other)), None)
        if repeated is not None:
            others.remove(repeated)
            return True
        others.append(seen)
        while len(self._seen) > self._max:
            self._seen.popitem(last=False)
        return False


def _is_other_record(one: _Seen, other: _Seen) -> bool:
    """Tell whether two makers recorded what went on at the same time."""
    return one[0] != other[0] and one[1] <= other[2] and other[1] <= one[2]


def build_measurement(config: Config) -> Measurement:
    """Return the metrics, judge and embedder that ``config`` asks for."""
    watched = config.drift == "on" or getattr(config.drift, "questions", 0) > 0
    metrics = with_thresholds(resolve_metrics(config.metrics), config.thresholds)
    return Measurement(
        metrics=metrics,
        judge=build_judge(config),
        embedder=build_embedder(config),
        fusion=config.fusion,
        explanations=config.explanations,
        timeout=config.evaluation_timeout,
        cache=ReplyCache(),
        redactor=redactor(config.redact),
        embedding="keep" if watched else "drop",
        label_metrics=chosen_labelling(metrics, config.label_metrics),
        prompts=load_prompts(config.prompts) if config.prompts else BUILT_IN,
    )
