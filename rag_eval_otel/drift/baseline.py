"""Learn the baseline of a drift detector: the means with which new scores are compared.

The detector tests four numbers per score, called the *views* of the score. Each view is in [0, 1],
and its mean falls if the scores change in one way:

- level: the score itself. Its mean falls if scores get lower.
- tail: 1 if the score is above the bound ``tail``, else 0. Its mean falls if low scores get more
  frequent.
- spread: 1 minus the distance of the score from the centre, which is the mean of the baseline. Its
  mean falls if scores get more extreme.
- rise: 1 minus the score. Its mean falls if scores get higher.

The baseline is learned once and does not follow the scores.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any, Literal, TypeAlias

View = Literal["level", "tail", "spread", "rise"]
VIEWS: tuple[View, ...] = ("level", "tail", "spread", "rise")

Directions: TypeAlias = Literal["both", "down", "up"]
"""The changes of scores that a detector looks for: falls, rises, or all changes."""

Views: TypeAlias = tuple[float, float, float, float]
"""The four views of one score, in the order level, tail, spread, rise (see the module)."""

_BLOCKS = {10: 1.0, 25: 2.0, 50: 1.6, 100: 1.3, 200: 1.0}
"""The numbers of consecutive scores in a block, each with a factor, to estimate the design effect.

The design effect is the number of dependent scores that carry as much information as one
independent score. It is estimated from the means of blocks. A short block misses a part of the
dependence between scores that are up to 200 apart. The estimate is multiplied by the factor to
correct for this. The factors are right if the autocorrelation of the scores halves every 25 scores.
"""

_SIGNIFICANT = 2.0  # a smaller excess, in standard errors, is taken for chance
_MIN_BLOCKS = 5
_ROUNDING = 1e-6


def views_of(score: float, *, tail: float, centre: float) -> Views:
    """Compute the four numbers from ``score`` that the detector tests (level, tail, spread, rise).

    The first is the score itself. The second is 1 if the score is above ``tail``, else 0. The third
    is 1 minus the distance of the score from ``centre``. The fourth is 1 minus the score. Their
    means fall if scores get lower, if low scores get more frequent, if scores get more extreme, and
    if scores get higher, in this order.
    """
    return score, float(score > tail), 1.0 - abs(score - centre), 1.0 - score


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """The expected mean and variance of one view of the scores.

    A view is a number computed from each score, such as the score itself. ``n`` is the number of
    scores from which ``mean`` and ``variance`` were learned. It is None if ``mean`` is a target
    that the user set, which has no estimation error. ``effect`` is the design effect, 1 or more:
    the number of dependent scores that carry as much information as one independent score.
    """

    mean: float
    variance: float
    n: int | None = None
    effect: float = 1.0

    @property
    def error(self) -> float:
        """The standard error of ``mean``; 0 if ``mean`` is a target that the user set."""
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
        return replace(
            self,
            levels=(
                down and replace(down, mean=target, n=None),
                tail,
                spread,
                rise and replace(rise, mean=1 - target, n=None),
            ),
        )

    def to_state(self) -> dict[str, Any]:
        return {
            "centre": self.centre,
            "levels": [
                level and [level.mean, level.variance, level.n, level.effect]
                for level in self.levels
            ],
        }

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
    is_valid_number = n is None or n > 0
    if not (is_valid_number and -_ROUNDING <= mean <= 1 + _ROUNDING and 0 <= variance < math.inf):
        msg = f"a view cannot have the mean {mean} and the variance {variance} of {n} scores"
        raise ValueError(msg)
    if not 1 <= effect < math.inf:
        msg = f"a view cannot have the effect {effect}"
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
    """Learn the baseline from two or more ``scores`` and return it.

    A score at or below ``tail`` counts as low.
    """
    centre = sum(scores) / len(scores)
    rows = [views_of(score, tail=tail, centre=centre) for score in scores]
    return Baseline(centre=centre, levels=tuple(map(_learned_level, zip(*rows, strict=True))))


def _learned_level(values: Sequence[float]) -> Level:
    n = len(values)
    mean = sum(values) / n
    # A quarter of one more score: equal values do not mean that no other value can occur.
    variance = sum((value - mean) ** 2 for value in values) / n + 0.25 / n
    return Level(mean=mean, variance=variance, n=n, effect=design_effect(values))


# --- dependence -----------------------------------------------------------------------------------


def design_effect(values: Sequence[float]) -> float:
    """Estimate how many dependent ``values`` carry as much information as one independent value.

    The result is 1 for independent values and more for dependent values. It is estimated from the
    means of blocks of consecutive values, because such means vary more if the values depend on each
    other. The estimate for one block length is the variance of the means times the block length,
    divided by the variance of the values. The function returns the largest estimate over several
    block lengths. An estimate that exceeds 1 by no more than chance counts as 1.
    """
    mean = sum(values) / len(values)
    variance = sum((value - mean) ** 2 for value in values) / len(values)
    if variance <= 0:
        return 1.0
    sums = [0.0, *accumulate(value - mean for value in values)]
    return 1 + max(scale * _excess(sums, block, variance) for block, scale in _BLOCKS.items())


def _excess(sums: Sequence[float], block: int, variance: float) -> float:
    # The design effect minus 1, estimated from overlapping blocks. ``sums`` are the cumulative sums
    # of the deviations of the values from their mean.
    n = len(sums) - 1
    if n < _MIN_BLOCKS * block:
        return 0.0
    total = sum((sums[i + block] - sums[i]) ** 2 for i in range(n - block + 1))
    excess = total / (n - block + 1) / block / (1 - block / n) / variance - 1
    by_chance = math.sqrt(4 * block / (3 * n))  # standard error for independent values
    return excess if excess > _SIGNIFICANT * by_chance else 0.0
