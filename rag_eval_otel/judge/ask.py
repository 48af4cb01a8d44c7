"""`Ask`: put the questions of metrics about one sample to the judge, in few requests."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar, cast

from rag_eval_otel import errors
from rag_eval_otel.judge.codec import instructions_of
from rag_eval_otel.judge.tasks import Judge, Reply, Task, may_share
from rag_eval_otel.judge.usage import Ledger

R = TypeVar("R", bound=Reply)

_QUIET = 5  # iterations of the event loop in which a reply passes two nested `gather`s and `each`


class Question:
    """A task for the judge, and its outcome, a reply or an exception, for all metrics that ask."""

    def __init__(self, task: Task[Any]) -> None:
        self.task = task
        self._is_settled = asyncio.Event()
        self._outcome: object = None

    def settle(self, outcome: object) -> None:
        if not self._is_settled.is_set():
            self._outcome = outcome
            self._is_settled.set()

    async def outcome(self) -> object:
        await self._is_settled.wait()
        return self._outcome


class Ask:
    """Puts the questions (tasks) of metrics about one sample to a judge, within one event loop.

    Equal tasks are sent once. Tasks put at the same moment share a request, unless the judge must
    not see the texts of one when it answers another. During a request, new tasks wait at most
    ``patience`` seconds for those that follow from its reply. A task whose reply does not parse is
    sent again, with the error, at most ``repairs`` times.
    """

    def __init__(
        self,
        judge: Judge,
        *,
        share_requests: bool = True,
        repairs: int = 1,
        patience: float = 5.0,
        reasons: bool = False,
        ledger: Ledger | None = None,
    ) -> None:
        self.ledger = ledger or Ledger()
        self.model: str | None = None
        self._judge = judge
        self._shares = share_requests
        self._repairs = repairs
        self._patience = patience
        self._reasons = reasons
        self._questions: dict[Task[Any], Question] = {}
        self._waiting: list[Question] = []
        self._timer: asyncio.TimerHandle | None = None
        self._events = 0  # new tasks and ended requests
        self._requests: set[asyncio.Task[None]] = set()

    async def __call__(self, task: Task[R]) -> R:
        outcome = await self._put(task).outcome()
        if isinstance(outcome, BaseException):
            raise outcome
        return cast("R", outcome)

    async def each(self, tasks: Sequence[Task[R]]) -> list[R | BaseException]:
        await asyncio.sleep(0)  # in a prompt, single questions come before lists of questions
        questions = [self._put(task) for task in tasks]
        outcomes = [await question.outcome() for question in questions]
        return cast("list[R | BaseException]", outcomes)

    def cancel(self) -> set[asyncio.Task[None]]:
        for question in self._take():
            question.settle(given_up())
        self.ledger.close()
        for request in self._requests:
            request.cancel()
        return self._requests.copy()

    def _put(self, task: Task[Any]) -> Question:
        if self._reasons != task.reasons:
            task = replace(task, reasons=self._reasons)
        question = self._questions.get(task)
        if question is None:
            question = self._questions[task] = Question(task)
            if not self._waiting:
                asyncio.get_running_loop().call_soon(self._settle, self._events, 0)
            self._waiting.append(question)
            self._events += 1
        self.ledger.ask(question)
        return question

    def _settle(self, seen: int, quiet: int) -> None:
        """Send the waiting tasks, or start the timer, after `_QUIET` iterations without events."""
        loop = asyncio.get_running_loop()
        quiet = quiet + 1 if self._events == seen else 0
        if quiet < _QUIET:
            loop.call_soon(self._settle, self._events, quiet)
        elif not (self._requests and self._shares):
            self._send_waiting()
        elif self._waiting and self._timer is None:
            self._timer = loop.call_later(self._patience, self._send_waiting)

    def _take(self) -> list[Question]:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        waiting, self._waiting = self._waiting, []
        return waiting

    def _send_waiting(self) -> None:
        for group in grouped(self._take(), share_requests=self._shares):
            request = asyncio.create_task(self._send(group))
            self._requests.add(request)
            request.add_done_callback(partial(self._close, group))

    async def _send(self, group: Sequence[Question]) -> None:
        repairs = self._repairs
        while group:
            again: list[Question] = []
            for question, part in zip(group, await self._replies(group), strict=True):
                if isinstance(part, errors.UnparsableReplyError) and repairs > 0:
                    question.task = replace(question.task, complaint=str(part))
                    again.append(question)
                else:
                    question.settle(part)
            group, repairs = again, repairs - 1

    def _close(self, group: Sequence[Question], request: asyncio.Task[None]) -> None:
        self._requests.discard(request)
        self._events += 1
        error = given_up() if request.cancelled() else request.exception()
        for question in group:
            question.settle(error)
        if self._timer is not None and not self._requests:
            asyncio.get_running_loop().call_soon(self._settle, self._events, 0)

    async def _replies(self, group: Sequence[Question]) -> list[object]:
        tasks = [question.task for question in group]
        sizes = {each: len(instructions_of(each.task.kind)) + each.task.length for each in group}
        try:
            async with self.ledger.metered(sizes, self._judge, part="judge") as meter:
                replies = await self._judge.reply(tasks)
                meter.tell(replies.usage)
        except errors.JudgeError as error:
            return [error] * len(tasks)
        self.model = replies.model
        if len(replies.parts) != len(tasks):
            msg = f"the judge gave {len(replies.parts)} replies to {len(tasks)} tasks"
            return [errors.UnparsableReplyError(msg)] * len(tasks)
        return list(replies.parts)


def grouped(questions: Sequence[Question], *, share_requests: bool) -> list[list[Question]]:
    groups: list[list[Question]] = []
    for each in questions:
        for group in groups:
            if share_requests and all(may_share(each.task, other.task) for other in group):
                group.append(each)
                break
        else:
            groups.append([each])
    return groups


def given_up() -> errors.JudgeTimeoutError:
    return errors.JudgeTimeoutError("given up: the evaluation ran out of time")
