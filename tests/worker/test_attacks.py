"""``rag-eval-otel serve`` in a process of its own, and senders that want to stop it."""

from __future__ import annotations

import gzip
import os
import random
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import requests

from otlp_receiver import OtlpReceiver
from wires import request_with, span

pytest.importorskip("aiohttp")
pytestmark = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="reads /proc")

WAIT = 60.0
PAUSE = threading.Event()
MEGABYTE = 2**20
MOST = 16 * MEGABYTE  # bytes of a request after decompression


@dataclass
class Worker:
    """A running ``serve``, what it has logged, and where its backend is."""

    process: subprocess.Popen[str]
    backend: OtlpReceiver
    ports: dict[str, int] = field(default_factory=dict)
    log: list[str] = field(default_factory=list)

    def read(self, listening: threading.Event) -> None:
        for line in self.process.stderr or ():
            self.log.append(line)
            found = re.search(r"listening for (\w+) at port (\d+)", line)
            if found:
                self.ports[found[1]] = int(found[2])
            if len(self.ports) == 2:
                listening.set()
        listening.set()

    @property
    def cpu(self) -> float:
        parts = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(parts[11]) + int(parts[12])) / os.sysconf("SC_CLK_TCK")

    def memory(self, kind: str) -> float:
        text = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(text.partition(f"{kind}:")[2].split()[0]) / 1024

    @property
    def descriptors(self) -> int:
        return len(list(Path(f"/proc/{self.process.pid}/fd").iterdir()))

    def post(self, body: bytes, *, kind: str = "x-protobuf", encoding: str = "gzip") -> int:
        headers = {"content-type": f"application/{kind}", "content-encoding": encoding}
        place = f"http://127.0.0.1:{self.ports['http']}/v1/traces"
        return requests.post(place, body, headers=headers, timeout=WAIT).status_code

    def wait_of_another(self) -> float:
        began = time.monotonic()
        assert self.post(gzip.compress(request_with(span(7)).SerializeToString())) == 200
        return time.monotonic() - began


@contextmanager
def serving(*, descriptors: str = "", **variables: str) -> Iterator[Worker]:
    command = [sys.executable, "-m", "rag_eval_otel", "serve", "--grpc", "127.0.0.1:0"]
    command += ["--http", "127.0.0.1:0", "--endpoint"]
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("PYTEST", "COV", "OTEL"))}
    limit = f"ulimit {descriptors}; " if descriptors else ""
    with OtlpReceiver() as backend:
        process = subprocess.Popen(
            ["/bin/sh", "-c", f'{limit}exec "$@"', "sh", *command, backend.grpc_endpoint],
            env={**kept, "RAG_EVAL_JUDGE": "lexical", **variables},
            stderr=subprocess.PIPE,
            text=True,
        )
        worker, listening = Worker(process, backend), threading.Event()
        reader = threading.Thread(target=worker.read, args=(listening,))
        reader.start()
        try:
            assert listening.wait(WAIT)
            assert process.poll() is None, worker.log
            worker.wait_of_another()  # what is loaded for the first request is loaded
            yield worker
        finally:
            process.kill()
            process.wait(WAIT)
            reader.join(WAIT)
            if process.stderr is not None:
                process.stderr.close()


@pytest.fixture(scope="module")
def worker() -> Iterator[Worker]:
    with serving() as found:
        yield found


def sized(tag: int, content: bytes) -> bytes:
    size, number = b"", len(content)
    while number > 0x7F:
        size, number = size + bytes([number & 0x7F | 0x80]), number >> 7
    return bytes([tag]) + size + bytes([number]) + content


def filled(part: bytes, *, chance: random.Random, most: int = MOST - 1000) -> bytes:
    other = part[:1] + b"\x03\xb8\x3e\x01" if part[1:] == b"\x00" else part
    some = b"".join(chance.choices((part, other), (9, 1), k=10_000))
    return some * (most // len(some))


def in_scope(spans: bytes) -> bytes:
    return sized(0x0A, sized(0x12, spans))


def in_span(*fields: bytes) -> bytes:
    found = span(1)
    found.attributes.add(key="gen_ai.operation.name").value.string_value = "chat"
    return in_scope(sized(0x12, found.SerializeToString() + b"".join(fields)))


def in_value(values: bytes) -> bytes:
    return sized(0x4A, b"\x0a\x01x" + sized(0x12, values))


PROTOBUF: dict[str, Callable[[random.Random], bytes]] = {
    "resources": lambda chance: filled(b"\x0a\x00", chance=chance),
    "scopes": lambda chance: sized(0x0A, filled(b"\x12\x00", chance=chance)),
    "spans without ids": lambda chance: in_scope(filled(b"\x12\x00", chance=chance)),
    "events": lambda chance: in_span(filled(b"\x5a\x00", chance=chance)),
    "links": lambda chance: in_span(filled(b"\x6a\x00", chance=chance)),
    "attributes": lambda chance: in_span(filled(b"\x4a\x00", chance=chance)),
    "attributes of an event": lambda chance: in_span(
        sized(0x5A, filled(b"\x1a\x00", chance=chance))
    ),
    "values in a list": lambda chance: in_span(
        in_value(sized(0x2A, filled(b"\x0a\x00", chance=chance)))
    ),
    "tags of two bytes": lambda chance: in_span(filled(b"\xda\x00\x00", chance=chance)),
    "numbers of no known field": lambda chance: filled(b"\xb8\x3e\x01", chance=chance),
    "events of several spans": lambda chance: in_scope(
        sized(0x12, filled(b"\x5a\x00", chance=chance, most=50_000)) * 300
    ),
}
JSON: dict[str, bytes] = {
    "resources": b'{"resourceSpans":[' + b"{}," * 5_000_000 + b"{}]}",
    "fewer resources": b'{"resource_spans":[' + b"{}," * 400_000 + b"{}]}",
    "numbers": b'{"resourceSpans":[{"x":[' + b"1.5," * 4_000_000 + b"1]}]}",
    "lists": b'{"x":[' + b"[]," * 5_000_000 + b"[]]}",
}


def measured(worker: Worker, body: bytes, kind: str) -> tuple[int, float, float, float]:
    """Return status, CPU seconds, megabytes, and the wait of another sender, of a request."""
    Path(f"/proc/{worker.process.pid}/clear_refs").write_text("5")  # the peak begins anew
    cpu, memory = worker.cpu, worker.memory("VmRSS")
    with ThreadPoolExecutor(1) as pool:
        attack = pool.submit(worker.post, gzip.compress(body), kind=kind)
        waits = [worker.wait_of_another()]
        while not attack.done():
            waits.append(worker.wait_of_another())
        status = attack.result()
    return status, worker.cpu - cpu, worker.memory("VmHWM") - memory, max(waits)


@pytest.mark.parametrize("name", PROTOBUF)
def test_protobuf_of_many_small_parts_is_refused(worker: Worker, name: str) -> None:
    """16 kB of gzip that stand for millions of parts get 413, and hold up no other sender."""
    body = PROTOBUF[name](random.Random(22))
    assert len(body) <= MOST
    status, cpu, memory, wait = measured(worker, body, "x-protobuf")
    print(name, status, cpu, memory, wait)  # noqa: T201
    assert status == 413
    assert cpu < 20  # 1 to 4 seconds on a machine that is not busy
    assert memory < 50
    assert wait < 15  # a second on a machine that is not busy


@pytest.mark.parametrize("name", JSON)
def test_json_of_many_small_parts_is_refused(worker: Worker, name: str) -> None:
    """JSON with millions of objects or numbers gets 413 before it is parsed."""
    status, cpu, memory, wait = measured(worker, JSON[name], "json")
    print(name, status, cpu, memory, wait)  # noqa: T201
    assert status == 413
    assert cpu < 20  # 1 to 4 seconds on a machine that is not busy
    assert memory < 80
    assert wait < 15  # a second on a machine that is not busy


HEAD = b"POST /v1/traces HTTP/1.1\r\nHost: a\r\nContent-Type: application/x-protobuf\r\n"
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\x00\x00\x00\x04" + bytes(5)  # and settings
HALF_OPEN = {
    "http, silent": ("http", b""),
    "http, half of a header": ("http", HEAD[:60]),
    "http, a body that does not come": ("http", HEAD + b"Content-Length: 16000000\r\n\r\n"),
    "grpc, silent": ("grpc", b""),
    "grpc, half of the preface": ("grpc", PREFACE[:10]),
    "grpc, no call": ("grpc", PREFACE),
}


@contextmanager
def half_open(worker: Worker, name: str, number: int) -> Iterator[None]:
    port, start = HALF_OPEN[name]
    with ExitStack() as stack:
        for _ in range(number):
            address = "127.0.0.1", worker.ports[port]
            stack.enter_context(socket.create_connection(address, WAIT)).sendall(start)
        yield


@pytest.mark.slow
@pytest.mark.parametrize("name", HALF_OPEN)
def test_half_open_connections_hold_up_no_other_sender(worker: Worker, name: str) -> None:
    """Beside 1,000 of them, a sender is served at once; after a minute they are closed."""
    before = worker.descriptors
    with half_open(worker, name, 1000):
        began = time.monotonic()
        assert worker.wait_of_another() < 15  # a second on a machine that is not busy
        while worker.descriptors > before + 10:
            assert time.monotonic() < began + 60
            PAUSE.wait(0.5)  # the state of another process can only be polled
        print(name, time.monotonic() - began)  # noqa: T201


def test_what_is_no_http_is_logged_in_few_lines(worker: Worker) -> None:
    """Connections that send anything else than HTTP do not fill the log."""
    chance, lines = random.Random(22), len(worker.log)
    for _ in range(200):
        address = "127.0.0.1", worker.ports["http"]
        with socket.create_connection(address, WAIT) as one, suppress(OSError):
            one.sendall(chance.choice((b"", HEAD)) + chance.randbytes(50) + b"\r\n\r\n")
            one.recv(1000)
    assert sum(map(len, worker.log[lines:])) < 10_000, worker.log[lines:][:60]


@pytest.mark.slow
def test_a_lack_of_descriptors_is_logged_in_few_lines() -> None:
    """While connections use up all descriptors, the log grows by a few lines only."""
    with serving(descriptors="-n 256") as worker, ExitStack() as stack:
        lines = len(worker.log)
        for name in ("http, silent", "grpc, silent"):
            stack.enter_context(half_open(worker, name, 300))
        PAUSE.wait(8)  # a log grows with time
        assert sum(map(len, worker.log[lines:])) < 10_000, worker.log[lines:][:60]


def test_the_system_limits_connections_not_the_shell() -> None:
    """The soft limit of descriptors, 1024 by default, is raised to the hard limit."""
    with serving(descriptors="-S -n 100") as worker, half_open(worker, "http, silent", 200):
        assert worker.wait_of_another() < WAIT
