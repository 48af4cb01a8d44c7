"""From the identity of an evaluated span back to an OpenTelemetry context."""

from __future__ import annotations

from opentelemetry.context import Context
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, set_span_in_context

from rag_eval_otel.types import SpanRef


def span_context(ref: SpanRef | None) -> Context:
    """Return a context in which the span ``ref`` is current, whether or not it has ended."""
    if ref is None:
        return Context()
    span = SpanContext(
        ref.trace_id, ref.span_id, is_remote=False, trace_flags=TraceFlags(ref.trace_flags)
    )
    return set_span_in_context(NonRecordingSpan(span), Context())
