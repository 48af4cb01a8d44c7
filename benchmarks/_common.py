"""Shared parts of the benchmarks: a judge without cost, statistics, and a line on the machine."""

from __future__ import annotations

import os
import platform
import statistics
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import numpy as np

from rag_eval_otel.judge.tasks import Task
from rag_eval_otel.types import Replies, Usage

_GOOD: Mapping[str, Mapping[str, Any]] = {
    "ReverseQuestion": {"question": "What is it?", "noncommittal": 0},
    "Statements": {"statements": ["one", "two"]},
    "Verdicts": {"verdicts": [{"index": 1, "verdict": 1}, {"index": 2, "verdict": 0}]},
    "JudgedStatements": {"statements": [{"statement": "one", "verdict": 1}]},
    "Rating": {"rating": 2},
}


class NullJudge:
    """A judge that replies at once, always with the same verdicts."""

    model = "null"

    async def reply(self, tasks: Sequence[Task[Any]]) -> Replies:
        """Return the constant reply for each task."""
        parts = tuple(t.reply.model_validate(_good(t)) for t in tasks)
        return Replies(parts=parts, model=self.model, usage=Usage(judge_requests=1))


def _good(task: Task[Any]) -> Mapping[str, Any]:
    if task.kind.each == "sentences":
        count = len(task.texts("sentences"))
        return {"verdicts": [{"index": i, "verdict": 1} for i in range(1, count + 1)]}
    return _GOOD[task.reply.__name__]


class NullEmbedder:
    """An embedder that returns the same vector for every text."""

    async def embed(self, texts: Sequence[str]) -> Any:
        return np.ones((len(texts), 8))


def median(values: Sequence[float]) -> float:
    return statistics.median(values)


def spread(values: Sequence[float]) -> str:
    """Return the lower and upper quartile as text."""
    low, _, high = statistics.quantiles(values, n=4)
    return f"{low:.3f}-{high:.3f}"


def setting(*packages: str) -> str:
    """Return the date, the machine and the versions of a measurement as one line."""
    found = ", ".join(f"{name} {_version(name)}" for name in packages)
    today = datetime.now(timezone.utc).date()
    load = os.getloadavg()[0]
    return (
        f"{today}, Python {platform.python_version()}, {os.cpu_count()} CPUs,"
        f" load {load:.1f}; {found}"
    )


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"
