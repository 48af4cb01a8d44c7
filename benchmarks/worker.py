"""Measure the worker: CPU time for each span beside a bare forwarder, and memory over minutes.

    python benchmarks/worker.py                  # 100,000 spans through one process
    python benchmarks/worker.py --minutes 10     # half of the reached rate, for ten minutes

Most spans come from an HTTP client; three in two thousand belong to a RAG turn, whose judge answers
at once. The *forwarder* is a gRPC server that reads each request and sends it on, as the generated
code of OTLP does. Worker and forwarder are processes of their own, and send to a receiver in this
process, which notes the id of each span.

The command prints JSON, and exits with status 1 if a check fails:

- each span arrives exactly once, and each turn has its scores;
- the worker's CPU time for a span is at most 3 times the forwarder's (median of the rounds);
- in runs of four minutes and more, the largest memory of the last minute is at most 1.05 of the
  second minute's. In shorter runs, whose minutes are sixths of the run, it is at most 1.15, because
  the tables of recent turns are filled in the first two minutes.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import grpc
from _common import NullEmbedder, NullJudge, setting
from google.rpc.error_details_pb2 import RetryInfo
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2_grpc import (
    TraceServiceServicer,
    TraceServiceStub,
    add_TraceServiceServicer_to_server,
)

_SPANS = 100_000
_BATCH = 500  # spans of a request
_TURN_EVERY = 4  # requests; a turn has three spans
_SENDERS = 4
_ROUNDS = 5
_ALLOWED = 3.0  # times the CPU time of the forwarder
_GROWTH = 1.05
_GROWTH_AT_FIRST = 1.15  # in runs that are shorter than
_LONG = 4.0  # minutes
_RUNS = count(1)  # each run has ids of its own
_WAIT = 120.0  # seconds for the last span
_SERVICE = "opentelemetry.proto.collector.trace.v1.TraceService"
_SIZES = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]


# --- the spans ------------------------------------------------------------------------------------


def requests(spans: int, *, first: int) -> Iterator[bytes]:
    """Yield serialized requests of ``spans`` spans, whose ids count from ``first``."""
    numbers = iter(range(first, first + spans))
    for index in range(spans // _BATCH):
        request = ExportTraceServiceRequest()
        resource = request.resource_spans.add()
        resource.resource.attributes.add(key="service.name").value.string_value = "shop"
        plain = _BATCH
        if index % _TURN_EVERY == 0:
            _add_turn(resource, *(next(numbers) for _ in range(3)))
            plain -= 3
        scope = resource.scope_spans.add()
        scope.scope.name = "opentelemetry.instrumentation.httpx"
        for _ in range(plain):
            _add_call(scope, next(numbers))
        yield request.SerializeToString()


def _add_call(scope: Any, number: int) -> None:
    now = time.time_ns()
    span = scope.spans.add(
        name="GET /items",
        trace_id=(number // 5 + 1 << 64).to_bytes(16, "big"),
        span_id=number.to_bytes(8, "big"),
        parent_span_id=(number // 5 * 5).to_bytes(8, "big") if number % 5 else b"",
        start_time_unix_nano=now - 1_000_000,
        end_time_unix_nano=now,
        kind=3,
    )
    texts = {
        "http.request.method": "GET",
        "url.full": f"https://shop.example.com/items/{number}?page=2",
        "server.address": "shop.example.com",
        "network.protocol.version": "1.1",
        "user_agent.original": "python-httpx/0.28",
    }
    for key, text in texts.items():
        span.attributes.add(key=key).value.string_value = text
    for key in ("http.response.status_code", "server.port", "thread.id"):
        span.attributes.add(key=key).value.int_value = 443


def _add_turn(resource: Any, root: int, found: int, answered: int) -> None:
    scope = resource.scope_spans.add()
    scope.scope.name = "openinference.instrumentation.langchain"
    asked = f"When was bridge {root} built?"
    kinds = {
        found: ("RETRIEVER", {"retrieval.documents.0.document.content": "It was built in 1880."}),
        answered: ("LLM", {"output.value": "In 1880."}),
        root: ("CHAIN", {"output.value": "In 1880."}),
    }
    for number, (kind, more) in kinds.items():
        now = time.time_ns()
        span = scope.spans.add(
            name=kind.lower(),
            trace_id=(root + 1).to_bytes(16, "big"),
            span_id=number.to_bytes(8, "big"),
            parent_span_id=b"" if number == root else root.to_bytes(8, "big"),
            start_time_unix_nano=now - 1_000_000,
            end_time_unix_nano=now,
        )
        values = {"openinference.span.kind": kind, "input.value": asked, **more}
        for key, text in values.items():
            span.attributes.add(key=key).value.string_value = text


# --- the receiver, in this process ----------------------------------------------------------------


class Sink:
    """Counts how often each span arrives, by its id, and the turns by status."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        handler = grpc.unary_unary_rpc_method_handler(self._export)
        self._server = grpc.server(
            ThreadPoolExecutor(8),
            handlers=[grpc.method_handlers_generic_handler(_SERVICE, {"Export": handler})],
            options=_SIZES,
        )
        self.port = self._server.add_insecure_port("127.0.0.1:0")
        self.clear()
        self._server.start()

    def clear(self, first: int = 1) -> None:
        """Forget all spans; the ids of those to come count from ``first``."""
        with self._changed:
            self._times = bytearray()
            """How often each span has arrived; the index is its id less that of the first one."""
            self._first = first
            self._count = 0
            self.statuses: Counter[str] = Counter()

    def _export(self, raw: bytes, _context: Any) -> bytes:
        request = ExportTraceServiceRequest.FromString(raw)
        with self._changed:
            for resource in request.resource_spans:
                for scope in resource.scope_spans:
                    self._count_spans(scope.spans)
                    if scope.scope.name.startswith("openinference"):
                        self._count_turns(scope.spans)
            self._changed.notify_all()
        return b""

    def _count_spans(self, spans: Any) -> None:
        times = self._times
        for span in spans:
            number = int.from_bytes(span.span_id, "big") - self._first
            if number >= len(times):
                times.extend(bytes(number + 1 - len(times)))
            times[number] += 1
        self._count += len(spans)

    def _count_turns(self, spans: Any) -> None:
        for span in spans:
            if not span.parent_span_id:
                found = {one.key: one.value.string_value for one in span.attributes}
                self.statuses[found.get("rag.evaluation.status", "none")] += 1

    def has_each_once(self, number: int) -> bool:
        """Wait for ``number`` spans; return True if the first ``number`` ids came once each."""
        with self._changed:
            self._changed.wait_for(lambda: self._count >= number, _WAIT)
            return self._times == b"\1" * number


# --- worker and forwarder, in processes of their own ----------------------------------------------


def _work(port: int) -> None:
    """Run a worker that sends to ``port``; print its own port, and stop at the end of stdin."""
    asyncio.run(_serve(port))


async def _serve(port: int) -> None:
    from rag_eval_otel.config import Config  # noqa: PLC0415  # not needed by the forwarder
    from rag_eval_otel.export.metrics import Meters  # noqa: PLC0415
    from rag_eval_otel.worker.engine import Engine  # noqa: PLC0415
    from rag_eval_otel.worker.exporter import Exporter, build_sender  # noqa: PLC0415
    from rag_eval_otel.worker.otlp import OtlpSource  # noqa: PLC0415

    exporter = Exporter(build_sender({}, f"http://127.0.0.1:{port}"), Meters())
    config = Config(judge=NullJudge(), embedder=NullEmbedder())
    source = OtlpSource(Engine(config, exporter, max_bytes=2**28), Meters())
    print((await source.start("127.0.0.1", 0, 0))[0], flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    await source.stop()
    await source.engine.close(30)
    await source.close()


class _Forwarder(TraceServiceServicer):  # type: ignore[misc]
    def __init__(self, port: int) -> None:
        self._stub = TraceServiceStub(grpc.insecure_channel(f"127.0.0.1:{port}", options=_SIZES))

    def Export(  # noqa: N802  # the name in the generated code
        self, request: ExportTraceServiceRequest, _context: Any
    ) -> ExportTraceServiceResponse:
        return self._stub.Export(request)


def _forward(port: int) -> None:
    """Run a forwarder that sends to ``port``; print its own port, and stop at the end of stdin."""
    server = grpc.server(ThreadPoolExecutor(8), options=_SIZES)
    add_TraceServiceServicer_to_server(_Forwarder(port), server)
    print(server.add_insecure_port("127.0.0.1:0"), flush=True)
    server.start()
    sys.stdin.read()
    server.stop(None)


class Process:
    """A worker or a forwarder, with its CPU time and its memory."""

    def __init__(self, role: str, port: int) -> None:
        command = [sys.executable, __file__, "--role", role, "--port", str(port)]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self._process.stdout is not None
        self._folder = Path("/proc") / str(self._process.pid)
        channel = grpc.insecure_channel(
            f"127.0.0.1:{int(self._process.stdout.readline())}", options=_SIZES
        )
        self._export = channel.unary_unary(f"/{_SERVICE}/Export")

    @property
    def cpu(self) -> float:
        """Seconds of CPU time since the start."""
        fields = (self._folder / "stat").read_text(encoding="ascii").rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    @property
    def rss(self) -> float:
        """Memory in MB."""
        pages = int((self._folder / "statm").read_text(encoding="ascii").split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / 2**20

    def send(self, raw: bytes) -> int:
        """Send a request, again while it is refused for lack of room; return how often it was."""
        refused = 0
        while (wait := self._try(raw)) is not None:
            refused += 1
            time.sleep(wait)
        return refused

    def _try(self, raw: bytes) -> float | None:
        """Send a request; return after how many seconds to repeat it, or None if it is taken."""
        try:
            self._export(raw, timeout=60)
        except grpc.RpcError as error:
            if error.code() is not grpc.StatusCode.RESOURCE_EXHAUSTED:
                raise
            told = dict(error.trailing_metadata())["google.rpc.retryinfo-bin"]
            return RetryInfo.FromString(told).retry_delay.ToMilliseconds() / 1000
        return None

    def stop(self) -> None:
        self._process.communicate(timeout=120)


@contextmanager
def _started(role: str, sink: Sink) -> Iterator[Process]:
    process = Process(role, sink.port)
    try:
        yield process
    finally:
        process.stop()


# --- measuring ------------------------------------------------------------------------------------


def _run(process: Process, sink: Sink, spans: int) -> dict[str, Any]:
    """Send ``spans`` spans as fast as they are taken; return what that took."""
    first = next(_RUNS) * 10**9
    sink.clear(first)
    batches = list(requests(spans, first=first))
    began, cpu = time.monotonic(), process.cpu
    with ThreadPoolExecutor(_SENDERS) as pool:
        refused = sum(pool.map(process.send, batches))
    is_complete = sink.has_each_once(spans)
    took = time.monotonic() - began
    return {
        "cpu_us_a_span": round((process.cpu - cpu) / spans * 1e6, 2),
        "spans_a_second": round(spans / took),
        "refused": refused,
        "once": is_complete,
        "turns": dict(sink.statuses),
        "rss": round(process.rss, 1),
    }


def measure() -> bool:
    """Compare worker and forwarder; print the result, and return whether every check holds."""
    sink, found = Sink(), {"worker": list[Any](), "forwarder": list[Any]()}
    with _started("worker", sink) as worker, _started("forwarder", sink) as forwarder:
        processes = {"worker": worker, "forwarder": forwarder}
        for process in processes.values():  # imports and first connections
            _run(process, sink, 10 * _BATCH)
        for _ in range(_ROUNDS):
            for name, process in processes.items():
                found[name].append(_run(process, sink, _SPANS))
    cpu = {name: [one["cpu_us_a_span"] for one in runs] for name, runs in found.items()}
    ratios = [ours / bare for ours, bare in zip(cpu["worker"], cpu["forwarder"], strict=True)]
    ratio = statistics.median(ratios)
    turns = _SPANS // _BATCH // _TURN_EVERY
    checks = {
        "each span once": all(one["once"] for runs in found.values() for one in runs),
        "each turn scored": all(one["turns"] == {"scored": turns} for one in found["worker"]),
        "cpu": ratio <= _ALLOWED,
    }
    medians = {name: statistics.median(runs) for name, runs in cpu.items()}
    shown = [round(one, 2) for one in (ratio, *ratios)]
    result = {
        "rounds": found,
        "cpu_us_a_span": medians,
        "ratio": shown[0],
        "ratios": shown[1:],
        "checks": checks,
    }
    print(setting("grpcio", "protobuf", "opentelemetry-sdk"))
    print(json.dumps(result, indent=1))
    return all(checks.values())


def soak(minutes: float) -> bool:
    """Send at half of the reached rate; print the memory, and return whether it does not grow."""
    sink = Sink()
    with _started("worker", sink) as worker:
        _run(worker, sink, 10 * _BATCH)
        reached = _run(worker, sink, _SPANS)
        sink.clear()
        period = 60.0 if minutes >= _LONG else minutes * 60 / 6
        memory = list[float]()
        sent = _send_at(worker, reached["spans_a_second"] / 2, seconds=minutes * 60, then=memory)
        is_complete = sink.has_each_once(sent)
    size = max(1, round(period))
    highest = [max(memory[i : i + size]) for i in range(0, len(memory) - size + 1, size)]
    result = {
        "reached": reached,
        "rate": reached["spans_a_second"] / 2,
        "spans": sent,
        "period_s": period,
        "highest_mb": highest,
        "turns": dict(sink.statuses),
    }
    growth = _GROWTH if minutes >= _LONG else _GROWTH_AT_FIRST
    is_flat = max(memory[-size:]) <= growth * highest[1]
    checks = {"each span once": is_complete, "flat": is_flat}
    print(json.dumps({**result, "checks": checks}, indent=1), flush=True)
    return all(checks.values())


def _send_at(worker: Process, rate: float, *, seconds: float, then: list[float]) -> int:
    """Send ``rate`` spans a second, and append the memory in MB to ``then`` every second."""
    began, sent, sampled = time.monotonic(), 0, 0
    while (now := time.monotonic() - began) < seconds:
        while now >= sampled:
            then.append(round(worker.rss, 1))
            sampled += 1
        for raw in requests(_TURN_EVERY * _BATCH, first=1 + sent):
            worker.send(raw)
            sent += _BATCH
        time.sleep(max(0.0, sent / rate - (time.monotonic() - began)))
    return sent


def main() -> None:
    """Read the options, and measure, or run the process that they name."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--minutes", type=float, help="run for so long, and watch the memory")
    parser.add_argument("--role", choices=["worker", "forwarder"], help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    roles: dict[str, Callable[[int], None]] = {"worker": _work, "forwarder": _forward}
    if options.role:
        roles[options.role](options.port)
        return
    is_well = measure() if options.minutes is None else soak(options.minutes)
    sys.exit(0 if is_well else 1)


if __name__ == "__main__":
    main()
