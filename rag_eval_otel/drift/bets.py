"""The bets against a view: what one score multiplies the evidence by."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist

from rag_eval_otel.drift.baseline import Level

BETS = (6, 4, 4, 4)
"""Bets on each view, on small changes to large ones."""

_SMALLEST, _LARGEST = 0.03, 0.4  # changes of the mean, in units of the score
_STAKE = 0.95  # of all there is, at most
_NEAREST = 1e-3  # to the highest value: or one score would be all the evidence it takes
_DOUBT, _DOUBT_OF = 0.05, 100_000
"""The chance that a learned mean is lower than taken here; smaller where ``every`` is larger."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bets:
    """A view ``y`` multiplies the evidence of bet k by ``a[k] - b[k] * y``, which is above 0."""

    a: tuple[float, ...]
    b: tuple[float, ...]


def bets_on(level: Level, *, count: int, every: float) -> Bets:
    """Return ``count`` bets that the mean of a view lies below its ``level``.

    ``L = (1 + stake * (m0 - y)) * exp(-stake**2 * variance * (effect - 1) / 2)``: on average at
    most 1 as long as the mean is ``m0`` or more. The second factor is what dependent scores take
    off. ``m0`` is below the mean that was learned by what that mean may be off.
    """
    stakes = _stakes(level, count)
    bases = [_base(level, stake, stakes, every) for stake in stakes]
    stakes = [min(s, _STAKE / (level.top - m0)) for s, m0 in zip(stakes, bases, strict=True)]
    taken = [math.exp(-s * s * level.variance * (level.effect - 1) / 2) for s in stakes]
    return Bets(
        a=tuple(c * (1 + s * m0) for c, s, m0 in zip(taken, stakes, bases, strict=True)),
        b=tuple(c * s for c, s in zip(taken, stakes, strict=True)),
    )


def no_bets(count: int) -> Bets:
    """Return what stands for ``count`` bets on a view of which no level is known."""
    return Bets(a=(0.0,) * count, b=(0.0,) * count)


def _stakes(level: Level, count: int) -> list[float]:
    """Return the stakes: the best one against a fall by ``d`` is ``d / (variance * effect)``."""
    spread = max(level.variance, 1e-6) * level.effect
    largest = _STAKE / max(level.top - level.mean, _NEAREST)
    if level.n is not None:  # else the variance is not known, and may be much smaller
        largest = min(largest, _LARGEST / spread)
    smallest = min(_SMALLEST / spread, largest / 4)
    return [smallest * (largest / smallest) ** (k / (count - 1)) for k in range(count)]


def _base(level: Level, stake: float, stakes: list[float], every: float) -> float:
    """Return ``m0``, the mean that a bet of ``stake`` is made against."""
    # Enough that scores which never move from the mean do not add up to an alarm.
    steady = 2 * sum(1 / one for one in stakes) / len(stakes) / every
    margin = max(steady, _error(level, stake, every))
    return min(level.mean - margin, level.top - _NEAREST)  # below 0 there is nothing to win


def _error(level: Level, stake: float, every: float) -> float:
    """Return what the learned mean may be off.

    The evidence of a bet comes from about ``2 * log(every) / (stake**2 * variance)`` scores. Over
    so many, an error of the mean acts like its variance times the stake; or it is bounded with some
    confidence, whichever is less.
    """
    if level.n is None:
        return 0.0
    doubt = _DOUBT * min(1.0, _DOUBT_OF / every)
    quantile = -NormalDist().inv_cdf(doubt)  # of 1 - doubt: that is 1 for a small one
    return min(quantile * level.error, math.log(every) / (level.n * stake))
