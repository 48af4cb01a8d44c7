"""Faults of the application and of its surroundings: callbacks, exporters, clocks, disks, names."""

import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import openai
import pytest
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from live import Row, attached, usual_options
from openai_server import ScriptedOpenAI
from processes import environment, ran
from rag_eval_otel import OpenAIEmbedder, OpenAIJudge, RagEvalSpanProcessor, instrument
from support import good_parts


class Refusing(InMemorySpanExporter):
    """An exporter whose server refuses every batch."""

    refused = 0

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self.refused += len(spans)
        return SpanExportResult.FAILURE


@pytest.mark.slow
@pytest.mark.fault(29, expected="scoring goes on, no span is kept, each reaches the exporter once")
def test_fault_29_the_exporter_refuses_every_span(row: Row) -> None:
    """What the exporter loses is the SDK's to count; scores still become events and metrics."""
    exporter = Refusing()
    with attached(exporter=exporter) as app:
        for number in range(50):
            app.turn(number)
        flushed = app.handle.flush(60)  # the SDK's processors do not report a failed export
        row.check(app, turns=50, spans=0)
        assert app.counted() == {("scored", None): 50}
        assert sum(app.scored_spans().values()) == 50
    row.measured("spans given to the exporter, spans held", (exporter.refused, 0))
    row.measured("flush() returns", flushed)
    assert exporter.refused == 150


class Failing(SpanProcessor):
    """A span processor whose flush returns ``result``, or raises it."""

    def __init__(self, result: object) -> None:
        self.result = result

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        if isinstance(self.result, Exception):
            raise self.result
        return self.result  # type: ignore[return-value]


@pytest.mark.fault(29, expected="flush() returns False if a processor reports or raises an error")
@pytest.mark.parametrize(
    ("way", "result"),
    [
        *[(way, ended) for way in ("attached", "wrapped") for ended in (True, False, OSError())],
        ("wrapped", None),  # versions of the SDK differ in how they take it
    ],
)
def test_fault_29_a_flush_that_fails_is_reported(row: Row, result: object, way: str) -> None:
    """`flush` returns what the processor reports at its flush, and nothing is raised."""
    processor = Failing(result)
    provider = TracerProvider()
    provider.add_span_processor(processor)
    options = usual_options(raise_errors=False)
    if way == "wrapped":
        handle = RagEvalSpanProcessor(processor, **options).handle
    else:
        handle = instrument(tracer_provider=provider, **options)
    try:
        flushed = handle.flush(60)
    finally:
        processor.result = True
        handle.shutdown()
    row.measured(f"flush() if the processor gives {result!r}", flushed)
    assert flushed is (result in {True, None})


@pytest.mark.slow
@pytest.mark.fault(31, expected="scores are complete, one warning, nothing raised")
def test_fault_31_the_cache_of_scores_cannot_be_written(row: Row, tmp_path: Path) -> None:
    """A process whose files may not grow beyond 64 kB scores all rows."""
    script = """
import os, resource
from rag_eval_otel.tools.dataset import evaluate_dataset
from rag_eval_otel.types import Sample
resource.setrlimit(resource.RLIMIT_FSIZE, (65536, 65536))
rows = [Sample(question=f"Who founded {i}?", contexts=["Ada founded it." * 20], answer=f"Ada {i}.")
        for i in range(200)]
result = evaluate_dataset(rows, cache=os.environ["CACHE"])
print(sum(len(row.evaluation.scores) for row in result.rows))
"""
    ended = ran(script, CACHE=str(tmp_path / "scores.db"))
    warnings = ended.stderr.count("cannot be written")
    row.measured("scores of 200 rows, warnings", (ended.stdout.strip(), warnings))
    assert int(ended.stdout) == 200 * 4
    assert warnings == 1


@pytest.mark.fault(37, expected="requests of the judge make no span that leaves, and no turn")
def test_fault_37_the_judges_client_is_instrumented(
    row: Row, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The instrumentation traces every request, whether tracing is suppressed or not."""
    provider = TracerProvider()
    tracer = provider.get_tracer("openinference.instrumentation.openai")
    made: list[Any] = []
    post = openai.AsyncOpenAI.post

    async def traced(client: openai.AsyncOpenAI, *path: str, **options: Any) -> Any:
        kind = {"openinference.span.kind": "LLM", "input.value": "q", "output.value": "a"}
        with tracer.start_as_current_span("judge", attributes=kind) as span:
            made.append(span)
            return await post(client, *path, **options)

    monkeypatch.setattr(openai.AsyncOpenAI, "post", traced)
    with (
        ScriptedOpenAI(good_parts, lambda _: [1.0, 0.0]) as server,
        attached(
            provider=provider,
            judge=OpenAIJudge("m", base_url=server.base_url, api_key="k"),
            embedder=OpenAIEmbedder("e", base_url=server.base_url, api_key="k"),
        ) as app,
    ):
        for number in range(5):
            app.turn(number)
        assert app.handle.flush(60)
        row.check(app, turns=5, spans=15)
        requests = len(server.requests)
    row.measured("requests, spans of them made, spans of them exported", (requests, len(made), 0))
    assert len(made) == requests > 0


FROZEN = """
import os, signal, sys, time
from live import answered, attached, good_answers
from rag_eval_otel.testing import FakeJudge
import asyncio

class Slow(FakeJudge):
    async def reply(self, tasks):
        await asyncio.sleep(1.0)
        return await super().reply(tasks)

with attached(judge=Slow(good_answers), hold_seconds=4.0) as app:
    app.turn(1)
    app.handle.flush(60)
    for number in range(20):
        app.turn(number)
    print("go", flush=True)
    while app.handle.stats.held:
        time.sleep(0.05)
    app.let_leave()
    print(dict(app.statuses()), dict(app.counted()), flush=True)
"""


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(signal, "SIGSTOP"), reason="the system cannot stop a process")
@pytest.mark.fault(22, expected="all turns are scored after the thaw, none times out")
def test_fault_22_a_frozen_process_goes_on(row: Row) -> None:
    """20 turns wait for scores, at most 4 s; the process is stopped for 8 s."""
    command = [sys.executable, "-c", FROZEN]
    with subprocess.Popen(command, env=environment(), stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "go\n"
        process.send_signal(signal.SIGSTOP)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(8)
        process.send_signal(signal.SIGCONT)
        told = process.stdout.readline().strip()
    row.measured("spans by status, turns by outcome", told)
    assert "'scored': 21" in told
    assert "timeout" not in told


@pytest.mark.slow
@pytest.mark.fault("long trace", expected="each span leaves once; the application pays for none")
def test_fault_long_trace_of_9000_spans(row: Row) -> None:
    """The longest `end` on the application's thread is recorded, and not asserted."""
    longest = 0.0
    with attached(exporter=InMemorySpanExporter()) as app:
        root = app.plain("session")
        for number in range(2250):
            chain = app.chain(number, root)
            app.retrieve(number, chain)
            app.generate(number, chain)
            for span in (chain, app.plain("SELECT", root)):
                began = time.thread_time()
                span.end()
                longest = max(longest, time.thread_time() - began)
        root.end()
        assert app.handle.flush(60)
        row.check(app, turns=sum(app.counted().values()), spans=9001)
    row.measured("CPU time of the longest end(), in ms", round(1000 * longest, 1))
