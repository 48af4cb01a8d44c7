"""Scores in OTLP JSON, as the collector's file exporter writes it: spans, log records, counters."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from rag_eval_otel import semconv
from rag_eval_otel.results.records import (
    Counted,
    Found,
    Scored,
    Turns,
    Unscored,
    number,
    score_from,
    text,
)

SIGNALS = ("resourceSpans", "resourceLogs", "resourceMetrics")

_PREFIX = f"{semconv.METRIC_PREFIX}."
_TELLING = (semconv.LEAF_SCORE, semconv.LEAF_REASON)
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
"""The reasons of scores that failed; a span does not say it otherwise."""

_CUMULATIVE = (2, "AGGREGATION_TEMPORALITY_CUMULATIVE")


def is_otlp(message: Mapping[str, Any]) -> bool:
    """Tell whether ``message`` is an export request."""
    return any(signal in message for signal in SIGNALS)


def otlp_found(message: Mapping[str, Any], turns: Turns) -> Iterator[Found]:
    """Yield what an export request says; what a span and its events both say, once.

    Raises AttributeError, KeyError, TypeError or ValueError for what is no OTLP JSON.
    """
    for resource in message.get("resourceSpans", ()):
        for span in _parts(resource, "scopeSpans", "spans"):
            yield from _span(span, _service(resource), turns)
    for resource in message.get("resourceLogs", ()):
        for record in _parts(resource, "scopeLogs", "logRecords"):
            yield from _event(record, _service(resource), turns)
    for resource in message.get("resourceMetrics", ()):
        for metric in _parts(resource, "scopeMetrics", "metrics"):
            yield from _counter(metric, json.dumps(resource.get("resource"), sort_keys=True))


def _parts(resource: Mapping[str, Any], scopes: str, name: str) -> Iterator[Mapping[str, Any]]:
    for scope in resource.get(scopes, ()):
        yield from scope.get(name, ())


def _service(resource: Mapping[str, Any]) -> str:
    return str(_attributes(resource.get("resource", {})).get("service.name", ""))


def _attributes(holder: Mapping[str, Any]) -> dict[str, Any]:
    return {one["key"]: _plain(one.get("value") or {}) for one in holder.get("attributes", ())}


def _plain(value: Mapping[str, Any]) -> Any:
    found: Any
    kind, found = next(iter(value.items()), ("", None))
    return int(found) if kind == "intValue" else found


def _seconds(nanoseconds: object) -> float | None:
    return int(str(nanoseconds)) / 1e9 if nanoseconds else None


# --- spans ----------------------------------------------------------------------------------------


def _span(span: Mapping[str, Any], service: str, turns: Turns) -> Iterator[Found]:
    attributes = _attributes(span)
    names = _metrics(attributes)
    status = text(attributes.get(semconv.EVALUATION_STATUS))
    if not names:
        if status is not None:
            yield Unscored(service=service, status=status)
        return
    trace, time = str(span.get("traceId", "")), _seconds(span.get("endTimeUnixNano"))
    turn = turns.of_span(trace, str(span.get("spanId", "")))
    for name in names:
        if turns.is_first(turn, name):
            yield Scored(
                score=score_from(name, _leaves(name, attributes)),
                place=f"trace {trace}",
                turn=turn,
                time=time,
                service=service,
                judge=text(attributes.get(semconv.EVALUATION_JUDGE)),
                duration=number(attributes.get(semconv.EVALUATION_DURATION)),
                question=text(attributes.get(semconv.QUESTION)),
                trace=trace,
            )


def _metrics(attributes: Mapping[str, Any]) -> list[str]:
    """Return the metrics that the attributes of a span have a score of, or a reason for none."""
    split = [k.removeprefix(_PREFIX).rpartition(".") for k in attributes if k.startswith(_PREFIX)]
    return list(dict.fromkeys(name for name, _, leaf in split if name and leaf in _TELLING))


def _leaves(name: str, attributes: Mapping[str, Any]) -> dict[str, Any]:
    found = {
        field: attributes.get(semconv.metric_attribute(name, leaf))
        for field, leaf in _FIELDS.items()
    }
    failed = found["value"] is None and found["reason"] in _ERRORS
    return {**found, "status": "error" if failed else None}


# --- log records ----------------------------------------------------------------------------------


def _event(record: Mapping[str, Any], service: str, turns: Turns) -> Iterator[Scored]:
    attributes = _attributes(record)
    name = text(attributes.get(semconv.GEN_AI_EVALUATION_NAME))
    if record.get("eventName") != semconv.EVALUATION_EVENT or name is None:
        return
    trace = str(record.get("traceId", ""))
    turn = turns.of_span(trace, str(record.get("spanId", "")))
    if turns.is_first(turn, name):
        yield Scored(
            score=score_from(name, _fields(attributes)),
            place=f"trace {trace}",
            turn=turn,
            time=_seconds(record.get("timeUnixNano") or record.get("observedTimeUnixNano")),
            service=service,
            judge=text(attributes.get(semconv.EVALUATION_JUDGE)),
            trace=trace,
        )


def _fields(attributes: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "value": attributes.get(semconv.GEN_AI_EVALUATION_SCORE_VALUE),
        "label": attributes.get(semconv.GEN_AI_EVALUATION_SCORE_LABEL),
        "reason": attributes.get(semconv.EVALUATION_REASON),
        "version": attributes.get(semconv.EVALUATION_VERSION),
        "explanation": attributes.get(semconv.GEN_AI_EVALUATION_EXPLANATION),
        "status": "error" if semconv.ERROR_TYPE in attributes else None,
    }


# --- counters -------------------------------------------------------------------------------------


def _counter(metric: Mapping[str, Any], resource: str) -> Iterator[Counted]:
    counter = metric.get("sum")
    if counter is None or not str(metric.get("name", "")).startswith(_PREFIX):
        return
    for point in counter.get("dataPoints", ()):
        attributes = _attributes(point)
        began = str(point.get("startTimeUnixNano", ""))
        yield Counted(
            name=metric["name"],
            attributes=attributes,
            value=number(point.get("asInt", point.get("asDouble"))) or 0.0,
            time=_seconds(point.get("timeUnixNano")) or 0.0,
            key=json.dumps([resource, metric["name"], attributes, began], sort_keys=True),
            cumulative=counter.get("aggregationTemporality") in _CUMULATIVE,
        )
