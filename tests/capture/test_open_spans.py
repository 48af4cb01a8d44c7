"""Open spans are known while a thread looks for them."""

from dataclasses import dataclass
from typing import Any
from weakref import ref

from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider

from rag_eval_otel.capture.trace import OpenSpans

KEPT: list[Any] = []


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
            started: Any = TracerProvider().get_tracer("app").start_span("another")
            self.spans.starts.append(ref(started))
            KEPT.append(started)


def test_no_span_is_missed_while_the_background_looks() -> None:
    """An open span is known at every moment of a look, and what starts meanwhile is kept."""
    spans = OpenSpans()
    context = trace.SpanContext(trace_id=1, span_id=2, is_remote=False)
    span = Watching(context, spans, [])
    spans.starts.append(ref(span))  # type: ignore[arg-type]
    spans.refresh()
    assert span.seen == [-1, 1]
    assert spans.of(1) == [span]
    assert len(spans.starts) == 1
