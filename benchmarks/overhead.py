"""Cost of our span processor on the application's thread, beside a plain `BatchSpanProcessor`.

A trace of five spans (50 attributes in all, 6 kB of text on the root) passes a plain
`BatchSpanProcessor`, then ours in front of one: without a turn, with a turn pending in another
trace, and with the root held for four scores. The variants alternate within each repetition, in
rotating order, first back to back, then paced. Ratios are medians over the repetitions; the ratio
of the fastest tenths is printed as well, because it varies less on a busy machine. At the end, our
calls alone are timed in a loop, for a span without a step of RAG and for a root that is held.

``python benchmarks/overhead.py [repetitions]``
"""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from _common import NullEmbedder, NullJudge, median, setting, spread
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.trace import Span, Tracer, set_span_in_context

from rag_eval_otel import Handle, RagEvalSpanProcessor, instrument

REPETITIONS = 41
PACED = 25  # traces with pauses in each repetition
PACE = 0.005  # seconds between two paced traces, enough to score a turn
TRACES = 150  # in each repetition: 750 spans, less than the queue of the batch processor
PLAIN_TURN = "plain, with what makes a turn"
TEXT = "All about kites. " * 375
ATTRIBUTES = {f"gen_ai.request.attribute_{i}": f"value {i}" for i in range(10)}


Times: TypeAlias = "tuple[float, float, float]"


class CountingExporter(SpanExporter):
    """An exporter that counts spans, and those with four scores, and discards them."""

    spans = scored = 0

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Count the spans."""
        self.spans += len(spans)
        self.scored += sum(_scores(span) == 4 for span in spans)
        return SpanExportResult.SUCCESS


def _scores(span: ReadableSpan) -> int:
    names = (key for key in span.attributes or () if key.startswith("rag."))
    return sum(key.endswith(".score") for key in names)


@dataclass(frozen=True)
class Way:
    """One variant of processing the traces; ``before_end`` is called with each root."""

    name: str
    provider: TracerProvider
    exporter: CountingExporter
    before_end: Callable[[Span], object]

    def run(self) -> Times:
        """Make the traces; return CPU time, wall time and paced CPU time per trace, in µs."""
        tracer = self.provider.get_tracer("bench")
        gc.collect()
        wall, cpu = time.perf_counter(), time.thread_time()
        for _ in range(TRACES):
            trace_once(tracer, self.before_end)
        spent = time.thread_time() - cpu, time.perf_counter() - wall
        assert self.provider.force_flush()
        paced = [self._paced(tracer) for _ in range(PACED)]
        assert self.provider.force_flush()
        return spent[0] / TRACES * 1e6, spent[1] / TRACES * 1e6, median(paced) * 1e6

    def _paced(self, tracer: Tracer) -> float:
        time.sleep(PACE)
        cpu = time.thread_time()
        trace_once(tracer, self.before_end)
        return time.thread_time() - cpu


def trace_once(tracer: Tracer, before_end: Callable[[Span], object]) -> None:
    """Start and end the five spans of one trace."""
    root = tracer.start_span("rag", attributes={**ATTRIBUTES, "gen_ai.input.messages": TEXT})
    context = set_span_in_context(root)
    for name in ("retrieval", "chat", "tool", "chat"):
        tracer.start_span(name, context=context, attributes=ATTRIBUTES).end()
    before_end(root)
    root.end()


def plain() -> tuple[TracerProvider, CountingExporter]:
    """Return an application's provider and its exporter."""
    exporter = CountingExporter()
    provider = TracerProvider()
    provider.add_span_processor(BatchSpanProcessor(exporter))
    return provider, exporter


def ours() -> tuple[TracerProvider, CountingExporter, Handle]:
    """Return an instrumented provider, its exporter and the handle."""
    provider, exporter = plain()
    handle = instrument(
        tracer_provider=provider, judge=NullJudge(), embedder=NullEmbedder(), raise_errors=True
    )
    return provider, exporter, handle


def record_turn(root: Span) -> None:
    """Record question, contexts and answer on ``root``, so that it is a turn."""
    root.set_attributes(
        {
            "rag.question": "When was it founded?",
            "rag.contexts": [TEXT[:700]] * 4,
            "rag.answer": "It was founded in 1987. " * 10,
        }
    )


def pending_elsewhere() -> tuple[TracerProvider, CountingExporter]:
    """Return an instrumented provider with an incomplete RAG trace."""
    provider, exporter, _ = ours()
    tracer = provider.get_tracer("openinference.instrumentation.bench")
    root = tracer.start_span("elsewhere")
    PENDING.append(root)
    kind = {"openinference.span.kind": "RETRIEVER", "input.value": "When was it founded?"}
    tracer.start_span("retriever", context=set_span_in_context(root), attributes=kind).end()
    return provider, exporter


PENDING: list[Span] = []
"""Roots that have not ended."""


def ways() -> list[Way]:
    """Return the variants to compare, the plain one first."""
    nothing: Callable[[Span], object] = lambda _: None  # noqa: E731
    idle, idle_exporter, _ = ours()
    held, held_exporter, _ = ours()
    return [
        Way("plain BatchSpanProcessor", *plain(), nothing),
        Way("ours, no turn", idle, idle_exporter, nothing),
        Way("ours, a turn pending elsewhere", *pending_elsewhere(), nothing),
        Way("plain, with what makes a turn", *plain(), record_turn),
        Way("ours, the root held and scored", held, held_exporter, record_turn),
    ]


SPANS = 1000  # in each loop over our calls alone


def own_calls(before_end: Callable[[Span], object]) -> float:
    """Return the CPU of `on_start` and `on_end` of our processor alone, in microseconds a span."""
    tracer = TracerProvider().get_tracer("bench")
    found = []
    for _ in range(21):
        spans = [tracer.start_span("rag", attributes=ATTRIBUTES) for _ in range(SPANS)]
        for span in spans:
            before_end(span)
            span.end()
        processor = RagEvalSpanProcessor(
            SpanProcessor(), judge=NullJudge(), embedder=NullEmbedder(), max_held=SPANS
        )
        found.append(_cpu_of(processor, spans) - _cpu_of(SpanProcessor(), spans))
        processor.handle.shutdown(0.0)
    return median(found) / SPANS * 1e6


def _cpu_of(processor: SpanProcessor, spans: Sequence[Any]) -> float:
    gc.collect()
    cpu = time.thread_time()
    for span in spans:
        processor.on_start(span)
        processor.on_end(span)
    return time.thread_time() - cpu


def main() -> None:
    """Measure all variants and print the figures."""
    repetitions = int(sys.argv[1]) if len(sys.argv) > 1 else REPETITIONS
    compared = ways()
    for way in compared:
        way.run()
    times: dict[str, list[Times]] = {way.name: [] for way in compared}
    for i in range(repetitions):
        turn = i % len(compared)
        for way in compared[turn:] + compared[:turn]:
            times[way.name].append(way.run())
    for way in compared:
        runs = repetitions + 1
        others = way.exporter.spans - runs * (TRACES + PACED) * 5
        assert 0 <= others <= 1, (way.name, way.exporter.spans)  # the retriever elsewhere
        assert way.exporter.scored == (runs * (TRACES + PACED) if "held" in way.name else 0), (
            way.name
        )
    print(setting("opentelemetry-sdk", "rag-eval-otel"))
    report(times, base=compared[0].name)
    idle, held = own_calls(lambda _: None), own_calls(record_turn)
    print(f"our calls alone, in a loop: {idle:.1f} us for an unrelated span, {held:.1f} us if held")


def fastest(found: Sequence[Times]) -> float:
    """Return the mean CPU time of the fastest tenth: the cost on an idle machine."""
    times = sorted(cpu for cpu, _, _ in found)
    few = times[: max(1, len(times) // 10)]
    return sum(few) / len(few)


def report(times: dict[str, list[Times]], *, base: str) -> None:
    """Print medians of times and of ratios to the plain variant, and the ratio of the fastest."""
    print(f"{len(times[base])} repetitions of {TRACES} traces; app's thread, medians (quartiles)")
    head = ("CPU us", "ratio", "", "fastest", "wall us", "ratio", "paced us", "ratio")
    print(f"{'':32}{head[0]:>8}{head[1]:>8}{'':15}" + "".join(f"{one:>9}" for one in head[3:]))
    for name, found in times.items():
        base = PLAIN_TURN if "held" in name else base
        pairs = list(zip(found, times[base], strict=True))
        cpu, wall, paced = ([one[of] / other[of] for one, other in pairs] for of in range(3))
        print(
            f"{name:32}{median([one[0] for one in found]):8.1f}{median(cpu):8.3f} ({spread(cpu)})"
            f"{fastest(found) / fastest(times[base]):9.3f}"
            f"{median([one[1] for one in found]):9.1f}{median(wall):9.3f}"
            f"{median([one[2] for one in found]):9.1f}{median(paced):9.3f}"
        )
    print("CPU (time.thread_time) is that of the application's thread. Back to back, the")
    print("evaluation competes for the interpreter's lock; paced, it runs between the traces.")


if __name__ == "__main__":
    main()
