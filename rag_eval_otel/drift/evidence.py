"""Evidence of a change: bets against a frozen baseline, and the estimated onset of the change."""

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

from rag_eval_otel.drift.baseline import Baseline, Level, Views
from rag_eval_otel.drift.records import Directions

ToViews: TypeAlias = Callable[[float], Views]

_BETS = (6, 4, 4, 4)
"""The number of bets on each view, on small changes to large ones."""

_MIN_CHANGE, _MAX_CHANGE = 0.03, 0.4  # of the mean, in units of the score
_MAX_STAKE = 0.95  # of the evidence
_MIN_DISTANCE = 1e-3  # of m0 from the highest value: or a single score could raise an alarm
_DOUBT, _DOUBT_OF = 0.05, 100_000
"""The probability that a learned mean is below the assumed one; smaller if ``every`` is larger."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bets:
    """Factors of the bets on a view: a score with view ``y`` multiplies bet k by a[k] - b[k] * y.

    All factors are above 0.
    """

    a: tuple[float, ...]
    b: tuple[float, ...]


def make_bets(level: Level, *, count: int, every: float) -> Bets:
    """Return ``count`` bets that the mean of a view lies below its ``level``.

    The factor is ``L = (1 + stake * (m0 - y)) * exp(-stake**2 * variance * (effect - 1) / 2)``. Its
    mean is at most 1 while the mean of the view is ``m0`` or more. The exponential discounts
    dependent scores. ``m0`` is the learned mean less its possible error.
    """
    stakes = _stakes(level, count)
    bases = [_tested_mean(level, stake, stakes, every) for stake in stakes]
    stakes = [min(s, _MAX_STAKE / (level.top - m0)) for s, m0 in zip(stakes, bases, strict=True)]
    discounts = [math.exp(-s * s * level.variance * (level.effect - 1) / 2) for s in stakes]
    return Bets(
        a=tuple(d * (1 + s * m0) for d, s, m0 in zip(discounts, stakes, bases, strict=True)),
        b=tuple(d * s for d, s in zip(discounts, stakes, strict=True)),
    )


def _stakes(level: Level, count: int) -> list[float]:
    """Return the stakes: the best one against a fall by ``d`` is ``d / (variance * effect)``."""
    spread = max(level.variance, 1e-6) * level.effect
    largest = _MAX_STAKE / max(level.top - level.mean, _MIN_DISTANCE)
    if level.n is not None:  # without a sample, the variance may be much smaller than assumed
        largest = min(largest, _MAX_CHANGE / spread)
    smallest = min(_MIN_CHANGE / spread, largest / 4)
    return [smallest * (largest / smallest) ** (k / (count - 1)) for k in range(count)]


def _tested_mean(level: Level, stake: float, stakes: list[float], every: float) -> float:
    """Return ``m0``, the mean that a bet of ``stake`` is made against."""
    # Scores that stay at the mean for ever must not add up to an alarm.
    steady = 2 * sum(1 / each for each in stakes) / len(stakes) / every
    margin = max(steady, _mean_error(level, stake, every))
    return min(level.mean - margin, level.top - _MIN_DISTANCE)  # no bet can win below 0


def _mean_error(level: Level, stake: float, every: float) -> float:
    """Return the possible error of the learned mean.

    The evidence of a bet comes from about ``2 * log(every) / (stake**2 * variance)`` scores. Over
    that many scores, an error of the mean acts like its variance times the stake. The result is the
    smaller of that and a one-sided confidence bound.
    """
    if level.n is None:
        return 0.0
    doubt = _DOUBT * min(1.0, _DOUBT_OF / every)
    quantile = -NormalDist().inv_cdf(doubt)  # not of 1 - doubt, which rounds to 1
    return min(quantile * level.error, math.log(every) / (level.n * stake))


# --- the onset of a change ------------------------------------------------------------------------

RECENT = 256
_STEPS = 255
_MIN_SINCE_CHANGE = 12  # fewer scores are often all alike and look like a large change
_MIN_BEFORE_CHANGE = 8  # a change that seems as old as the oldest scores may be older


class RecentScores:
    """A ring buffer of the last 256 scores, one byte each."""

    __slots__ = ("_count", "_ring")

    def __init__(self, ring: bytes = bytes(RECENT), count: int = 0) -> None:
        if len(ring) != RECENT or count < 0:
            msg = f"a ring has {RECENT} bytes, not {len(ring)}"
            raise ValueError(msg)
        self._ring = bytearray(ring)
        self._count = count

    def add(self, score: float) -> None:
        """Add ``score``, clipped to [0, 1]; the view of a stratum may lie outside."""
        if not 0.0 <= score <= 1.0:
            score = min(1.0, max(0.0, score))
        self._ring[self._count % RECENT] = int(score * _STEPS + 0.5)
        self._count += 1

    def scores(self) -> list[float]:
        """Return the scores, rounded to 1/255, the latest last."""
        at = self._count % RECENT
        ring = self._ring[at:] + self._ring[:at] if self._count >= RECENT else self._ring[:at]
        return [byte / _STEPS for byte in ring]

    def to_state(self) -> list[str | int]:
        return [self._ring.hex(), self._count]


def likeliest_fall(values: Sequence[float], mean: float) -> tuple[float, int]:
    """Return the gain of the likeliest fall below ``mean``, and the number of values since then.

    The gain of a fall ``number`` values ago (12 or more) is ``sum(mean - value)**2 / number``.
    The result is (0, 0) if no such number lies below the mean, or the fall is about as old as the
    values.
    """
    gain, found, total = 0.0, 0, 0.0
    for number, value in enumerate(reversed(values), start=1):
        total += mean - value
        if number >= _MIN_SINCE_CHANGE and total > 0 and total * total / number > gain:
            gain, found = total * total / number, number
    return (gain, found) if found <= len(values) - _MIN_BEFORE_CHANGE else (0.0, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """The scores since the estimated onset of a change."""

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
"""Shares of the views level, tail, spread and rise in the budget for false alarms."""
_SHARES_OF_TARGET = (0.85, 0.0, 0.0, 0.15)  # for both directions: tail and spread are unknown

_ENDS = tuple(accumulate(_BETS, initial=0))
_RESERVE = 1.5  # a learned baseline may be wrong: an alarm takes that much more evidence
_DATING_BET = (
    1  # the bet whose evidence dates a change; a small one, so that it finds small changes
)
_RUN_SIZE = 4  # numbers in a run: evidence, start, total, squares
_LEVEL, _TAIL = 0, 1


_ViewBets: TypeAlias = tuple[int, float, int, int]
"""The bets on a view: the view, the share of each bet in the evidence, first and last index.

A plain tuple, because it is unpacked for every score, and a named tuple takes longer.
"""


class Evidence:
    """The evidence of a change, from bets on four views of the scores, in flat arrays.

    Each score updates bet k by ``M_k <- (M_k + 1) * (a_k - b_k * y)``. The evidence is the mean
    over the bets of a view, summed over the views by their shares.
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
        )  # evidence, start, total, squares
        self._total = self._squares = 0.0
        self._recent = RecentScores()
        self.value = 0.0
        """The evidence; an alarm is raised at ``every``."""

    def add(self, views: Views, *, index: int) -> None:
        """Add the views of the ``index``-th score."""
        a, b, runs = self._a, self._b, self._runs
        self._m = found = multiplied(self._m, a, b, views)
        self.value = sum(map(mul, self._shares, found))
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
        """Return the view with the most evidence."""
        return max(self._plan, key=lambda bets: bets[1] * sum(self._m[bets[2] : bets[3]]))[0]

    def run(self, view: int, *, count: int, baseline: Baseline, views: ToViews) -> Run:
        """Return the scores since the likeliest onset of the change in ``view``.

        Candidates are the likeliest fall within the recent scores, and the scores since the
        evidence of the level or of ``view`` began. The one with the clearest change of the mean is
        returned.
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
        """Return the scores since the evidence of ``view`` began."""
        _, start, total, squares = self._runs[view * _RUN_SIZE : (view + 1) * _RUN_SIZE]
        n = max(1, count - int(start))
        mean = (self._total - total) / n
        variance = max(0.0, (self._squares - squares) / n - mean * mean)
        return Run(start=int(start), n=n, mean=mean, variance=variance)

    def since(self, *, count: int) -> int:
        """Return the index of the first score that counts as evidence; ``count`` if none does."""
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
        """Restore what `to_state` returned.

        Raises KeyError, TypeError or ValueError for anything else, and changes nothing.
        """
        bets, runs = array("d", state["bets"]), array("d", state["runs"])
        total, squares = map(float, state["sums"])
        value = float(state["value"])
        ring, held = state["recent"]
        recent = RecentScores(bytes.fromhex(ring), int(held))
        if len(bets) != len(self._m) or len(runs) != len(self._runs):
            msg = f"{len(bets)} bets and {len(runs)} numbers of runs"
            raise ValueError(msg)
        sums = (
            *runs[2::_RUN_SIZE],
            *runs[3::_RUN_SIZE],
            total,
            squares,
        )  # may be below 0 with strata
        amounts = (*bets, *runs[0::_RUN_SIZE], *runs[1::_RUN_SIZE], value)
        if not all(map(math.isfinite, sums)) or not all(
            0 <= amount < math.inf for amount in amounts
        ):
            msg = "a number is not finite, or below 0"
            raise ValueError(msg)
        self._m, self._runs, self.value = bets, runs, value
        self._total, self._squares, self._recent = total, squares, recent


def multiplied(m: array[float], a: array[float], b: array[float], views: Views) -> array[float]:
    """Return ``(m + 1) * (a - b * y)`` for each bet and its view ``y``.

    The loop is unrolled, because it runs for every score of every metric and takes twice as long
    otherwise.
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
    """Return the bets of each view that has a share."""
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
    """Return the share of every bet, 0 for bets of views without a share."""
    shares = [0.0] * _ENDS[-1]
    for view, share, first, last in plan:
        shares[first:last] = [share] * _BETS[view]
    return tuple(shares)
