"""The configuration ``collector/balance/``: an agent distributes traces among workers, by OTLP."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor

from e2e.programs import eventually, free_ports, running
from e2e.stack import collector
from e2e.turns import turn
from otlp_receiver import OtlpReceiver, ReceivedSpan

TURNS, SPANS = 40, 3
STATUS = "rag.evaluation.status"


@contextmanager
def worker(folder: Path, port: int, endpoint: str) -> Iterator[subprocess.Popen[bytes]]:
    (probes,) = free_ports(1)
    command = [
        *(sys.executable, "-m", "rag_eval_otel", "serve", "--http", "off"),
        *("--grpc", f"127.0.0.1:{port}", "--probes", f"127.0.0.1:{probes}", "--endpoint", endpoint),
    ]
    ready = f"http://127.0.0.1:{probes}/readyz"
    root = str(Path(__file__).parents[2])
    path = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
    environment = {"PYTHONPATH": path, "OTEL_METRICS_EXPORTER": "none"}
    with running(command, ready=ready, log=folder / f"{port}.log", environment=environment) as one:
        yield one


def make(tracer: Any, first: int) -> None:
    for number in range(first, first + TURNS):
        turn(tracer, number)


def test_each_turn_reaches_one_worker_as_a_whole(tmp_path: Path) -> None:
    """Each span comes in a request of its own, and its turn is scored nevertheless.

    Each worker has a backend of its own, and each trace is at one of them. While a worker is away,
    spans for it wait in the agent, and all of them arrive later.
    """
    ports = free_ports(2)
    workers = f"[{', '.join(f'127.0.0.1:{port}' for port in ports)}]"
    with ExitStack() as stack:
        a, b = (stack.enter_context(OtlpReceiver()) for _ in ports)
        stack.enter_context(worker(tmp_path, ports[0], a.grpc_endpoint))
        other = stack.enter_context(ExitStack())
        other.enter_context(worker(tmp_path, ports[1], b.grpc_endpoint))
        agent = stack.enter_context(
            collector(tmp_path / "agent", "agent.yaml", "balance/agent.yaml", RAG_WORKERS=workers)
        )
        provider = TracerProvider()
        exporter = OTLPSpanExporter(f"http://{agent.grpc}", insecure=True)
        provider.add_span_processor(SimpleSpanProcessor(exporter))
        tracer = provider.get_tracer("openinference.instrumentation.langchain")
        make(tracer, 0)
        eventually(lambda: len(arrived(a, b)) == SPANS * TURNS, "all turns arrive")
        other.close()
        assert {one.attributes.get(STATUS) for one in roots(a, b)} == {"scored"}
        before = len(arrived(a))
        make(tracer, TURNS)
        eventually(lambda: len(arrived(a)) > before, "the other worker gets its turns")
        with worker(tmp_path, ports[1], b.grpc_endpoint):
            eventually(lambda: len(arrived(a, b)) == 2 * SPANS * TURNS, "spans that have waited")
        provider.shutdown()
        traces = [{one.trace_id for one in roots(backend)} for backend in (a, b)]
    assert all(traces)
    assert traces[0].isdisjoint(traces[1])


def arrived(*backends: OtlpReceiver) -> set[tuple[int, int]]:
    """Return the ids of the spans that have arrived."""
    return {(one.trace_id, one.span_id) for backend in backends for one in backend.spans()}


def roots(*backends: OtlpReceiver) -> list[ReceivedSpan]:
    """Return the spans without a parent."""
    spans = (one for backend in backends for one in backend.spans())
    return [one for one in spans if one.parent_span_id is None]
