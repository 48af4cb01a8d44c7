"""Find the metric, judge, embedder or sink that blocks the evaluator's event loop.

Code that a user of this library writes runs on one event loop. A coroutine that calls
``time.sleep`` or computes for long blocks this loop, and then no turn is evaluated. While such a
part runs, `within` or `running` keeps its name in the `Activity` of the loop's thread. A watchdog
thread reads the name there if the loop stands still.
"""

from __future__ import annotations

import contextvars
import sys
from collections.abc import Awaitable, Callable, Generator, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar, cast

from rag_eval_otel.errors import PartBlockedError
from rag_eval_otel.runtime.installed import is_importing

TICK_SECONDS = 0.25
PATIENCE = 10.0  # seconds for which a part may block the event loop
_OURS = 6  # times as long if no part of a user is known to run

T = TypeVar("T")


class Activity:
    """The parts that run on the thread of one event loop at this moment, innermost last.

    ``blocked`` has the names of the parts that must not be called any more. ``beats`` counts the
    iterations of the loop that polls for jobs, and the steps of parts that begin and end. Many
    short steps in a row are so told from one that blocks the loop. ``is_idle`` says that the thread
    waits for jobs. The functions in ``on_abandoned`` are called when another loop takes the place
    of the loop; they must neither block nor raise.
    """

    def __init__(self, blocked: set[str]) -> None:
        self.blocked = blocked
        self.parts: list[str] = []
        self.beats = 0
        self.is_idle = True
        self.thread: int | None = None
        self.on_abandoned: set[Callable[[], None]] = set()

    def enter(self, part: str) -> None:
        """Note that a step of ``part`` begins."""
        self.beats += 1
        self.parts.append(part)

    def leave(self) -> None:
        """Note that the step that began last has ended."""
        self.parts.pop()
        self.beats += 1


ACTIVITY: contextvars.ContextVar[Activity | None] = contextvars.ContextVar(
    "rag_eval_otel_activity", default=None
)
"""The activity of the evaluator's thread, or None on other threads."""


@contextmanager
def running(part: str) -> Iterator[None]:
    """Name the code of the block ``part``; raise `PartBlockedError` if the part is disabled."""
    activity = _activity_for(part)
    if activity is None:
        yield
        return
    activity.enter(part)
    try:
        yield
    finally:
        activity.leave()


async def within(part: str, call: Callable[[], Awaitable[T]]) -> T:
    """Await ``call()``, and name each of its steps on the event loop ``part``.

    Raise `PartBlockedError` if the part has blocked an event loop before.
    """
    activity = _activity_for(part)
    if activity is None:
        return await call()
    with running(part):
        steps = call().__await__()
    return cast("T", await _Steps(activity, part, steps=steps))


def _activity_for(part: str) -> Activity | None:
    activity = ACTIVITY.get()
    if activity is not None and part in activity.blocked:
        msg = f"not called: the {part} has blocked the event loop and is disabled"
        raise PartBlockedError(msg)
    return activity


class _Steps:
    """The steps of a coroutine on the event loop; during each, ``part`` is in ``activity``."""

    def __init__(self, activity: Activity, part: str, *, steps: Generator[Any, Any, Any]) -> None:
        self._activity = activity
        self._part = part
        self._steps = steps

    def __await__(self) -> _Steps:
        return self

    def __iter__(self) -> _Steps:
        return self

    def __next__(self) -> object:
        return self.send(None)

    def send(self, value: object) -> object:
        self._activity.enter(self._part)
        try:
            return self._steps.send(value)
        finally:
            self._activity.leave()

    def throw(self, *error: Any) -> object:
        self._activity.enter(self._part)
        try:
            return self._steps.throw(*error)
        finally:
            self._activity.leave()

    def close(self) -> None:
        self._steps.close()


class Watchdog:
    """Finds out, from regular calls of `look`, whether an event loop is blocked.

    The time is counted in calls of `look` during which the loop did not move, and not by a clock.
    If the whole process was frozen or had no processor, the watchdog did not run either, and the
    loop is not blamed. An import is not blamed, because it ends, and is not repeated.
    """

    def __init__(self, *, patience: float = PATIENCE, tick: float = TICK_SECONDS) -> None:
        self._limit = max(1, round(patience / tick))
        self._watched: Activity | None = None
        self._beats = 0
        self._still = 0

    def look(self, activity: Activity) -> str | None:
        """Return the part that blocks the loop of ``activity``, or None if the loop is not blocked.

        The result is ``evaluator`` if the loop is blocked, but not by a part that has a name.
        """
        if activity.is_idle or activity is not self._watched or activity.beats != self._beats:
            self._watched, self._beats, self._still = activity, activity.beats, 0
            return None
        # Documented, for debuggers.
        if is_importing(sys._current_frames().get(activity.thread or 0)):  # noqa: SLF001
            return None
        self._still += 1
        part = next(reversed(activity.parts), None)
        limit = self._limit if part is not None else _OURS * self._limit
        if self._still < limit:
            return None
        self._still = 0
        return part or "evaluator"
