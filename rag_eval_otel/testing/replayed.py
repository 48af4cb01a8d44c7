"""`ReplayedSpan`: a recorded span as the SDK would hand it to a processor."""

from __future__ import annotations

from typing import Any

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, Status, StatusCode, TraceFlags

from rag_eval_otel.testing.recordings import RecordedSpan

_SAMPLED = TraceFlags(TraceFlags.SAMPLED)
_RESOURCE = Resource.get_empty()  # the default one is detected anew for every span


class _Attributes(dict[str, Any]):
    """Attributes as they were recorded, with the limit they were cut at."""

    max_value_len: int | None = None


class ReplayedSpan(ReadableSpan):
    """A span that is filled twice: as it started, and as it ended."""

    def __init__(self, view: RecordedSpan) -> None:
        """Look as ``view`` did."""
        self.fill(view)

    def fill(self, view: RecordedSpan) -> None:
        """Look as ``view`` does now."""
        attributes = _Attributes(view.attributes)
        attributes.max_value_len = view.value_limit
        super().__init__(
            name=view.name,
            resource=_RESOURCE,
            context=_context(view.trace_id, view.span_id),
            parent=None
            if view.parent_id is None
            else _context(view.trace_id, view.parent_id, is_remote=view.parent_is_remote),
            attributes=attributes,
            events=[
                Event(name, attributes=dict(values), timestamp=view.start)
                for name, values in view.events
            ],
            status=Status() if view.error is None else Status(StatusCode.ERROR, view.error),
            start_time=view.start,
            end_time=view.end,
            instrumentation_scope=InstrumentationScope(view.scope),
        )
        self._dropped = view.dropped

    @property
    def dropped_attributes(self) -> int:
        """How many attributes were dropped."""
        return self._dropped


def _context(trace_id: int, span_id: int, *, is_remote: bool = False) -> SpanContext:
    return SpanContext(trace_id, span_id, is_remote, _SAMPLED)
