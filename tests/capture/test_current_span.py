"""The current span is noted as it is, whatever stands for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider

from rag_eval_otel.capture.trace import OpenSpans


@dataclass
class Proxy(trace.NonRecordingSpan):
    """Stands for a span, and for another one later, as OpenInference's current span does."""

    __wrapped__: Any

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        return type(self.__wrapped__)

    def get_span_context(self) -> trace.SpanContext:
        context: trace.SpanContext = self.__wrapped__.get_span_context()
        return context


def test_a_proxy_that_stands_for_another_span_later() -> None:
    """The span it stood for is open, and not what became of the proxy."""
    spans = OpenSpans()
    span = TracerProvider().get_tracer("app").start_span("session")
    proxy = Proxy(span)
    trace_id = span.get_span_context().trace_id
    with trace.use_span(proxy):
        spans.note_current(trace_id)
    proxy.__wrapped__ = trace.INVALID_SPAN
    spans.refresh()
    assert spans.of(trace_id) == [span]


@dataclass(eq=False)
class Watching:
    """A span that is under way; whoever asks for its end finds out what is known meanwhile."""

    context: trace.SpanContext
    spans: OpenSpans
    seen: list[int]

    @property
    def end_time(self) -> None:
        if not self.seen:
            self.seen.append(-1)
            self.seen.append(len(self.spans.newest(self.context.trace_id)))
            self.spans.note_start(TracerProvider().get_tracer("app").start_span("another"))


def test_no_span_is_missed_while_the_background_looks() -> None:
    """An open span is known at every moment of a look, and what starts meanwhile is kept."""
    spans = OpenSpans()
    context = trace.SpanContext(trace_id=1, span_id=2, is_remote=False)
    span = Watching(context, spans, [])
    spans.note_start(span)  # type: ignore[arg-type]
    spans.refresh()
    assert span.seen == [-1, 1]
    assert spans.of(1) == [span]
    assert len(spans.starts) == 1
