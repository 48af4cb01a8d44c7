"""`Evidence`: what all bets against one baseline have come to."""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import accumulate
from operator import mul
from typing import Any, Literal, TypeAlias

from rag_eval_otel.drift.baseline import Baseline, Views
from rag_eval_otel.drift.bets import BETS, bets_on, no_bets
from rag_eval_otel.drift.recent import Recent, steepest

Directions: TypeAlias = Literal["both", "down", "up"]
ToViews: TypeAlias = Callable[[float], Views]

_SHARES: Mapping[Directions, tuple[float, ...]] = {
    "both": (0.4, 0.2, 0.2, 0.2),
    "down": (0.6, 0.4, 0.0, 0.0),
    "up": (0.0, 0.0, 0.0, 1.0),
}
"""Of the budget for false alarms, for the views level, tail, spread and rise."""
_MEAN_ALONE = (
    0.85,
    0.0,
    0.0,
    0.15,
)  # in both directions, where nothing is known of tail and spread

_ENDS = tuple(accumulate(BETS, initial=0))
_RESERVE = 1.5  # a learned baseline may be off: it takes so much more evidence
_DATING = 1  # the bet that dates a change: a small one, so that it gathers for small changes, too
_RUN = 4  # numbers of a run
_LEVEL, _TAIL = 0, 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """The scores since the evidence of a view last began to gather."""

    start: int
    n: int
    mean: float
    variance: float


class Evidence:
    """Four views of the scores and some bets on each, kept in flat arrays to be small.

    ``M_k <- (M_k + 1) * (a_k - b_k * y)``; the evidence is the mean over the bets of a view,
    summed over the views by their shares.
    """

    __slots__ = (
        "_a",
        "_b",
        "_m",
        "_plan",
        "_recent",
        "_runs",
        "_shares",
        "_squares",
        "_total",
        "value",
    )

    def __init__(self, baseline: Baseline, *, every: float, direction: Directions = "both") -> None:
        """Begin at none."""
        known = tuple(level is not None for level in baseline.levels)
        self._plan = _plan(direction, known, _RESERVE if baseline.level.n else 1.0)
        self._shares = _shares(self._plan)
        planned = {view for view, *_ in self._plan}
        bets = [
            bets_on(level, count=count, every=every)
            if level and view in planned
            else no_bets(count)
            for view, (level, count) in enumerate(zip(baseline.levels, BETS, strict=True))
        ]
        self._a = array("d", [a for bet in bets for a in bet.a])
        self._b = array("d", [b for bet in bets for b in bet.b])
        self.clear()

    def clear(self) -> None:
        """Begin anew."""
        self._m = array("d", bytes(8 * _ENDS[-1]))
        self._runs = array("d", bytes(8 * _RUN * len(BETS)))  # evidence, start, total, squares
        self._total = self._squares = 0.0
        self._recent = Recent()
        self.value = 0.0
        """What it has come to; an alarm is at ``every``."""

    def add(self, views: Views, *, index: int) -> None:
        """Take the ``index``-th score."""
        a, b, runs = self._a, self._b, self._runs
        self._m = found = multiplied(self._m, a, b, views)
        self.value = sum(map(mul, self._shares, found))
        for view, _, first, _ in self._plan:
            run = view * _RUN
            if runs[run] <= 1.0:
                runs[run], runs[run + 1] = 1.0, index
                runs[run + 2], runs[run + 3] = self._total, self._squares
            runs[run] *= a[first + _DATING] - b[first + _DATING] * views[view]
        level = views[0]
        self._recent.add(level)
        self._total += level
        self._squares += level * level

    def leading(self) -> int:
        """Return the view that has most of the evidence."""
        return max(self._plan, key=lambda one: one[1] * sum(self._m[one[2] : one[3]]))[0]

    def run(self, view: int, *, count: int, baseline: Baseline, views: ToViews) -> Run:
        """Return the scores since the likeliest time of the change that ``view`` has found.

        That is within the last scores, or since when the evidence of the level or of ``view`` has
        gathered: where the mean has moved most clearly.
        """
        told = _LEVEL if view == _TAIL else view  # the tail says less about when
        level = baseline.levels[told] or baseline.level
        recent = self._recent.scores()
        gain, number = steepest([views(score)[told] for score in recent], level.mean)
        found = [self._gathered(one, count) for one, *_ in self._plan if one in {view, _LEVEL}]
        gains = [run.n * (run.mean - baseline.level.mean) ** 2 for run in found]
        if number and gain >= max(gains):
            return _run(count - number, recent[-number:])
        return found[gains.index(max(gains))]

    def _gathered(self, view: int, count: int) -> Run:
        _, start, total, squares = self._runs[view * _RUN : (view + 1) * _RUN]
        n = max(1, count - int(start))
        mean = (self._total - total) / n
        variance = max(0.0, (self._squares - squares) / n - mean * mean)
        return Run(start=int(start), n=n, mean=mean, variance=variance)

    def since(self, *, count: int) -> int:
        """Return from which score on there is any evidence; ``count``, the next one, for none."""
        starts = [
            self._runs[run + 1] for run in range(0, len(self._runs), _RUN) if self._runs[run] > 1
        ]
        return int(min(starts, default=count))

    def to_state(self) -> dict[str, Any]:
        """Return it as JSON can hold it."""
        return {
            "value": self.value,
            "bets": list(self._m),
            "runs": list(self._runs),
            "sums": [self._total, self._squares],
            "recent": self._recent.to_state(),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from what `to_state` returned; raise KeyError, TypeError, ValueError for others."""
        bets, runs = array("d", state["bets"]), array("d", state["runs"])
        total, squares = map(float, state["sums"])
        value = float(state["value"])
        ring, held = state["recent"]
        recent = Recent(bytes.fromhex(ring), int(held))
        if len(bets) != len(self._m) or len(runs) != len(self._runs):
            msg = f"{len(bets)} bets and {len(runs)} numbers of runs"
            raise ValueError(msg)
        sums = (*runs[2::_RUN], *runs[3::_RUN], total, squares)  # of strata also below 0
        amounts = (*bets, *runs[0::_RUN], *runs[1::_RUN], value)
        if not all(map(math.isfinite, sums)) or not all(0 <= one < math.inf for one in amounts):
            msg = "a number is not finite, or below 0"
            raise ValueError(msg)
        self._m, self._runs, self.value = bets, runs, value
        self._total, self._squares, self._recent = total, squares, recent


def multiplied(m: array[float], a: array[float], b: array[float], views: Views) -> array[float]:
    """Return ``(m + 1) * (a - b * y)`` of each bet, for the view ``y`` that it is on.

    Written out: this is done for every score of every metric, and a loop takes twice as long.
    """
    y0, y1, y2, y3 = views
    m0, m1, m2, m3, m4, m5, m6, m7, m8, m9, m10, m11, m12, m13, m14, m15, m16, m17 = m
    a0, a1, a2, a3, a4, a5, a6, a7, a8, a9, a10, a11, a12, a13, a14, a15, a16, a17 = a
    b0, b1, b2, b3, b4, b5, b6, b7, b8, b9, b10, b11, b12, b13, b14, b15, b16, b17 = b
    return array(
        "d",
        (
            (m0 + 1.0) * (a0 - b0 * y0),
            (m1 + 1.0) * (a1 - b1 * y0),
            (m2 + 1.0) * (a2 - b2 * y0),
            (m3 + 1.0) * (a3 - b3 * y0),
            (m4 + 1.0) * (a4 - b4 * y0),
            (m5 + 1.0) * (a5 - b5 * y0),
            (m6 + 1.0) * (a6 - b6 * y1),
            (m7 + 1.0) * (a7 - b7 * y1),
            (m8 + 1.0) * (a8 - b8 * y1),
            (m9 + 1.0) * (a9 - b9 * y1),
            (m10 + 1.0) * (a10 - b10 * y2),
            (m11 + 1.0) * (a11 - b11 * y2),
            (m12 + 1.0) * (a12 - b12 * y2),
            (m13 + 1.0) * (a13 - b13 * y2),
            (m14 + 1.0) * (a14 - b14 * y3),
            (m15 + 1.0) * (a15 - b15 * y3),
            (m16 + 1.0) * (a16 - b16 * y3),
            (m17 + 1.0) * (a17 - b17 * y3),
        ),
    )


def _run(start: int, scores: Sequence[float]) -> Run:
    mean = sum(scores) / len(scores)
    variance = sum((score - mean) ** 2 for score in scores) / len(scores)
    return Run(start=start, n=len(scores), mean=mean, variance=variance)


@cache
def _plan(
    direction: Directions, known: tuple[bool, ...], reserve: float
) -> tuple[tuple[int, float, int, int], ...]:
    """Return each view that is bet on, the share of each of its bets, and where these are."""
    alone = direction == "both" and not all(known)
    wanted = _MEAN_ALONE if alone else _SHARES[direction]
    shares = [w if there else 0.0 for w, there in zip(wanted, known, strict=True)]
    return tuple(
        (view, share / sum(shares) / BETS[view] / reserve, _ENDS[view], _ENDS[view + 1])
        for view, share in enumerate(shares)
        if share
    )


@cache
def _shares(plan: tuple[tuple[int, float, int, int], ...]) -> tuple[float, ...]:
    """Return the share of every bet, of those that are not made, too."""
    of_each = {k: share for _, share, first, last in plan for k in range(first, last)}
    return tuple(of_each.get(k, 0.0) for k in range(_ENDS[-1]))
