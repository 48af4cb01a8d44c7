"""`FunctionJudge`: a judge that is a plain function of a prompt."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

from rag_eval_otel.errors import UnparsableReplyError
from rag_eval_otel.judge.codec import compose, read_parts
from rag_eval_otel.judge.tasks import Task
from rag_eval_otel.judge.usage import note
from rag_eval_otel.runtime.threads import Workers
from rag_eval_otel.types import JudgeFunction, Replies, Usage


class FunctionJudge:
    """A judge that is a function of a prompt, which returns the text of the reply.

    ``function`` may be a coroutine function; otherwise it is called on at most 16 threads. The JSON
    Schema of the reply is in the prompt. ``model``, by default the function's name, becomes a part
    of `Score.version`. An exception of ``function`` makes scores fail (``internal``); a result that
    is no text is a reply that does not parse.
    """

    def __init__(self, function: JudgeFunction, *, model: str | None = None) -> None:
        self._function = function
        self._workers = Workers(16)
        self.model = model or str(getattr(function, "__name__", type(function).__name__))

    def __repr__(self) -> str:
        return f"FunctionJudge({self.model!r})"

    async def reply(self, tasks: Sequence[Task[Any]]) -> Replies:
        request = compose(tasks)
        prompt = f"{request.system}\n\n{request.user_with_schema}"
        note(messages=[{"role": "user", "content": prompt}], text="")
        if inspect.iscoroutinefunction(self._function):
            text: object = await self._function(prompt)
        else:
            text = await self._workers.run(lambda: self._function(prompt))
        if inspect.isawaitable(text):  # an object whose call is asynchronous
            text = await text
        if isinstance(text, str):
            note(text=text)
            parts = read_parts(text, tasks)
        else:
            told = f"the function returned {type(text).__name__}, not a str"
            parts = (UnparsableReplyError(told),) * len(tasks)
        return Replies(parts=parts, model=self.model, usage=Usage(judge_requests=1))
