"""Write scores on spans and in events, and remove texts of users from spans before export.

A *turn* is one question of a user and its answer. An ended span cannot be changed, so functions
here return a changed copy of the span. The event of a score is called ``gen_ai.evaluation.result``.
It is a log record with the context of the evaluated span, or an event on this span. The logs API of
OpenTelemetry is private (``opentelemetry._logs``): only this module and `runtime.providers` use it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar

from opentelemetry import _logs
from opentelemetry.attributes import BoundedAttributes
from opentelemetry.context import Context
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.sdk.util import BoundedList
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, set_span_in_context

from rag_eval_otel import semconv
from rag_eval_otel.capture.conventions import Owner, convention_of, native, openinference, owner_of
from rag_eval_otel.capture.span import Span as SpanRecord
from rag_eval_otel.capture.span import attributes_of
from rag_eval_otel.capture.text import exportable
from rag_eval_otel.config import ExportContent, ScoreEvents
from rag_eval_otel.errors import RedactionError
from rag_eval_otel.redaction import Redactor
from rag_eval_otel.types import Ending, Evaluation, Feedback, Score, SpanRef, Usage

if TYPE_CHECKING:
    from opentelemetry.trace import Span
    from opentelemetry.util.types import AttributeValue


def span_context(ref: SpanRef | None) -> Context:
    """Return a context in which the span of ``ref``, which may have ended, is current."""
    if ref is None:
        return Context()
    span = SpanContext(
        ref.trace_id, ref.span_id, is_remote=False, trace_flags=TraceFlags(ref.trace_flags)
    )
    return set_span_in_context(NonRecordingSpan(span), Context())


T = TypeVar("T")

MAX_EXPLANATION = 1024  # characters


def score_attributes(ending: Ending, *, explanations: bool = False) -> dict[str, AttributeValue]:
    """Return the ``rag.evaluation.*`` attributes with the status and the scores of a turn.

    Explanations are cut to 1,024 characters. The attributes of scores by the offline judge of a
    cascade are called ``rag.evaluation.offline.<metric>.score`` etc.
    """
    found: dict[str, AttributeValue | None] = {
        semconv.EVALUATION_STATUS: ending.status,
        semconv.EVALUATION_REASON: ending.reason,
        semconv.EVALUATION_CONTEXTS_SOURCE: ending.contexts,
    }
    for feedback in ending.feedback:
        found |= feedback_attributes(feedback)
    evaluation = ending.evaluation
    if evaluation is not None:
        found[semconv.EVALUATION_LABEL] = evaluation.label
        found[semconv.EVALUATION_JUDGE] = evaluation.judge
        found[semconv.EVALUATION_DURATION] = float(evaluation.duration)
        for key, remark in _REMARKS.items():
            found[key] = any(remark in score.detail for score in evaluation.scores) or None
        found |= spent(evaluation.usage, evaluation.cost, currency=evaluation.currency)
        if evaluation.sampling is not None:
            probability = float(evaluation.sampling.probability)
            found[semconv.EVALUATION_SAMPLING_PROBABILITY] = probability
            found[semconv.EVALUATION_SAMPLING_TARGETED] = evaluation.sampling.is_targeted or None
        is_offline = evaluation.sampling is not None and evaluation.sampling.stage == "offline"
        offline = evaluation if is_offline else evaluation.offline
        for score in offline.scores if offline is not None else ():
            found.update(_leaves(replace(score, name=f"{semconv.OFFLINE}.{score.name}")))
        for score in () if is_offline else evaluation.scores:
            found.update(_leaves(score))
            if explanations and score.explanation:
                key = semconv.metric_attribute(score.name, semconv.LEAF_EXPLANATION)
                found[key] = score.explanation[:MAX_EXPLANATION]
    return exportable_attributes((k, value) for k, value in found.items() if value is not None)


def feedback_attributes(feedback: Feedback) -> dict[str, AttributeValue]:
    """Return the attributes of ``feedback`` for the span of its turn, without the comment."""
    name = feedback.name
    return {
        semconv.feedback_attribute(name, semconv.LEAF_SCORE): feedback.score,
        semconv.feedback_attribute(name, semconv.LEAF_LABEL): feedback.label or "",
    }


_REMARKS: Mapping[str, str] = {
    semconv.EVALUATION_SUSPECTED: "injection",
    semconv.EVALUATION_TRUNCATED: "truncated",
}
"""Attributes that are true if a score has an entry in its details, and the name of the entry."""


def spent(usage: Usage, cost: float | None, *, currency: str) -> dict[str, AttributeValue]:
    """Return attributes with the tokens in ``usage``, and with their ``cost`` if it is known."""
    found: dict[str, AttributeValue] = {}
    if usage.tokens:
        found[semconv.EVALUATION_TOKENS] = usage.tokens
    if cost is not None:
        found |= {semconv.EVALUATION_COST: float(cost), semconv.EVALUATION_CURRENCY: currency}
    return found


def _leaves(score: Score) -> Iterator[tuple[str, AttributeValue | None]]:
    normalized = None if score.normalized is None else float(score.normalized)
    threshold = None if score.threshold is None else float(score.threshold)
    for leaf, value in (
        (semconv.LEAF_SCORE, score.value),
        (semconv.LEAF_NORMALIZED_SCORE, normalized),
        (semconv.LEAF_LABEL, score.label),
        (semconv.LEAF_THRESHOLD, threshold),
        (semconv.LEAF_REASON, score.reason),
        (semconv.LEAF_VERSION, score.version or None),
        (semconv.LEAF_TOKENS, score.usage.tokens or None),
        (semconv.LEAF_COST, score.cost),
    ):
        yield semconv.metric_attribute(score.name, leaf), value


def exportable_attributes(
    attributes: Iterable[tuple[str, AttributeValue]],
) -> dict[str, AttributeValue]:
    """Return ``attributes`` as a dict, in which names of users can be encoded as UTF-8."""
    return {k: exportable(value) if isinstance(value, str) else value for k, value in attributes}


def copied(
    span: ReadableSpan, *, attributes: Mapping[str, AttributeValue], events: Sequence[Event]
) -> ReadableSpan:
    """Return a copy of ``span`` in which ``attributes`` and ``events`` replace those of the span.

    The copy has no limit on the number of attributes, because at the limit the SDK would drop the
    oldest, and keeps the counts of dropped attributes, events and links. A span that is not the
    SDK's makes its copy itself, by a method ``with_content(attributes, events)``.
    """
    make = getattr(span, "with_content", None)
    if make is not None:
        made: ReadableSpan = make(attributes, events)
        return made
    return ReadableSpan(
        name=span.name,
        context=span.context,
        parent=span.parent,
        resource=span.resource,
        attributes=bounded(attributes, span.dropped_attributes),
        events=_counted(events, span.dropped_events),
        links=_counted(span.links, span.dropped_links),
        kind=span.kind,
        status=span.status,
        start_time=span.start_time,
        end_time=span.end_time,
        instrumentation_scope=span.instrumentation_scope,
    )


def bounded(attributes: Mapping[str, AttributeValue], dropped: int) -> Mapping[str, AttributeValue]:
    """Return ``attributes`` with the number ``dropped`` at a limit, which exporters read."""
    if not dropped:  # for a plain dict, the SDK counts none as dropped and checks no value again
        return attributes
    found = BoundedAttributes(None, dict(attributes), immutable=False)
    found.dropped = dropped
    return found


def _counted(items: Sequence[T], dropped: int) -> Sequence[T]:
    if not dropped:
        return items
    bounded: BoundedList[T] = BoundedList.from_seq(None, items)
    bounded.dropped = dropped
    return bounded


Handling: TypeAlias = Literal["keep", "drop", "redact"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ContentFilter:
    """Remove or redact texts in the attributes of spans and of their events before export.

    The name of an attribute decides whether it contains a text, and who wrote it: other
    instrumentations (``foreign``) or the ``record_...()`` functions (``own``), whose texts pass
    ``redactor``. Spans that this library created were written by the same options. A span that only
    the ``record_...()`` functions describe gets OpenInference's attributes, if ``conventions`` asks
    for them.
    """

    exported: ExportContent = "foreign"
    redactor: Redactor = Redactor()  # noqa: RUF009  # frozen

    def shown(self, span: ReadableSpan) -> ReadableSpan:
        """Return ``span``, or a copy without the texts that must not be exported."""
        scope = span.instrumentation_scope
        if scope is not None and scope.name == semconv.SCOPE:
            return span
        names = attributes_of(span)
        # A span limit may have dropped the attribute that says that events have texts of ours.
        may_have_own = span.dropped_attributes or not native.PARTS.keys().isdisjoint(names)
        if self.exported != "none" and not may_have_own:
            return span
        events = [self._event(event) for event in span.events]
        attributes = self._filtered(span.attributes or {}) if any(map(owner_of, names)) else None
        kept = dict(span.attributes or {}) if attributes is None else attributes
        added = self._by_openinference(span, kept)
        if attributes is None and not any(events) and not added:
            return span
        return copied(
            span,
            attributes={**added, **kept},
            events=[new or old for new, old in zip(events, span.events, strict=True)],
        )

    def _by_openinference(self, span: ReadableSpan, kept: Mapping[str, Any]) -> dict[str, Any]:
        """Return the OpenInference attributes of a span that no other instrumentation describes."""
        names = native.PARTS.keys() & attributes_of(span).keys()
        if not names or convention_of(SpanRecord.from_sdk(span)) != "native":
            return {}
        is_turn = not names.isdisjoint({semconv.QUESTION, semconv.ANSWER})
        found = {
            **openinference.described("chain" if is_turn else "retriever"),
            **openinference.texts(asked=kept.get(semconv.QUESTION), told=kept.get(semconv.ANSWER)),
        }
        return {name: value for name, value in found.items() if value is not None}

    def bare(self, span: ReadableSpan) -> ReadableSpan:
        """Return a copy of ``span`` without attributes and events, in case `shown` fails."""
        return copied(span, attributes={}, events=())

    def _event(self, event: Event) -> Event | None:
        left = self._filtered(event.attributes or {}, event.name)
        if left is None:
            return None
        dropped = getattr(event.attributes, "dropped", 0)
        return Event(event.name, bounded(left, dropped), event.timestamp)

    def _filtered(
        self, attributes: Mapping[str, Any], event: str | None = None
    ) -> dict[str, Any] | None:
        """Return the ``attributes`` of a span or ``event`` without texts; None if all stay."""
        handling = {name: self._handling(owner_of(name, event)) for name in attributes}
        if all(each == "keep" for each in handling.values()):
            return None
        kept: dict[str, Any] = {}
        for name, value in attributes.items():
            with suppress(RedactionError):  # a text that cannot be redacted is not exported
                if handling[name] != "drop":
                    is_kept = handling[name] == "keep"
                    kept[name] = value if is_kept else self._redacted(name, value)
        return kept

    def _redacted(self, name: str, value: Any) -> Any:
        """Redact the value of the attribute ``name``, as JSON if it is a list, else as text."""
        if isinstance(value, str) and name not in native.LISTS:
            return self.redactor.text(value)
        return self.redactor.value(value)

    def _handling(self, owner: Owner | None) -> Handling:
        if owner == "own":
            kept: Handling = "redact" if self.redactor else "keep"
            return kept if self.exported == "all" else "drop"
        return "drop" if owner == "foreign" and self.exported == "none" else "keep"


# --- events ---------------------------------------------------------------------------------------


class EventLog:
    """Emits events as log records, by default to the global logger provider."""

    def __init__(self, logger_provider: _logs.LoggerProvider | None = None) -> None:
        provider = logger_provider or _logs.get_logger_provider()
        self._logger = provider.get_logger(
            semconv.SCOPE, semconv.VERSION, schema_url=semconv.GEN_AI_SCHEMA_URL
        )

    def emit(
        self,
        name: str,
        attributes: Iterable[tuple[str, AttributeValue]],
        *,
        span: SpanRef | None,
        body: str | None = None,
        is_warning: bool = False,
    ) -> None:
        """Emit the event ``name`` in the context of ``span``, which may have ended."""
        severity = _logs.SeverityNumber.WARN if is_warning else _logs.SeverityNumber.INFO
        self._logger.emit(
            event_name=name,
            context=span_context(span),
            severity_number=severity,
            body=body,
            attributes=exportable_attributes(attributes),
        )


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
        self._log = EventLog(logger_provider)
        self._explanations = explanations

    def __call__(self, evaluation: Evaluation) -> None:
        if evaluation.offline is not None:
            self(evaluation.offline)
        for score in evaluation.scores:
            found = _of_score(score, evaluation, explanations=self._explanations)
            self._log.emit(semconv.EVALUATION_EVENT, found, span=evaluation.span)

    def emit_feedback(self, feedback: Feedback) -> None:
        """Emit the feedback of a person, in the context of the rated span or of its trace."""
        rated = SpanRef(trace_id=feedback.trace_id, span_id=feedback.span_id or 0)
        self._log.emit(semconv.EVALUATION_EVENT, _of_feedback(feedback), span=rated)


def _of_feedback(feedback: Feedback) -> Iterator[tuple[str, AttributeValue]]:
    yield semconv.GEN_AI_EVALUATION_NAME, feedback.name
    yield semconv.GEN_AI_EVALUATION_SCORE_VALUE, feedback.score
    yield semconv.GEN_AI_EVALUATION_SCORE_LABEL, feedback.label or ""
    yield semconv.EVALUATION_ANNOTATOR, semconv.HUMAN
    if feedback.comment:
        yield semconv.GEN_AI_EVALUATION_EXPLANATION, feedback.comment[:MAX_EXPLANATION]


def _of_score(
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
    """Write the end of an evaluation on the span of its turn.

    The status and the scores become attributes. Unless ``events`` is ``log`` and ``has_logs()``,
    because the application has a logger provider, each score also becomes an event of the span.
    ``clock`` returns the time of the events in ns.
    """

    explanations: bool = False
    events: ScoreEvents = "log"
    has_logs: Callable[[], bool] = lambda: True
    clock: Callable[[], int] = time.time_ns

    def copy(self, span: ReadableSpan, ending: Ending) -> ReadableSpan:
        """Return a copy of the ended ``span`` with the attributes and events of ``ending``."""
        added = score_attributes(ending, explanations=self.explanations)
        attributes, events = {**(span.attributes or {}), **added}, self._events(ending)
        return copied(span, attributes=attributes, events=[*span.events, *events])

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
                found = _of_score(score, evaluation, explanations=self.explanations)
                yield Event(semconv.EVALUATION_EVENT, exportable_attributes(found), self.clock())
            evaluation = evaluation.offline
