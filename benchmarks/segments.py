"""Memory of 1,000 incomplete traces of one turn each.

Each trace has five spans in OpenInference's form and 6 kB of text; its root has not ended.

``python benchmarks/segments.py [traces]``
"""

from __future__ import annotations

import gc
import sys
import tracemalloc
from weakref import ref

from _common import setting
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.trace import Tracer, set_span_in_context

from rag_eval_otel.config import Config
from rag_eval_otel.live.store import Store

PASSAGE = "All about kites, and how to fly them. " * 40
KIND = "openinference.span.kind"


def open_trace(tracer: Tracer, watch: Store, number: int) -> list[object]:
    """Make a turn whose root stays open, and give its spans to ``watch``; return the root."""
    root = tracer.start_span("chain", attributes={KIND: "CHAIN", "input.value": f"Which? {number}"})
    context = set_span_in_context(root)
    spans = [root]
    texts = (f"{number}.{i} {PASSAGE}" for i in range(4))
    documents = {f"retrieval.documents.{i}.document.content": t for i, t in enumerate(texts)}
    for kind, values in (("RETRIEVER", documents), ("CHAIN", {}), ("CHAIN", {}), ("LLM", {})):
        span = tracer.start_span(kind.lower(), context=context, attributes={KIND: kind, **values})
        watch.open_spans.starts.append(ref(span))
        span.end()
        if watch.concerns(span):
            watch.take(span)
    return spans


def main() -> None:
    """Print the memory of the buffered traces, and the buffer's own estimate."""
    traces = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
    tracer = TracerProvider().get_tracer("app")
    watch = Store(Config())
    tracemalloc.start()
    kept = [open_trace(tracer, watch, number) for number in range(traces)]
    gc.collect()
    total = tracemalloc.get_traced_memory()[0]
    told = sum(trace.size for trace in watch.traces.values())
    watch.reset()
    gc.collect()
    without = tracemalloc.get_traced_memory()[0]
    sys.stdout.write(
        f"{setting()}\n{len(kept)} incomplete traces: five spans and 6 kB of text each\n"
    )
    sys.stdout.write(f"buffered: {(total - without) / 1e6:.1f} MB; estimated as {told / 1e6:.1f}\n")


if __name__ == "__main__":
    main()
