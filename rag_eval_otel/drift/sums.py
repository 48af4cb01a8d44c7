"""`Sums`: what control charts add up, and what they have of it in their state."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import astuple, dataclass
from typing import Any, Literal

from rag_eval_otel.drift.betting import FORMAT
from rag_eval_otel.drift.records import Alarm, View, change_interval


@dataclass(slots=True)
class _Side:
    """One direction: a sum that starts over at 0, and the scores since then."""

    view: View
    sign: Literal[-1, 1]
    sum: float = 0.0
    start: int = 0
    n: int = 0
    total: float = 0.0
    squares: float = 0.0

    def add(self, score: float, *, step: float, index: int) -> float:
        if self.sum <= 0:
            self.sum, self.start, self.n, self.total, self.squares = 0.0, index, 0, 0.0, 0.0
        self.sum += step
        self.n += 1
        self.total += score
        self.squares += score * score
        return self.sum

    def alarm(self, *, index: int, before: float, error: float) -> Alarm:
        after = self.total / self.n
        variance = max(0.0, self.squares / self.n - after * after)
        return Alarm(
            index=index,
            onset=self.start,
            n=self.n,
            direction="down" if self.sign < 0 else "up",
            view=self.view,
            before=before,
            after=after,
            interval=change_interval(
                after - before, variance=variance, effect=1.0, n=self.n, baseline_error=error
            ),
        )


class Sums:
    """What scores deviate by, added up in each direction."""

    def __init__(self, slack: float) -> None:
        """Take ``slack`` off every step."""
        self._slack = slack
        self.clear()

    def clear(self) -> None:
        """Begin anew."""
        self._sides = _Side("level", -1), _Side("rise", 1)

    def since(self, count: int) -> int:
        """Return the index from which on scores are part of a sum; ``count`` where none is."""
        return min((side.start for side in self._sides if side.sum > 0), default=count)

    def alarm(
        self, score: float, *, step: float, limit: float, index: int, mean: float, error: float
    ) -> Alarm | None:
        """Add ``step`` less the slack; return the alarm of a sum above ``limit``, and clear."""
        for side in self._sides:
            if side.add(score, step=side.sign * step - self._slack, index=index) > limit:
                found = side.alarm(index=index, before=mean, error=error)
                self.clear()
                return found
        return None

    def to_state(self) -> list[tuple[float, ...]]:
        """Return the numbers, as JSON can hold them."""
        return [astuple(side)[2:] for side in self._sides]

    def restore(self, state: Iterable[Iterable[float]]) -> None:
        """Go on from what `to_state` returned; raise TypeError or ValueError for all else."""
        found = Sums(self._slack)
        for side, numbers in zip(found._sides, state, strict=True):
            side.sum, *others = map(float, numbers)
            if not math.isfinite(side.sum) or not all(0 <= one < math.inf for one in others):
                msg = "a number is not finite, or below 0"
                raise ValueError(msg)
            start, n, side.total, side.squares = others
            side.start, side.n = int(start), int(n)
        self._sides = found._sides


def count_of(state: Mapping[str, Any], *, kind: str, target: float | None) -> int:
    """Return the scores that ``state`` is of; raise ValueError unless it is of such a detector."""
    same = (FORMAT, kind, target)
    found = tuple(state[name] for name in ("format", "kind", "target"))
    if found != same or int(state["count"]) < 0:
        msg = f"it is of {found} and {state['count']} scores, not of {same}"
        raise ValueError(msg)
    return int(state["count"])
