"""Read scores from OTLP JSON, in spans, log records and counters.

The file exporter of the OpenTelemetry Collector writes OTLP JSON. A *turn* is one question of a
user and its answer.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, get_args

from rag_eval_otel import semconv
from rag_eval_otel.results.rows import (
    CounterPoint,
    FeedbackRow,
    Row,
    ScoreRecord,
    UnscoredTurn,
    number,
    sampling_of,
    score_from_cells,
    text,
)
from rag_eval_otel.sampling import Sampling
from rag_eval_otel.types import ErrorReason, Evaluation, Sample, Score

SIGNALS = ("resourceSpans", "resourceLogs", "resourceMetrics")

_PREFIX = f"{semconv.METRIC_PREFIX}."
_OFFLINE = f"{semconv.OFFLINE}."
_SCORE = f".{semconv.LEAF_SCORE}"
_METRIC_LEAVES = (semconv.LEAF_SCORE, semconv.LEAF_REASON)
_FIELDS = {
    "value": semconv.LEAF_SCORE,
    "normalized": semconv.LEAF_NORMALIZED_SCORE,
    "label": semconv.LEAF_LABEL,
    "reason": semconv.LEAF_REASON,
    "version": semconv.LEAF_VERSION,
    "explanation": semconv.LEAF_EXPLANATION,
}
_ERRORS = frozenset(get_args(ErrorReason))
"""The values of the attribute ``reason`` of a score that mean that the score has failed."""

_CUMULATIVE = (2, "AGGREGATION_TEMPORALITY_CUMULATIVE")


@dataclass(slots=True)
class Turns:
    """Number the turns in a file, and remember which scores of each turn have been read.

    A turn is one question of a user and its answer. The scores of a turn may be on a span and also
    in events of that span.
    """

    count: int = 0
    _by_span: dict[tuple[str, str], int] = field(default_factory=dict)
    _read: set[tuple[int, str, str]] = field(default_factory=set)

    def new(self) -> int:
        self.count += 1
        return self.count - 1

    def of_span(self, trace: str, span: str) -> int:
        """Return the number of the turn whose scores are on a span of ``trace``.

        A turn is one question of a user and its answer. ``span`` is the id of the span. If ``span``
        is empty or new, a new turn is counted.
        """
        if not span:
            return self.new()
        if (trace, span) not in self._by_span:
            self._by_span[trace, span] = self.new()
        return self._by_span[trace, span]

    def is_first(self, turn: int, score: Score) -> bool:
        """Return True at the first call for ``score`` of the turn number ``turn``.

        A score may be on a span and also in an event. Later calls return False, so that the score
        is read once. Two judges may have scored a turn; the versions of their scores differ.
        """
        key = (turn, score.name, score.version)
        is_first = key not in self._read
        self._read.add(key)
        return is_first


def is_otlp(message: Mapping[str, Any]) -> bool:
    """Return True if ``message`` is an OTLP export request of traces, logs or metrics."""
    return any(signal in message for signal in SIGNALS)


def otlp_records(
    message: Mapping[str, Any], turns: Turns, *, metric: str | None = None
) -> Iterator[ScoreRecord]:
    """Yield the scores, unscored turns and counter points in ``message``, an OTLP export request.

    A score that is on a span and also in an event is yielded once. ``turns`` numbers the turns and
    is shared by all messages of a file. If ``metric`` is set, only the scores of this metric are
    yielded. Raises AttributeError, KeyError, TypeError or ValueError if ``message`` is not valid
    OTLP JSON.
    """
    for resource in message.get("resourceSpans", ()):
        for span in _parts(resource, "scopeSpans", name="spans"):
            yield from _span(span, turns, service=_service(resource), metric=metric)
    for resource in message.get("resourceLogs", ()):
        for record in _parts(resource, "scopeLogs", name="logRecords"):
            yield from _event(record, turns, service=_service(resource), metric=metric)
    for resource in message.get("resourceMetrics", ()):
        for each in _parts(resource, "scopeMetrics", name="metrics"):
            yield from _counter(each, json.dumps(resource.get("resource"), sort_keys=True))


def _parts(resource: Mapping[str, Any], scopes: str, *, name: str) -> Iterator[Mapping[str, Any]]:
    for scope in resource.get(scopes, ()):
        yield from scope.get(name, ())


def _service(resource: Mapping[str, Any]) -> str:
    return str(_attributes(resource.get("resource", {})).get("service.name", ""))


def _attributes(holder: Mapping[str, Any]) -> dict[str, Any]:
    return {each["key"]: _plain(each.get("value") or {}) for each in holder.get("attributes", ())}


def _plain(value: Mapping[str, Any]) -> Any:
    found: Any
    kind, found = next(iter(value.items()), ("", None))
    return int(found) if kind == "intValue" else found


def _seconds(nanoseconds: object) -> float | None:
    return int(str(nanoseconds)) / 1e9 if nanoseconds else None


# --- spans ----------------------------------------------------------------------------------------


def _span(
    span: Mapping[str, Any], turns: Turns, *, service: str, metric: str | None
) -> Iterator[ScoreRecord]:
    attributes = _attributes(span)
    names = _metrics(attributes)
    trace, span_id = str(span.get("traceId", "")), str(span.get("spanId", ""))
    if not names:
        status = text(attributes.get(semconv.EVALUATION_STATUS))
        if status is not None:
            yield UnscoredTurn(service=service, status=status, turn=f"{trace}/{span_id}")
        return
    turn = turns.of_span(trace, span_id)
    for evaluation in _evaluations(names, attributes):
        scores = tuple(
            score
            for score in evaluation.scores
            if metric in {None, score.name} and turns.is_first(turn, score)
        )
        if scores:
            yield Row(
                index=turn,
                evaluation=replace(evaluation, scores=scores),
                sample=Sample(question=text(attributes.get(semconv.QUESTION)) or ""),
                place=f"trace {trace}",
                time=_seconds(span.get("endTimeUnixNano")),
                service=service,
                trace=trace,
                span=span_id,
                turn=f"{trace}/{span_id}" if span_id else "",
            )


def _evaluations(names: list[str], attributes: Mapping[str, Any]) -> Iterator[Evaluation]:
    """Yield the scores on a span: those of the judge, and those of a cascade's first judge."""
    plain = [name for name in names if not name.startswith(_OFFLINE)]
    offline = [name.removeprefix(_OFFLINE) for name in names if name.startswith(_OFFLINE)]
    if plain:
        yield Evaluation(
            scores=tuple(score_from_cells(name, _cells(name, attributes)) for name in plain),
            judge=text(attributes.get(semconv.EVALUATION_JUDGE)),
            duration=number(attributes.get(semconv.EVALUATION_DURATION)) or 0.0,
            sampling=sampling_of(attributes.get(semconv.EVALUATION_SAMPLING_PROBABILITY)),
        )
    if offline:
        scores = [(name, _cells(_OFFLINE + name, attributes)) for name in offline]
        found = tuple(score_from_cells(name, cells) for name, cells in scores)
        judge = found[0].version.split("/", 3)[3:]  # as `version_of` writes it
        yield Evaluation(
            scores=found, judge=judge[0] if judge else None, sampling=Sampling(stage="offline")
        )


def _metrics(attributes: Mapping[str, Any]) -> list[str]:
    split = [k.removeprefix(_PREFIX).rpartition(".") for k in attributes if k.startswith(_PREFIX)]
    return list(dict.fromkeys(name for name, _, leaf in split if name and leaf in _METRIC_LEAVES))


def _cells(name: str, attributes: Mapping[str, Any]) -> dict[str, Any]:
    found = {
        field: attributes.get(semconv.metric_attribute(name, leaf))
        for field, leaf in _FIELDS.items()
    }
    failed = found["value"] is None and found["reason"] in _ERRORS
    return {**found, "status": "error" if failed else None}


# --- log records ----------------------------------------------------------------------------------


def _event(
    record: Mapping[str, Any], turns: Turns, *, service: str, metric: str | None
) -> Iterator[Row]:
    attributes = _attributes(record)
    name = text(attributes.get(semconv.GEN_AI_EVALUATION_NAME))
    if record.get("eventName") != semconv.EVALUATION_EVENT or name is None:
        return
    if semconv.EVALUATION_ANNOTATOR in attributes:  # feedback of a person is no score
        return
    trace = str(record.get("traceId", ""))
    span_id = str(record.get("spanId", ""))
    turn = turns.of_span(trace, span_id)
    score = _event_score(name, attributes)
    if metric in {None, name} and turns.is_first(turn, score):
        yield Row(
            index=turn,
            evaluation=Evaluation(
                scores=(score,),
                judge=text(attributes.get(semconv.EVALUATION_JUDGE)),
                sampling=_sampling(attributes),
            ),
            trace=trace,
            span=span_id,
            turn=f"{trace}/{span_id}" if span_id else "",
            place=f"trace {trace}",
            time=_seconds(record.get("timeUnixNano") or record.get("observedTimeUnixNano")),
            service=service,
        )


def _sampling(attributes: Mapping[str, Any]) -> Sampling | None:
    if attributes.get(semconv.EVALUATION_SAMPLING_STAGE) == "feedback":
        return Sampling(stage="feedback", is_targeted=True)
    return sampling_of(attributes.get(semconv.EVALUATION_SAMPLING_PROBABILITY))


def otlp_feedback(message: Mapping[str, Any]) -> Iterator[FeedbackRow]:
    """Yield the feedback of people in ``message``, an OTLP export request.

    Feedback is in events, and in attributes of spans that it reached before their export. Raises
    the same errors as `otlp_records`.
    """
    for resource in message.get("resourceLogs", ()):
        for record in _parts(resource, "scopeLogs", name="logRecords"):
            found = _attributes(record)
            if semconv.EVALUATION_ANNOTATOR in found:
                name = str(found.get(semconv.GEN_AI_EVALUATION_NAME, ""))
                score = found.get(semconv.GEN_AI_EVALUATION_SCORE_VALUE)
                yield _feedback(record, name, score=score)
    for resource in message.get("resourceSpans", ()):
        for span in _parts(resource, "scopeSpans", name="spans"):
            for key, value in _attributes(span).items():
                name = key.removeprefix(semconv.FEEDBACK_PREFIX).removesuffix(_SCORE)
                if key == semconv.feedback_attribute(name, semconv.LEAF_SCORE):
                    yield _feedback(span, name, score=value)


def _feedback(record: Mapping[str, Any], name: str, *, score: object) -> FeedbackRow:
    trace, span = str(record.get("traceId", "")), str(record.get("spanId", ""))
    times = ("timeUnixNano", "observedTimeUnixNano", "endTimeUnixNano")
    return FeedbackRow(
        score=score,
        turn=f"{trace}/{span}" if span else "",
        trace=trace,
        name=name,
        place=f"trace {trace}",
        time=_seconds(next((found for key in times if (found := record.get(key))), None)),
    )


def _event_score(name: str, attributes: Mapping[str, Any]) -> Score:
    cells = {
        "value": attributes.get(semconv.GEN_AI_EVALUATION_SCORE_VALUE),
        "label": attributes.get(semconv.GEN_AI_EVALUATION_SCORE_LABEL),
        "reason": attributes.get(semconv.EVALUATION_REASON),
        "version": attributes.get(semconv.EVALUATION_VERSION),
        "explanation": attributes.get(semconv.GEN_AI_EVALUATION_EXPLANATION),
        "status": "error" if semconv.ERROR_TYPE in attributes else None,
    }
    return score_from_cells(name, cells)


# --- counters -------------------------------------------------------------------------------------


def _counter(metric: Mapping[str, Any], resource: str) -> Iterator[CounterPoint]:
    counter = metric.get("sum")
    if counter is None or not str(metric.get("name", "")).startswith(_PREFIX):
        return
    for point in counter.get("dataPoints", ()):
        attributes = _attributes(point)
        began = str(point.get("startTimeUnixNano", ""))
        yield CounterPoint(
            name=metric["name"],
            attributes=attributes,
            value=number(point.get("asInt", point.get("asDouble"))) or 0.0,
            time=_seconds(point.get("timeUnixNano")) or 0.0,
            key=json.dumps([resource, metric["name"], attributes, began], sort_keys=True),
            cumulative=counter.get("aggregationTemporality") in _CUMULATIVE,
        )
