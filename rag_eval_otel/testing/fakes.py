"""Fakes for the two seams of scoring: a judge and an embedder that do as they are told."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from pydantic import ValidationError

from rag_eval_otel.errors import UnparsableReplyError
from rag_eval_otel.judge.tasks import Task
from rag_eval_otel.types import Replies, Usage, Vectors


class FakeJudge:
    """Answers each task with what ``answer(task)`` returns: a dict, a reply, or an error.

    A dict is validated like a real reply; one that does not fit, or None, is an unparsable part.
    An exception is that part's outcome. ``requests`` records the tasks of every request.
    """

    def __init__(self, answer: Callable[[Task[Any]], object], *, model: str = "fake") -> None:
        """Answer with ``answer``."""
        self.model = model
        self.requests: list[tuple[Task[Any], ...]] = []
        self._answer = answer

    async def reply(self, tasks: Sequence[Task[Any]]) -> Replies:
        """Answer ``tasks`` and count one request."""
        self.requests.append(tuple(tasks))
        parts = tuple(_part(task, self._answer(task)) for task in tasks)
        return Replies(parts=parts, model=self.model, usage=Usage(judge_requests=1))


def _part(task: Task[Any], value: object) -> object:
    if isinstance(value, BaseException):
        return value
    try:
        return task.reply.model_validate(value)
    except ValidationError as error:
        return UnparsableReplyError(str(error))


class FakeEmbedder:
    """Embeds each text as ``vectors`` says; `KeyError` for one it does not know.

    ``requests`` records the texts of every request.
    """

    def __init__(self, vectors: Mapping[str, Sequence[float]]) -> None:
        """Know these vectors."""
        self.requests: list[tuple[str, ...]] = []
        self._vectors = vectors

    async def embed(self, texts: Sequence[str]) -> Vectors:
        """Return the vectors of ``texts`` and count one request."""
        self.requests.append(tuple(texts))
        return np.asarray([self._vectors[text] for text in texts], dtype=np.float64)
