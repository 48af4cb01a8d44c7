"""`Tally`: plain counts beside the instruments, for those who look from within, like the doctor."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping
from typing import Literal

from rag_eval_otel.fork import call_in_child

Counted = Literal["turn", "source", "released", "failure"]
"""Turns by outcome and reason; spans and turns by the dialect they were read in; held spans by
the status they left with; failures of our own by place."""


class Tally:
    """Counts by kind and name; thread-safe. A forked child begins at zero."""

    def __init__(self) -> None:
        """Start at zero."""
        self._reset()
        call_in_child(self._reset)

    def _reset(self) -> None:
        # Reentrant: a garbage collection under the lock may end a span, which is counted.
        self._lock = threading.RLock()
        self._counts: dict[Counted, Counter[str]] = {}

    def add(self, kind: Counted, name: str, number: int = 1) -> None:
        """Count ``number`` more."""
        with self._lock:
            self._counts.setdefault(kind, Counter())[name] += number

    def of(self, kind: Counted) -> Mapping[str, int]:
        """Return the counts of one kind by name."""
        with self._lock:
            return dict(self._counts.get(kind, {}))
