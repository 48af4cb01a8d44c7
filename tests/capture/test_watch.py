"""The watch over foreign spans: bounded, whatever applications leave open."""

from __future__ import annotations

from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from pipeline import OnesEmbedder, good_judge
from rag_eval_otel import instrument


def test_spans_that_never_end_are_not_kept_for_ever() -> None:
    """Streams that nobody closes leave spans open: only the newest are remembered."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    handle = instrument(tracer_provider=provider, judge=good_judge(), embedder=OnesEmbedder())
    assert handle.processor is not None
    watch, tracer = handle.processor.watch, provider.get_tracer("app")
    for _ in range(100):
        last = [tracer.start_span("open for ever") for _ in range(100)][-1]
        watch.sweep()
    kept = [span for spans in watch._open.values() for span in spans]  # noqa: SLF001
    assert len(kept) == 4096
    assert kept[-1] is last
    handle.shutdown()
