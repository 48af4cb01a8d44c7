"""Streams: read to their end, left early, or cancelled."""

import asyncio
import contextlib
import gc
import itertools
from collections.abc import Callable, Coroutine
from typing import Any, TypeAlias

from langchain_core.runnables import Runnable

from . import company
from .app import Handlers, app, config
from .fakes import StallingChat
from .lcel import FOUNDED
from .parts import rag

Chain: TypeAlias = Runnable[str, str]


@app(FOUNDED)
def stream_sync(callbacks: Handlers) -> object:
    """The chain, streamed; the input of the root comes only with its end."""
    return list(rag().stream(company.FOUNDED, config(callbacks)))


@app()
def stream_abandoned(callbacks: Handlers) -> object:
    """A reader leaves the stream after two chunks and closes it."""
    stream = rag().stream(company.FOUNDED, config(callbacks))
    with contextlib.closing(stream):  # type: ignore[type-var]
        return list(itertools.islice(stream, 2))


@app()
def stream_gc(callbacks: Handlers) -> object:
    """A reader drops the stream after one chunk, and the garbage collector closes it."""
    first = next(rag().stream(company.FOUNDED, config(callbacks)))
    gc.collect()
    return first


@app()
def astream_abandoned(callbacks: Handlers) -> object:
    """A reader leaves the asynchronous stream after one chunk and closes it."""

    async def read() -> str:
        stream = rag().astream(company.FOUNDED, config(callbacks))
        async with contextlib.aclosing(stream):  # type: ignore[type-var]
            return await anext(stream)

    return asyncio.run(read())


@app()
def astream_cancelled(callbacks: Handlers) -> object:
    """The task that reads the stream is cancelled after two words."""

    async def read(chain: Chain) -> None:
        async for _chunk in chain.astream(company.FOUNDED, config(callbacks)):
            pass

    return asyncio.run(_cancelled_when_stalled(read))


@app()
def ainvoke_cancelled(callbacks: Handlers) -> object:
    """The task is cancelled while the model is asked, whose run then never ends."""

    async def ask(chain: Chain) -> None:
        await chain.ainvoke(company.FOUNDED, config(callbacks))

    return asyncio.run(_cancelled_when_stalled(ask))


async def _cancelled_when_stalled(use: Callable[[Chain], Coroutine[Any, Any, None]]) -> None:
    llm = StallingChat()
    running = asyncio.create_task(use(rag(llm=llm)))
    await llm.stalled.wait()
    running.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await running
