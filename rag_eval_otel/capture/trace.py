"""`TraceAssembler`: which span stands for which turn.

Whoever recognises a turn says which span stands for it (`expect`); when that span ends, the
processor takes the turn (`take`). Turns whose span never comes are dropped, oldest first.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import TypeAlias

from rag_eval_otel.capture.turns import Turn

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
        self._expected: OrderedDict[SpanKey, Turn] = OrderedDict()
        self._lock = threading.RLock()

    def __len__(self) -> int:
        """Return how many turns wait for their span."""
        return len(self._expected)

    def expect(self, key: SpanKey, turn: Turn) -> bool:
        """Let the span ``key`` stand for ``turn``; call before that span ends.

        False if the span stands for another turn already: a span takes the scores of one.
        """
        with self._lock:
            if key in self._expected:
                return False
            self._expected[key] = turn
            evicted = len(self._expected) > self._max
            if evicted:
                self._expected.popitem(last=False)
        if evicted:
            self._on_evicted()
        return True

    def take(self, key: SpanKey) -> Turn | None:
        """Return the turn that the span ``key`` stands for and forget it; None for most spans."""
        if not self._expected:  # the usual case, without the lock
            return None
        with self._lock:
            return self._expected.pop(key, None)

    def clear(self) -> None:
        """Forget every turn (in a forked child: they are the parent's)."""
        self._lock = threading.RLock()
        self._expected.clear()
