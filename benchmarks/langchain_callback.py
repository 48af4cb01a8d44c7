"""What tracing adds to one LCEL RAG turn of 18 callback events: ours, and two tracers beside it.

Each way has a process of its own, since instrumentations patch LangChain for good. The processes
take turns, round after round, and export over OTLP/HTTP to the process that started them. The
process that traces nothing runs twice: what the second one "adds" is the error of the rest.

Ours is scored by a judge that answers at once, so the work of scoring is in "process CPU" but the
waiting is not; "sample rate 0" traces without scoring. The tracers score nothing.

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
from typing import Any, TypeAlias

from _chain import Floor, chain, check_events
from _common import NullEmbedder, NullJudge, median, setting
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

from rag_eval_otel import instrument
from rag_eval_otel.testing import HttpReply
from rag_eval_otel.testing.openai_server import LoopbackServer

ROUNDS = 25
TURNS = 40  # a round, of each kind

Figures: TypeAlias = "dict[str, float]"
Setup: TypeAlias = "Callable[[TracerProvider], list[Any]]"
Worker: TypeAlias = "subprocess.Popen[str]"


def ours(**options: Any) -> Setup:
    """Pass our callback to the chain."""

    def setup(provider: TracerProvider) -> list[Any]:
        judge = {"judge": NullJudge(), "embedder": NullEmbedder()}
        handle = instrument(tracer_provider=provider, errors="raise", **judge, **options)
        return [handle.callback]

    return setup


def theirs(module: str, name: str) -> Setup:
    """Switch somebody's instrumentation of LangChain on."""

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
    "ours, content on": ours(capture_content="span"),
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
    "sync p98",
    "async p98",
)
PACED = 100  # turns that come one by one, of each kind and in each round
PACE = 0.01  # seconds between them


# --- one way, in its own process ------------------------------------------------------------------


def work(name: str, endpoint: str) -> None:
    """Measure a round for every line on stdin."""
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
        figures = measure("sync", ask, provider)
        figures |= measure("async", lambda: asyncio.run(ask_async()), provider)
        figures |= paced(lambda: app.invoke(next(questions), config))
        figures |= asyncio.run(paced_async(lambda: app.ainvoke(next(questions), config)))
        print(json.dumps(figures), flush=True)


def measure(kind: str, run: Callable[[], Any], provider: TracerProvider) -> Figures:
    """Return the microseconds of CPU a turn: of the own thread, and of all, exports included."""
    gc.collect()
    thread, process = time.thread_time(), time.process_time()
    run()
    thread = time.thread_time() - thread
    provider.force_flush()
    process = time.process_time() - process
    return {f"{kind} thread": thread / TURNS * 1e6, f"{kind} process": process / TURNS * 1e6}


def paced(ask: Callable[[], Any]) -> Figures:
    """Run `PACED` turns, one every `PACE` seconds: the own thread's CPU a turn, and the slowest."""
    begun, thread, taken = time.perf_counter(), time.thread_time(), []
    for i in range(PACED):
        time.sleep(max(0.0, begun + i * PACE - time.perf_counter()))
        start = time.perf_counter()
        ask()
        taken.append(time.perf_counter() - start)
    return {"sync paced": per_turn(thread), "sync p98": slow(taken)}


async def paced_async(ask: Callable[[], Awaitable[Any]]) -> Figures:
    """Return the same of turns that run side by side in a loop."""
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
    return {"async paced": per_turn(thread), "async p98": slow(taken)}


def per_turn(begun: float) -> float:
    """Return the microseconds of CPU that each paced turn took of this thread since ``begun``."""
    return (time.thread_time() - begun) / PACED * 1e6


def slow(taken: list[float]) -> float:
    """Return the latency that one turn of fifty exceeds, in microseconds."""
    return sorted(taken)[-1 - PACED // 50] * 1e6


# --- all ways, in turns ---------------------------------------------------------------------------


class Receiver:
    """Takes spans, and counts their bytes."""

    def __init__(self) -> None:
        """Count from zero."""
        self.received = 0
        self.server = LoopbackServer(self._answer)

    def _answer(self, _path: str, _headers: Mapping[str, str], body: bytes) -> HttpReply:
        self.received += len(body)
        return HttpReply(headers={"Content-Type": "application/x-protobuf"})


@contextmanager
def worker(name: str, endpoint: str) -> Iterator[Worker]:
    """Run ``name`` in a process of its own."""
    command = [sys.executable, __file__, "--worker", name, endpoint]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        yield process
        process.communicate()


def ask_round(process: Worker) -> Figures | None:
    """Let a worker measure one round; None if it has died."""
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        process.stdin.write("\n")
        process.stdin.flush()
    except BrokenPipeError:
        return None
    line = process.stdout.readline()
    return json.loads(line) if line else None


def run_rounds(rounds: int) -> tuple[dict[str, list[Figures]], dict[str, float]]:
    """Return every way's figures, and the kilobytes it sent for a turn."""
    figures: dict[str, list[Figures]] = {name: [] for name in WAYS}
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


def report(figures: Mapping[str, list[Figures]], kilobytes: Mapping[str, float]) -> None:
    """Print what each way adds to a turn, and as a share of what the tracers add."""
    base = figures["nothing"]
    added = {name: beyond(found, base) for name, found in figures.items() if name != "nothing"}
    print(f"{len(base)} rounds of {TURNS} turns; microseconds added to a turn, medians")
    print(f"{'':32}" + "".join(f"{column:>15}" for column in COLUMNS) + f"{'OTLP kB':>9}")
    untraced = {column: median([one[column] for one in base]) for column in COLUMNS}
    print(f"{'(a turn without tracing)':32}{cells(untraced)}")
    for name, found in added.items():
        print(f"{name:32}{cells(found)}{kilobytes[name]:9.1f}")
    for peer in ("floor", "OpenInference", "Traceloop"):
        if peer not in added:
            print(f"{peer} is not installed, or does not run")
            continue
        for name in (name for name in added if name.startswith("ours")):
            ratios = {column: added[name][column] / added[peer][column] for column in COLUMNS}
            print(f"{f'{name} / {peer}':36}{cells(ratios, '15.2f')[4:]}")


def beyond(found: list[Figures], base: list[Figures]) -> Figures:
    """Return what ``found`` has more than ``base``, by column: medians over the rounds."""
    pairs = list(zip(found, base, strict=True))
    return {column: median([one[column] - two[column] for one, two in pairs]) for column in COLUMNS}


def cells(values: Mapping[str, float], form: str = "15.0f") -> str:
    """Return one row's figures."""
    return "".join(f"{values[column]:{form}}" for column in COLUMNS)


def main() -> None:
    """Measure and print; or be one of the workers."""
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
