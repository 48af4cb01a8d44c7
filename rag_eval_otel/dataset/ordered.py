"""`in_order`: much work at once, its results one after the other."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")

_AHEAD = 4  # results that may wait for a slow one before them, for each that is worked on


async def in_order(
    items: Iterable[T], work: Callable[[T], Awaitable[R]], *, at_once: int
) -> AsyncGenerator[R, None]:
    """Yield the result of ``work`` for each of ``items``, in their order, ``at_once`` at a time.

    Memory does not grow with the number of items: a few times ``at_once`` are held. What is under
    way when the generator is closed, or when one fails, is cancelled.
    """
    running: deque[asyncio.Task[R]] = deque()
    room = asyncio.Semaphore(at_once)

    async def one(item: T) -> R:
        async with room:
            return await work(item)

    try:
        for item in items:
            running.append(asyncio.create_task(one(item)))
            if len(running) >= at_once * _AHEAD:
                yield await running[0]
                running.popleft()
        while running:
            yield await running[0]
            running.popleft()
    finally:
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
