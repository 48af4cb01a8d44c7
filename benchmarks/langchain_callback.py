"""CPU that tracing adds to one LCEL RAG turn of 18 callback events: ours and two other tracers.

Each tracer runs in a separate process, because instrumentations patch LangChain permanently. The
processes alternate in each round and export over OTLP/HTTP to the parent process. The process
without tracing runs twice: the difference between the two is the error of the other figures.

Our turns are scored by a judge that answers at once, so "process CPU" includes the work of scoring
but no waiting. "sample rate 0" traces without scoring. The other tracers score nothing.

``python benchmarks/langchain_callback.py [rounds]``
"""

from __future__ import annotations

import asyncio
import gc
import json
import subprocess
import sys
import time
import warnings
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any, TypeAlias

sys.path.append(str(Path(__file__).parents[1] / "tests"))

from _chain import Floor, chain, check_events
from _common import NullEmbedder, NullJudge, median, setting
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

from openai_server import HttpReply, LoopbackServer
from rag_eval_otel import instrument

ROUNDS = 25
TURNS = 40  # in a round, synchronous and asynchronous each

Figures: TypeAlias = "dict[str, float]"
Round: TypeAlias = "dict[str, Any]"
"""Figures, and the latencies of paced turns in seconds, as ``sync`` and ``async``."""
Setup: TypeAlias = "Callable[[TracerProvider], list[Any]]"
Worker: TypeAlias = "subprocess.Popen[str]"


def ours(**options: Any) -> Setup:
    """Return a setup that passes our callback to the chain."""

    def setup(provider: TracerProvider) -> list[Any]:
        judge = {"judge": NullJudge(), "embedder": NullEmbedder()}
        handle = instrument(tracer_provider=provider, raise_errors=True, **judge, **options)
        return [handle.callback]

    return setup


def theirs(module: str, name: str) -> Setup:
    """Return a setup that enables another instrumentation of LangChain."""

    def setup(provider: TracerProvider) -> list[Any]:
        instrumentor = getattr(import_module(module), name)()
        instrumentor.instrument(tracer_provider=provider, skip_dep_check=True)
        return []

    return setup


WAYS: Mapping[str, Setup] = {
    "nothing": lambda _: [],
    "nothing, again": lambda _: [],
    "floor": lambda provider: [Floor(provider.get_tracer("bench"))],
    "ours": ours(),
    "ours, content on": ours(export_content="all"),
    "ours, sample rate 0": ours(sample_rate=0.0),
    "OpenInference": theirs("openinference.instrumentation.langchain", "LangChainInstrumentor"),
    "Traceloop": theirs("opentelemetry.instrumentation.langchain", "LangchainInstrumentor"),
}
COLUMNS = (
    "sync thread",
    "async thread",
    "sync process",
    "async process",
    "sync paced",
    "async paced",
    "sync p99",
    "async p99",
)
PACED = 100  # turns with pauses in a round, synchronous and asynchronous each
PACE = 0.01  # seconds between the starts of two paced turns


# --- one tracer, in a separate process ------------------------------------------------------------


def work(name: str, endpoint: str) -> None:
    """Measure one round for each line on stdin, and print its figures as JSON."""
    warnings.simplefilter("ignore")
    provider = TracerProvider()
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=endpoint)))
    trace.set_tracer_provider(provider)
    config = {"callbacks": WAYS[name](provider)}
    app = chain()
    questions = (f"When was company number {i} founded?" for i in range(1_000_000_000))

    def ask() -> None:
        for _ in range(TURNS):
            app.invoke(next(questions), config)

    async def ask_async() -> None:
        for _ in range(TURNS):
            await app.ainvoke(next(questions), config)

    for _ in sys.stdin:
        figures: Round = {**measure("sync", ask, provider)}
        figures |= measure("async", lambda: asyncio.run(ask_async()), provider)
        figures |= paced(lambda: app.invoke(next(questions), config))
        figures |= asyncio.run(paced_async(lambda: app.ainvoke(next(questions), config)))
        print(json.dumps(figures), flush=True)


def measure(kind: str, run: Callable[[], Any], provider: TracerProvider) -> Figures:
    """Return the CPU in microseconds per turn: of this thread, and of the process with exports."""
    gc.collect()
    thread, process = time.thread_time(), time.process_time()
    run()
    thread = time.thread_time() - thread
    provider.force_flush()
    process = time.process_time() - process
    return {f"{kind} thread": thread / TURNS * 1e6, f"{kind} process": process / TURNS * 1e6}


def paced(ask: Callable[[], Any]) -> Round:
    """Run `PACED` turns, one every `PACE` seconds; return this thread's CPU and the latencies."""
    begun, thread, taken = time.perf_counter(), time.thread_time(), []
    for i in range(PACED):
        time.sleep(max(0.0, begun + i * PACE - time.perf_counter()))
        start = time.perf_counter()
        ask()
        taken.append(time.perf_counter() - start)
    return {"sync paced": per_turn(thread), "sync": taken}


async def paced_async(ask: Callable[[], Awaitable[Any]]) -> Round:
    """Return the figures of `paced` for turns that run concurrently in an event loop."""
    taken: list[float] = []

    async def one() -> None:
        start = time.perf_counter()
        await ask()
        taken.append(time.perf_counter() - start)

    tasks, thread = [], time.thread_time()
    for _ in range(PACED):
        tasks.append(asyncio.create_task(one()))
        await asyncio.sleep(PACE)
    await asyncio.gather(*tasks)
    return {"async paced": per_turn(thread), "async": taken}


def per_turn(begun: float) -> float:
    """Return this thread's CPU since ``begun`` per paced turn, in microseconds."""
    return (time.thread_time() - begun) / PACED * 1e6


def column_of(found: list[Round], column: str) -> list[float]:
    """Return a figure of each round; of latencies the one that 1 % of all turns exceed, in µs."""
    if column.endswith("p99"):
        taken = sorted(each for one in found for each in one[column.removesuffix(" p99")])
        return [taken[-1 - len(taken) // 100] * 1e6]
    return [one[column] for one in found]


# --- all tracers, alternating ---------------------------------------------------------------------


class Receiver:
    """An OTLP receiver that counts the bytes of spans."""

    def __init__(self) -> None:
        self.received = 0
        self.server = LoopbackServer(self._answer)

    def _answer(self, _path: str, _headers: Mapping[str, str], body: bytes) -> HttpReply:
        self.received += len(body)
        return HttpReply(headers={"Content-Type": "application/x-protobuf"})


@contextmanager
def worker(name: str, endpoint: str) -> Iterator[Worker]:
    """Run the tracer ``name`` in a separate process."""
    command = [sys.executable, __file__, "--worker", name, endpoint]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        yield process
        process.communicate()


def ask_round(process: Worker) -> Round | None:
    """Let a worker measure one round; return None if the worker has ended."""
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        process.stdin.write("\n")
        process.stdin.flush()
    except BrokenPipeError:
        return None
    line = process.stdout.readline()
    return json.loads(line) if line else None


def run_rounds(rounds: int) -> tuple[dict[str, list[Round]], dict[str, float]]:
    """Return each tracer's figures, and the kilobytes it exported per turn."""
    figures: dict[str, list[Round]] = {name: [] for name in WAYS}
    kilobytes: dict[str, float] = {}
    receiver = Receiver()
    receiver.server.start()
    with ExitStack() as stack:
        endpoint = f"{receiver.server.url}/v1/traces"
        workers = {name: stack.enter_context(worker(name, endpoint)) for name in WAYS}
        for i in range(rounds + 1):
            for name in list(workers):
                before = receiver.received
                found = ask_round(workers[name])
                if found is None:
                    workers.pop(name)
                elif i:  # the first round warms up
                    figures[name].append(found)
                    kilobytes[name] = (receiver.received - before) / (2 * TURNS) / 1000
    receiver.server.stop()
    return {name: found for name, found in figures.items() if found}, kilobytes


def report(figures: Mapping[str, list[Round]], kilobytes: Mapping[str, float]) -> None:
    """Print each tracer's cost per turn, and the ratios of ours to the others."""
    base = figures["nothing"]
    added = {name: beyond(found, base) for name, found in figures.items() if name != "nothing"}
    print(f"{len(base)} rounds of {TURNS} turns; microseconds added to a turn, medians")
    print(f"{'':32}" + "".join(f"{column:>15}" for column in COLUMNS) + f"{'OTLP kB':>9}")
    untraced = {column: median(column_of(base, column)) for column in COLUMNS}
    print(f"{'(a turn without tracing)':32}{cells(untraced)}")
    for name, found in added.items():
        print(f"{name:32}{cells(found)}{kilobytes[name]:9.1f}")
    for peer in ("floor", "OpenInference", "Traceloop"):
        if peer not in added:
            print(f"{peer} is not installed, or failed")
            continue
        for name in (name for name in added if name.startswith("ours")):
            ratios = {column: added[name][column] / added[peer][column] for column in COLUMNS}
            print(f"{f'{name} / {peer}':36}{cells(ratios, '15.2f')[4:]}")


def beyond(found: list[Round], base: list[Round]) -> Figures:
    """Return the medians over the rounds of ``found`` minus ``base``, by column."""
    added: Figures = {}
    for column in COLUMNS:
        pairs = zip(column_of(found, column), column_of(base, column), strict=True)
        added[column] = median([one - two for one, two in pairs])
    return added


def cells(values: Mapping[str, float], form: str = "15.0f") -> str:
    """Return the figures of one row as text."""
    return "".join(f"{values[column]:{form}}" for column in COLUMNS)


def main() -> None:
    """Measure and print, or run as a worker with ``--worker``."""
    if sys.argv[1:2] == ["--worker"]:
        work(sys.argv[2], sys.argv[3])
        return
    check_events()
    measured = run_rounds(int(sys.argv[1]) if len(sys.argv) > 1 else ROUNDS)
    peers = "openinference-instrumentation-langchain", "opentelemetry-instrumentation-langchain"
    print(setting("langchain-core", "opentelemetry-sdk", "rag-eval-otel", *peers))
    report(*measured)


if __name__ == "__main__":
    main()
