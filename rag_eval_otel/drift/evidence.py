"""Learn a baseline of scores, measure the evidence against it, and estimate when a change began.

Each score has four *views* in [0, 1]. The mean of each falls if scores change in one way:

- level, the score itself: scores get lower.
- tail, 1 if the score is above the bound ``tail``, else 0: low scores get more frequent.
- spread, 1 minus the distance of the score from the mean of the baseline: scores get more extreme.
- rise, 1 minus the score: scores get higher.

A *bet* tests the null hypothesis "the mean of a view is at least ``m0``". Its *wealth* starts at 0.
With each score, 1 is added, and the sum is multiplied by a factor whose expected value is at most 1
under the null hypothesis. ``every`` is the mean number of scores between false alarms. The *onset*
is the index of the first score after a change. The *design effect* is the number of dependent
scores that have as much information as one independent score.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from operator import mul
from statistics import NormalDist
from typing import Any, Literal, NamedTuple, TypeAlias

View = Literal["level", "tail", "spread", "rise"]
VIEWS: tuple[View, ...] = ("level", "tail", "spread", "rise")

Directions: TypeAlias = Literal["both", "down", "up"]  # changes to look for; "both" are all four
Views: TypeAlias = tuple[float, float, float, float]  # of one score, in the order of `VIEWS`

# Lengths of blocks of scores, to estimate the design effect. Each has a factor for the dependence
# that a short block misses, if the autocorrelation of the scores halves every 25 scores.
_BLOCKS = {10: 1.0, 25: 2.0, 50: 1.6, 100: 1.3, 200: 1.0}
_SIGNIFICANT = 2.0  # a smaller excess, in standard errors, is taken for chance
_MIN_BLOCKS = 5


def views_of(score: float, *, tail: float, centre: float) -> Views:
    return score, float(score > tail), 1.0 - abs(score - centre), 1.0 - score


class Level(NamedTuple):
    """Mean, variance and design effect of a view, learned from ``n`` scores (None: a target)."""

    mean: float
    variance: float
    n: int | None = None
    effect: float = 1.0

    @property
    def error(self) -> float:
        """The standard error of ``mean``; 0 if ``mean`` is a target."""
        return math.sqrt(self.variance * self.effect / self.n) if self.n else 0.0


@dataclass(frozen=True, slots=True)
class Baseline:
    """The mean of the scores (``centre``) and the `Level` of each view, None if unknown."""

    centre: float
    levels: tuple[Level | None, ...]

    @property
    def level(self) -> Level:
        return next(level for level in self.levels if level is not None)

    @classmethod
    def from_target(cls, target: float) -> Baseline:
        """Return the baseline for scores with the mean ``target``; tail and spread are unknown."""
        variance = target * (1 - target)  # the largest possible
        return cls(target, (Level(target, variance), None, None, Level(1 - target, variance)))

    @classmethod
    def from_scores(
        cls, scores: Sequence[float], *, tail: float, target: float | None = None
    ) -> Baseline:
        """Return the baseline of ``scores``, with the mean ``target`` if there is one."""
        centre = sum(scores) / len(scores)
        rows = [views_of(score, tail=tail, centre=centre) for score in scores]
        down, low, spread, rise = map(_learned_level, zip(*rows, strict=True))
        if target is not None:
            down = down._replace(mean=target, n=None)
            rise = rise._replace(mean=1 - target, n=None)
        return cls(centre, (down, low, spread, rise))


def _learned_level(values: Sequence[float]) -> Level:
    n = len(values)
    mean = sum(values) / n
    variance = sum((value - mean) ** 2 for value in values) / n
    effect = 1.0
    if variance > 0:
        # Means of blocks of consecutive values vary more if the values depend on each other.
        sums = [0.0, *accumulate(value - mean for value in values)]
        excess = (scale * _excess(sums, block, variance) for block, scale in _BLOCKS.items())
        effect += max(excess)
    # A quarter of one more score: equal values do not mean that no other value can occur.
    return Level(mean, variance + 0.25 / n, n, effect)


def _excess(sums: Sequence[float], block: int, variance: float) -> float:
    """Return the design effect minus 1 by blocks of ``block`` values; 0 if it may be chance.

    ``sums`` are the cumulative sums of the deviations of the values from their mean.
    """
    n = len(sums) - 1
    if n < _MIN_BLOCKS * block:
        return 0.0
    total = sum((sums[i + block] - sums[i]) ** 2 for i in range(n - block + 1))
    excess = total / (n - block + 1) / block / (1 - block / n) / variance - 1
    by_chance = math.sqrt(4 * block / (3 * n))  # standard error for independent values
    return excess if excess > _SIGNIFICANT * by_chance else 0.0


_BETS = (6, 4, 4, 4)  # the number of bets on each view
_MIN_CHANGE, _MAX_CHANGE = 0.03, 0.4  # changes of the mean that the bets suit
_MAX_STAKE = 0.95  # a single score takes at most this fraction of the wealth of a bet
_MIN_DISTANCE = 1e-3  # m0 is this far below the highest value, or one score could raise an alarm
# The accepted probability that the true mean of the baseline is below the tested mean ``m0``. If
# ``every`` is above 100,000, it decreases in proportion.
_DOUBT, _DOUBT_OF = 0.05, 100_000


def _make_bets(level: Level, *, count: int, every: float) -> tuple[array[float], array[float]]:
    """Return the coefficients ``a`` and ``b`` of ``count`` bets on a view with ``level``.

    A value ``y`` multiplies the wealth of bet k by ``a[k] - b[k] * y``, always above 0, which is
    ``(1 + stake * (m0 - y)) * exp(-stake**2 * variance * (effect - 1) / 2)``.
    """
    # The best stake to detect a fall of the mean by ``d`` is ``d / (variance * effect)``. The
    # stakes rise by a constant ratio from the best one for a small fall to that for a large fall.
    spread = max(level.variance, 1e-6) * level.effect
    largest = _MAX_STAKE / max(1 - level.mean, _MIN_DISTANCE)
    if level.n is not None:  # without a sample, the variance may be much smaller than assumed
        largest = min(largest, _MAX_CHANGE / spread)
    smallest = min(_MIN_CHANGE / spread, largest / 4)
    stakes = [smallest * (largest / smallest) ** (k / (count - 1)) for k in range(count)]
    # Scores that are always equal to the mean must not raise an alarm.
    steady = 2 * sum(1 / each for each in stakes) / len(stakes) / every
    margins = (max(steady, _mean_error(level, stake, every)) for stake in stakes)
    bases = [min(level.mean - margin, 1 - _MIN_DISTANCE) for margin in margins]
    stakes = [min(s, _MAX_STAKE / (1 - m0)) for s, m0 in zip(stakes, bases, strict=True)]
    discounts = [math.exp(-s * s * level.variance * (level.effect - 1) / 2) for s in stakes]
    return (
        array("d", [d * (1 + s * m) for d, s, m in zip(discounts, stakes, bases, strict=True)]),
        array("d", map(mul, discounts, stakes)),
    )


def _mean_error(level: Level, stake: float, every: float) -> float:
    """Return by how much a bet with ``stake`` must allow the mean of ``level`` to be wrong."""
    # The wealth of a bet comes from about ``2 * log(every) / (stake**2 * variance)`` scores, over
    # which an error of the mean acts like the variance of the mean times the stake.
    if level.n is None:
        return 0.0
    doubt = _DOUBT * min(1.0, _DOUBT_OF / every)
    quantile = -NormalDist().inv_cdf(doubt)  # not of 1 - doubt, which rounds to 1
    return min(quantile * level.error, math.log(every) / (level.n * stake))


_RECENT = 256  # scores that are kept, in steps of 1/255, to estimate the onset
_STEPS = 255
_MIN_SINCE_CHANGE = 12  # fewer scores are often equal by chance, and look like a large change
_MIN_BEFORE_CHANGE = 8  # a change as old as the oldest scores that are kept may be older


def likeliest_fall(values: Sequence[float], mean: float) -> tuple[float, int]:
    """Return (gain, n) for which the last n ``values`` are most clearly below ``mean``.

    The gain is ``sum(mean - value)**2 / n``. Return (0, 0) if no such n leaves 8 values before.
    """
    best, number, total = 0.0, 0, 0.0
    for n, value in enumerate(reversed(values), start=1):
        total += mean - value
        if n >= _MIN_SINCE_CHANGE and total > 0 and total * total / n > best:
            best, number = total * total / n, n
    return (best, number) if number <= len(values) - _MIN_BEFORE_CHANGE else (0.0, 0)


class Run(NamedTuple):
    """Number, mean and variance of the scores since the estimated onset ``start``."""

    start: int
    n: int
    mean: float
    variance: float


# For each ``direction``, the fraction of all false alarms that bets on each view may raise.
_SHARES: Mapping[Directions, tuple[float, ...]] = {
    "both": (0.4, 0.2, 0.2, 0.2),
    "down": (0.6, 0.4, 0.0, 0.0),
    "up": (0.0, 0.0, 0.0, 1.0),
}
_SHARES_OF_TARGET = (0.85, 0.0, 0.0, 0.15)  # "both" with a target, which has no tail and spread

_ENDS = tuple(accumulate(_BETS, initial=0))
_VIEW_OF_BET = tuple(view for view, count in enumerate(_BETS) for _ in range(count))
_RESERVE = 1.5  # evidence against a learned baseline is divided by this: it may be wrong
_DATING_BET = 1  # the bet of each view that dates the onset: its small stake suits small changes
_RUN_SIZE = 4  # numbers of a run of each view: wealth of the dating bet, start, sums before it
_LEVEL, _TAIL = 0, 1


class Evidence:
    """The evidence that scores differ from ``baseline``, measured by 18 bets.

    A score with the view ``y`` changes the wealth of bet k to ``(wealth + 1) * (a[k] - b[k] * y)``.
    The evidence is the weighted sum, over the views, of the mean wealth of the bets on a view.
    """

    def __init__(
        self, baseline: Baseline, *, every: float, tail: float, direction: Directions = "both"
    ) -> None:
        self.baseline, self._tail = baseline, tail
        known = [level is not None for level in baseline.levels]
        wanted = _SHARES_OF_TARGET if direction == "both" and not all(known) else _SHARES[direction]
        shares = [share * is_known for share, is_known in zip(wanted, known, strict=True)]
        whole = sum(shares) * (_RESERVE if baseline.level.n else 1.0)
        self._shares = tuple(shares[view] / whole / _BETS[view] for view in _VIEW_OF_BET)
        self._views = tuple(view for view, share in enumerate(shares) if share)
        self._a, self._b = (array("d", bytes(8 * _ENDS[-1])) for _ in range(2))
        for view in self._views:
            level, bets = baseline.levels[view], slice(*_ENDS[view : view + 2])
            if level is not None:
                self._a[bets], self._b[bets] = _make_bets(level, count=_BETS[view], every=every)
        self.clear()

    def clear(self) -> None:
        self._m = array("d", bytes(8 * _ENDS[-1]))
        self._runs = array("d", bytes(8 * _RUN_SIZE * len(_BETS)))
        self._total = self._squares = 0.0
        self._recent = b""
        self.value = 0.0
        """The evidence of a change; the detector raises an alarm when it reaches ``every``."""

    def _views_of(self, score: float) -> Views:
        return views_of(score, tail=self._tail, centre=self.baseline.centre)

    def add(self, score: float, *, index: int) -> None:
        a, b, runs, views = self._a, self._b, self._runs, self._views_of(score)
        bets = zip(self._m, a, b, _VIEW_OF_BET, strict=True)
        self._m = wealth = array("d", [(m + 1.0) * (p - q * views[v]) for m, p, q, v in bets])
        self.value = sum(map(mul, self._shares, wealth))
        for view in self._views:
            run, bet = view * _RUN_SIZE, _ENDS[view] + _DATING_BET
            if runs[run] <= 1.0:
                runs[run], runs[run + 1] = 1.0, index
                runs[run + 2], runs[run + 3] = self._total, self._squares
            runs[run] *= a[bet] - b[bet] * views[view]
        self._recent = (self._recent + bytes((int(score * _STEPS + 0.5),)))[-_RECENT:]
        self._total += score
        self._squares += score * score

    def leading_view(self) -> int:
        """Return the index of the view with the most evidence of a change."""
        shares, wealth = self._shares, self._m
        first, last = _ENDS, _ENDS[1:]
        return max(self._views, key=lambda v: shares[first[v]] * sum(wealth[first[v] : last[v]]))

    def run(self, view: int, *, count: int) -> Run:
        """Return the statistics of the scores since the estimated onset, after ``count`` scores.

        Candidates are the likeliest fall of ``view`` in the last 256 scores, and where the evidence
        in ``view`` and in the level began to grow; the clearest change of the mean is the onset.
        """
        baseline = self.baseline
        dated = _LEVEL if view == _TAIL else view  # the tail is too coarse to date a change
        level = baseline.levels[dated] or baseline.level
        recent = [byte / _STEPS for byte in self._recent]
        gain, number = likeliest_fall([self._views_of(s)[dated] for s in recent], level.mean)
        runs = [self._run_since(v, count) for v in self._views if v in {view, _LEVEL}]
        gains = [run.n * (run.mean - baseline.level.mean) ** 2 for run in runs]
        if not number or gain < max(gains):
            return runs[gains.index(max(gains))]
        scores = recent[-number:]
        mean = sum(scores) / number
        variance = sum((score - mean) ** 2 for score in scores) / number
        return Run(count - number, number, mean, variance)

    def _run_since(self, view: int, count: int) -> Run:
        _, start, total, squares = self._runs[view * _RUN_SIZE : (view + 1) * _RUN_SIZE]
        n = max(1, count - int(start))
        mean = (self._total - total) / n
        return Run(int(start), n, mean, max(0.0, (self._squares - squares) / n - mean * mean))

    def to_state(self) -> dict[str, Any]:
        return {
            "value": self.value,
            "bets": list(self._m),
            "runs": list(self._runs),
            "sums": [self._total, self._squares],
            "recent": self._recent.hex(),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        self._m, self._runs = array("d", state["bets"]), array("d", state["runs"])
        self._total, self._squares = map(float, state["sums"])
        self._recent = bytes.fromhex(state["recent"])
        self.value = float(state["value"])
