"""`Holdback`: keep ended spans back from the exporter until their scores are there.

A *turn* is one question of a user and its answer. An item is an ended span of a turn, or a
LangChain run tree whose spans are not written yet. Each item is released (passed on) exactly once.
A held item has one of three states::

    collecting ──► scoring ──► released
        └──────────────────────►┘

- ``collecting``: the span has ended, but its trace is not complete, or has not been read yet.
- ``scoring``: a turn was found for the item, and the turn is being evaluated.
- ``released``: the item was passed on, with its scores or with the reason why it has none.

Scores, the deadline, a flush, a shutdown and an eviction may release an item. Whichever of these
comes first releases the item.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias

from opentelemetry import context as otel_context

from rag_eval_otel.types import Ending, HoldStatus

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan

Key: TypeAlias = "tuple[int, int]"
"""Trace id and span id. LangChain run trees have trace id 0, as their spans do not exist yet."""

State: TypeAlias = Literal["collecting", "scoring", "released"]

_NAP = 0.01  # seconds
_STOPPED = 2.0  # seconds by which a wait is late only if the process was stopped
_NEVER = float("inf")
_MAX_LEFT = 4096  # items that were released or refused without scores, and are remembered
CHUNK = 256  # items released between two flushes, so that the next queue does not overflow


class Releasable(Protocol):
    """An ended span, or a LangChain run tree, that waits for scores before its export."""

    def release(self, ending: Ending) -> None:
        """End or export the span or the run tree.

        ``ending`` has the scores, or the reason why there are none. `Holdback` calls this method
        once, and has no lock during the call. The method must not raise an exception.
        """


class Awaited(Releasable, Protocol):
    """A `Releasable` that knows until when its scores are awaited."""

    @property
    def seconds_left(self) -> float:
        """Seconds until the release at the deadline, 0 if it has left then, inf if there is none.

        After a flush the result is inf as well, because the scores are then wanted as events.
        """


@dataclass(slots=True, eq=False)  # not frozen: that costs the application a microsecond
class _Held:
    item: Releasable
    deadline: float
    size: int
    number: int
    state: State = "collecting"
    status: HoldStatus | None = None


class Holdback:
    """A store of items (spans that wait for scores), with a deadline for each item.

    The store has room for ``max_spans`` items of ``max_bytes`` in total. A thread of the store
    releases each item ``seconds`` after `hold` took it. While `Releasable.release` runs for an
    item, the item is in transit, and `release_all` waits for it. Otherwise a shutdown could close
    the exporter before the item reaches the exporter.
    """

    def __init__(
        self,
        *,
        seconds: float,
        max_spans: int,
        max_bytes: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._seconds = seconds
        self._max_spans = max_spans
        self._max_bytes = max_bytes
        self._clock = clock
        self.is_open = True
        self.reset()

    def reset(self) -> None:
        """Forget all stored spans after a fork, because the parent process exports them."""
        # Reentrant: a garbage collection may end spans while this thread has the lock.
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._held: dict[Key, _Held] = {}  # by deadline, since every item waits equally long
        self._bytes = 0
        self._next = 0
        self._stopped = 0.0  # seconds
        self._left: OrderedDict[Key, None] = OrderedDict()  # too late for their scores
        self._in_transit: dict[int, int] = {}  # number of the item to identity of the thread
        self._reaper: threading.Thread | None = None

    def __len__(self) -> int:
        return len(self._held)

    @property
    def has_held(self) -> bool:
        """Whether a span or run tree was stored since the start or the fork of this process."""
        return self._next > 0

    @property
    def size(self) -> int:
        """About how many bytes the stored spans and run trees take in memory."""
        return self._bytes

    @property
    def capacity(self) -> int:
        """The most spans and run trees that the store takes."""
        return self._max_spans

    def count(self, state: State) -> int:
        """Return the number of stored spans and run trees whose state is ``state``."""
        with self._lock:
            return sum(held.state == state for held in self._held.values())

    def hold(self, key: Key, item: Releasable, *, size: int) -> bool:
        """Store ``item``, a span or run tree that waits for scores, under ``key``.

        ``size`` is about how many bytes the item keeps in memory. Return True if the item is
        stored. Return False if there is no room, if the store is closed, if there is already an
        item under ``key``, or if no thread can be started that releases items at their deadlines.
        """
        with self._lock:
            room = len(self._held) < self._max_spans and self._bytes + size <= self._max_bytes
            if not (room and self.is_open and key not in self._held):
                if not room:
                    self._note_left(key)
                return False
            if self._reaper is None and not self._start_reaper():
                return False
            self._held[key] = _Held(item, self._now() + self._seconds, size, self._next)
            self._next += 1
            self._bytes += size
        return True

    def start_scoring(self, key: Key) -> Awaited:
        """Record that the span or run tree stored under ``key`` is being scored.

        Return an object with a method ``release``. The method passes the span or run tree on to the
        exporter, unless a deadline, a flush or a shutdown has passed it on before.
        """
        with self._lock:
            held = self._held.get(key)
            if held is not None:
                held.state = "scoring"
            return _HeldKey(self, key, held, 0.0 if key in self._left else _NEVER)

    def which_left(self, keys: Iterable[Key]) -> Key | None:
        """Return the first of ``keys`` whose item was refused, or left before `start_scoring`.

        Only the last 4,096 items that left at their deadlines are remembered.
        """
        return next((key for key in keys if key in self._left), None)

    def seconds_left(self, held: _Held) -> float:
        """Return the seconds until ``held`` is released at its deadline; see `Awaited`."""
        if self._seconds == 0 or (held.state == "released" and held.status != "timeout"):
            return _NEVER
        return max(0.0, held.deadline - self._now())

    def _note_left(self, key: Key) -> None:
        if self._seconds > 0:
            self._left[key] = None
            if len(self._left) > _MAX_LEFT:
                self._left.popitem(last=False)

    def release(self, key: Key, ending: Ending) -> bool:
        """Remove the span or run tree under ``key`` from the store, and pass it on for export.

        ``ending`` has the scores, or the reason why there are none. Return False if nothing is
        stored under ``key``, for example because the span has been passed on before.
        """
        with self._lock:
            held = self._held.pop(key, None)
            if held is None:
                return False
            if ending.status == "timeout" and held.state == "collecting":
                self._note_left(key)
            held.state, held.status = "released", ending.status
            self._bytes -= held.size
            self._in_transit[held.number] = threading.get_ident()
        try:
            held.item.release(ending)
        finally:
            with self._changed:
                self._in_transit.pop(held.number, None)  # absent after a fork meanwhile
                self._changed.notify_all()
        return True

    def release_all(
        self, status: HoldStatus, *, deadline: float, flush: Callable[[float], object]
    ) -> bool:
        """Pass all stored spans and run trees on for export, with ``status`` in place of scores.

        ``flush(seconds)`` is called after every 256 items, so that the queue of the next span
        processor does not overflow. The method also waits for spans that other threads are passing
        on. Return False if other threads have not finished by ``deadline``.
        """
        this = threading.get_ident()
        with self._changed:
            last = self._next
            keys = list(self._held)
        for i, key in enumerate(keys, start=1):
            self.release(key, Ending(status))
            left = deadline - self._clock()
            if i % CHUNK == 0 and left > 0:
                flush(left)
        with self._changed:
            return self._changed.wait_for(
                lambda: not any(n < last and t != this for n, t in self._in_transit.items()),
                max(0.0, deadline - self._clock()),
            )

    def wait_empty(self, timeout: float) -> bool:
        """Wait until every span and run tree that is stored now has been taken out of the store.

        Return False if ``timeout`` seconds passed before that.
        """
        with self._changed:
            last = self._next
            return self._changed.wait_for(
                lambda: not any(held.number < last for held in self._held.values()), timeout
            )

    def close(self) -> None:
        """Refuse further spans and run trees. The store's thread ends when the store is empty."""
        with self._changed:
            self.is_open = False
            self._changed.notify_all()

    def _start_reaper(self) -> bool:
        reaper = threading.Thread(target=self._reap, name="rag-eval-otel-hold", daemon=True)
        try:
            reaper.start()
        except RuntimeError:  # the interpreter shuts down: no thread can release items at deadlines
            return False
        self._reaper = reaper
        return True

    def _reap(self) -> None:
        try:
            while self.is_open or self._held:
                due = self._wait_for_due()
                if due is not None:
                    self.release(due, Ending("timeout"))
        finally:  # if an exporter raises SystemExit, a new thread must release the other items
            with self._lock:
                self._reaper = None
                if self._held:
                    self._start_reaper()

    def _wait_for_due(self) -> Key | None:
        """Wait for the first deadline, or until another thread changes the store.

        Return the key of an item whose deadline has passed, or None if there is no such item.
        """
        with self._changed:
            first = next(iter(self._held), None)
            if first is None:
                if self.is_open:  # `hold` does not notify: a new item is due after this wait
                    self._wait(max(self._seconds, _NAP))
                return None
            left = self._held[first].deadline - self._now()
            if left > 0:
                self._wait(left)
                return None
            return first

    def _wait(self, seconds: float) -> None:
        """Wait ``seconds``, or until another thread changes the store.

        If the process was stopped meanwhile, no deadline counts the time of this wait. Otherwise
        all spans would leave without scores when the process is continued.
        """
        began = time.monotonic()
        self._changed.wait(seconds)
        passed = time.monotonic() - began
        if passed > seconds + _STOPPED:
            self._stopped += passed

    def _now(self) -> float:
        """Return the time by the clock, without the times in which the process was stopped."""
        return self._clock() - self._stopped


@dataclass(frozen=True, slots=True)
class _HeldKey:
    hold: Holdback
    key: Key
    held: _Held | None
    otherwise: float

    @property
    def seconds_left(self) -> float:
        return self.otherwise if self.held is None else self.hold.seconds_left(self.held)

    def release(self, ending: Ending) -> None:
        self.hold.release(self.key, ending)


class HeldSpan:
    """An ended span that waits for scores, with the context in which the span ended."""

    __slots__ = ("_context", "_export", "_span")

    def __init__(self, export: Callable[[ReadableSpan, Ending], None], span: ReadableSpan) -> None:
        self._export = export
        self._span = span
        self._context = otel_context.get_current()

    def release(self, ending: Ending) -> None:
        """Export the span in the context in which it ended, not in that of this thread."""
        token = otel_context.attach(self._context)
        try:
            self._export(self._span, ending)
        finally:
            otel_context.detach(token)
