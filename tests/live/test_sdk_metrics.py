"""The SDK's metrics on itself stay true behind the processor, and each span is counted once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk import environment_variables

VARIABLE = "OTEL_PYTHON_SDK_INTERNAL_METRICS_ENABLED"
TURNS, OTHERS = 5, 7
SPANS = 3 * TURNS + OTHERS

pytestmark = pytest.mark.skipif(
    not hasattr(environment_variables, VARIABLE), reason="the SDK has no metrics on itself"
)

PROGRAM = """
import json, sys
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import set_span_in_context
from live import answered, generated, retrieved, KIND
from pipeline import OnesEmbedder, good_judge
from rag_eval_otel import instrument
from otlp_receiver import OtlpReceiver

turns, others, how = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
reader = InMemoryMetricReader()
meters = MeterProvider([reader])
with OtlpReceiver() as receiver:
    provider = TracerProvider(meter_provider=meters)
    exporter = OTLPSpanExporter(receiver.http_endpoint + "/v1/traces", meter_provider=meters)
    exports = BatchSpanProcessor(exporter, meter_provider=meters)
    given = {"judge": good_judge(), "embedder": OnesEmbedder(), "meter_provider": meters}
    if how == "attached":
        provider.add_span_processor(exports)
        handle = instrument(tracer_provider=provider, **given)
    else:
        handle = instrument(wrap=exports, tracer_provider=provider, **given)
        provider.add_span_processor(handle.processor)
    tracer = provider.get_tracer("openinference.instrumentation.fake")
    for number in range(turns):
        chain = tracer.start_span("chain", attributes={KIND: "CHAIN", **answered(number)})
        below = set_span_in_context(chain)
        for kind, texts in (("RETRIEVER", retrieved(number)), ("LLM", generated(number))):
            tracer.start_span("step", below, attributes={KIND: kind, **texts}).end()
        chain.end()
    for number in range(others):
        provider.get_tracer("app").start_span("work").end()
    assert provider.force_flush(60_000)
    data = reader.get_metrics_data()
    found = [
        [metric.name, dict(point.attributes), getattr(point, "value", None)]
        for scope in data.resource_metrics[0].scope_metrics
        for metric in scope.metrics
        for point in metric.data.data_points
    ]
    print(json.dumps({"points": found, "received": len(receiver.spans()),
                      "turns": handle.stats.turns}))
    provider.shutdown()
"""


@pytest.mark.slow
@pytest.mark.parametrize("how", ["attached", pytest.param("wrapped", marks=pytest.mark.slow)])
def test_metrics_of_the_sdk_count_each_span_once(how: str) -> None:
    """Spans that wait for scores are counted by the processor and the exporter behind, once."""
    found = run(how, {VARIABLE: "true"})
    assert found["received"] == SPANS
    assert found["turns"] == {"scored": TURNS}
    assert total(found, "otel.sdk.span.started") == SPANS
    assert total(found, "otel.sdk.span.live") == 0
    assert total(found, "otel.sdk.processor.span.processed") == SPANS
    assert total(found, "otel.sdk.exporter.span.exported") == SPANS
    assert total(found, "otel.sdk.exporter.span.inflight") == 0
    queues = {
        attributes["otel.component.type"]: value
        for name, attributes, value in found["points"]
        if name == "otel.sdk.processor.span.queue.size"
    }
    assert queues == {"batching_span_processor": 0, "rag_eval_otel.RagEvalSpanProcessor": 0}


@pytest.mark.slow
def test_without_the_variable_there_are_no_metrics_of_the_sdk() -> None:
    """Neither the SDK nor this library reports ``otel.sdk.*``."""
    found = run("attached", {})
    assert found["received"] == SPANS
    assert not [name for name, _, _ in found["points"] if name.startswith("otel.sdk.")]


def total(found: dict[str, Any], name: str) -> float:
    """Return the sum of all points of the instrument ``name``; there is at least one."""
    values = [value for one, _, value in found["points"] if one == name]
    assert values, f"no {name}"
    return sum(values)


def run(how: str, environment: dict[str, str]) -> dict[str, Any]:
    """Run turns and other spans in a process with ``environment``; return what it prints."""
    clean = {name: value for name, value in os.environ.items() if name != VARIABLE}
    tests = Path(__file__).parents[1]
    path = os.pathsep.join([str(tests.parent), str(tests)])
    done = subprocess.run(  # our own script
        [sys.executable, "-c", PROGRAM, str(TURNS), str(OTHERS), how],
        env={**clean, "PYTHONPATH": path, **environment},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result
