"""Test doubles whose results a test sets beforehand: a judge, an embedder, ids and a clock."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from itertools import count
from typing import Any

import numpy as np
from opentelemetry.sdk.trace.id_generator import IdGenerator
from pydantic import ValidationError

from rag_eval_otel.errors import UnparsableReplyError
from rag_eval_otel.judge.tasks import Task
from rag_eval_otel.types import Replies, Usage, Vectors


class FakeJudge:
    """A judge that answers each task with the result of ``answer(task)``.

    ``answer`` may return a dict, a reply object or an exception. A dict is validated like a real
    reply. If the dict is invalid, or if ``answer`` returns None, the outcome of the task is an
    `UnparsableReplyError`. An exception becomes the outcome of the task. The attribute ``requests``
    has the tasks of every request so far.
    """

    def __init__(self, answer: Callable[[Task[Any]], object], *, model: str = "fake") -> None:
        self.model = model
        self.requests: list[tuple[Task[Any], ...]] = []
        self._answer = answer

    async def reply(self, tasks: Sequence[Task[Any]]) -> Replies:
        self.requests.append(tuple(tasks))
        parts = tuple(_part(task, self._answer(task)) for task in tasks)
        return Replies(parts=parts, model=self.model, usage=Usage(judge_requests=1))


def _part(task: Task[Any], value: object) -> object:
    try:
        return value if isinstance(value, BaseException) else task.reply.model_validate(value)
    except ValidationError as error:
        return UnparsableReplyError(str(error))


class FakeEmbedder:
    """An embedder that looks up the vector of each text in the table ``vectors``.

    A text that is not in the table raises `KeyError`. The attribute ``requests`` has the texts of
    every request so far.
    """

    def __init__(self, vectors: Mapping[str, Sequence[float]]) -> None:
        self.requests: list[tuple[str, ...]] = []
        self._vectors = vectors

    async def embed(self, texts: Sequence[str]) -> Vectors:
        self.requests.append(tuple(texts))
        return np.asarray([self._vectors[text] for text in texts], dtype=np.float64)


class SequentialIdGenerator(IdGenerator):
    """Generate the trace ids 1, 2, 3, ... and the span ids 1, 2, 3, ..., each from its own counter.

    The generator is thread-safe. The ids are not random, so ratio samplers sample every trace.
    """

    def __init__(self) -> None:
        self._trace_ids, self._span_ids = count(1), count(1)

    def generate_trace_id(self) -> int:
        return next(self._trace_ids)

    def generate_span_id(self) -> int:
        return next(self._span_ids)


class ManualClock:
    """A clock in seconds that moves only by `advance`. Call it to read the time. Thread-safe."""

    def __init__(self, start: float = 0.0) -> None:
        self._lock = threading.Lock()
        self._now = start

    def __call__(self) -> float:
        with self._lock:
            return self._now

    def advance(self, seconds: float) -> None:
        """Move the time forward by ``seconds``; raise `ValueError` if ``seconds`` is negative."""
        if seconds < 0:
            raise ValueError(f"a clock can't go back: advance({seconds})")
        with self._lock:
            self._now += seconds
