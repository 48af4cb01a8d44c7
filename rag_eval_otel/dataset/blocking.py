"""`blocking`: an async function for code that is not."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, wait
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from rag_eval_otel.runtime.background import DaemonExecutor

P = ParamSpec("P")
T = TypeVar("T")

_LOOK_UP = 0.2  # seconds; a signal that comes just before the wait is seen after it


def blocking(function: Callable[P, Coroutine[Any, Any, T]], name: str) -> Callable[P, T]:
    """Return ``function``, called ``name``, for callers that do not await."""

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        return run_now(lambda: function(*args, **kwargs))

    call.__name__ = call.__qualname__ = name
    return call


def run_now(make: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run a coroutine to its end: here, or in a thread of its own where a loop is running here.

    An interrupt (^C) cancels it and waits until it has ended before it goes on.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(make())
    return _in_thread(make)


def _in_thread(make: Callable[[], Coroutine[Any, Any, T]]) -> T:
    cancel: list[Callable[[], object]] = []

    async def cancellable() -> T:
        task = asyncio.ensure_future(make())
        loop = asyncio.get_running_loop()
        cancel.append(lambda: loop.call_soon_threadsafe(task.cancel))
        return await task

    executor = DaemonExecutor(1)
    context = contextvars.copy_context()
    future: Future[T] = executor.submit(context.run, asyncio.run, cancellable())
    try:
        while not wait([future], timeout=_LOOK_UP).done:
            pass
    except KeyboardInterrupt:
        for stop in cancel:
            stop()
        wait([future])
        raise
    finally:
        executor.shutdown()
    return future.result()
