"""Scores in OTLP JSON, as the collector's file exporter writes it: from spans and log records."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from rag_eval_otel import semconv
from rag_eval_otel.drift import Stream

_SCORE = f".{semconv.LEAF_SCORE}"
_PREFIX = f"{semconv.METRIC_PREFIX}."


@dataclass(frozen=True, slots=True, kw_only=True)
class OtlpPoint:
    """One score; ``value`` None where the event says that there is none, ``time`` in seconds."""

    stream: Stream
    value: float | None
    trace: str
    time: float | None


def otlp_points(message: Mapping[str, Any]) -> Iterator[OtlpPoint]:
    """Yield the scores of an export request.

    Of a span those on it, of a log record that of the event. Raises AttributeError, KeyError,
    TypeError or ValueError for what is no OTLP JSON.
    """
    for one in message.get("resourceSpans", ()):
        service = _service(one)
        for scope in one.get("scopeSpans", ()):
            for span in scope.get("spans", ()):
                yield from _span_points(span, service)
    for one in message.get("resourceLogs", ()):
        service = _service(one)
        for scope in one.get("scopeLogs", ()):
            for record in scope.get("logRecords", ()):
                yield from _log_points(record, service)


def _service(resource: Mapping[str, Any]) -> str:
    found = _attributes(resource.get("resource", {}))
    return str(found.get("service.name", ""))


def _attributes(holder: Mapping[str, Any]) -> dict[str, Any]:
    return {one["key"]: _plain(one["value"]) for one in holder.get("attributes", ())}


def _plain(value: Mapping[str, Any]) -> Any:
    kind, found = next(iter(value.items()), ("", None))
    return int(found) if kind == "intValue" else found


def _seconds(nanoseconds: object) -> float | None:
    return int(str(nanoseconds)) / 1e9 if nanoseconds else None


def _span_points(span: Mapping[str, Any], service: str) -> Iterator[OtlpPoint]:
    attributes = _attributes(span)
    for key, value in attributes.items():
        if key.startswith(_PREFIX) and key.endswith(_SCORE):
            name = key.removeprefix(_PREFIX).removesuffix(_SCORE)
            version = attributes.get(semconv.metric_attribute(name, semconv.LEAF_VERSION), "")
            normalized = semconv.metric_attribute(name, semconv.LEAF_NORMALIZED_SCORE)
            yield OtlpPoint(
                stream=Stream(service=service, name=name, version=str(version)),
                value=float(attributes.get(normalized, value)),
                trace=str(span.get("traceId", "")),
                time=_seconds(span.get("endTimeUnixNano")),
            )


def _log_points(record: Mapping[str, Any], service: str) -> Iterator[OtlpPoint]:
    attributes = _attributes(record)
    name = attributes.get(semconv.GEN_AI_EVALUATION_NAME)
    if record.get("eventName") == semconv.EVALUATION_EVENT and name:
        value = attributes.get(semconv.GEN_AI_EVALUATION_SCORE_VALUE)
        version = attributes.get(semconv.EVALUATION_VERSION, "")
        yield OtlpPoint(
            stream=Stream(service=service, name=str(name), version=str(version)),
            value=None if value is None else float(value),
            trace=str(record.get("traceId", "")),
            time=_seconds(record.get("timeUnixNano") or record.get("observedTimeUnixNano")),
        )
