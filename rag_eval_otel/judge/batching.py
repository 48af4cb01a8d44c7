"""`Batches`: embed the texts of several evaluations in one request."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextvars import Context, copy_context
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate
from weakref import WeakKeyDictionary

from rag_eval_otel.errors import JudgeError, JudgeRequestError, UnparsableReplyError
from rag_eval_otel.judge.ask import given_up
from rag_eval_otel.judge.limits import deadline, with_deadline
from rag_eval_otel.judge.usage import Meter, current_meter, shared_by, will_attempt
from rag_eval_otel.types import Vectors

_WINDOW = 0.05  # seconds for which texts are collected
_MOST_TEXTS = 32  # in a shared request; some servers refuse more
_SERVER_ERROR = 500  # some servers reply so to a text that is too long; 502 to 504 are outages


@dataclass(slots=True, eq=False)
class _Part:
    """The texts of one caller, with the caller's future vectors, context, deadline and meter."""

    texts: Sequence[str]
    rows: asyncio.Future[Vectors]
    context: Context = field(default_factory=copy_context)
    until: float = field(default_factory=deadline)
    meter: Meter | None = field(default_factory=current_meter)


class _Queue:
    """The callers that wait in one event loop, and the requests that are under way there."""

    def __init__(self) -> None:
        self.waiting: list[_Part] = []
        self.under_way = 0
        self.tasks: set[asyncio.Task[Vectors]] = set()


class Batches:
    """Puts the texts of several callers, such as evaluations of several turns, into one request.

    A caller that comes while no request is under way sends a request at once. Callers that come
    while a request is under way are collected for 50 ms, or until they have 32 texts, and share the
    next request. If the server refuses a shared request, or replies 500 to it, the texts of each
    caller are sent alone, because one of the texts or their number may be the cause.
    """

    def __init__(self, send: Callable[[Sequence[str]], Awaitable[Vectors]]) -> None:
        self._send = send
        self._queues: WeakKeyDictionary[asyncio.AbstractEventLoop, _Queue] = WeakKeyDictionary()

    async def embed(self, texts: Sequence[str]) -> Vectors:
        """Return one vector (row) for each of ``texts``; exceptions of ``send`` are raised."""
        will_attempt()
        loop = asyncio.get_running_loop()
        queue = self._queues.setdefault(loop, _Queue())
        if not queue.under_way and not queue.waiting:
            return await self._sent(queue, texts)
        part = _Part(texts, loop.create_future())
        queue.waiting.append(part)
        if sum(len(each.texts) for each in queue.waiting) >= _MOST_TEXTS:
            self._flush(queue)
        elif len(queue.waiting) == 1:
            loop.call_later(_WINDOW, self._flush, queue)
        return await part.rows

    async def _sent(self, queue: _Queue, texts: Sequence[str]) -> Vectors:
        queue.under_way += 1
        try:
            return await self._send(texts)
        finally:
            queue.under_way -= 1

    def _flush(self, queue: _Queue) -> None:
        """Send the texts of the callers that still wait, in requests of at most 32 texts."""
        parts = [part for part in queue.waiting if not part.rows.done()]
        queue.waiting = []
        groups: list[list[_Part]] = []
        for part in parts:
            size = sum(len(each.texts) for each in groups[-1]) if groups else _MOST_TEXTS
            if size + len(part.texts) > _MOST_TEXTS:
                groups.append([])
            groups[-1].append(part)
        for group in groups:
            self._begin(queue, group)

    def _begin(self, queue: _Queue, parts: Sequence[_Part]) -> None:
        loop = parts[0].rows.get_loop()
        task = parts[0].context.run(loop.create_task, self._rows(queue, parts))
        queue.tasks.add(task)
        task.add_done_callback(partial(self._deliver, queue, parts))

    async def _rows(self, queue: _Queue, parts: Sequence[_Part]) -> Vectors:
        """Send ``parts`` in one request, and return their vectors."""
        texts = [text for part in parts for text in part.texts]
        meters = [part.meter for part in parts if part.meter is not None]
        with with_deadline(max(part.until for part in parts)), shared_by(meters):
            return await self._sent(queue, texts)

    def _deliver(self, queue: _Queue, parts: Sequence[_Part], task: asyncio.Task[Vectors]) -> None:
        """Give each of ``parts`` its vectors or the error, or send its texts alone."""
        queue.tasks.discard(task)
        error = given_up() if task.cancelled() else task.exception()
        is_divided = len(parts) > 1 and _may_be_of_one_text(error)
        for end, part in zip(accumulate(len(part.texts) for part in parts), parts, strict=True):
            if part.rows.done():  # its caller was cancelled
                continue
            if is_divided:
                self._begin(queue, [part])
            elif error is not None:
                part.rows.set_exception(error)
            else:
                part.rows.set_result(task.result()[end - len(part.texts) : end])


def _may_be_of_one_text(error: BaseException | None) -> bool:
    is_refusal = isinstance(error, JudgeRequestError | UnparsableReplyError)
    return is_refusal or (isinstance(error, JudgeError) and error.status == _SERVER_ERROR)
