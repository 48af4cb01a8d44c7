"""An event loop whose time passes only while nothing can run, so that waiting takes no time."""

import asyncio
import selectors
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

T = TypeVar("T")


class _Selector(selectors.SelectSelector):
    """A selector that advances the time of its loop in place of waiting."""

    loop: "VirtualLoop"

    def select(self, timeout: float | None = None) -> list[Any]:
        ready = super().select(0)
        if not ready and timeout is None:
            msg = "every task waits for something that will not happen"
            raise RuntimeError(msg)
        if not ready and timeout:
            self.loop.now += timeout
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop with a virtual clock, which starts at 0."""

    def __init__(self) -> None:
        selector = _Selector()
        super().__init__(selector)
        selector.loop = self
        self.now = 0.0

    def time(self) -> float:
        return self.now


def run_virtually(use: Callable[[Callable[[], float]], Awaitable[T]]) -> T:
    """Run the coroutine ``use(clock)`` in a loop with virtual time, and return its result."""
    loop = VirtualLoop()

    async def main() -> T:
        return await use(loop.time)

    try:
        return loop.run_until_complete(main())
    finally:
        loop.close()
