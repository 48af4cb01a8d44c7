"""Texts that are slow to read do not stop the threads of the application."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Mapping
from contextlib import ExitStack

import pytest

from long_texts import TEXTS
from processes import environment

WAIT = 0.2  # the longest wait of another thread in seconds
TRIES = 3  # on a busy machine, a thread waits for others, too; not each time
PATIENCE = 120.0


def longest_waits(way: str) -> Mapping[str, float]:
    """Return how long another thread of the application waited, by text; end it by SIGTERM."""
    kept = {k: v for k, v in environment().items() if not k.startswith("COV")}
    command, pipe = [sys.executable, "-m", "long_texts", way], subprocess.PIPE
    with (
        subprocess.Popen(command, env=kept, stdout=pipe, stderr=pipe, text=True) as process,
        ExitStack() as stack,
    ):
        stack.callback(process.kill)
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
