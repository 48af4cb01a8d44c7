"""Programs with global providers: what is exported, until the end, and what is said if not."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from otlp_receiver import OtlpReceiver
from processes import ran

pytestmark = pytest.mark.slow  # each starts a program: providers are set once in a process
ROOT = Path(__file__).parents[2]

(SNIPPET,) = [
    block
    for block in re.findall(
        r"```python\n(.*?)```", (ROOT / "docs" / "opentelemetry.md").read_text(), re.DOTALL
    )
    if "set_meter_provider" in block
]

START = """
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from apps.parts import rag
from rag_eval_otel import RagEvalCallbackHandler, instrument
provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(OTLPSpanExporter()))
trace.set_tracer_provider(provider)
"""

TURNS = """
for _ in range(2):
    rag().invoke("When was Borealis Kites founded?", config={"callbacks": [handle.callback]})
    handle.flush()
"""

ATTACH = "handle = instrument()\n"


def lines_of(program: str, receiver: OtlpReceiver) -> list[str]:
    done = ran(program, OTEL_EXPORTER_OTLP_ENDPOINT=receiver.http_endpoint)
    assert done.returncode == 0, done.stderr
    return done.stderr.splitlines()


@pytest.mark.parametrize(
    "program",
    [SNIPPET + ATTACH, ATTACH + SNIPPET],
    ids=["before instrument()", "after instrument()"],
)
def test_the_snippet_of_the_documentation_exports_metrics_and_events(program: str) -> None:
    """Set before or after `instrument`, the providers export, and no line is logged."""
    with OtlpReceiver() as receiver:
        end = "metrics.get_meter_provider().shutdown(); logs.shutdown()\n"
        assert lines_of(START + program + TURNS + end, receiver) == []
        assert "rag.evaluation.score" in {metric.name for metric in receiver.metrics()}
        assert receiver.logs()
