"""Read scores from OTLP JSON, in spans, log records and counters.

The file exporter of the OpenTelemetry Collector writes OTLP JSON. A *turn* is one question of a
user and its answer.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from rag_eval_otel import semconv
from rag_eval_otel.results.rows import (
    CounterPoint,
    Row,
    ScoreRecord,
    UnscoredTurn,
    number,
    score_from_cells,
    text,
)
from rag_eval_otel.types import Evaluation, Sample, Score

SIGNALS = ("resourceSpans", "resourceLogs", "resourceMetrics")

_PREFIX = f"{semconv.METRIC_PREFIX}."
_METRIC_LEAVES = (semconv.LEAF_SCORE, semconv.LEAF_REASON)
_FIELDS = {
    "value": semconv.LEAF_SCORE,
    "normalized": semconv.LEAF_NORMALIZED_SCORE,
    "label": semconv.LEAF_LABEL,
    "reason": semconv.LEAF_REASON,
    "version": semconv.LEAF_VERSION,
    "explanation": semconv.LEAF_EXPLANATION,
}
_ERRORS = frozenset(
    {
        *("transport", "timeout", "unauthorized", "rate_limited", "bad_request"),
        *("circuit_open", "budget", "shutdown", "internal"),
    }
)
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
    _read: set[tuple[int, str]] = field(default_factory=set)

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

    def is_first(self, turn: int, name: str) -> bool:
        """Return True at the first call for the score ``name`` of the turn number ``turn``.

        A score may be on a span and also in an event. Later calls return False, so that the score
        is read once.
        """
        is_first = (turn, name) not in self._read
        self._read.add((turn, name))
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
        for span in _parts(resource, "scopeSpans", "spans"):
            yield from _span(span, _service(resource), turns, metric)
    for resource in message.get("resourceLogs", ()):
        for record in _parts(resource, "scopeLogs", "logRecords"):
            yield from _event(record, _service(resource), turns, metric)
    for resource in message.get("resourceMetrics", ()):
        for each in _parts(resource, "scopeMetrics", "metrics"):
            yield from _counter(each, json.dumps(resource.get("resource"), sort_keys=True))


def _parts(resource: Mapping[str, Any], scopes: str, name: str) -> Iterator[Mapping[str, Any]]:
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
    span: Mapping[str, Any], service: str, turns: Turns, metric: str | None
) -> Iterator[ScoreRecord]:
    attributes = _attributes(span)
    names = _metrics(attributes)
    if not names:
        status = text(attributes.get(semconv.EVALUATION_STATUS))
        if status is not None:
            yield UnscoredTurn(service=service, status=status)
        return
    trace = str(span.get("traceId", ""))
    turn = turns.of_span(trace, str(span.get("spanId", "")))
    scores = tuple(
        score_from_cells(name, _cells(name, attributes))
        for name in names
        if metric in {None, name} and turns.is_first(turn, name)
    )
    if scores:
        yield Row(
            index=turn,
            evaluation=Evaluation(
                scores=scores,
                judge=text(attributes.get(semconv.EVALUATION_JUDGE)),
                duration=number(attributes.get(semconv.EVALUATION_DURATION)) or 0.0,
            ),
            sample=Sample(question=text(attributes.get(semconv.QUESTION)) or ""),
            place=f"trace {trace}",
            time=_seconds(span.get("endTimeUnixNano")),
            service=service,
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
    record: Mapping[str, Any], service: str, turns: Turns, metric: str | None
) -> Iterator[Row]:
    attributes = _attributes(record)
    name = text(attributes.get(semconv.GEN_AI_EVALUATION_NAME))
    if record.get("eventName") != semconv.EVALUATION_EVENT or name is None:
        return
    trace = str(record.get("traceId", ""))
    turn = turns.of_span(trace, str(record.get("spanId", "")))
    if metric in {None, name} and turns.is_first(turn, name):
        yield Row(
            index=turn,
            evaluation=Evaluation(
                scores=(_event_score(name, attributes),),
                judge=text(attributes.get(semconv.EVALUATION_JUDGE)),
            ),
            place=f"trace {trace}",
            time=_seconds(record.get("timeUnixNano") or record.get("observedTimeUnixNano")),
            service=service,
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
