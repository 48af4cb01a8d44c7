"""`RecentTurns`: whether a turn has been seen already, recorded by somebody else."""

from __future__ import annotations

import time
from collections import OrderedDict, deque
from typing import TypeAlias

from rag_eval_otel.capture.turns import Turn
from rag_eval_otel.types import Sample

_SAME = 64  # turns remembered in which the same was asked and answered

_Seen: TypeAlias = "tuple[str, int, int]"
"""Who recorded it, and when it began and ended."""


class RecentTurns:
    """The last turns, by what was asked and answered.

    The callback handler and an instrumentation, or two instrumentations, may both record what an
    application does. Of two records of one turn the first counts. Two requests for the same at
    once, both recorded by one of them, are two turns.
    """

    def __init__(self, max_turns: int = 1024) -> None:
        """Remember at most ``max_turns``."""
        self._max = max_turns
        self._seen: OrderedDict[int, deque[_Seen]] = OrderedDict()

    def is_repeated(self, sample: Sample, turn: Turn) -> bool:
        """Tell whether ``turn``, with this ``sample``, was recorded by somebody else before."""
        key = hash((sample.question, sample.answer))
        steps = (step for step in reversed(turn.line) if step.kind != "other")
        outermost = next(steps, turn.anchor)  # of what they recorded; around it may be a session
        seen = (outermost.source, outermost.start, outermost.end or time.time_ns())
        others = self._seen.setdefault(key, deque(maxlen=_SAME))
        self._seen.move_to_end(key)
        repeated = next((other for other in others if _is_other_record(seen, other)), None)
        if repeated is not None:
            others.remove(repeated)
            return True
        others.append(seen)
        while len(self._seen) > self._max:
            self._seen.popitem(last=False)
        return False


def _is_other_record(one: _Seen, other: _Seen) -> bool:
    """Tell whether two makers recorded what went on at the same time."""
    return one[0] != other[0] and one[1] <= other[2] and other[1] <= one[2]
