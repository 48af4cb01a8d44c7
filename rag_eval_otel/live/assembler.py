"""`TraceAssembler`: which span stands for which turn.

Whoever recognises a turn says which span stands for it (`expect`); when that span ends, the
processor takes the turn (`take`). Turns whose span never comes are dropped, oldest first.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TypeAlias

from rag_eval_otel.capture.turn import Turn

SpanKey: TypeAlias = "tuple[int, int]"
"""Trace id and span id."""


class TraceAssembler:
    """The turns whose span has not ended yet; at most ``max_turns`` of them.

    ``on_evicted`` is called once for every turn that was dropped over the limit.
    """

    def __init__(
        self, *, max_turns: int = 4096, on_evicted: Callable[[], None] = lambda: None
    ) -> None:
        """Start empty."""
        self._max = max_turns
        self._on_evicted = on_evicted
        self._evicting = threading.RLock()
        self.is_open = False
        """Whether ended spans come past somebody who takes their turns."""
        # A plain dict, whose single operations are atomic: no lock on the application's thread.
        self.expected: dict[SpanKey, Turn] = {}
        """The turns by the span they wait for; to be looked at only."""

    def __len__(self) -> int:
        """Return how many turns wait for their span."""
        return len(self.expected)

    def expect(self, key: SpanKey, turn: Turn, *, instead: Turn | None = None) -> bool:
        """Let the span ``key`` stand for ``turn``; call before that span ends.

        False if nobody takes turns, or the span stands for another turn already: it carries the
        scores of one. That may be ``instead`` of a turn it has stood for.
        """
        if instead is not None:
            self.withdraw(key, instead)
        if not self.is_open or self.expected.setdefault(key, turn) is not turn:
            return False
        if len(self.expected) > self._max:
            self._evict()
        return True

    def withdraw(self, key: SpanKey, turn: Turn) -> None:
        """Let the span ``key`` stand for ``turn`` no more."""
        if self.expected.get(key) is turn:
            self.expected.pop(key, None)

    def take(self, key: SpanKey) -> Turn | None:
        """Return the turn that the span ``key`` stands for and forget it; None for most spans."""
        return self.expected.pop(key, None)

    def _evict(self) -> None:
        """Drop what is over the limit; one thread at a time, or they would drop the same turn."""
        evicted = 0
        with self._evicting:
            while len(self.expected) > self._max:
                oldest = next(iter(tuple(self.expected)), None)
                evicted += oldest is not None and self.expected.pop(oldest, None) is not None
        for _ in range(evicted):
            self._on_evicted()

    def close(self) -> int:
        """Take no more turns, forget those there are, and return how many that were."""
        self.is_open = False
        count = 0
        while self.expected:
            with suppress(KeyError):  # the last was taken by another thread just now
                self.expected.popitem()
                count += 1
        return count

    def clear(self) -> None:
        """Forget every turn (in a forked child: they are the parent's)."""
        self._evicting = threading.RLock()  # a thread that is not here any more may have had it
        self.expected.clear()
