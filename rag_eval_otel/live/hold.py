"""`Holdback`: spans that wait for their scores, each released exactly once."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from rag_eval_otel.types import Ending, HoldStatus

Key: TypeAlias = "tuple[int, int]"
"""Trace id and span id; trace 0 for run trees, whose spans are not made yet."""

_NAP = 0.01  # seconds
CHUNK = 256  # items released between two flushes, so that the next queue does not overflow


class Waiting(Protocol):
    """What is held: a span, or the spans of a run tree."""

    def release(self, ending: Ending) -> None:
        """Hand the span on; called once, outside of any lock. Must not raise."""


@dataclass(slots=True, eq=False)  # not frozen: that costs the application a microsecond
class _Held:
    item: Waiting
    deadline: float
    size: int
    number: int


class Holdback:
    """Items by key, released by the first that comes: scores, deadline, flush or shutdown.

    Bounded by ``max_spans`` items and ``max_bytes``. Until `Waiting.release` has returned the item
    counts as in transit, and `release_all` waits for it: otherwise a shutdown could overtake a span
    that has been claimed but not handed over.
    """

    def __init__(
        self,
        *,
        seconds: float,
        max_spans: int,
        max_bytes: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Hold each item for at most ``seconds``."""
        self._seconds = seconds
        self._max_spans = max_spans
        self._max_bytes = max_bytes
        self._clock = clock
        self.is_open = True
        self.reset()

    def reset(self) -> None:
        """Forget everything (in a forked child: the parent releases its spans itself)."""
        # Reentrant: a garbage collection may end spans while it is held.
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._held: dict[Key, _Held] = {}  # in order of their deadlines, since all wait as long
        self._bytes = 0
        self._next = 0
        self._in_transit: dict[int, int] = {}  # number of the item to identity of the thread
        self._reaper: threading.Thread | None = None

    def __len__(self) -> int:
        """Return how many items wait."""
        return len(self._held)

    def hold(self, key: Key, item: Waiting, *, size: int) -> bool:
        """Keep ``item``; False where there is no room, or the key is taken."""
        with self._lock:
            room = len(self._held) < self._max_spans and self._bytes + size <= self._max_bytes
            if not (room and self.is_open and key not in self._held):
                return False
            if self._reaper is None and not self._start_reaper():
                return False
            self._held[key] = _Held(item, self._clock() + self._seconds, size, self._next)
            self._next += 1
            self._bytes += size
        return True

    def release(self, key: Key, ending: Ending) -> bool:
        """Hand the item on; False if it has been released already."""
        with self._lock:
            held = self._claim(key)
        if held is None:
            return False
        self._hand_over(held, ending)
        return True

    def release_all(
        self, status: HoldStatus, *, deadline: float, flush: Callable[[float], object]
    ) -> bool:
        """Release every item held now, and wait for those in transit; False past ``deadline``.

        After each `CHUNK` items ``flush(seconds)`` empties the next queue while there is time.
        An item that the calling thread itself is handing over is not waited for.
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
        """Wait until the items held now are released; False if ``timeout`` seconds passed."""
        with self._changed:
            last = self._next
            return self._changed.wait_for(
                lambda: not any(held.number < last for held in self._held.values()), timeout
            )

    def close(self) -> None:
        """Hold nothing from now on, and let the reaper end once all is released."""
        with self._changed:
            self.is_open = False
            self._changed.notify_all()

    def _claim(self, key: Key) -> _Held | None:
        held = self._held.pop(key, None)
        if held is not None:
            self._bytes -= held.size
            self._in_transit[held.number] = threading.get_ident()
        return held

    def _hand_over(self, held: _Held, ending: Ending) -> None:
        try:
            held.item.release(ending)
        finally:
            with self._changed:
                self._in_transit.pop(held.number, None)  # gone where a fork came between
                self._changed.notify_all()

    def _start_reaper(self) -> bool:
        reaper = threading.Thread(target=self._reap, name="rag-eval-otel-hold", daemon=True)
        try:
            reaper.start()
        except RuntimeError:  # the interpreter is shutting down: nobody would release it in time
            return False
        self._reaper = reaper
        return True

    def _reap(self) -> None:
        try:
            while self.is_open or self._held:
                due = self._wait_for_due()
                if due is not None:
                    self.release(due, Ending("timeout"))
        finally:  # also where an exporter exits: another reaper must release the others
            with self._lock:
                self._reaper = None
                if self._held:
                    self._start_reaper()

    def _wait_for_due(self) -> Key | None:
        """Wait until the first deadline, or a change; return the key of an item that is due."""
        with self._changed:
            first = next(iter(self._held), None)
            if first is None:
                if self.is_open:  # nobody wakes us: what is held from now on is not due before
                    self._changed.wait(max(self._seconds, _NAP))
                return None
            left = self._held[first].deadline - self._clock()
            if left > 0:
                self._changed.wait(left)
                return None
            return first
