"""A worker process under requests that want to stop it, and under more turns than it can score.

``WORKER_TEST_TURNS`` is the number of turns that wait at once, by default 400.
"""

from __future__ import annotations

import gzip
import os
import re
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import requests

from e2e.serve import METHOD, Serve, serving
from otlp_receiver import OtlpReceiver
from wires import content, span, turn
from worker.test_wire import ATTACKS

pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="reads /proc"),
]
TURNS = int(os.environ.get("WORKER_TEST_TURNS", "400"))
WAIT = 60.0
PAUSE = threading.Event()  # never set
MORE = 50.0  # MiB of memory that an attack may take
LONG = 5.0  # seconds that others may wait; on a quiet machine, it is below 1


@pytest.fixture(scope="module")
def backend() -> Iterator[OtlpReceiver]:
    with OtlpReceiver() as receiver:
        yield receiver


@pytest.fixture(scope="module")
def worker(backend: OtlpReceiver) -> Iterator[Serve]:
    with serving(backend.grpc_endpoint) as running:
        for number in range(1, 6):  # what the first requests load is loaded
            post(running, content(*turn(number)))
        backend.wait_for_spans(15, WAIT)
        yield running


def post(worker: Serve, body: bytes, kind: str = "x-protobuf", encoding: str = "gzip") -> int:
    headers = {"content-type": f"application/{kind}", "content-encoding": encoding}
    body = body if body[:2] == b"\x1f\x8b" or encoding != "gzip" else gzip.compress(body)
    url = f"http://127.0.0.1:{worker.ports['HTTP']}/v1/traces"
    return requests.post(url, body, headers=headers, timeout=WAIT).status_code


def innocent(worker: Serve) -> float:
    """Return the seconds that the request of another sender takes."""
    began = time.monotonic()
    assert post(worker, content(span(7, 1))) == 200
    return time.monotonic() - began


BOMBS = {name: ("x-protobuf", make) for name, make in ATTACKS.items()}
BOMBS["JSON of many objects"] = (
    "json",
    lambda: b'{"resourceSpans":[' + b"{}," * 5_000_000 + b"{}]}",
)
BOMBS["JSON of nested objects"] = ("json", lambda: b'{"a":' * 1_000_000)


@pytest.mark.parametrize("name", BOMBS)
def test_a_request_of_many_parts_holds_up_nobody(worker: Serve, name: str) -> None:
    """Twice at the same time, a few kilobytes of gzip that would become gigabytes."""
    kind, make = BOMBS[name]
    bomb = gzip.compress(make())
    before = worker.memory()
    with ThreadPoolExecutor(2) as pool:
        futures = [pool.submit(post, worker, bomb, kind) for _ in range(2)]
        longest = innocent(worker)
        while not all(future.done() for future in futures):
            longest = max(longest, innocent(worker))
    assert [future.result() for future in futures] == [413, 413]
    assert longest < LONG
    assert worker.memory() - before < MORE


def test_more_turns_than_fit_are_all_scored_over_grpc(backend: OtlpReceiver) -> None:
    """A client repeats what is refused as the protocol says, by the time in `RetryInfo`."""
    grpc = pytest.importorskip("grpc")
    from google.rpc.error_details_pb2 import RetryInfo  # noqa: PLC0415

    backend.clear()
    refused = Counter[str]()
    lock = threading.Lock()
    variables = {"RAG_EVAL_MAX_HELD": "64", "RAG_EVAL_METRICS": "faithfulness"}
    with serving(
        backend.http_endpoint, **variables, OTEL_EXPORTER_OTLP_PROTOCOL="http/protobuf"
    ) as running:
        channel = grpc.insecure_channel(f"127.0.0.1:{running.ports['gRPC']}")
        call = channel.unary_unary(METHOD)

        def seconds_to_retry(number: int) -> float:
            """Send a turn; return after how long to send it again, or 0."""
            try:
                call(content(*turn(number)), timeout=WAIT)
            except grpc.RpcError as error:
                info = dict(error.trailing_metadata())["google.rpc.retryinfo-bin"]
                with lock:
                    refused[error.code().name] += 1
                return float(RetryInfo.FromString(info).retry_delay.ToMilliseconds() / 1000)
            return 0.0

        def send(number: int) -> None:
            while seconds := seconds_to_retry(number):
                PAUSE.wait(seconds)

        with ThreadPoolExecutor(32) as pool:
            list(pool.map(send, range(1, TURNS + 1)))
        backend.wait_for_spans(3 * TURNS, WAIT)
        channel.close()
        assert running.end() == 0
        assert running.counts == {"sent": 3 * TURNS, "scored": TURNS}
    assert set(refused) == {"RESOURCE_EXHAUSTED"}
    roots = [s for s in backend.spans() if s.name == "chain"]
    assert {s.attributes["rag.evaluation.status"] for s in roots} == {"scored"}
    assert len({s.trace_id for s in roots}) == TURNS


def test_keys_stay_out_of_the_log(backend: OtlpReceiver) -> None:
    """Neither the value of a header nor a key in the address is logged in an outage."""
    secret = "very-secret-7"
    address = f"http://127.0.0.1:1/?api_key={secret}"
    with serving(address, OTEL_EXPORTER_OTLP_HEADERS=f"x-api-key={secret}") as running:
        post(running, content(span(1, 1)))
        deadline = time.monotonic() + WAIT
        while not re.search("spans wait", "".join(running.log)):
            assert time.monotonic() < deadline
            innocent(running)
        assert running.end() == 1
        assert secret not in "".join(running.log)
        assert len(running.log) < 20
