"""The baseline of a detector: the level of each view of the scores, learned once and then frozen.

A *view* is a number in [0, 1] computed from a score, which falls in case of a change: the score,
whether it is above the bound of the tail, its closeness to the centre, and one minus the score.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, groupby
from typing import Any, TypeAlias

Views: TypeAlias = tuple[float, float, float, float]
"""The views of one score: level, tail, spread, rise."""

_BLOCKS = {10: 1.0, 25: 2.0, 50: 1.6, 100: 1.3, 200: 1.0}
"""Lengths of blocks of scores, and the factor by which the effect measured over each is multiplied.

Short blocks miss a part of the dependence between scores up to 200 apart; the factors suit a
dependence that halves every 25 scores. Several lengths together vary less by chance.
"""

_SIGNIFICANT = 2.0  # standard errors above which dependence counts
_MIN_BLOCKS = 5
_MAX_STRATA = 64
_ROUNDING = 1e-6


def views_of(score: float, *, tail: float, centre: float) -> Views:
    """Return the four views of ``score``."""
    return score, float(score > tail), 1.0 - abs(score - centre), 1.0 - score


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """The baseline of one view: mean, variance, design effect, and the highest possible value.

    ``n`` is the number of scores it was learned from, or None for a target, which has no error.
    ``effect`` is the design effect, 1 or more: the number of dependent scores that carry as much
    information as one independent score.
    """

    mean: float
    variance: float
    n: int | None = None
    effect: float = 1.0
    top: float = 1.0

    @property
    def error(self) -> float:
        """The standard error of ``mean``; 0 for a target."""
        return math.sqrt(self.variance * self.effect / self.n) if self.n else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Baseline:
    """The frozen levels of the views; ``levels`` has None for a view without a known level.

    ``strata`` maps each known stratum to the offsets that bring its views to the common mean.
    """

    centre: float
    levels: tuple[Level | None, ...]
    strata: Mapping[str, Views] = field(default_factory=dict)

    @property
    def level(self) -> Level:
        """The level of the score itself."""
        return next(level for level in self.levels if level is not None)

    def with_target(self, target: float) -> Baseline:
        """Return the baseline with ``target`` as the mean; tail, spread and dependence stay."""
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
        """Return the baseline of ``state``; raise KeyError, TypeError or ValueError if invalid."""
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
    """Return the baseline of a target for the mean, or of a target for each stratum.

    The levels of tail and spread are unknown.
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
    """Return the baseline of ``scores``, at least two, and the stratum of each."""
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
    """Return ``views`` plus the offsets of their stratum; None for an unknown stratum."""
    if offsets is None:
        return views
    return _offsets(*(view + offset for view, offset in zip(views, offsets, strict=True)))


def _persistence(strata: Sequence[str | None], known: Collection[str]) -> float:
    """Return the contribution of errors in the strata's means to the design effect.

    Consecutive scores of one stratum share the error of its mean. A run as long as the whole sample
    of the stratum adds as much as the scores themselves.
    """
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
    """Return the offset of each group, shrunk towards 0 for small groups."""
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
    """Return the design effect of ``values``: 1 for independent values, more for dependent ones.

    It is the variance of block means, times the block length, over the variance of the values: the
    largest over several lengths at which it exceeds 1 by more than chance.
    """
    mean = sum(values) / len(values)
    variance = sum((value - mean) ** 2 for value in values) / len(values)
    if variance <= 0:
        return 1.0
    sums = [0.0, *accumulate(value - mean for value in values)]
    return 1 + max(scale * _excess(sums, block, variance) for block, scale in _BLOCKS.items())


def _excess(sums: Sequence[float], block: int, variance: float) -> float:
    """Return the design effect over overlapping blocks, less 1; 0 if chance may explain it.

    ``sums`` are the cumulative sums of the deviations from the mean.
    """
    n = len(sums) - 1
    if n < _MIN_BLOCKS * block:
        return 0.0
    total = sum((sums[i + block] - sums[i]) ** 2 for i in range(n - block + 1))
    excess = total / (n - block + 1) / block / (1 - block / n) / variance - 1
    by_chance = math.sqrt(4 * block / (3 * n))  # standard error for independent values
    return excess if excess > _SIGNIFICANT * by_chance else 0.0
