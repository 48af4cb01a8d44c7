"""`Batches`: embed the texts of several evaluations in one request."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import Context, copy_context
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate
from typing import TypeAlias

from rag_eval_otel.errors import JudgeRequestError, JudgeTransportError, UnparsableReplyError
from rag_eval_otel.judge.ask import given_up
from rag_eval_otel.judge.protection import deadline, with_deadline
from rag_eval_otel.judge.usage import Meter, current_meter, shared_by, will_attempt
from rag_eval_otel.runtime.watchdog import within
from rag_eval_otel.types import Vectors

_WINDOW = 0.05  # seconds between two shared requests, unless there are texts to fill one
_MOST_TEXTS = 32  # in a shared request; some servers refuse more
_MOST_CHARACTERS = 100_000  # in a shared request
_REFUSALS = (JudgeRequestError, UnparsableReplyError)
"""Errors that the size of a shared request, or one of its texts, may have caused."""
_SERVER_ERROR = 500  # some servers reply so to a text that is too long; 502 to 504 are outages

Send: TypeAlias = Callable[[Sequence[str]], Awaitable[Vectors]]


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

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.waiting: list[_Part] = []
        self.under_way = 0
        self.sent_at = 0.0
        self.timer: asyncio.TimerHandle | None = None

    @property
    def is_idle(self) -> bool:
        return not self.under_way and self.timer is None

    @property
    def texts(self) -> int:
        """The number of texts that wait."""
        return sum(len(part.texts) for part in self.waiting)

    @contextmanager
    def sending(self) -> Iterator[None]:
        """Count a request that is sent in the ``with`` block."""
        self.under_way += 1
        self.sent_at = self.loop.time()
        try:
            yield
        finally:
            self.under_way -= 1

    def wait(self, flush: Callable[[_Queue], None]) -> None:
        """Call ``flush`` when `_WINDOW` seconds have passed since the last request."""
        self.timer = self.loop.call_at(self.sent_at + _WINDOW, flush, self)


class Batches:
    """Puts the texts of several callers, such as evaluations of several turns, into one request.

    A caller who comes while no request is under way sends a request at once. Callers who come while
    a request is under way are collected until 50 ms after that request was sent, or until they have
    32 texts, and share the next request. Further callers are collected for the same time, until
    50 ms pass without a caller.

    If the server refuses a shared request, the texts of each caller are sent alone. If none of
    these requests is refused, the size was the cause, and shared requests have half as many texts
    from then on. If the server replies 500, one of the texts may be the cause, and the request is
    divided until its caller is found. An outage is not multiplied: if both halves of a request
    fail, no smaller ones are sent. A request is cancelled if all its callers are cancelled.

    ``send`` sends one request, and ``name`` names the embedder for the watchdog.
    """

    def __init__(self, send: Send, *, name: str) -> None:
        self._send = send
        self._name = name
        self._most = _MOST_TEXTS
        self._queues: dict[asyncio.AbstractEventLoop, _Queue] = {}

    async def embed(self, texts: Sequence[str]) -> Vectors:
        """Return one vector (row) for each of ``texts``; exceptions of ``send`` are raised."""
        will_attempt()
        queue = self._queue()
        if queue.is_idle:
            with queue.sending():
                return await self._send(texts)
        part = _Part(texts, queue.loop.create_future())
        queue.waiting.append(part)
        if queue.texts >= self._most:
            self._flush(queue)
        elif queue.timer is None:
            queue.wait(self._flush)
        try:
            return await part.rows
        finally:
            if part in queue.waiting:
                queue.waiting.remove(part)

    def _queue(self) -> _Queue:
        loop = asyncio.get_running_loop()
        if loop not in self._queues:
            for closed in [one for one in list(self._queues) if one.is_closed()]:
                self._queues.pop(closed, None)
            self._queues[loop] = _Queue(loop)
        return self._queues[loop]

    def _flush(self, queue: _Queue) -> None:
        """Send the texts that wait; without texts, the next caller sends a request at once."""
        if queue.timer is not None:
            queue.timer.cancel()
            queue.timer = None
        parts, queue.waiting = queue.waiting, []
        for group in _groups(parts, self._most):
            request = group[0].context.run(queue.loop.create_task, self._rows(queue, group))
            request.add_done_callback(partial(_deliver, group))
            for part in group:
                part.rows.add_done_callback(partial(_give_up, group, request))
        if parts:
            queue.sent_at = queue.loop.time()
            queue.wait(self._flush)

    async def _rows(self, queue: _Queue, parts: Sequence[_Part]) -> list[Vectors | BaseException]:
        """Send the texts of ``parts`` in one request; return vectors or an error for each part."""
        with queue.sending():
            try:
                rows = await self._request(parts)
            except _REFUSALS:
                if len(parts) == 1:
                    raise
                return await self._alone(parts)
            except JudgeTransportError as error:
                return await self._divided(parts, error)
        return _of_each(parts, rows)

    async def _request(self, parts: Sequence[_Part]) -> Vectors:
        """Send the texts of ``parts``, unless all their callers were cancelled meanwhile."""
        if all(part.rows.done() for part in parts):
            raise given_up()
        texts = [text for part in parts for text in part.texts]
        meters = [part.meter for part in parts if part.meter is not None]
        with with_deadline(max(part.until for part in parts)), shared_by(meters):
            return await within(self._name, partial(self._send, texts))

    async def _divided(
        self, parts: Sequence[_Part], error: BaseException
    ) -> list[Vectors | BaseException]:
        """Send ``parts`` in two requests if a text may have caused ``error``, and so on.

        If both requests fail, the server is the cause, and all of ``parts`` get ``error``.
        """
        if len(parts) == 1 or getattr(error, "status", None) != _SERVER_ERROR:
            return [error] * len(parts)
        middle = len(parts) // 2
        halves = (parts[:middle], parts[middle:])
        found = await asyncio.gather(*map(self._request, halves), return_exceptions=True)
        if all(isinstance(one, BaseException) for one in found):
            return [error] * len(parts)
        rows: list[Vectors | BaseException] = []
        for half, one in zip(halves, found, strict=True):
            if isinstance(one, BaseException):
                rows += await self._divided(half, one)
            else:
                rows += _of_each(half, one)
        return rows

    async def _alone(self, parts: Sequence[_Part]) -> list[Vectors | BaseException]:
        """Send a request for each of ``parts``, because their shared request was refused."""
        found = await asyncio.gather(*(self._request([p]) for p in parts), return_exceptions=True)
        if not any(isinstance(one, _REFUSALS) for one in found):
            self._most = max(1, sum(len(part.texts) for part in parts) // 2)
        return found


def _of_each(parts: Sequence[_Part], rows: Vectors) -> list[Vectors | BaseException]:
    """Return the vectors of each of ``parts``, whose vectors in their order are ``rows``."""
    ends = list(accumulate(len(part.texts) for part in parts))
    return [rows[end - len(part.texts) : end] for end, part in zip(ends, parts, strict=True)]


def _groups(parts: Sequence[_Part], most: int) -> list[list[_Part]]:
    """Divide ``parts`` into groups with at most ``most`` texts, if a part has not more itself."""
    groups: list[list[_Part]] = []
    texts = characters = 0
    for part in parts:
        size = sum(map(len, part.texts))
        texts, characters = texts + len(part.texts), characters + size
        if not groups or texts > most or characters > _MOST_CHARACTERS:
            groups.append([])
            texts, characters = len(part.texts), size
        groups[-1].append(part)
    return groups


def _deliver(parts: Sequence[_Part], request: asyncio.Task[list[Vectors | BaseException]]) -> None:
    error = given_up() if request.cancelled() else request.exception()
    found = [error] * len(parts) if error is not None else request.result()
    for part, rows in zip(parts, found, strict=True):
        if part.rows.done():  # its caller was cancelled
            continue
        if isinstance(rows, BaseException):
            part.rows.set_exception(rows)
        else:
            part.rows.set_result(rows)


def _give_up(
    parts: Sequence[_Part], request: asyncio.Task[object], _: asyncio.Future[Vectors]
) -> None:
    """Cancel ``request`` if no caller waits for it any more."""
    if all(part.rows.done() for part in parts):
        request.cancel()
