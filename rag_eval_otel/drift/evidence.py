"""Measure the evidence that scores differ from a baseline, and estimate when the change began.

A *view* is a number in [0, 1] computed from a score, whose mean falls if the scores change
(`rag_eval_otel.drift.baseline` lists the four views). A *bet* tests the null hypothesis "the mean
of a view is at least ``m0``". A bet is a number, called *wealth*, which starts at 0. With each
score, 1 is added to the wealth, and the sum is multiplied by a factor. While the null hypothesis is
true, the expected factor is at most 1. If the mean of the view is lower, the wealth grows quickly.
The *onset* of a change is the index of the first score after the change.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import accumulate
from operator import mul
from statistics import NormalDist
from typing import Any, TypeAlias

from rag_eval_otel.drift.baseline import Baseline, Directions, Level, Views

ToViews: TypeAlias = Callable[[float], Views]

_BETS = (6, 4, 4, 4)
"""The number of bets on each of the views level, tail, spread and rise.

A bet is a test whether the mean of a view has fallen. The bets on one view are sensitive to changes
of different sizes.
"""

_MIN_CHANGE, _MAX_CHANGE = 0.03, 0.4  # changes of the mean that the bets suit
_MAX_STAKE = 0.95  # a single score takes at most this fraction of the wealth of a bet
_MIN_DISTANCE = 1e-3  # m0 is this far below the highest value, or one score could raise an alarm
_DOUBT, _DOUBT_OF = 0.05, 100_000
"""The accepted probability that the true mean of the baseline is below the tested mean ``m0``.

The probability is .05. If ``every``, the number of scores between false alarms, is above 100,000,
the probability decreases in proportion.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bets:
    """Coefficients of several tests whether the mean of a view has fallen.

    A view is a number ``y`` computed from each score. Each test, called a bet, has a number, called
    its wealth. With each score, the wealth of bet k is multiplied by ``a[k] - b[k] * y``, which is
    always above 0. A large wealth is evidence that the mean of ``y`` has fallen.
    """

    a: tuple[float, ...]
    b: tuple[float, ...]


def make_bets(level: Level, *, count: int, every: float) -> Bets:
    """Return the coefficients of ``count`` tests whether the mean of a view is below its ``level``.

    A view is a number ``y`` computed from each score. Each test, called a bet, has a wealth, a
    number that is large if the mean of ``y`` has fallen. Each score multiplies the wealth by ``L =
    (1 + stake * (m0 - y)) * exp(-stake**2 * variance * (effect - 1) / 2)``. The stake says how
    strongly L depends on ``y``, and differs between the bets. ``m0`` is the expected mean in
    ``level`` minus the possible error of this mean. The mean of L is at most 1 while the mean of
    ``y`` is ``m0`` or more. The exponential function makes L smaller if scores depend on each
    other. ``every`` is the mean number of scores between false alarms.
    """
    stakes = _stakes(level, count)
    bases = [_tested_mean(level, stake, stakes, every) for stake in stakes]
    stakes = [min(s, _MAX_STAKE / (1 - m0)) for s, m0 in zip(stakes, bases, strict=True)]
    discounts = [math.exp(-s * s * level.variance * (level.effect - 1) / 2) for s in stakes]
    return Bets(
        a=tuple(d * (1 + s * m0) for d, s, m0 in zip(discounts, stakes, bases, strict=True)),
        b=tuple(d * s for d, s in zip(discounts, stakes, strict=True)),
    )


def _stakes(level: Level, count: int) -> list[float]:
    # The best stake to detect a fall of the mean by ``d`` is ``d / (variance * effect)``. The
    # stakes rise by a constant ratio from the best stake for a small fall to the best stake for a
    # large fall.
    spread = max(level.variance, 1e-6) * level.effect
    largest = _MAX_STAKE / max(1 - level.mean, _MIN_DISTANCE)
    if level.n is not None:  # without a sample, the variance may be much smaller than assumed
        largest = min(largest, _MAX_CHANGE / spread)
    smallest = min(_MIN_CHANGE / spread, largest / 4)
    return [smallest * (largest / smallest) ** (k / (count - 1)) for k in range(count)]


def _tested_mean(level: Level, stake: float, stakes: list[float], every: float) -> float:
    """Return the mean that a bet tests, a little below the expected mean in ``level``.

    The difference allows for the estimation error of the expected mean.
    """
    # Scores that are always equal to the mean must not raise an alarm.
    steady = 2 * sum(1 / each for each in stakes) / len(stakes) / every
    margin = max(steady, _mean_error(level, stake, every))
    return min(level.mean - margin, 1 - _MIN_DISTANCE)  # no bet can win below 0


def _mean_error(level: Level, stake: float, every: float) -> float:
    # The wealth of a bet comes from about ``2 * log(every) / (stake**2 * variance)`` scores. Over
    # that many scores, an error of the mean acts like the variance of the mean times the stake. The
    # result is the smaller of this product and the distance to a one-sided confidence bound.
    if level.n is None:
        return 0.0
    doubt = _DOUBT * min(1.0, _DOUBT_OF / every)
    quantile = -NormalDist().inv_cdf(doubt)  # not of 1 - doubt, which rounds to 1
    return min(quantile * level.error, math.log(every) / (level.n * stake))


# --- the onset of a change ------------------------------------------------------------------------

RECENT = 256
_STEPS = 255
_MIN_SINCE_CHANGE = 12  # fewer scores are often equal by chance, and look like a large change
_MIN_BEFORE_CHANGE = 8  # a change as old as the oldest scores in the buffer may be older than they


class RecentScores:
    """A ring buffer of the last 256 scores of a stream, rounded to one byte each.

    The start of a change is estimated from these scores.
    """

    __slots__ = ("_count", "_ring")

    def __init__(self, ring: bytes = bytes(RECENT), count: int = 0) -> None:
        if len(ring) != RECENT or count < 0:
            msg = f"a ring has {RECENT} bytes, not {len(ring)}"
            raise ValueError(msg)
        self._ring = bytearray(ring)
        self._count = count

    def add(self, score: float) -> None:
        """Add ``score``, a number in [0, 1]."""
        self._ring[self._count % RECENT] = int(score * _STEPS + 0.5)
        self._count += 1

    def scores(self) -> list[float]:
        """Return the last 256 scores, rounded to multiples of 1/255, from oldest to latest."""
        at = self._count % RECENT
        ring = self._ring[at:] + self._ring[:at] if self._count >= RECENT else self._ring[:at]
        return [byte / _STEPS for byte in ring]

    def to_state(self) -> list[str | int]:
        return [self._ring.hex(), self._count]


def likeliest_fall(values: Sequence[float], mean: float) -> tuple[float, int]:
    """Find how many of the last ``values`` are most clearly below ``mean``.

    Returns a gain and a number. For every number n of last values, 12 or more, the gain is
    ``sum(mean - value)**2 / n``. The function returns the n with the highest gain, and this gain.
    It returns (0, 0) if the last values are not below ``mean`` on average for any n, or if the best
    n leaves fewer than 8 values before the fall.
    """
    gain, found, total = 0.0, 0, 0.0
    for number, value in enumerate(reversed(values), start=1):
        total += mean - value
        if number >= _MIN_SINCE_CHANGE and total > 0 and total * total / number > gain:
            gain, found = total * total / number, number
    return (gain, found) if found <= len(values) - _MIN_BEFORE_CHANGE else (0.0, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Statistics of the scores since the estimated start of a change.

    ``start`` is the index of the first of these scores, and ``n`` is their number.
    """

    start: int
    n: int
    mean: float
    variance: float


def _run_of(start: int, scores: Sequence[float]) -> Run:
    mean = sum(scores) / len(scores)
    variance = sum((score - mean) ** 2 for score in scores) / len(scores)
    return Run(start=start, n=len(scores), mean=mean, variance=variance)


# --- evidence -------------------------------------------------------------------------------------

_SHARES: Mapping[Directions, tuple[float, ...]] = {
    "both": (0.4, 0.2, 0.2, 0.2),
    "down": (0.6, 0.4, 0.0, 0.0),
    "up": (0.0, 0.0, 0.0, 1.0),
}
"""The weights of the views level, tail, spread and rise in the evidence, for each ``direction``.

A view is a number computed from each score. The weight of a view is the fraction of all false
alarms that tests of this view may raise.
"""
_SHARES_OF_TARGET = (0.85, 0.0, 0.0, 0.15)  # "both" with a target, which has no tail and spread

_ENDS = tuple(accumulate(_BETS, initial=0))
_RESERVE = 1.5  # evidence against a learned baseline is divided by this: it may be wrong
_DATING_BET = (
    1  # the bet of each view that estimates the onset; its stake is small, for small changes
)
_RUN_SIZE = 4  # four numbers for each view: wealth, start, and the sums before the start
_LEVEL, _TAIL = 0, 1


_ViewBets: TypeAlias = tuple[int, float, int, int]
"""The number of a view, the weight of each bet on the view, and the index range of these bets.

A view is a number computed from each score. A bet is a test whether the mean of the view has
fallen. The indexes refer to the arrays in `Evidence`. This is a plain tuple,
because it is unpacked for every score, and a named tuple would take longer.
"""


class Evidence:
    """The evidence that scores differ from ``baseline``, measured by 18 tests (bets).

    A view is a number ``y`` computed from each score, such as the score itself. There are four
    views, and several bets test whether the mean of a view has fallen. Each bet has a wealth ``M``,
    a number that starts at 0. Each score updates the wealth of bet k to ``(M_k + 1) * (a_k - b_k *
    y)``. The evidence is the weighted sum, over the views, of the mean wealth of the bets on a
    view. It is large if the scores have changed. ``every`` is the mean number of scores between
    false alarms.
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
        known = tuple(level is not None for level in baseline.levels)
        self._plan = _plan(direction, known, _RESERVE if baseline.level.n else 1.0)
        self._shares = _shares(self._plan)
        self._a, self._b = (array("d", bytes(8 * _ENDS[-1])) for _ in range(2))
        for view, _, first, last in self._plan:
            level = baseline.levels[view]
            if level is not None:
                bets = make_bets(level, count=_BETS[view], every=every)
                self._a[first:last], self._b[first:last] = array("d", bets.a), array("d", bets.b)
        self.clear()

    def clear(self) -> None:
        self._m = array("d", bytes(8 * _ENDS[-1]))
        self._runs = array(
            "d", bytes(8 * _RUN_SIZE * len(_BETS))
        )  # for each view: wealth of one bet, its start, and sums of scores before the start
        self._total = self._squares = 0.0
        self._recent = RecentScores()
        self.value = 0.0
        """The evidence of a change; the detector raises an alarm when it reaches ``every``."""

    def add(self, views: Views, *, index: int) -> None:
        """Add the score with number ``index`` to the evidence.

        ``views`` are the four numbers computed from this score (see `views_of`).
        """
        a, b, runs = self._a, self._b, self._runs
        self._m = wealth = multiplied(self._m, a, b, views)
        self.value = sum(map(mul, self._shares, wealth))
        for view, _, first, _ in self._plan:
            run = view * _RUN_SIZE
            if runs[run] <= 1.0:
                runs[run], runs[run + 1] = 1.0, index
                runs[run + 2], runs[run + 3] = self._total, self._squares
            runs[run] *= a[first + _DATING_BET] - b[first + _DATING_BET] * views[view]
        level = views[0]
        self._recent.add(level)
        self._total += level
        self._squares += level * level

    def leading_view(self) -> int:
        """Return which change of the scores has the most evidence, as the index of a view.

        The index is 0 for lower scores (level), 1 for more low scores (tail), 2 for more extreme
        scores (spread), and 3 for higher scores (rise).
        """
        return max(self._plan, key=lambda bets: bets[1] * sum(self._m[bets[2] : bets[3]]))[0]

    def run(self, view: int, *, count: int, baseline: Baseline, views: ToViews) -> Run:
        """Estimate when the scores changed, and return statistics of the scores since then.

        A view is a number computed from each score. ``view`` is the index of the view with the most
        evidence of a change. ``views`` is a function that computes all four views of a score.
        ``count`` is the number of scores so far. There are up to three candidates for the start of
        the change. The first is the most likely fall of the view within the last 256 scores. The
        other two are the scores since which the evidence of lower scores, and the evidence in the
        view, has been growing. The function chooses the candidate with the clearest change of the
        mean.
        """
        dated = _LEVEL if view == _TAIL else view  # the tail is too coarse to date a change
        level = baseline.levels[dated] or baseline.level
        recent = self._recent.scores()
        gain, number = likeliest_fall([views(score)[dated] for score in recent], level.mean)
        runs = [self._run_since(v, count) for v, *_ in self._plan if v in {view, _LEVEL}]
        gains = [run.n * (run.mean - baseline.level.mean) ** 2 for run in runs]
        if number and gain >= max(gains):
            return _run_of(count - number, recent[-number:])
        return runs[gains.index(max(gains))]

    def _run_since(self, view: int, count: int) -> Run:
        _, start, total, squares = self._runs[view * _RUN_SIZE : (view + 1) * _RUN_SIZE]
        n = max(1, count - int(start))
        mean = (self._total - total) / n
        variance = max(0.0, (self._squares - squares) / n - mean * mean)
        return Run(start=int(start), n=n, mean=mean, variance=variance)

    def since(self, *, count: int) -> int:
        """Return the index of the first score on which the present evidence of a change is based.

        ``count`` is the number of scores so far. If there is no evidence, ``count`` is returned.
        """
        pairs = zip(self._runs[0::_RUN_SIZE], self._runs[1::_RUN_SIZE], strict=True)
        return int(min((start for evidence, start in pairs if evidence > 1), default=count))

    def to_state(self) -> dict[str, Any]:
        return {
            "value": self.value,
            "bets": list(self._m),
            "runs": list(self._runs),
            "sums": [self._total, self._squares],
            "recent": self._recent.to_state(),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue with the evidence in ``state``, which `to_state` returned earlier.

        Raises KeyError, TypeError or ValueError if ``state`` is invalid, and then changes nothing.
        """
        bets, runs = array("d", state["bets"]), array("d", state["runs"])
        total, squares = map(float, state["sums"])
        value = float(state["value"])
        ring, held = state["recent"]
        recent = RecentScores(bytes.fromhex(ring), int(held))
        if len(bets) != len(self._m) or len(runs) != len(self._runs):
            msg = f"{len(bets)} bets and {len(runs)} numbers of runs"
            raise ValueError(msg)
        if not all(0 <= amount < math.inf for amount in (*bets, *runs, total, squares, value)):
            msg = "a number is not finite, or below 0"
            raise ValueError(msg)
        self._m, self._runs, self.value = bets, runs, value
        self._total, self._squares, self._recent = total, squares, recent


def multiplied(m: array[float], a: array[float], b: array[float], views: Views) -> array[float]:
    """Return the new wealth ``(m + 1) * (a - b * y)`` of each of the 18 bets.

    A bet is a test whether the scores have changed. Its wealth is a number that is large if they
    have. ``m`` has the wealth of each bet before the present score. ``a`` and ``b`` have two
    coefficients of each bet. ``views`` has four numbers ``y`` computed from the score, and each bet
    uses one of the four. The loop over the bets is unrolled, because it runs for every score and
    would take twice as long otherwise.
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


@cache
def _plan(direction: Directions, known: tuple[bool, ...], reserve: float) -> tuple[_ViewBets, ...]:
    target_only = direction == "both" and not all(known)
    wanted = _SHARES_OF_TARGET if target_only else _SHARES[direction]
    shares = [share if is_known else 0.0 for share, is_known in zip(wanted, known, strict=True)]
    return tuple(
        (view, share / sum(shares) / _BETS[view] / reserve, _ENDS[view], _ENDS[view + 1])
        for view, share in enumerate(shares)
        if share
    )


@cache
def _shares(plan: tuple[_ViewBets, ...]) -> tuple[float, ...]:
    shares = [0.0] * _ENDS[-1]
    for view, share, first, last in plan:
        shares[first:last] = [share] * _BETS[view]
    return tuple(shares)
