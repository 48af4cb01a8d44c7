"""Texts that are slow to read stop neither the application nor later scores."""

import random
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import pytest

from live import attached
from long_texts import TEXTS, by_spans
from processes import environment
from rag_eval_otel.judge.lexical import LexicalJudge

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
