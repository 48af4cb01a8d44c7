"""Spans through a worker process: 100,000 at once, and for 90 seconds."""

import json
import subprocess
import sys
from pathlib import Path

WORKER = Path(__file__).parents[2] / "benchmarks" / "worker.py"


def test_each_span_arrives_once() -> None:
    """At half of its highest rate, a worker loses no span and sends none twice."""
    command = [sys.executable, str(WORKER), "--minutes", "1.5"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr


def test_a_hundred_thousand_spans_arrive_once() -> None:
    """They come as fast as the worker takes them, and each turn among them is scored.

    How much CPU time this takes depends on what else runs, so it is shown by ``pytest -s`` alone.
    """
    command = [sys.executable, str(WORKER)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    assert ended.stdout, ended.stderr
    found = json.loads(ended.stdout[ended.stdout.index("\n{") :])
    sys.stdout.write(f"CPU time beside a bare forwarder: {found['ratio']} ({found['ratios']})\n")
    assert found["checks"]["each span once"]
    assert found["checks"]["each turn scored"]
