"""Learn the baseline of a drift detector: the means with which new scores are compared.

The detector tests four numbers per score, called the *views* of the score. Each view is in [0, 1],
and its mean falls if the scores change in one way:

- level: the score itself. Its mean falls if scores get lower.
- tail: 1 if the score is above the bound ``tail``, else 0. Its mean falls if low scores get more
  frequent.
- spread: 1 minus the distance of the score from the centre, which is the mean of the baseline. Its
  mean falls if scores get more extreme.
- rise: 1 minus the score. Its mean falls if scores get higher.

A *stratum* is a kind of input (a route, a topic, an hour) with a mean of its own.
The baseline is learned once and does not follow the scores.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, groupby
from typing import Any, TypeAlias

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
_MAX_STRATA = 64
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
    the number of dependent scores that carry as much information as one independent score. ``top``
    is the highest value that the view can have; it is above 1 if offsets of strata are added.
    """

    mean: float
    variance: float
    n: int | None = None
    effect: float = 1.0
    top: float = 1.0

    @property
    def error(self) -> float:
        """The standard error of ``mean``; 0 if ``mean`` is a target that the user set."""
        return math.sqrt(self.variance * self.effect / self.n) if self.n else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Baseline:
    """The expected means with which a detector compares new scores.

    ``centre`` is the mean of the scores. A view is one of four numbers computed from each score,
    such as the score itself. ``levels`` has a `Level` for each view, or None for a view with an
    unknown mean. ``strata`` maps the name of each stratum (a kind of input, such as a route) to
    four offsets. The detector adds the offsets to the four views of each score of the stratum. This
    removes the difference between the mean of the stratum and the mean of all scores.
    """

    centre: float
    levels: tuple[Level | None, ...]
    strata: Mapping[str, Views] = field(default_factory=dict)

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
                level and [level.mean, level.variance, level.n, level.effect, level.top]
                for level in self.levels
            ],
            "strata": {name: list(offsets) for name, offsets in self.strata.items()},
        }

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Baseline:
        """Return the baseline that `to_state` saved as ``state``.

        Raises KeyError, TypeError or ValueError if ``state`` is not a valid baseline.
        """
        found = cls(
            centre=float(state["centre"]),
            levels=tuple(level and _level(*level) for level in state["levels"]),
            strata={str(name): _offsets(*offsets) for name, offsets in state["strata"].items()},
        )
        offsets = [offset for views in found.strata.values() for offset in views]
        if not any(found.levels) or not all(map(math.isfinite, (found.centre, *offsets))):
            msg = "its baseline has no level, or a number that is not finite"
            raise ValueError(msg)
        return found


def _level(mean: float, variance: float, n: int | None, effect: float, top: float) -> Level:
    known = n is None or n > 0
    if not (known and -_ROUNDING <= mean <= 1 + _ROUNDING and 0 <= variance < math.inf):
        msg = f"a view cannot have the mean {mean} and the variance {variance} of {n} scores"
        raise ValueError(msg)
    if not (1 <= effect < math.inf and 1 <= top < math.inf):
        msg = f"a view cannot have the effect {effect} and the highest value {top}"
        raise ValueError(msg)
    return Level(
        mean=float(mean), variance=float(variance), n=n, effect=float(effect), top=float(top)
    )


def _offsets(level: float, tail: float, spread: float, rise: float) -> Views:
    return float(level), float(tail), float(spread), float(rise)


def target_baseline(target: float | Mapping[str, float]) -> Baseline:
    """Return the baseline for scores whose mean should be ``target``.

    ``target`` may also map each stratum (a kind of input, such as a route) to the mean that scores
    of this stratum should have. A target says nothing about the frequency of low scores and about
    the spread of scores. The detector therefore does not test whether these two have changed.
    """
    targets = target if isinstance(target, Mapping) else {"": target}
    mean = sum(targets.values()) / len(targets)
    low, high = min(targets.values()), max(targets.values())
    variance = mean * (1 - mean)  # the largest possible
    down = Level(mean=mean, variance=variance, top=1 + max(0.0, mean - low))
    rise = Level(mean=1 - mean, variance=variance, top=1 + max(0.0, high - mean))
    strata = {name: (mean - own, 0.0, 0.0, own - mean) for name, own in targets.items()}
    return Baseline(centre=mean, levels=(down, None, None, rise), strata=strata)


def learned_baseline(
    scores: Sequence[float], strata: Sequence[str | None], *, tail: float
) -> Baseline:
    """Learn the baseline from two or more ``scores`` and return it.

    ``strata`` has the stratum of each score (a kind of input, such as a route), or None.
    A score at or below ``tail`` counts as low.
    """
    centre = sum(scores) / len(scores)
    rows = [views_of(score, tail=tail, centre=centre) for score in scores]
    offsets = _all_offsets(rows, strata)
    adjusted = [
        add_offsets(row, None if name is None else offsets.get(name))
        for row, name in zip(rows, strata, strict=True)
    ]
    tops = [1.0 + max([0.0, *(views[view] for views in offsets.values())]) for view in range(4)]
    persistence = _persistence(strata, offsets)
    levels = tuple(
        _learned_level(column, top, persistence=persistence)
        for column, top in zip(zip(*adjusted, strict=True), tops, strict=True)
    )
    return Baseline(centre=centre, levels=levels, strata=offsets)


def add_offsets(views: Views, offsets: Views | None) -> Views:
    """Add ``offsets`` to the four numbers in ``views`` and return the sums.

    The detector has computed ``views`` from a score that belongs to a stratum (a kind of input,
    such as a route). The offsets remove the difference between the stratum of the score and the
    common mean. If the stratum is unknown, ``offsets`` is None and ``views`` is returned as it is.
    """
    if offsets is None:
        return views
    return _offsets(*(view + offset for view, offset in zip(views, offsets, strict=True)))


def _persistence(strata: Sequence[str | None], known: Collection[str]) -> float:
    # The estimated mean of a stratum has an error, which is common to all scores of the stratum. So
    # consecutive scores of one stratum err in the same direction. The result is added to the design
    # effect. It is 1 if the scores of each stratum are all consecutive.
    counts = Counter(strata)
    lengths = [(name, sum(1 for _ in run)) for name, run in groupby(strata)]
    return sum(n * n / counts[name] for name, n in lengths if name in known) / len(strata)


def _learned_level(column: Sequence[float], top: float, *, persistence: float) -> Level:
    n = len(column)
    mean = sum(column) / n
    # A quarter of one more score: equal values do not mean that no other value can occur.
    variance = sum((value - mean) ** 2 for value in column) / n + 0.25 / n
    effect = design_effect(column) + persistence
    return Level(mean=mean, variance=variance, n=n, effect=effect, top=top)


# --- strata ---------------------------------------------------------------------------------------


def _all_offsets(rows: Sequence[Views], strata: Sequence[str | None]) -> dict[str, Views]:
    by_name: dict[str, list[Views]] = defaultdict(list)
    for row, name in zip(rows, strata, strict=True):
        if name is not None:
            by_name[name].append(row)
    often = sorted(by_name, key=lambda name: -len(by_name[name]))[:_MAX_STRATA]
    if len(often) < 2:  # noqa: PLR2004  # a single stratum needs no offset
        return {}
    columns = [_view_offsets([[row[v] for row in by_name[n]] for n in often]) for v in range(4)]
    return {
        name: _offsets(*row) for name, row in zip(often, zip(*columns, strict=True), strict=True)
    }


def _view_offsets(groups: Sequence[Sequence[float]]) -> list[float]:
    # The estimated mean of a small group is uncertain, so its offset is shrunk towards 0.
    means = [sum(group) / len(group) for group in groups]
    total = sum(map(len, groups))
    centre = sum(map(sum, groups)) / total
    within = sum((x - m) ** 2 for g, m in zip(groups, means, strict=True) for x in g) / total
    between = sum((m - centre) ** 2 - within / len(g) for g, m in zip(groups, means, strict=True))
    between = max(between / len(groups), 1e-6)
    trust = [between / (between + within / len(group)) for group in groups]
    return [t * (centre - mean) for t, mean in zip(trust, means, strict=True)]


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
