"""Learn a baseline of scores, measure the evidence against it, and estimate when a change began.

The detector tests four numbers in [0, 1] for each score, called the *views* of the score. The mean
of each view falls if the scores change in one way:

- level: the score itself. Its mean falls if scores get lower.
- tail: 1 if the score is above the bound ``tail``, else 0. Its mean falls if low scores get more
  frequent.
- spread: 1 minus the distance of the score from the centre, which is the mean of the baseline. Its
  mean falls if scores get more extreme.
- rise: 1 minus the score. Its mean falls if scores get higher.

The *baseline* has the means with which new scores are compared. It is learned once and does not
follow the scores. A *bet* tests the null hypothesis "the mean of a view is at least ``m0``". It is
a number, called *wealth*, which starts at 0. With each score, 1 is added to the wealth, and the sum
is multiplied by a factor. While the null hypothesis is true, the expected factor is at most 1. If
the mean of the view is lower, the wealth grows quickly. The bets on one view suit changes of
different sizes. ``every`` is the mean number of scores between false alarms. The *onset* of a
change is the index of the first score after the change. The *design effect* is the number of
dependent scores that carry as much information as one independent score, 1 or more.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import accumulate
from operator import mul
from statistics import NormalDist
from typing import Any, Literal, NamedTuple, TypeAlias

View = Literal["level", "tail", "spread", "rise"]
VIEWS: tuple[View, ...] = ("level", "tail", "spread", "rise")

Directions: TypeAlias = Literal["both", "down", "up"]
"""The changes of scores that a detector looks for: falls, rises, or all changes."""

Views: TypeAlias = tuple[float, float, float, float]
"""The four views of one score, in the order level, tail, spread, rise (see the module)."""

_BLOCKS = {10: 1.0, 25: 2.0, 50: 1.6, 100: 1.3, 200: 1.0}
"""The numbers of consecutive scores in a block, each with a factor, to estimate the design effect.

A short block misses a part of the dependence between scores that are up to 200 apart. The estimate
is multiplied by the factor to correct for this. The factors are right if the autocorrelation of the
scores halves every 25 scores.
"""

_SIGNIFICANT = 2.0  # a smaller excess, in standard errors, is taken for chance
_MIN_BLOCKS = 5
_ROUNDING = 1e-6


def views_of(score: float, *, tail: float, centre: float) -> Views:
    """Return the four views of ``score``, described in the module."""
    return score, float(score > tail), 1.0 - abs(score - centre), 1.0 - score


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """The expected mean and variance of one view, and the design effect of its values.

    ``n`` is the number of scores from which they were learned. It is None if ``mean`` is a target
    that the user set, which has no estimation error.
    """

    mean: float
    variance: float
    n: int | None = None
    effect: float = 1.0

    @property
    def error(self) -> float:
        """The standard error of ``mean``; 0 if ``mean`` is a target."""
        return math.sqrt(self.variance * self.effect / self.n) if self.n else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Baseline:
    """The expected means with which a detector compares new scores.

    ``centre`` is the mean of the scores. ``levels`` has a `Level` for each view, or None for a view
    with an unknown mean.
    """

    centre: float
    levels: tuple[Level | None, ...]

    @property
    def level(self) -> Level:
        """The expected mean and variance of the scores themselves."""
        return next(level for level in self.levels if level is not None)

    def with_target(self, target: float) -> Baseline:
        """Return a copy of the baseline with ``target`` as the mean of the scores.

        The frequency of low scores, the spread of the scores and their dependence stay as learned.
        """
        down, tail, spread, rise = self.levels
        down = down and replace(down, mean=target, n=None)
        rise = rise and replace(rise, mean=1 - target, n=None)
        return replace(self, levels=(down, tail, spread, rise))

    def to_state(self) -> dict[str, Any]:
        levels = [
            level and [level.mean, level.variance, level.n, level.effect] for level in self.levels
        ]
        return {"centre": self.centre, "levels": levels}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Baseline:
        """Return the baseline that `to_state` saved as ``state``.

        Raises KeyError, TypeError or ValueError if ``state`` is not a valid baseline.
        """
        levels = tuple(level and _level(*level) for level in state["levels"])
        centre = float(state["centre"])
        if not any(levels) or not math.isfinite(centre):
            msg = "its baseline has no level, or a number that is not finite"
            raise ValueError(msg)
        return cls(centre=centre, levels=levels)


def _level(mean: float, variance: float, n: int | None, effect: float) -> Level:
    is_valid = n is None or n > 0
    is_valid = is_valid and -_ROUNDING <= mean <= 1 + _ROUNDING and 0 <= variance < math.inf
    if not (is_valid and 1 <= effect < math.inf):
        msg = f"no view has the mean {mean}, the variance {variance}, {n} scores, effect {effect}"
        raise ValueError(msg)
    return Level(mean=float(mean), variance=float(variance), n=n, effect=float(effect))


def target_baseline(target: float) -> Baseline:
    """Return the baseline for scores whose mean should be ``target``.

    A target says nothing about the frequency of low scores and about the spread of scores. The
    detector therefore does not test whether these two have changed.
    """
    variance = target * (1 - target)  # the largest possible
    level = Level(mean=target, variance=variance)
    rise = Level(mean=1 - target, variance=variance)
    return Baseline(centre=target, levels=(level, None, None, rise))


def learned_baseline(scores: Sequence[float], *, tail: float) -> Baseline:
    """Learn the baseline from two or more ``scores``; one at or below ``tail`` counts as low."""
    centre = sum(scores) / len(scores)
    rows = [views_of(score, tail=tail, centre=centre) for score in scores]
    return Baseline(centre=centre, levels=tuple(map(_learned_level, zip(*rows, strict=True))))


def _learned_level(values: Sequence[float]) -> Level:
    n = len(values)
    mean = sum(values) / n
    # A quarter of one more score: equal values do not mean that no other value can occur.
    variance = sum((value - mean) ** 2 for value in values) / n + 0.25 / n
    return Level(mean=mean, variance=variance, n=n, effect=_design_effect(values))


def _design_effect(values: Sequence[float]) -> float:
    """Estimate the design effect of ``values`` from the means of blocks of consecutive values.

    Such means vary more if the values depend on each other. The estimate for one block length is
    the variance of the means times the block length, divided by the variance of the values. The
    result is the largest estimate over several block lengths.
    """
    mean = sum(values) / len(values)
    variance = sum((value - mean) ** 2 for value in values) / len(values)
    if variance <= 0:
        return 1.0
    sums = [0.0, *accumulate(value - mean for value in values)]
    return 1 + max(scale * _excess(sums, block, variance) for block, scale in _BLOCKS.items())


def _excess(sums: Sequence[float], block: int, variance: float) -> float:
    # The design effect minus 1, estimated from overlapping blocks; 0 if it may be due to chance.
    # ``sums`` are the cumulative sums of the deviations of the values from their mean.
    n = len(sums) - 1
    if n < _MIN_BLOCKS * block:
        return 0.0
    total = sum((sums[i + block] - sums[i]) ** 2 for i in range(n - block + 1))
    excess = total / (n - block + 1) / block / (1 - block / n) / variance - 1
    by_chance = math.sqrt(4 * block / (3 * n))  # standard error for independent values
    return excess if excess > _SIGNIFICANT * by_chance else 0.0


# --- bets -----------------------------------------------------------------------------------------

_BETS = (6, 4, 4, 4)
"""The number of bets on each of the views level, tail, spread and rise."""

_MIN_CHANGE, _MAX_CHANGE = 0.03, 0.4  # changes of the mean that the bets suit
_MAX_STAKE = 0.95  # a single score takes at most this fraction of the wealth of a bet
_MIN_DISTANCE = 1e-3  # m0 is this far below the highest value, or one score could raise an alarm
_DOUBT, _DOUBT_OF = 0.05, 100_000
"""The accepted probability that the true mean of the baseline is below the tested mean ``m0``.

The probability is .05. If ``every`` is above 100,000, it decreases in proportion.
"""


def _make_bets(level: Level, *, count: int, every: float) -> tuple[array[float], array[float]]:
    """Return coefficients ``a`` and ``b`` of ``count`` bets on a view with the expected ``level``.

    A value ``y`` of the view multiplies the wealth of bet k by ``a[k] - b[k] * y``, always above 0,
    which is ``(1 + stake * (m0 - y)) * exp(-stake**2 * variance * (effect - 1) / 2)``. The stake
    says how strongly the factor depends on ``y``, and differs between the bets. ``m0`` is the mean
    of ``level`` minus its possible error. The mean of the factor is at most 1 while that of ``y``
    is ``m0`` or more. The exponential function makes it smaller if scores depend on each other.
    """
    stakes = _stakes(level, count)
    bases = [_tested_mean(level, stake, stakes, every) for stake in stakes]
    stakes = [min(s, _MAX_STAKE / (1 - m0)) for s, m0 in zip(stakes, bases, strict=True)]
    discounts = [math.exp(-s * s * level.variance * (level.effect - 1) / 2) for s in stakes]
    return (
        array("d", [d * (1 + s * m) for d, s, m in zip(discounts, stakes, bases, strict=True)]),
        array("d", map(mul, discounts, stakes)),
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
    # The mean that a bet tests: the expected mean minus a margin for its estimation error.
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

_RECENT = 256
_STEPS = 255
_MIN_SINCE_CHANGE = 12  # fewer scores are often equal by chance, and look like a large change
_MIN_BEFORE_CHANGE = 8  # a change as old as the oldest scores in the buffer may be older than they


class RecentScores:
    """A ring buffer of the last 256 scores of a stream, rounded to one byte each."""

    __slots__ = ("_count", "_ring")

    def __init__(self, ring: bytes = bytes(_RECENT), count: int = 0) -> None:
        if len(ring) != _RECENT or count < 0:
            msg = f"a ring has {_RECENT} bytes, not {len(ring)}"
            raise ValueError(msg)
        self._ring = bytearray(ring)
        self._count = count

    def add(self, score: float) -> None:
        """Add ``score``, a number in [0, 1]."""
        self._ring[self._count % _RECENT] = int(score * _STEPS + 0.5)
        self._count += 1

    def scores(self) -> list[float]:
        """Return the last 256 scores, rounded to multiples of 1/255, from oldest to latest."""
        at = self._count % _RECENT
        ring = self._ring[at:] + self._ring[:at] if self._count >= _RECENT else self._ring[:at]
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


class Run(NamedTuple):
    """The scores since the estimated onset ``start``: their number ``n``, mean and variance."""

    start: int
    n: int
    mean: float
    variance: float


def _run_of(start: int, scores: Sequence[float]) -> Run:
    mean = sum(scores) / len(scores)
    variance = sum((score - mean) ** 2 for score in scores) / len(scores)
    return Run(start, len(scores), mean, variance)


# --- evidence -------------------------------------------------------------------------------------

_SHARES: Mapping[Directions, tuple[float, ...]] = {
    "both": (0.4, 0.2, 0.2, 0.2),
    "down": (0.6, 0.4, 0.0, 0.0),
    "up": (0.0, 0.0, 0.0, 1.0),
}
"""The weights of the views in the evidence, for each ``direction``.

The weight of a view is the fraction of all false alarms that bets on this view may raise.
"""
_SHARES_OF_TARGET = (0.85, 0.0, 0.0, 0.15)  # "both" with a target, which has no tail and spread

_ENDS = tuple(accumulate(_BETS, initial=0))
_VIEW_OF_BET = tuple(view for view, count in enumerate(_BETS) for _ in range(count))
_RESERVE = 1.5  # evidence against a learned baseline is divided by this: it may be wrong
_DATING_BET = 1  # the bet of each view that dates the onset: its small stake suits small changes
_RUN_SIZE = 4  # numbers of a run of each view: wealth of the dating bet, start, sums before it
_LEVEL, _TAIL = 0, 1


class _ViewBets(NamedTuple):
    """The bets on a view: its number, the weight of each bet, and the range of their indexes."""

    view: int
    share: float
    first: int
    last: int


class Evidence:
    """The evidence that scores differ from ``baseline``, measured by 18 bets.

    A score with the view ``y`` changes the wealth of bet k to ``(wealth + 1) * (a[k] - b[k] * y)``.
    The evidence is the weighted sum, over the views, of the mean wealth of the bets on a view.
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
                bets = _make_bets(level, count=_BETS[view], every=every)
                self._a[first:last], self._b[first:last] = bets
        self.clear()

    def clear(self) -> None:
        self._m = array("d", bytes(8 * _ENDS[-1]))
        self._runs = array("d", bytes(8 * _RUN_SIZE * len(_BETS)))
        self._total = self._squares = 0.0
        self._recent = RecentScores()
        self.value = 0.0
        """The evidence of a change; the detector raises an alarm when it reaches ``every``."""

    def add(self, views: Views, *, index: int) -> None:
        """Add the score with number ``index``, which has these ``views``, to the evidence."""
        a, b, runs = self._a, self._b, self._runs
        bets = zip(self._m, a, b, _VIEW_OF_BET, strict=True)
        self._m = wealth = array("d", [(m + 1.0) * (p - q * views[v]) for m, p, q, v in bets])
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
        """Return the index of the view with the most evidence of a change."""
        plan, wealth = self._plan, self._m
        return max(plan, key=lambda bets: bets.share * sum(wealth[bets.first : bets.last])).view

    def run(
        self, view: int, *, count: int, baseline: Baseline, views: Callable[[float], Views]
    ) -> Run:
        """Estimate when the scores changed, and return statistics of the scores since then.

        ``view`` is the index of the view with the most evidence, ``views`` a function that returns
        the views of a score, and ``count`` the number of scores so far. There are up to three
        candidates for the start of the change. The first is the most likely fall of the view within
        the last 256 scores. The other two are the scores since which the evidence of lower scores,
        and the evidence in the view, has been growing. The function chooses the candidate with the
        clearest change of the mean.
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
        return Run(int(start), n, mean, variance)

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


@cache
def _plan(direction: Directions, known: tuple[bool, ...], reserve: float) -> tuple[_ViewBets, ...]:
    target_only = direction == "both" and not all(known)
    wanted = _SHARES_OF_TARGET if target_only else _SHARES[direction]
    shares = [share if is_known else 0.0 for share, is_known in zip(wanted, known, strict=True)]
    return tuple(
        _ViewBets(view, share / sum(shares) / _BETS[view] / reserve, _ENDS[view], _ENDS[view + 1])
        for view, share in enumerate(shares)
        if share
    )


@cache
def _shares(plan: tuple[_ViewBets, ...]) -> tuple[float, ...]:
    shares = [0.0] * _ENDS[-1]
    for view, share, first, last in plan:
        shares[first:last] = [share] * _BETS[view]
    return tuple(shares)
