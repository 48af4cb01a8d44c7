"""`Admission`: decide for each RAG turn whether the turn is evaluated.

A *turn* is one question of a user and its answer.
"""

from __future__ import annotations

import threading
import time
import zlib
from collections.abc import Callable

from rag_eval_otel.config import Config
from rag_eval_otel.runtime.fork import call_in_child
from rag_eval_otel.types import SkipReason

_MINUTE = 60.0


class Admission:
    """Decide for each RAG turn (a question and its answer) whether the turn is evaluated.

    ``sample_rate`` is the fraction of traces whose turns are evaluated. ``max_per_minute`` is the
    largest number of turns that are evaluated in a minute; None means no limit.
    """

    def __init__(
        self,
        *,
        sample_rate: float = 1.0,
        max_per_minute: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.admits_all = sample_rate >= 1 and max_per_minute is None
        self._rate = sample_rate
        self._per_minute = max_per_minute
        self._clock = clock
        self._left = max_per_minute or 0.0
        self._at = clock()
        self._reset_lock()
        call_in_child(self._reset_lock)

    @classmethod
    def of(cls, config: Config) -> Admission:
        return cls(sample_rate=config.sample_rate, max_per_minute=config.max_turns_per_minute)

    def _reset_lock(self) -> None:
        """Create the lock of this object.

        A forked child creates a new lock, because no thread of the child could unlock a lock that
        was locked during the fork.
        """
        self._lock = threading.RLock()

    def refusal(self, trace_id: int) -> SkipReason | None:
        """Return why a RAG turn in this trace is not evaluated, or None if it is evaluated.

        The result is ``sample_rate`` if the trace is not in the sample, and ``budget`` if the limit
        of turns a minute is reached.
        """
        if self._rate < 1 and _sampling_point(trace_id) >= self._rate:
            return "sample_rate"
        return None if self._per_minute is None or self._spend(self._per_minute) else "budget"

    def _spend(self, per_minute: float) -> bool:
        with self._lock:
            now = self._clock()
            earned = (now - self._at) * per_minute / _MINUTE
            self._left, self._at = min(max(per_minute, 1.0), self._left + earned), now
            if self._left < 1:
                return False
            self._left -= 1
            return True


def _sampling_point(trace_id: int) -> float:
    """Return a number in [0, 1) for ``trace_id``, the same number at each call.

    The number does not depend on the bits of the trace id that trace samplers use.
    """
    return zlib.crc32(trace_id.to_bytes(16, "big")) / 2**32
