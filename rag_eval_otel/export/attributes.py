"""Write scores on spans and in events, and remove texts of users from copies of ended spans."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from opentelemetry import _logs
from opentelemetry.attributes import BoundedAttributes
from opentelemetry.context import Context
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.sdk.util import BoundedList
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, set_span_in_context

from rag_eval_otel import semconv
from rag_eval_otel.capture.conventions import convention_of, native, openinference, owner_of
from rag_eval_otel.capture.span import Span as SpanRecord
from rag_eval_otel.capture.span import attributes_of, limits_of
from rag_eval_otel.config import ExportContent, ScoreAttributes, ScoreEvents
from rag_eval_otel.errors import RedactionError
from rag_eval_otel.export.backends.annotation import (
    MAX_EXPLANATION,
    OVERALL,
    Annotation,
    exportable_attributes,
    openinference_object,
    score_annotation,
)
from rag_eval_otel.types import Ending, Evaluation, Feedback, Score, SpanRef, Usage
from rag_eval_otel.untrusted import Redactor

if TYPE_CHECKING:
    from opentelemetry.trace import Span
    from opentelemetry.util.types import AttributeValue


def span_context(ref: SpanRef | None) -> Context:
    """Return a context whose current span has the ids of ``ref``; an empty one for None."""
    if ref is None:
        return Context()
    span = SpanContext(
        ref.trace_id, ref.span_id, is_remote=False, trace_flags=TraceFlags(ref.trace_flags)
    )
    return set_span_in_context(NonRecordingSpan(span), Context())


T = TypeVar("T")
_Optional: TypeAlias = "Mapping[str, AttributeValue | None]"
_Part: TypeAlias = "dict[str, AttributeValue] | Annotation"

_NUMBERED = re.compile(r"evaluations\.(\d{1,9})\.evaluation\.")
_SEARCHES = (semconv.EVALUATION_SEARCHES, semconv.EVALUATION_REPEATED, semconv.EVALUATION_EMPTY)


def _merged(parts: Iterable[_Part], present: Iterable[str]) -> dict[str, AttributeValue]:
    """Return ``parts`` as one dict; OpenInference's objects get indices not in ``present``."""
    attributes: dict[str, AttributeValue] = {}
    scores, labels = list[Annotation](), list[Annotation]()  # those of the turn are the last
    for part in parts:
        if isinstance(part, Annotation):
            (labels if part.value is None else scores).append(part)
        else:
            attributes |= part
    for number, each in enumerate((*scores, *labels), _first_free(present)):
        attributes |= openinference_object(each, number)
    return attributes


def _first_free(names: Iterable[str]) -> int:
    """Return the index after the highest of ``evaluations.<i>`` in ``names``, by other writers."""
    numbers = [int(match[1]) for match in map(_NUMBERED.match, names) if match]
    return 1 + max(numbers, default=-1)


def _with_room(parts: Sequence[_Part], present: Mapping[str, Any], room: int) -> Sequence[_Part]:
    """Return the first of ``parts``, which add at most ``room`` names to those ``present``.

    So the last score is left out first: its OpenInference object, then its other attributes.
    """
    for i, part in enumerate(parts):
        if isinstance(part, Annotation):
            room -= len(openinference_object(part, 0))
        else:
            room -= len(part.keys() - present.keys())
        if room < 0:
            return parts[:i]
    return parts


def _labels(evaluation: Evaluation) -> dict[str, str | None]:
    return {"outcome": evaluation.outcome, "cause": evaluation.cause}


def _of_turn(ending: Ending) -> _Optional:
    attributes: dict[str, AttributeValue | None] = {
        semconv.EVALUATION_STATUS: ending.status,
        semconv.EVALUATION_REASON: ending.reason,
        semconv.EVALUATION_CONTEXTS_SOURCE: ending.contexts,
        semconv.EVALUATION_OUTCOME: ending.outcome,
        **dict(zip(_SEARCHES, ending.searches or (), strict=False)),
    }
    evaluation = ending.evaluation
    if evaluation is not None:
        details = {key for score in evaluation.scores for key in score.detail}
        attributes |= {
            semconv.EVALUATION_LABEL: evaluation.label,
            semconv.EVALUATION_OUTCOME: evaluation.outcome,
            semconv.EVALUATION_CAUSE: evaluation.cause,
            semconv.EVALUATION_HISTORY: evaluation.messages or None,
            semconv.EVALUATION_REWRITTEN: evaluation.is_rewritten or None,
            **_evidence(evaluation),
            semconv.EVALUATION_JUDGE: evaluation.judge,
            semconv.EVALUATION_DURATION: float(evaluation.duration),
            semconv.EVALUATION_SUSPECTED: "injection" in details or None,
            semconv.EVALUATION_TRUNCATED: "truncated" in details or None,
            **_spent(evaluation.usage, evaluation.cost, evaluation.currency),
        }
        if evaluation.sampling is not None:
            attributes |= {
                semconv.EVALUATION_SAMPLING_PROBABILITY: float(evaluation.sampling.probability),
                semconv.EVALUATION_SAMPLING_TARGETED: evaluation.sampling.is_targeted or None,
            }
    return attributes


def feedback_attributes(feedback: Feedback) -> dict[str, AttributeValue]:
    """Return the span attributes with score and label of ``feedback``; the comment is not one."""
    name = feedback.name
    return {
        semconv.feedback_attribute(name, semconv.LEAF_SCORE): feedback.score,
        semconv.feedback_attribute(name, semconv.LEAF_LABEL): feedback.label or "",
    }


def _evidence(evaluation: Evaluation) -> _Optional:
    """Return the places of unsupported sentences and the counts of citations, without texts."""
    attributes: dict[str, AttributeValue | None] = {}
    for score in evaluation.scores:
        unsupported = score.unsupported
        if unsupported is not None and semconv.EVALUATION_UNSUPPORTED not in attributes:
            attributes[semconv.EVALUATION_UNSUPPORTED] = len(unsupported)
            attributes[semconv.EVALUATION_OFFSETS] = [*chain(*unsupported)] or None
        if score.name in {"citation_precision", "citation_recall"} and "invalid" in score.detail:
            attributes[semconv.EVALUATION_CITATIONS] = int(score.detail["citations"])
            attributes[semconv.EVALUATION_INVALID] = int(score.detail["invalid"])
    return attributes


def _spent(usage: Usage, cost: float | None, currency: str) -> _Optional:
    return {
        semconv.EVALUATION_TOKENS: usage.tokens or None,
        semconv.EVALUATION_COST: _float(cost),
        semconv.EVALUATION_CURRENCY: None if cost is None else currency,
    }


def _leaves(
    score: Score, name: str, *, form: ScoreAttributes, is_explained: bool
) -> dict[str, AttributeValue]:
    """Return the ``rag.evaluation.<name>.*`` attributes of ``score`` that ``form`` asks for."""
    leaf = partial(semconv.metric_attribute, name)
    has_value = form != "openinference"
    leaves: dict[str, AttributeValue | None] = {
        leaf(semconv.LEAF_SCORE): score.value if has_value else None,
        leaf(semconv.LEAF_LABEL): score.label if has_value else None,
        leaf(semconv.LEAF_REASON): score.reason if form == "rag" or score.value is None else None,
    }
    if form == "rag":
        text = (score.explanation or "")[:MAX_EXPLANATION] if is_explained else ""
        leaves |= {
            leaf(semconv.LEAF_NORMALIZED_SCORE): _float(score.normalized),
            leaf(semconv.LEAF_THRESHOLD): _float(score.threshold),
            leaf(semconv.LEAF_VERSION): score.version or None,
            leaf(semconv.LEAF_TOKENS): score.usage.tokens or None,
            leaf(semconv.LEAF_COST): score.cost,
            leaf(semconv.LEAF_EXPLANATION): text or None,
        }
    return exportable_attributes(leaves)


def _float(number: float | None) -> float | None:
    return None if number is None else float(number)


def copied(
    span: ReadableSpan, *, attributes: Mapping[str, AttributeValue], events: Sequence[Event]
) -> ReadableSpan:
    """Return a copy of ``span`` with these ``attributes`` and ``events``, whatever its limits."""
    return ReadableSpan(
        name=span.name,
        context=span.context,
        parent=span.parent,
        resource=span.resource,
        attributes=_bounded(attributes, span.dropped_attributes),
        events=_counted(events, span.dropped_events),
        links=_counted(span.links, span.dropped_links),
        kind=span.kind,
        status=span.status,
        start_time=span.start_time,
        end_time=span.end_time,
        instrumentation_scope=span.instrumentation_scope,
    )


def _bounded(
    attributes: Mapping[str, AttributeValue], dropped: int
) -> Mapping[str, AttributeValue]:
    """Return ``attributes`` with the count of attributes that the SDK ``dropped`` at a limit."""
    if not dropped:  # for a plain dict, the SDK counts none as dropped and checks no value again
        return attributes
    bounded = BoundedAttributes(None, dict(attributes), immutable=False)
    bounded.dropped = dropped
    return bounded


def _counted(items: Sequence[T], dropped: int) -> Sequence[T]:
    bounded: BoundedList[T] = BoundedList.from_seq(None, items)
    bounded.dropped = dropped
    return bounded if dropped else items


@dataclass(frozen=True, slots=True, kw_only=True)
class ContentFilter:
    """Remove or redact texts of users in the attributes of spans and of their events.

    By the name of the attribute, a text is ``foreign`` (of another instrumentation; exported as it
    is, or removed) or ``own`` (of ``record_...()``; redacted by ``redactor``).
    """

    exported: ExportContent = "foreign"
    redactor: Redactor = Redactor()  # noqa: RUF009  # frozen

    def shown(self, span: ReadableSpan) -> ReadableSpan:
        """Return ``span``, or a copy without the texts that must not be exported."""
        scope = span.instrumentation_scope
        if scope is not None and scope.name == semconv.SCOPE:  # written by the same options
            return span
        names = attributes_of(span)
        # A span limit may have dropped the attribute that says that events have texts of ours.
        may_have_own = span.dropped_attributes or not native.PARTS.keys().isdisjoint(names)
        if self.exported != "none" and not may_have_own:
            return span
        events = [self._event(event) for event in span.events]
        attributes = span.attributes or {}
        kept = self._filtered(attributes) if any(map(owner_of, names)) else attributes
        added = self._by_openinference(span, kept)
        is_same = kept is attributes or kept == attributes  # to compare the SDK's takes time
        if is_same and not added and events == [*span.events]:
            return span
        return copied(span, attributes={**added, **kept}, events=events)

    def _by_openinference(self, span: ReadableSpan, kept: Mapping[str, Any]) -> dict[str, Any]:
        """Return OpenInference attributes for a span that only ``record_...()`` has described."""
        names = native.PARTS.keys() & attributes_of(span).keys()
        if not names or convention_of(SpanRecord.from_sdk(span)) != "native":
            return {}
        is_turn = not names.isdisjoint({semconv.QUESTION, semconv.ANSWER})
        found = {
            **openinference.described("chain" if is_turn else "retriever"),
            **openinference.texts(asked=kept.get(semconv.QUESTION), told=kept.get(semconv.ANSWER)),
        }
        return {name: value for name, value in found.items() if value is not None}

    def _event(self, event: Event) -> Event:
        left = self._filtered(event.attributes or {}, event.name)
        if left == (event.attributes or {}):
            return event
        dropped = getattr(event.attributes, "dropped", 0)
        return Event(event.name, _bounded(left, dropped), event.timestamp)

    def _filtered(self, attributes: Mapping[str, Any], event: str | None = None) -> dict[str, Any]:
        """Return ``attributes`` of a span or ``event`` as they are exported."""
        kept: dict[str, Any] = {}
        for name, value in attributes.items():
            owner = owner_of(name, event)
            place, _, member = name.rpartition(".")
            writer = attributes.get(f"{place}.identifier")
            is_ours = semconv.EVALUATION_VERSION in attributes if event else writer == semconv.SCOPE
            if is_ours and member in {"explanation", "metadata"}:
                owner = None  # of a score by this library, which explains it only if it may
            is_own = owner == "own"
            is_dropped = self.exported != "all" if is_own else owner and self.exported == "none"
            is_text = isinstance(value, str) and name not in native.LISTS  # else perhaps JSON
            clean = self.redactor.text if is_text else self.redactor.value
            with suppress(RedactionError):  # a text that cannot be redacted is not exported
                if not is_dropped:
                    kept[name] = clean(value) if is_own and self.redactor else value
        return kept


class EventLog:
    """Emits events as log records of ``logger_provider``, by default the global one."""

    def __init__(self, logger_provider: _logs.LoggerProvider | None = None) -> None:
        provider = logger_provider or _logs.get_logger_provider()
        self._logger = provider.get_logger(
            semconv.SCOPE, semconv.VERSION, schema_url=semconv.GEN_AI_SCHEMA_URL
        )

    def emit(
        self,
        name: str,
        attributes: _Optional,
        *,
        span: SpanRef | None,
        body: str | None = None,
        is_warning: bool = False,
    ) -> None:
        """Emit the event ``name`` with the trace and span id of ``span``, which may have ended."""
        severity = _logs.SeverityNumber.WARN if is_warning else _logs.SeverityNumber.INFO
        self._logger.emit(
            event_name=name,
            timestamp=time.time_ns(),
            context=span_context(span),
            severity_number=severity,
            body=body,
            attributes=exportable_attributes(attributes),
        )


class EventSink:
    """A sink of ``gen_ai.evaluation.result`` events: scores, outcome, cause and feedback."""

    def __init__(
        self, logger_provider: _logs.LoggerProvider | None = None, *, explanations: bool = False
    ) -> None:
        self._log = EventLog(logger_provider)
        self._explanations = explanations

    def __call__(self, evaluation: Evaluation) -> None:
        for result in _results(evaluation, explanations=self._explanations):
            self._log.emit(semconv.EVALUATION_EVENT, result, span=evaluation.span)

    def emit_feedback(self, feedback: Feedback) -> None:
        """Emit an event with the ids of the rated span, or of its trace if only that is known."""
        attributes: _Optional = {
            semconv.GEN_AI_EVALUATION_NAME: feedback.name,
            semconv.GEN_AI_EVALUATION_SCORE_VALUE: feedback.score,
            semconv.GEN_AI_EVALUATION_SCORE_LABEL: feedback.label or "",
            semconv.EVALUATION_ANNOTATOR: semconv.HUMAN,
            semconv.GEN_AI_EVALUATION_EXPLANATION: (feedback.comment or "")[:MAX_EXPLANATION]
            or None,
        }
        self._log.emit(semconv.EVALUATION_EVENT, attributes, span=feedback.span)


def _results(evaluation: Evaluation, *, explanations: bool) -> list[_Optional]:
    """Return the attributes of an event for each score, and for outcome and cause."""
    results = [
        _of_score(score, judged, name=prefix + score.name, explanations=explanations)
        for prefix, judged in evaluation.judged
        for score in judged.scores
    ]
    for name, label in _labels(evaluation).items():
        if label is not None:
            attributes = {
                **evaluation.about,
                semconv.GEN_AI_EVALUATION_NAME: name,
                semconv.GEN_AI_EVALUATION_SCORE_LABEL: label,
                semconv.EVALUATION_JUDGE: evaluation.judge,
            }
            results.append(attributes)
    return results


def _of_score(score: Score, evaluation: Evaluation, *, name: str, explanations: bool) -> _Optional:
    probability = None if evaluation.sampling is None else evaluation.sampling.probability
    text = (score.explanation or "")[:MAX_EXPLANATION] if explanations else ""
    return {
        **evaluation.about,
        semconv.GEN_AI_EVALUATION_NAME: name,
        semconv.GEN_AI_EVALUATION_SCORE_VALUE: score.value,
        semconv.GEN_AI_EVALUATION_SCORE_LABEL: score.label,
        semconv.EVALUATION_NORMALIZED: _float(score.normalized),
        semconv.EVALUATION_THRESHOLD: _float(score.threshold),
        semconv.ERROR_TYPE: score.reason if score.status == "error" else None,
        semconv.EVALUATION_REASON: score.reason,
        semconv.EVALUATION_VERSION: score.version or None,
        semconv.EVALUATION_JUDGE: evaluation.judge,
        semconv.EVALUATION_SAMPLING_PROBABILITY: _float(probability),
        **_spent(score.usage, score.cost, evaluation.currency),
        semconv.GEN_AI_EVALUATION_EXPLANATION: text or None,
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class SpanScores:
    """Write the status and the scores of a turn on its span, as attributes and span events.

    ``has_logs()`` says whether the application has a logger provider, which gets the events.
    """

    explanations: bool = False
    form: ScoreAttributes = "both"
    events: ScoreEvents = "log"
    has_logs: Callable[[], bool] = lambda: True
    on_omitted: Callable[[int], object] = lambda _number: None  # attributes without room
    clock: Callable[[], int] = time.time_ns

    def copy(self, span: ReadableSpan, ending: Ending) -> ReadableSpan:
        """Return a copy of the ended ``span`` with the attributes and events of ``ending``."""
        present = dict(attributes_of(span))
        added = self.fitting(self.parts_of(ending), present, limits_of(span)[0])
        events = [*span.events, *self.events_of(ending)]
        return copied(span, attributes={**present, **added}, events=events)

    def write(self, span: Span, ending: Ending, parts: Sequence[_Part] | None = None) -> None:
        """Add attributes (``parts``, or else all of ``ending``) and events to the open ``span``."""
        if not span.is_recording():
            return
        most, length = limits_of(span)
        parts = self.parts_of(ending) if parts is None else parts
        present = dict(attributes_of(span))
        added = self.fitting(parts, present, most)
        if length is not None:  # JSON that is cut is none
            for name in [name for name in added if name.endswith(".metadata")]:
                if len(str(added[name])) > length:
                    del added[name]
        span.set_attributes(added)
        for attributes in self._results_of(ending):
            span.add_event(semconv.EVALUATION_EVENT, attributes, self.clock())

    def parts_of(self, ending: Ending) -> list[_Part]:
        """Return groups of attributes, and annotations, most important first, for `fitting`."""
        of_turn = exportable_attributes(_of_turn(ending))
        parts: list[_Part] = [{name: value} for name, value in of_turn.items()]
        parts += map(feedback_attributes, ending.feedback)
        evaluation = ending.evaluation
        if evaluation is None:
            return parts
        if self.form != "rag":
            labels = {OVERALL: evaluation.label, **_labels(evaluation)}
            parts += [
                Annotation(name=name, trace_id=0, span_id=None, label=label, kind="CODE")
                for name, label in labels.items()
                if label is not None
            ]
        for prefix, judged in evaluation.judged:
            for score in judged.scores:
                name, is_explained = prefix + score.name, self.explanations and not prefix
                if leaves := _leaves(score, name, form=self.form, is_explained=is_explained):
                    parts.append(leaves)
                if self.form != "rag" and score.value is not None:
                    parts.append(score_annotation(score, judged, name, is_explained=is_explained))
        return parts

    def fitting(
        self, parts: Sequence[_Part], present: Mapping[str, Any], limit: int | None
    ) -> dict[str, AttributeValue]:
        """Return the first ``parts`` that fit in ``limit`` beside ``present``; count the others."""
        whole = _merged(parts, present)
        if limit is None or len(present.keys() | whole.keys()) <= limit:
            return whole
        kept = _merged(_with_room(parts, present, limit - len(present)), present)
        self.on_omitted(len(whole) - len(kept))
        return kept

    def events_of(self, ending: Ending) -> list[Event]:
        """Return span events for scores, outcome and cause in ``ending``, if they are wanted."""
        name = semconv.EVALUATION_EVENT
        return [Event(name, each, self.clock()) for each in self._results_of(ending)]

    def _results_of(self, ending: Ending) -> list[dict[str, AttributeValue]]:
        evaluation = ending.evaluation
        if evaluation is None or (self.events == "log" and self.has_logs()):
            return []
        results = _results(evaluation, explanations=self.explanations)
        return [*map(exportable_attributes, results)]
