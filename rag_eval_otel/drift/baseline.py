"""What is normal: the level of every view of the scores, learned once and then frozen.

A *view* is a number in [0, 1] made of a score, low when things are bad: the score itself, whether
it is above the tail's bound, how near it is to the centre, and the score upside down.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, groupby
from typing import Any, TypeAlias

Views: TypeAlias = tuple[float, float, float, float]
"""Of one score: level, tail, spread, rise."""

_BLOCKS = {10: 1.0, 25: 2.0, 50: 1.6, 100: 1.3, 200: 1.0}
"""Lengths in scores, and what to multiply the effect seen over them by.

Short blocks miss a part of what scores within 200 of each other have in common; the factors are for
dependence that halves every 25 scores. Several lengths together are less at the mercy of chance.
"""

_SIGNIFICANT = 2.0  # standard errors from which dependence is believed
_FEWEST_BLOCKS = 5  # of a length that says anything
_MAX_STRATA = 64
_ROUNDING = 1e-6


def views_of(score: float, *, tail: float, centre: float) -> Views:
    """Return the four views of ``score``; each falls when it gets worse in its way."""
    return score, float(score > tail), 1.0 - abs(score - centre), 1.0 - score


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """One view in control: mean, variance, design effect, and the highest value it can take.

    ``n`` is the number of scores it was learned from; None for a mean that was given, which has
    no error. ``effect`` (1 or more) is how much less dependent scores tell than independent ones.
    """

    mean: float
    variance: float
    n: int | None = None
    effect: float = 1.0
    top: float = 1.0

    @property
    def error(self) -> float:
        """The standard error of ``mean``; 0 for one that was given."""
        return math.sqrt(self.variance * self.effect / self.n) if self.n else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Baseline:
    """The frozen level of every view; ``levels`` has None for a view that nothing is known of.

    ``strata`` has for each known stratum what to add to its views so that all strata have one mean.
    """

    centre: float
    levels: tuple[Level | None, ...]
    strata: Mapping[str, Views] = field(default_factory=dict)

    @property
    def level(self) -> Level:
        """The level of the score itself, which is always known."""
        return next(level for level in self.levels if level is not None)

    def aimed(self, target: float) -> Baseline:
        """Return it with ``target`` for the mean; tail, spread and dependence are kept."""
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
        """Return it as JSON can hold it."""
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
        """Return what `to_state` wrote; raise KeyError, TypeError or ValueError for all else."""
        found = cls(
            centre=float(state["centre"]),
            levels=tuple(level and _level(*level) for level in state["levels"]),
            strata={str(name): _offsets(*offsets) for name, offsets in state["strata"].items()},
        )
        offsets = [offset for one in found.strata.values() for offset in one]
        if not any(found.levels) or not all(map(math.isfinite, (found.centre, *offsets))):
            msg = "its baseline has no level, or a number that is not finite"
            raise ValueError(msg)
        return found


def _level(mean: float, variance: float, n: int | None, effect: float, top: float) -> Level:
    known = n is None or n > 0
    if not (known and -_ROUNDING <= mean <= 1 + _ROUNDING and 0 <= variance < math.inf):
        msg = f"no view has the mean {mean} and the variance {variance} of {n} scores"
        raise ValueError(msg)
    if not (1 <= effect < math.inf and 1 <= top < math.inf):
        msg = f"no view has the effect {effect} and the highest value {top}"
        raise ValueError(msg)
    return Level(
        mean=float(mean), variance=float(variance), n=n, effect=float(effect), top=float(top)
    )


def _offsets(level: float, tail: float, spread: float, rise: float) -> Views:
    return float(level), float(tail), float(spread), float(rise)


def given(target: float | Mapping[str, float]) -> Baseline:
    """Return the baseline of a target for the mean, or of one for each stratum.

    Nothing is known of tail and spread.
    """
    targets = target if isinstance(target, Mapping) else {"": target}
    mean = sum(targets.values()) / len(targets)
    low, high = min(targets.values()), max(targets.values())
    variance = mean * (1 - mean)  # the largest there can be
    down = Level(mean=mean, variance=variance, top=1 + max(0.0, mean - low))
    rise = Level(mean=1 - mean, variance=variance, top=1 + max(0.0, high - mean))
    strata = {name: (mean - one, 0.0, 0.0, one - mean) for name, one in targets.items()}
    return Baseline(centre=mean, levels=(down, None, None, rise), strata=strata)


def learned(scores: Sequence[float], strata: Sequence[str | None], *, tail: float) -> Baseline:
    """Learn from ``scores``, at least two, and the stratum of each."""
    centre = sum(scores) / len(scores)
    rows = [views_of(score, tail=tail, centre=centre) for score in scores]
    offsets = _all_offsets(rows, strata)
    flat = [
        moved(row, None if name is None else offsets.get(name))
        for row, name in zip(rows, strata, strict=True)
    ]
    tops = [1.0 + max([0.0, *(one[view] for one in offsets.values())]) for view in range(4)]
    persistence = _persistence(strata, offsets)
    levels = tuple(
        _learned_level(column, top, persistence=persistence)
        for column, top in zip(zip(*flat, strict=True), tops, strict=True)
    )
    return Baseline(centre=centre, levels=levels, strata=offsets)


def moved(views: Views, by: Views | None) -> Views:
    """Return ``views``, moved by what is known of their stratum, if anything is."""
    return views if by is None else _offsets(*(v + d for v, d in zip(views, by, strict=True)))


def _persistence(strata: Sequence[str | None], known: Collection[str]) -> float:
    """Return what the strata's own errors add to the design effect.

    A stratum that stays for a while brings the error of its mean with it, score after score: that
    of a run as long as all that was learned from adds as much as the scores themselves.
    """
    counts = Counter(strata)
    lengths = [(name, sum(1 for _ in run)) for name, run in groupby(strata)]
    return sum(n * n / counts[name] for name, n in lengths if name in known) / len(strata)


def _learned_level(column: Sequence[float], top: float, *, persistence: float) -> Level:
    n = len(column)
    mean = sum(column) / n
    # A quarter of one more score: values all alike do not mean that nothing else can come.
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
    if len(often) < 2:  # noqa: PLR2004  # one stratum is no division
        return {}
    columns = [_view_offsets([[row[v] for row in by_name[n]] for n in often]) for v in range(4)]
    return {
        name: _offsets(*one) for name, one in zip(often, zip(*columns, strict=True), strict=True)
    }


def _view_offsets(groups: Sequence[Sequence[float]]) -> list[float]:
    """Return what to add to each group's values; the fewer they are, the less is believed."""
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
    """Return how many dependent values tell as much as one independent one: 1 or more.

    The variance of means over blocks, times their length, over the variance of the values; the
    largest over several lengths, where it is above 1 by more than chance gives.
    """
    mean = sum(values) / len(values)
    variance = sum((value - mean) ** 2 for value in values) / len(values)
    if variance <= 0:
        return 1.0
    sums = [0.0, *accumulate(value - mean for value in values)]
    return 1 + max(scale * _excess(sums, block, variance) for block, scale in _BLOCKS.items())


def _excess(sums: Sequence[float], block: int, variance: float) -> float:
    """Return the effect over all (overlapping) blocks of one length, less 1; 0 if it may be chance.

    ``sums`` are the cumulative sums of the deviations from the mean.
    """
    n = len(sums) - 1
    if n < _FEWEST_BLOCKS * block:
        return 0.0
    total = sum((sums[i + block] - sums[i]) ** 2 for i in range(n - block + 1))
    excess = total / (n - block + 1) / block / (1 - block / n) / variance - 1
    by_chance = math.sqrt(4 * block / (3 * n))  # standard error for independent values
    return excess if excess > _SIGNIFICANT * by_chance else 0.0
