"""Faults of volume, in a process of their own, whose memory nothing else uses."""

import json
from pathlib import Path
from typing import Any

import pytest

from live import Row
from processes import ran

MOST_MB = 64
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1300),
    pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs /proc"),
]

PARTS = """
import json
from array import array
from collections import Counter
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult
from live import said
from rag_eval_otel import instrument

def megabytes(name):
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith(name)) / 1000

class Numbers(SpanExporter):
    ids = array("Q")
    def export(self, spans):
        own = [span for span in spans if span.name != "evaluate turn"]  # not of late scores
        self.ids.extend(span.context.span_id for span in own)
        return SpanExportResult.SUCCESS

provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(Numbers()))
tracer = provider.get_tracer("app")
handle = instrument(
    tracer_provider=provider, judge="lexical", embedder="hashing", raise_errors=True, drift=False
)
def turn(number):
    told = {"rag.question": f"Who founded company number {number}?",
            "rag.contexts": [said(number)], "rag.answer": said(number)}
    tracer.start_span("turn", attributes=told).end()
"""


def run(script: str) -> dict[str, Any]:
    """Run ``script`` after the parts that all scripts share; return what it printed as JSON."""
    done = ran(PARTS + script)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.fault(14, expected="memory grows by less than 64 MB in the burst of 100,000 spans")
def test_fault_14_the_memory_of_a_burst_of_100000_spans(row: Row) -> None:
    """10,000 turns and nine other spans with each, without a pause; each span leaves once."""
    found = run("""
def made(first, last):
    for number in range(first, last):
        turn(number)
        for _ in range(9): tracer.start_span("other").end()
made(0, 100)
handle.flush(600)
before = megabytes("VmRSS")
made(100, 10_000)
done = handle.flush(600)
grown = megabytes("VmHWM") - before
handle.shutdown(60)
stats = handle.stats
print(json.dumps({
    "grown": grown, "done": done, "left": len(Numbers.ids), "different": len(set(Numbers.ids)),
    "captured": stats.captured, "counted": sum(stats.turns.values()),
    "scored": stats.turns.get("scored", 0), "held": stats.held, "pending": stats.pending,
}))
""")
    assert found["done"] is True
    assert found["left"] == found["different"] == 100_000
    assert found["captured"] == found["counted"] == 10_000
    assert (found["held"], found["pending"]) == (0, 0)
    assert found["grown"] < MOST_MB
    row.measured("spans that left, different ones", (found["left"], found["different"]))
    row.measured(
        "turns captured, counted, scored", [found[k] for k in ("captured", "counted", "scored")]
    )
    row.measured("growth of memory in MB", f"{found['grown']:.0f}")


@pytest.mark.fault(16, expected="memory grows by less than 64 MB with 20,000 such roots")
def test_fault_16_the_memory_of_20000_roots_that_never_end(row: Row) -> None:
    """A span below each root has ended, and neither has more than its attributes."""
    found = run("""
from opentelemetry.trace import set_span_in_context
def made(roots):
    for _ in range(roots):
        root = tracer.start_span("root", attributes={"gen_ai.operation.name": "chat"})
        child = tracer.start_span("child", context=set_span_in_context(root))
        child.set_attribute("openinference.span.kind", "LLM")
        child.end()
made(2_000)
before = megabytes("VmRSS")
made(18_000)
grown = megabytes("VmHWM") - before
handle.shutdown(60)
print(json.dumps({"grown": grown, "left": len(Numbers.ids), "held": handle.stats.held}))
""")
    assert found["grown"] < MOST_MB
    assert (found["left"], found["held"]) == (20_000, 0)
    row.measured("growth of memory in MB", f"{found['grown']:.0f}")
