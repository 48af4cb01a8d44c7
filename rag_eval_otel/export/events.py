"""Emit scores, alarms of drift detection and new baselines as OpenTelemetry events.

The event of a score is called ``gen_ai.evaluation.result``. It is a log record with the context of
the evaluated span, or an event on this span. Alarms and baselines are log records. The logs API of
OpenTelemetry is private (``opentelemetry._logs``), so only this module and `runtime.providers` use
it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from opentelemetry import _logs
from opentelemetry.sdk.trace import Event, ReadableSpan

from rag_eval_otel import semconv
from rag_eval_otel.config import ScoreEvents
from rag_eval_otel.drift.monitor import Drift, NewBaseline
from rag_eval_otel.export.attributes import (
    MAX_EXPLANATION,
    enrich,
    exportable_attributes,
    score_attributes,
    span_context,
    spent,
)
from rag_eval_otel.types import Ending, Evaluation, Feedback, Score, SpanRef

if TYPE_CHECKING:
    from opentelemetry.trace import Span
    from opentelemetry.util.types import AttributeValue


class EventSink:
    """Emit one ``gen_ai.evaluation.result`` event for each score of an evaluation, or feedback.

    The event is emitted even if the evaluated span was exported before the score was known.
    """

    def __init__(
        self,
        logger_provider: _logs.LoggerProvider | None = None,
        *,
        explanations: bool = False,
    ) -> None:
        provider = logger_provider or _logs.get_logger_provider()
        self._logger = provider.get_logger(
            semconv.SCOPE, semconv.VERSION, schema_url=semconv.GEN_AI_SCHEMA_URL
        )
        self._explanations = explanations

    def __call__(self, evaluation: Evaluation) -> None:
        if evaluation.offline is not None:
            self(evaluation.offline)
        context = span_context(evaluation.span)
        for score in evaluation.scores:
            self._logger.emit(
                event_name=semconv.EVALUATION_EVENT,
                context=context,
                severity_number=_logs.SeverityNumber.INFO,
                attributes=exportable_attributes(
                    _attributes(score, evaluation, explanations=self._explanations)
                ),
            )

    def emit_feedback(self, feedback: Feedback) -> None:
        """Emit the feedback of a person, in the context of the rated span or of its trace."""
        rated = SpanRef(trace_id=feedback.trace_id, span_id=feedback.span_id or 0)
        self._logger.emit(
            event_name=semconv.EVALUATION_EVENT,
            context=span_context(rated),
            severity_number=_logs.SeverityNumber.INFO,
            attributes=exportable_attributes(_of_feedback(feedback)),
        )


def _of_feedback(feedback: Feedback) -> Iterator[tuple[str, AttributeValue]]:
    yield semconv.GEN_AI_EVALUATION_NAME, feedback.name
    yield semconv.GEN_AI_EVALUATION_SCORE_VALUE, feedback.score
    yield semconv.GEN_AI_EVALUATION_SCORE_LABEL, feedback.label or ""
    yield semconv.EVALUATION_ANNOTATOR, semconv.HUMAN
    if feedback.comment:
        yield semconv.GEN_AI_EVALUATION_EXPLANATION, feedback.comment[:MAX_EXPLANATION]


def _attributes(
    score: Score, evaluation: Evaluation, *, explanations: bool
) -> Iterator[tuple[str, AttributeValue]]:
    yield from evaluation.about.items()
    yield semconv.GEN_AI_EVALUATION_NAME, score.name
    if score.value is not None:
        yield semconv.GEN_AI_EVALUATION_SCORE_VALUE, score.value
    if score.label is not None:
        yield semconv.GEN_AI_EVALUATION_SCORE_LABEL, score.label
    if score.threshold is not None:
        yield semconv.EVALUATION_THRESHOLD, float(score.threshold)
    if score.status == "error" and score.reason is not None:
        yield semconv.ERROR_TYPE, score.reason
    if score.reason is not None:
        yield semconv.EVALUATION_REASON, score.reason
    if score.version:
        yield semconv.EVALUATION_VERSION, score.version
    if evaluation.judge is not None:
        yield semconv.EVALUATION_JUDGE, evaluation.judge
    if evaluation.sampling is not None:
        probability = float(evaluation.sampling.probability)
        yield semconv.EVALUATION_SAMPLING_PROBABILITY, probability
    yield from spent(score.usage, score.cost, currency=evaluation.currency).items()
    if explanations and score.explanation:
        yield semconv.GEN_AI_EVALUATION_EXPLANATION, score.explanation[:MAX_EXPLANATION]


@dataclass(frozen=True, slots=True, kw_only=True)
class SpanScores:
    """Write the end of an evaluation on the span of its turn, a question and its answer.

    The status and the scores become attributes. Unless ``events`` is ``log``, each score also
    becomes an event of the span, for backends that take no log records. It does so, too, if
    ``has_logs()`` is false, because the application has no logger provider. ``explanations`` says
    whether the judge's reasons are included. ``clock`` returns the time of the events in ns.
    """

    explanations: bool = False
    events: ScoreEvents = "log"
    has_logs: Callable[[], bool] = lambda: True
    clock: Callable[[], int] = time.time_ns

    def copy(self, span: ReadableSpan, ending: Ending) -> ReadableSpan:
        """Return a copy of the ended ``span`` with the attributes and events of ``ending``."""
        added = score_attributes(ending, explanations=self.explanations)
        return enrich(span, added, events=self._events(ending))

    def write(self, span: Span, ending: Ending) -> None:
        """Add the attributes and events of ``ending`` to ``span``, which has not ended."""
        span.set_attributes(score_attributes(ending, explanations=self.explanations))
        for event in self._events(ending):
            span.add_event(event.name, event.attributes, event.timestamp)

    def _events(self, ending: Ending) -> Iterator[Event]:
        is_wanted = self.events != "log" or not self.has_logs()
        evaluation = ending.evaluation if is_wanted else None
        while evaluation is not None:
            for score in evaluation.scores:
                found = _attributes(score, evaluation, explanations=self.explanations)
                yield Event(semconv.EVALUATION_EVENT, exportable_attributes(found), self.clock())
            evaluation = evaluation.offline


class DriftEvents:
    """Emit a log event for each alarm of drift detection, and for each new baseline.

    The event of an alarm belongs to the trace of the answer with the worst score.
    """

    def __init__(self, logger_provider: _logs.LoggerProvider | None = None) -> None:
        provider = logger_provider or _logs.get_logger_provider()
        self._logger = provider.get_logger(
            semconv.SCOPE, semconv.VERSION, schema_url=semconv.GEN_AI_SCHEMA_URL
        )

    def drift(self, drift: Drift) -> None:
        """Emit the alarm ``drift`` as a log event, with a sentence about the alarm as body."""
        worst = drift.worst[0].span if drift.worst else None
        self._logger.emit(
            event_name=semconv.DRIFT_EVENT,
            context=span_context(worst),
            severity_number=_logs.SeverityNumber.WARN,
            body=str(drift),
            attributes=exportable_attributes(_drift_attributes(drift)),
        )

    def new_baseline(self, found: NewBaseline) -> None:
        stream = found.stream
        self._logger.emit(
            event_name=semconv.BASELINE_EVENT,
            context=span_context(None),
            severity_number=_logs.SeverityNumber.INFO,
            body=f"{stream.name} is another measurement: its baseline is learned anew",
            attributes=exportable_attributes(
                [
                    (semconv.GEN_AI_EVALUATION_NAME, stream.name),
                    (semconv.EVALUATION_VERSION, stream.version),
                    (f"{semconv.EVALUATION_VERSION}.previous", found.previous),
                ]
            ),
        )


def _drift_attributes(drift: Drift) -> Iterator[tuple[str, AttributeValue]]:
    alarm, prefix = drift.alarm, semconv.DRIFT_PREFIX
    yield semconv.GEN_AI_EVALUATION_NAME, drift.stream.name
    yield semconv.EVALUATION_VERSION, drift.stream.version
    yield semconv.DRIFT_DIRECTION, alarm.direction
    yield semconv.DRIFT_CAUSE, drift.cause
    yield f"{prefix}.before", alarm.before
    yield f"{prefix}.after", alarm.after
    yield f"{prefix}.change", alarm.change
    yield f"{prefix}.change_low", alarm.interval[0]
    yield f"{prefix}.change_high", alarm.interval[1]
    yield f"{prefix}.scores_since_onset", alarm.n
    yield semconv.DRIFT_EVIDENCE, alarm.log10_evidence
    ids = [f"{turn.span.trace_id:032x}" for turn in drift.worst if turn.span is not None]
    if ids:
        yield f"{prefix}.worst_traces", ids
