"""Score mixed traffic for a long time, with outages, and check that nothing is lost or doubled.

    python benchmarks/soak.py --minutes 30 --rate 100

An application makes ``--rate`` operations a second: RAG turns as spans of an instrumentation, RAG
turns of LangChain (some of them streamed), turns whose retriever fails, and spans of other
libraries. A second process has the judge, which fails 3 % of its requests, and an OTLP receiver.
Judge and receiver each fail for 60 seconds, or for a sixth of a short run.

The command prints a line a minute, then the checks, and exits with status 1 if a check fails:

- each started span reaches the next processor once (number and sum of the span ids are equal);
- each turn is counted once;
- in runs of ten minutes and more: memory of the last minute is at most 1.05 of the third minute's,
  and it has at most two threads and descriptors more than a minute of the first half had: after the
  judge has failed, its client opens all connections that it may have.

Spans that the SDK's own queue drops while the receiver is down are counted apart.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import random
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[1] / "tests"))

from _chain import chain
from _turns import embed, reply, turns
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import ReadableSpan, Span, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import Status, StatusCode, Tracer, set_span_in_context

from openai_server import HttpReply, LoopbackServer, ScriptedOpenAI
from rag_eval_otel import OpenAIEmbedder, OpenAIJudge, RagEvalSpanProcessor

_FAILING = 0.03
_DRIVERS = 4
_KIND = "openinference.span.kind"
_ALLOWED = 1.05
_SPARE = 2  # connections that a pool has opened or closed
_LONG = 600.0  # seconds
_DOWN = HttpReply(status=503, body={"error": {"message": "down for the soak"}})


@dataclass
class Spans:
    """How many spans passed a point, and the sum of their ids."""

    count: int = 0
    total: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False, compare=False)

    def add(self, span: Span | ReadableSpan) -> None:
        assert span.context is not None
        with self._lock:
            self.count += 1
            self.total += span.context.span_id


class Starts(SpanProcessor):
    """Counts the spans that start."""

    def __init__(self) -> None:
        self.spans = Spans()

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:
        del parent_context
        if span.is_recording():
            self.spans.add(span)


class Ends(SpanProcessor):
    """Counts the spans that reach the next processor, and exports them."""

    def __init__(self, next_processor: SpanProcessor) -> None:
        self._next = next_processor
        self.spans = Spans()
        self.statuses: Counter[str] = Counter()

    def on_end(self, span: ReadableSpan) -> None:
        self.spans.add(span)
        status = (span.attributes or {}).get("rag.evaluation.status")
        if status is not None:
            self.statuses[str(status)] += 1
        self._next.on_end(span)

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        return self._next.force_flush(timeout_millis)

    def shutdown(self) -> None:
        self._next.shutdown()


class Traffic:
    """Makes the operations of the application; ``made`` counts them by kind."""

    def __init__(self, provider: TracerProvider, processor: RagEvalSpanProcessor) -> None:
        self._rag = provider.get_tracer("openinference.instrumentation.fake")
        self._other = provider.get_tracer("app")
        self._turns = turns()
        self._chain = chain()
        self._callbacks = [processor.handle.callback]
        self.made: Counter[str] = Counter()
        self._lock = threading.Lock()

    def run(self, seconds: float, rate: float, seed: int) -> None:
        """Make operations for ``seconds`` at ``rate`` a second, on several threads."""
        ends = time.monotonic() + seconds
        threads = [
            threading.Thread(target=self._drive, args=(ends, rate / _DRIVERS, seed + i))
            for i in range(_DRIVERS)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _drive(self, ends: float, rate: float, seed: int) -> None:
        chance, due = random.Random(seed), time.monotonic()
        kinds = {self._turn: 60, self._invoke: 8, self._stream: 4, self._failed: 3, self._http: 25}
        while time.monotonic() < ends:
            (make,) = chance.choices(list(kinds), list(kinds.values()))
            make(chance)
            with self._lock:
                self.made[make.__name__.lstrip("_")] += 1
            due = max(due + 1 / rate, time.monotonic() - 1)  # never catch up more than a second
            time.sleep(max(0.0, due - time.monotonic()))

    def _turn(self, chance: random.Random) -> None:
        turn = chance.choice(self._turns)
        question = f"{turn['question']} ({chance.getrandbits(64)})"  # no turn equals another
        answered = {"input.value": question, "output.value": turn["answer"]}
        chained = _start(self._rag, "CHAIN", None, answered)
        documents = {
            f"retrieval.documents.{i}.document.content": text
            for i, text in enumerate(turn["contexts"])
        }
        _start(self._rag, "RETRIEVER", chained, {"input.value": question, **documents}).end()
        self._http(chance, chained)
        _start(self._rag, "LLM", chained, {"output.value": turn["answer"]}).end()
        chained.end()

    def _failed(self, chance: random.Random) -> None:
        question = {"input.value": f"Why? ({chance.getrandbits(64)})"}
        chained = _start(self._rag, "CHAIN", None, question)
        found = _start(self._rag, "RETRIEVER", chained, question)
        found.set_status(Status(StatusCode.ERROR, "the index is down"))
        found.end()
        chained.set_status(Status(StatusCode.ERROR, "no documents"))
        chained.end()

    def _invoke(self, chance: random.Random) -> None:
        self._chain.invoke(f"How many? ({chance.getrandbits(64)})", {"callbacks": self._callbacks})

    def _stream(self, chance: random.Random) -> None:
        for _ in self._chain.stream(
            f"How many? ({chance.getrandbits(64)})", {"callbacks": self._callbacks}
        ):
            pass

    def _http(self, chance: random.Random, parent: Any = None) -> None:
        context = Context() if parent is None else set_span_in_context(parent)
        outer = self._other.start_span("GET /", context, attributes={"size": chance.random()})
        self._other.start_span("SELECT", set_span_in_context(outer)).end()
        outer.end()


def _start(tracer: Tracer, kind: str, parent: Any, attributes: Mapping[str, Any]) -> Any:
    context = Context() if parent is None else set_span_in_context(parent)
    return tracer.start_span(kind.lower(), context, attributes={_KIND: kind, **attributes})


# --- the other process: judge and receiver --------------------------------------------------------


def _serve(judge_down: tuple[float, float], receiver_down: tuple[float, float]) -> None:
    """Serve a judge and a receiver until standard input ends; each is down in its period."""
    start, chance = time.monotonic(), random.Random(0)
    received = {"spans": 0}

    def is_down(period: tuple[float, float]) -> bool:
        return period[0] <= time.monotonic() - start < period[1]

    def judge(body: dict[str, Any]) -> object:
        if is_down(judge_down) or chance.random() < _FAILING:
            return _DOWN
        return reply(body)

    def receive(_path: str, _headers: Mapping[str, str], raw: bytes) -> HttpReply:
        if is_down(receiver_down):
            return _DOWN
        message = ExportTraceServiceRequest.FromString(raw)
        received["spans"] += sum(
            len(scope.spans) for one in message.resource_spans for scope in one.scope_spans
        )
        return HttpReply(headers={"Content-Type": "application/x-protobuf"})

    openai, otlp = _Forgetful(judge, embed, latency=0.05), LoopbackServer(receive)
    openai.start()
    otlp.start()
    print(json.dumps({"judge": openai.base_url, "otlp": otlp.url}), flush=True)
    sys.stdin.read()
    print(json.dumps(received), flush=True)
    os._exit(0)


class _Forgetful(ScriptedOpenAI):
    """A scripted server that keeps no requests."""

    def _record(self, path: str, headers: Mapping[str, str], *, body: dict[str, Any]) -> None:
        """Do nothing: a soak has too many requests to keep."""


@contextmanager
def _servers(judge_down: tuple[float, float], receiver_down: tuple[float, float]) -> Iterator[Any]:
    periods = [str(moment) for moment in (*judge_down, *receiver_down)]
    command = [sys.executable, __file__, "--serve", *periods]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        yield json.loads(process.stdout.readline()), process


# --- measuring ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Usage:
    """Memory in MB, and the numbers of threads and open files."""

    rss: float
    threads: int
    files: int


def _usage() -> Usage:
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    rss = pages * os.sysconf("SC_PAGE_SIZE") / 2**20
    return Usage(
        round(rss, 1), threading.active_count(), len(list(Path("/proc/self/fd").iterdir()))
    )


class Sampler(threading.Thread):
    """Measures the process every second, and prints the highest figures of each period."""

    def __init__(self, seconds: float) -> None:
        super().__init__(daemon=True)
        self._seconds = seconds
        self._stop_it = threading.Event()
        self.periods: list[Usage] = []

    def run(self) -> None:
        while not self._stop_it.is_set():
            ends = time.monotonic() + self._seconds
            found = [_usage()]
            while time.monotonic() < ends and not self._stop_it.wait(1.0):
                found.append(_usage())
            highest = Usage(
                *(max(getattr(u, name) for u in found) for name in Usage.__annotations__)
            )
            self.periods.append(highest)
            print(f"period {len(self.periods)}: {highest}", flush=True)

    def end(self) -> list[Usage]:
        self._stop_it.set()
        self.join()
        return self.periods[:-1] or self.periods  # the last one was cut short


def _is_flat(periods: list[Usage]) -> bool:
    half, last = periods[: len(periods) // 2], periods[-1]
    is_level = last.threads <= max(each.threads for each in half) + _SPARE
    is_level &= last.files <= max(each.files for each in half) + _SPARE
    return is_level and last.rss <= _ALLOWED * half[2].rss


def soak(minutes: float, rate: float, seed: int) -> bool:
    """Run the soak and print its result; return whether every check holds."""
    seconds = minutes * 60
    down = min(60.0, seconds / 6)
    judge_down = (seconds / 4, seconds / 4 + down)
    receiver_down = (seconds / 2, seconds / 2 + down)
    with _servers(judge_down, receiver_down) as (urls, process):
        starts = Starts()
        batch = BatchSpanProcessor(OTLPSpanExporter(f"{urls['otlp']}/v1/traces", timeout=5))
        ends = Ends(batch)
        provider = TracerProvider(shutdown_on_exit=False)
        provider.add_span_processor(starts)
        processor = RagEvalSpanProcessor(
            ends,
            tracer_provider=provider,
            judge=OpenAIJudge("soak", base_url=urls["judge"], api_key="none"),
            embedder=OpenAIEmbedder("soak", base_url=urls["judge"], api_key="none"),
        )
        provider.add_span_processor(processor)
        traffic, sampler = Traffic(provider, processor), Sampler(min(60.0, seconds / 6))
        sampler.start()
        began = time.monotonic()
        traffic.run(seconds, rate, seed)
        took = time.monotonic() - began
        periods = sampler.end()
        processor.handle.flush(60)
        stats = processor.handle.stats
        provider.shutdown()
        received, _ = process.communicate()
    made, third, last = traffic.made, periods[min(2, len(periods) - 1)], periods[-1]
    result = {
        "rate asked": rate,
        "rate reached": round(made.total() / took, 1),
        "operations": dict(made),
        "turns": dict(stats.turns),
        "statuses": dict(ends.statuses),
        "failures": dict(stats.failures),
        "spans started": starts.spans.count,
        "spans at the next processor": ends.spans.count,
        "dropped by the SDK's queue": ends.spans.count - json.loads(received)["spans"],
        "third period": vars(third),
        "last period": vars(last),
    }
    expected = made.total() - made["http"]
    counted = sum(stats.turns.values())
    checks = {
        "spans in = out": starts.spans == ends.spans,
        f"turns {expected} = {counted}": expected == counted,
        "nothing is held": stats.held == 0,
        "flat": seconds < _LONG or _is_flat(periods),
    }
    print(json.dumps({**result, "checks": checks}, indent=1), flush=True)
    return all(checks.values())


def main() -> None:
    """Read the options and run the soak, or the servers for it."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--rate", type=float, default=100.0, help="operations a second")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--serve", type=float, nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        _serve(tuple(options.serve[:2]), tuple(options.serve[2:]))
    gc.collect()
    sys.exit(0 if soak(options.minutes, options.rate, options.seed) else 1)


if __name__ == "__main__":
    main()
