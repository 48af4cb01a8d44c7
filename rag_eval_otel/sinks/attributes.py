"""Scores as attributes on the span they belong to."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Literal, TypeVar

from opentelemetry.attributes import BoundedAttributes
from opentelemetry.context import Context
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.util import BoundedList
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, set_span_in_context

from rag_eval_otel import semconv
from rag_eval_otel.capture.text import exportable
from rag_eval_otel.types import Ending, Score, SpanRef

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import Event
    from opentelemetry.util.types import AttributeValue


def span_context(ref: SpanRef | None) -> Context:
    """Return a context in which the span ``ref`` is current, whether or not it has ended."""
    if ref is None:
        return Context()
    span = SpanContext(
        ref.trace_id, ref.span_id, is_remote=False, trace_flags=TraceFlags(ref.trace_flags)
    )
    return set_span_in_context(NonRecordingSpan(span), Context())


T = TypeVar("T")

MAX_EXPLANATION = 1024  # characters


def score_attributes(
    ending: Ending, *, explanations: Literal["off", "on"] = "off"
) -> dict[str, AttributeValue]:
    """Return the ``rag.evaluation.*`` attributes: leaves only, scores always float."""
    found: dict[str, AttributeValue | None] = {
        semconv.EVALUATION_STATUS: ending.status,
        semconv.EVALUATION_REASON: ending.reason,
        semconv.EVALUATION_CONTEXTS_SOURCE: ending.contexts,
    }
    evaluation = ending.evaluation
    if evaluation is not None:
        found[semconv.EVALUATION_LABEL] = evaluation.label
        found[semconv.EVALUATION_JUDGE] = evaluation.judge
        found[semconv.EVALUATION_DURATION] = float(evaluation.duration)
        for score in evaluation.scores:
            found.update(_leaves(score))
            if explanations == "on" and score.explanation:
                key = semconv.metric_attribute(score.name, semconv.LEAF_EXPLANATION)
                found[key] = score.explanation[:MAX_EXPLANATION]
    return exportable_attributes((k, value) for k, value in found.items() if value is not None)


def _leaves(score: Score) -> Iterator[tuple[str, AttributeValue | None]]:
    normalized = None if score.normalized is None else float(score.normalized)
    yield semconv.metric_attribute(score.name, semconv.LEAF_SCORE), score.value
    yield semconv.metric_attribute(score.name, semconv.LEAF_NORMALIZED_SCORE), normalized
    yield semconv.metric_attribute(score.name, semconv.LEAF_LABEL), score.label
    yield semconv.metric_attribute(score.name, semconv.LEAF_REASON), score.reason
    yield semconv.metric_attribute(score.name, semconv.LEAF_VERSION), score.version or None


def exportable_attributes(
    attributes: Iterable[tuple[str, AttributeValue]],
) -> dict[str, AttributeValue]:
    """Return ``attributes`` as they can be encoded: a server names its model as it likes."""
    return {k: exportable(value) if isinstance(value, str) else value for k, value in attributes}


def enrich(span: ReadableSpan, added: Mapping[str, AttributeValue]) -> ReadableSpan:
    """Return a copy of the ended ``span`` with the attributes ``added``.

    Everything else is kept, dropped counts included. The copy has no attribute limit: a full one
    would evict the oldest attributes to make room for ours. The original is not touched: other
    processors may hold it.
    """
    return copied(span, attributes={**(span.attributes or {}), **added}, events=span.events)


def copied(
    span: ReadableSpan, *, attributes: Mapping[str, AttributeValue], events: Sequence[Event]
) -> ReadableSpan:
    """Return a copy of ``span`` with other attributes and events, and its dropped counts."""
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
    """Return ``attributes``, of which so many had been ``dropped`` before."""
    if not dropped:
        return attributes  # a plain dict counts as nothing dropped, and is not cleaned again
    found = BoundedAttributes(None, dict(attributes), immutable=False)
    found.dropped = dropped
    return found


def _counted(items: Sequence[T], dropped: int) -> Sequence[T]:
    if not dropped:
        return items
    bounded: BoundedList[T] = BoundedList.from_seq(None, items)
    bounded.dropped = dropped
    return bounded
