"""Run `served` in processes of its own, with a judge over HTTP and an OTLP receiver."""

import os
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from openai_server import ScriptedOpenAI
from otlp_receiver import OtlpReceiver, ReceivedSpan
from support import good_parts

PATIENCE = 120.0
"""Seconds after which a test gives up; no test passes because of this time."""

_TESTS = Path(__file__).parent
_STATUS = "rag.evaluation.status"


def environment(**more: str) -> dict[str, str]:
    """Return the variables of a program that finds these helpers, without options of the tests."""
    others = ("OTEL_", "RAG_EVAL_", "PYTEST")
    kept = {k: v for k, v in os.environ.items() if not k.startswith(others)}
    paths = [str(_TESTS), str(_TESTS.parent), os.environ.get("PYTHONPATH")]
    return {**kept, "PYTHONPATH": os.pathsep.join(filter(None, paths)), **more}


def ran(script: str, **more: str) -> subprocess.CompletedProcess[str]:
    """Run ``script`` in a process of its own, to the end; ``more`` are variables."""
    command = [sys.executable, "-c", script]
    return subprocess.run(
        command, env=environment(**more), capture_output=True, text=True, timeout=1200, check=False
    )


def until(is_so: Callable[[], bool], *, seconds: float = PATIENCE) -> None:
    give_up = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < give_up
        threading.Event().wait(0.005)


@dataclass(frozen=True, kw_only=True)
class Stage:
    """A receiver and a judge for processes that score turns."""

    receiver: OtlpReceiver
    judge: ScriptedOpenAI

    def environment(self, **more: str) -> dict[str, str]:
        kept = {k: v for k, v in environment().items() if not k.startswith("COV")}
        return {
            **kept,
            "PYTHONUNBUFFERED": "1",
            "OTEL_EXPORTER_OTLP_ENDPOINT": self.receiver.http_endpoint,
            "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
            "OTEL_METRICS_EXPORTER": "none",
            "OTEL_BSP_SCHEDULE_DELAY": "600000",  # only an ending exports what is left
            "RAG_EVAL_JUDGE": "openai/judge",
            "OPENAI_BASE_URL": self.judge.base_url,
            "OPENAI_API_KEY": "none",
            "RAG_EVAL_HOLD_SECONDS": "600",
            "RAG_EVAL_EVALUATION_TIMEOUT": "600",
            "RAG_EVAL_SHUTDOWN_SECONDS": "100",  # a busy machine imports for long
            **more,
        }

    @contextmanager
    def running(self, *command: str, **more: str) -> Iterator[subprocess.Popen[str]]:
        process = subprocess.Popen(
            [sys.executable, *command],
            env=self.environment(**more),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            yield process
        finally:
            if process.poll() is None:
                process.kill()
            process.communicate()

    def run(self, script: str, **more: str) -> tuple[int, str, str]:
        with self.running("-c", script, **more) as process:
            out, err = process.communicate(timeout=PATIENCE)
            return process.returncode, out, err

    def spans(self, name: str = "turn") -> list[ReceivedSpan]:
        return [span for span in self.receiver.spans() if span.name == name]

    def statuses(self) -> Counter[Any]:
        return Counter(span.attributes.get(_STATUS) for span in self.spans())


@contextmanager
def stage(*, latency: float = 0.0) -> Iterator[Stage]:
    """Start a receiver, and a judge that takes ``latency`` seconds for a reply."""
    with (
        OtlpReceiver() as receiver,
        ScriptedOpenAI(good_parts, lambda _: [1.0, 0.0], latency=latency) as judge,
    ):
        yield Stage(receiver=receiver, judge=judge)
