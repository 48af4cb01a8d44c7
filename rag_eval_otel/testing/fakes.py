"""Test doubles whose results a test sets beforehand: a judge and an embedder."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
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
