"""Score turns that wait: in a topic of Kafka, or in a client that repeats what is refused.

    python benchmarks/backlog.py [--turns 10000] [--workers 1] [--kafka | --otlp]

The judge answers after 0.1 s, to 16 requests of a worker at once. The workers are processes. The
command prints how many turns were scored, the turns a second beside the ideal (concurrency by the
time of a turn's requests one after the other), the memory, and how many spans came twice.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import grpc
from _judge import Judge
from google.rpc.error_details_pb2 import RetryInfo

sys.path.append(str(Path(__file__).parents[1]))

from e2e.kafka_broker import Broker, fresh
from e2e.kafka_broker import serving as broker_in
from e2e.serve import METHOD, Serve, serving
from otlp_receiver import OtlpReceiver
from wires import content, turn

LATENCY, CONCURRENCY = 0.1, 16
STATUS = "rag.evaluation.status"


@contextmanager
def judging() -> Iterator[tuple[Judge, str]]:
    """Serve a judge on a thread, and yield it with its URL."""
    judge, loop = Judge(latency=LATENCY, slots=1000), asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, daemon=True).start()
    yield judge, asyncio.run_coroutine_threadsafe(judge.start(), loop).result()
    loop.call_soon_threadsafe(loop.stop)


def send_all(workers: list[Serve], turns: int) -> int:
    """Send the turns over gRPC; return how many requests were refused and repeated."""
    channels = [grpc.insecure_channel(f"127.0.0.1:{w.ports['gRPC']}") for w in workers]
    calls = [channel.unary_unary(METHOD) for channel in channels]

    def wait(number: int) -> float:
        try:
            calls[number % len(calls)](content(*turn(number)), timeout=60)
        except grpc.RpcError as error:
            info = dict(error.trailing_metadata())["google.rpc.retryinfo-bin"]
            return float(RetryInfo.FromString(info).retry_delay.ToMilliseconds()) / 1000
        return 0.0

    def send(number: int) -> int:
        refused = 0
        while seconds := wait(number):
            refused += 1
            time.sleep(seconds)
        return refused

    with ThreadPoolExecutor(64) as pool:
        return sum(pool.map(send, range(1, turns + 1)))


def produce(broker: Broker, topic: str, turns: int) -> None:
    from confluent_kafka import Producer  # noqa: PLC0415  # not needed over OTLP

    producer = Producer(broker.client())
    for number in range(1, turns + 1):
        producer.produce(topic, content(*turn(number)), key=str(number))
        producer.poll(0)
    producer.flush(120)


def measure(turns: int, workers: int, broker: Broker | None) -> dict[str, Any]:
    """Return what became of ``turns`` turns, and what it took."""
    with OtlpReceiver() as backend, judging() as (judge, url), ExitStack() as stack:
        variables = {
            "RAG_EVAL_JUDGE": "openai/gpt-judge",
            "RAG_EVAL_EMBEDDER": "hashing",
            "RAG_EVAL_CONCURRENCY": str(CONCURRENCY),
            "OPENAI_API_KEY": "none",
            "OPENAI_BASE_URL": url,
        }
        options, topic = [], fresh("backlog")
        if broker is not None:
            broker.create(topic, 12)
            produce(broker, topic, turns)
            options = [f"--kafka={broker.address}", f"--topic={topic}", f"--group={topic}"]
        began = time.monotonic()
        running = [
            stack.enter_context(serving(backend.grpc_endpoint, *options, **variables))
            for _ in range(workers)
        ]
        memory: list[list[float]] = [[] for _ in running]
        refused = 0
        sender = ThreadPoolExecutor(1)
        sending = sender.submit(send_all, running, turns) if broker is None else None
        while len({s.trace_id for s in backend.spans() if s.name == "chain"}) < turns:
            time.sleep(1)
            for rows, worker in zip(memory, running, strict=True):
                rows.append(worker.memory())
        seconds = time.monotonic() - began
        refused = sending.result() if sending else 0
        spans = backend.spans()
        last = {s.trace_id: s.attributes.get(STATUS) for s in spans if s.name == "chain"}
        requests = len(judge.chats) / turns
        ideal = workers * CONCURRENCY / (requests * LATENCY)
        copies = Counter((s.trace_id, s.span_id) for s in spans)
        return {
            "statuses": dict(Counter(last.values())),
            "turns a second": round(turns / seconds, 1),
            "of the ideal": round(turns / seconds / ideal, 2),
            "requests a turn": round(requests, 2),
            "refused and repeated": refused,
            "spans that came twice": sum(copies.values()) - len(copies),
            "memory at a quarter, at the end (MiB)": [
                (round(rows[len(rows) // 4]), round(rows[-1])) for rows in memory
            ],
        }


def main() -> None:
    """Measure both ways, or the one that the options name."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--turns", type=int, default=10_000)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--kafka", action="store_true", help="only turns that wait in a topic")
    parser.add_argument("--otlp", action="store_true", help="only a client that repeats")
    options = parser.parse_args()
    if not options.otlp:
        with broker_in(Path(tempfile.mkdtemp())) as broker:
            print("Kafka:", measure(options.turns, options.workers, broker))
    if not options.kafka:
        print("OTLP:", measure(options.turns, options.workers, None))


if __name__ == "__main__":
    main()
