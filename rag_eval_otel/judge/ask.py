"""`Ask`: put the questions of metrics about one sample to the judge, in few requests."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar, cast

from rag_eval_otel import errors
from rag_eval_otel.judge.tasks import Judge, Reply, Task, may_share
from rag_eval_otel.judge.usage import Ledger
from rag_eval_otel.judge.wire import instructions_of

R = TypeVar("R", bound=Reply)

_QUIET = 8  # iterations of the event loop in which a reply reaches its metric


class Ask:
    """Puts the questions (tasks) of metrics about one sample to a judge, within one event loop.

    Equal tasks are sent once. Tasks that are put at the same moment share a request, unless one
    must not see a text of another. During a request, new tasks wait ``patience`` seconds for those
    that follow from its reply. What does not parse is asked for again with the error.
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
        self._outcomes: dict[Task[Any], asyncio.Future[object]] = {}
        self._waiting: list[Task[Any]] = []
        self._timer: asyncio.TimerHandle | None = None
        self._events = 0  # new tasks and ended requests
        self._requests: set[asyncio.Task[None]] = set()

    async def __call__(self, task: Task[R]) -> R:
        outcome = await self._outcome(task)
        if isinstance(outcome, BaseException):
            raise outcome
        return cast("R", outcome)

    async def each(self, tasks: Sequence[Task[R]]) -> list[R | BaseException]:
        outcomes = await asyncio.gather(*(self._outcome(task) for task in tasks))
        return cast("list[R | BaseException]", outcomes)

    def cancel(self) -> None:
        for task in self._take():
            self._outcomes[task].set_result(given_up())
        self.ledger.close()
        for request in self._requests:
            request.cancel()

    async def _outcome(self, task: Task[Any]) -> object:
        if self._reasons != task.reasons:
            task = replace(task, reasons=self._reasons)
        self.ledger.ask(task)
        if task not in self._outcomes:
            loop = asyncio.get_running_loop()
            self._outcomes[task] = loop.create_future()
            if not self._waiting:
                loop.call_soon(self._settle, self._events, 0)
            self._waiting.append(task)
            self._events += 1
        # Shielded: if one metric is cancelled, other metrics still get the reply.
        return await asyncio.shield(self._outcomes[task])

    def _settle(self, seen: int, quiet: int) -> None:
        """Send the waiting tasks when no task was put for `_QUIET` iterations of the event loop."""
        loop = asyncio.get_running_loop()
        quiet = quiet + 1 if self._events == seen else 0
        if quiet < _QUIET:
            loop.call_soon(self._settle, self._events, quiet)
        elif not (self._requests and self._shares):
            self._send_waiting()
        elif self._waiting and self._timer is None:
            self._timer = loop.call_later(self._patience, self._send_waiting)

    def _take(self) -> list[Task[Any]]:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        waiting, self._waiting = self._waiting, []
        return waiting

    def _send_waiting(self) -> None:
        for group in group_tasks(self._take(), share_requests=self._shares):
            request = asyncio.create_task(self._send(group))
            self._requests.add(request)
            request.add_done_callback(partial(self._close, group))

    async def _send(self, asked: Sequence[Task[Any]]) -> None:
        repairs = self._repairs
        while asked:
            again: list[Task[Any]] = []
            for task, part in zip(asked, await self._replies(asked), strict=True):
                if isinstance(part, errors.UnparsableReplyError) and repairs > 0:
                    again.append(replace(task, complaint=str(part)))
                else:
                    self._outcomes[_first(task)].set_result(part)
            asked, repairs = again, repairs - 1

    def _close(self, group: Sequence[Task[Any]], request: asyncio.Task[None]) -> None:
        self._requests.discard(request)
        self._events += 1
        error = given_up() if request.cancelled() else request.exception()
        for task in group:
            if not self._outcomes[task].done():
                self._outcomes[task].set_result(error)
        if self._timer is not None and not self._requests:
            asyncio.get_running_loop().call_soon(self._settle, self._events, 0)

    async def _replies(self, tasks: Sequence[Task[Any]]) -> list[object]:
        sizes: dict[Task[Any], int] = {}
        for task in tasks:
            texts = (text for name, _ in task.inputs for text in task.texts(name))
            sizes[_first(task)] = len(instructions_of(task.kind)) + sum(map(len, texts))
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


def _first(task: Task[Any]) -> Task[Any]:
    return replace(task, complaint="") if task.complaint else task


def group_tasks(tasks: Sequence[Task[Any]], *, share_requests: bool) -> list[list[Task[Any]]]:
    groups: list[list[Task[Any]]] = []
    for task in tasks:
        home = next((g for g in groups if all(may_share(task, other) for other in g)), None)
        if home is None or not share_requests:
            groups.append([task])
        else:
            home.append(task)
    return groups


def given_up() -> errors.JudgeTimeoutError:
    return errors.JudgeTimeoutError("given up: the evaluation ran out of time")
