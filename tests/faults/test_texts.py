"""Texts that are slow to read stop neither the application nor the worker, nor later scores."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from live import attached
from long_texts import TEXTS, attributes_of, by_spans
from otlp_receiver import OtlpReceiver
from processes import environment
from rag_eval_otel.judge.lexical import LexicalJudge
from wires import add_attributes, request_with

WAIT = 0.2  # the longest wait of another thread in seconds
TRIES = 3  # on a busy machine, a thread waits for others, too; not each time
PATIENCE = 120.0


@contextmanager
def python(*command: str, **more: str) -> Iterator[subprocess.Popen[str]]:
    kept = {k: v for k, v in environment(**more).items() if not k.startswith("COV")}
    with subprocess.Popen(
        [sys.executable, *command],
        env=kept,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def longest_waits(way: str) -> Mapping[str, float]:
    """Return how long another thread of the application waited, by text; end it by SIGTERM."""
    with python("-m", "long_texts", way) as process:
        assert process.stdout is not None
        lines = list(iter(process.stdout.readline, "waits\n"))
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=PATIENCE)
    told = [line.split() for line in lines]
    assert [(name, done) for name, _, done in told] == [(name, "True") for name in TEXTS]
    assert process.returncode == -signal.SIGTERM
    return {name: float(wait) for name, wait, _ in told}


@pytest.mark.slow
@pytest.mark.parametrize("way", ["handler", "spans"])
def test_no_text_stops_the_threads_of_the_application(way: str) -> None:
    """Another thread waits at most 0.2 s while each text is read, and SIGTERM ends the process."""
    found = dict.fromkeys(TEXTS, float("inf"))
    for _ in range(TRIES):
        found = {name: min(wait, found[name]) for name, wait in longest_waits(way).items()}
        if max(found.values()) <= WAIT:
            break
    assert max(found.values()) <= WAIT, found


def spans_of(number: int, name: str) -> list[Span]:
    made = []
    for i, (kind, values) in enumerate(attributes_of(TEXTS[name]), start=1):
        is_root = kind == "chain"
        one = Span(
            trace_id=number.to_bytes(16, "big"),
            span_id=(10 * number + (0 if is_root else i)).to_bytes(8, "big"),
            parent_span_id=b"" if is_root else (10 * number).to_bytes(8, "big"),
            name=kind,
            start_time_unix_nano=1_000 * number + i * (not is_root),
            end_time_unix_nano=1_000 * number + 10 * i,
        )
        add_attributes(one.attributes, values)
        made.append(one)
    return made


@pytest.mark.slow
def test_no_text_stops_the_worker() -> None:
    """Other senders wait at most 0.2 s longer than before, all spans leave, SIGTERM ends it."""
    options = {"RAG_EVAL_JUDGE": "lexical", "RAG_EVAL_EMBEDDER": "hashing"}
    command = ("-m", "rag_eval_otel", "serve", "--http", "127.0.0.1:0", "--grpc", "off")
    with OtlpReceiver() as receiver:
        target = ("--endpoint", receiver.grpc_endpoint)
        with python(*command, *target, **options) as process:
            assert process.stderr is not None
            line = next(line for line in process.stderr if "listening for http" in line)
            url = f"http://127.0.0.1:{line.split()[-1]}/v1/traces"

            def sent(*spans: Span) -> float:
                body = request_with(*spans, scope="openinference.instrumentation.fake")
                request = urllib.request.Request(
                    url, body.SerializeToString(), {"Content-Type": "application/x-protobuf"}
                )
                begin = time.perf_counter()
                with urllib.request.urlopen(request, timeout=PATIENCE) as reply:  # noqa: S310  # http
                    assert reply.status == 200
                return time.perf_counter() - begin

            before = max(
                sent(Span(name="small", trace_id=b"1" * 16, span_id=b"1" * 8)) for _ in "123"
            )
            waits = []
            for number, name in enumerate(TEXTS, start=1):
                sent(*spans_of(number, name))
                for other in range(100):
                    span_id = (1_000 * number + other).to_bytes(8, "big")
                    small = Span(name="small", trace_id=span_id * 2, span_id=span_id)
                    waits.append(sent(small))
            process.send_signal(signal.SIGTERM)
            _, errors = process.communicate(timeout=PATIENCE)
        names = [span.name for span in receiver.spans()]
    assert process.returncode == 0, errors
    assert names.count("chain") == len(TEXTS)
    waits.sort()
    assert waits[-TRIES] <= before + WAIT, waits[-10:]


@pytest.mark.slow
def test_random_answers_stop_no_later_score() -> None:
    """After 100 texts of 100,000 characters, beside two busy processes, ten turns are scored."""
    rng = random.Random(22)
    characters = "abc ABC 019 .,;:!?'\"\n\t\\[](){}<>-=_*#&é中\u200f\u0663\U0001f600\ud800\x00"
    busy = ("-c", "while True: pass")
    options = {"judge": LexicalJudge(), "embedder": "hashing", "hold_seconds": 600}
    with python(*busy), python(*busy), attached(**options) as app:
        for _ in range(100):
            few = rng.choices(characters, k=rng.randint(2, 40))
            by_spans(("One page.", "", "".join(rng.choices(few, k=100_000))), app.provider)
        assert app.handle.flush(600)
        before = app.counted().get(("scored", None), 0)
        for _ in range(10):
            by_spans(("One page.", "", "It is one page."), app.provider)
        assert app.handle.flush(600)
        counted = app.counted()
    assert counted["scored", None] - before == 10, counted
    assert sum(counted.values()) == 110
