"""Estimate the mean of a judge's scores from a probability sample of turns.

A *turn* is one question of a user and its answer. The judge has scored only a sample of the turns.
For each scored turn, the probability is known with which the turn was chosen. Another judge, the
offline judge, may have scored all turns.

The weight of a scored turn is the inverse of its probability. `weighted_mean` is the weighted mean
of the scores (the estimator of Hájek, which is that of Horvitz and Thompson divided by the
estimated number of turns). `powered_mean` is more precise if the offline scores predict the scores:

    mean = weighted mean of (score - slope * (offline score - mean of all offline scores))

This is prediction-powered inference (PPI++; Angelopoulos, Duchi and Zrnic 2023) with weights. The
offline scores may be biased in any way: the weighted mean of ``offline score - mean of all`` is 0
on average, so that only the width of the interval depends on them. The slope for a turn is computed
from other turns (cross-fitting) and is near 0 if the offline scores predict nothing.

The intervals are for the mean of the service from which the turns come, not only for these turns.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from rag_eval_otel.calibration.agreement import Figure, Interval, Numbers

Indices = NDArray[np.intp]

MIN_POWERED = 20
"""The fewest scored turns with which offline scores are used."""

_FOLDS = 20
_MIN = 2  # the fewest scored turns for an interval


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampled:
    """The turns of one group (such as a day of a service), as arrays with one entry for each turn.

    - ``scores``: the judge's score; NaN if the turn was not chosen, or has no score.
    - ``probabilities``: the probability, in (0, 1], with which the turn was chosen for the judge.
      It is only read where there is a score.
    - ``offline``: the offline score; NaN if there is none. None if there are no offline scores.
    - ``clusters``: a number for each turn. Turns with one number depend on each other, for example
      because they belong to one trace and are chosen together. None: all turns are independent.
    """

    scores: Numbers
    probabilities: Numbers
    offline: Numbers | None = None
    clusters: Indices | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Mean:
    """An estimated mean with its interval.

    ``effective`` is the number of turns of a sample with equal probabilities that would have the
    same precision (Kish). ``slope`` is the mean slope of the scores on the offline scores; 0 if no
    offline scores were used.
    """

    figure: Figure
    effective: float = 0.0
    slope: float = 0.0


def weighted_mean(sampled: Sampled, *, confidence: float = 0.95) -> Mean:
    """Return the weighted mean of the scores, without the offline scores.

    If there are fewer than two scored turns, the mean has a reason instead of an interval.
    """
    scored = ~np.isnan(sampled.scores)
    scores, weights = sampled.scores[scored], 1 / sampled.probabilities[scored]
    if len(scores) < _MIN:
        return Mean(figure=Figure(reason=_too_few(len(scores))), effective=float(len(scores)))
    total = float(weights.sum())
    value = float(weights @ scores) / total
    influence = weights * (scores - value) / total
    clusters = None if sampled.clusters is None else sampled.clusters[scored]
    return _mean(
        value,
        influence,
        scored=(scores, weights),
        clusters=clusters,
        confidence=confidence,
    )


def powered_mean(sampled: Sampled, *, confidence: float = 0.95) -> Mean:
    """Return the mean by prediction-powered inference with the offline scores.

    A turn without an offline score gets the mean of the others. If there are no offline scores, or
    fewer than `MIN_POWERED` scored turns, the mean has a reason instead of a number.
    """
    if sampled.offline is None:
        return Mean(figure=Figure(reason="no offline scores"))
    scored = ~np.isnan(sampled.scores)
    count = int(scored.sum())
    if count < MIN_POWERED:
        return Mean(figure=Figure(reason=f"offline scores need {MIN_POWERED} scored turns"))
    known = ~np.isnan(sampled.offline)
    if not known.any():
        return Mean(figure=Figure(reason="no offline scores"))
    centred = np.where(known, sampled.offline, 0.0) - sampled.offline[known].mean()
    centred[~known] = 0.0
    scores, weights, offline = (
        sampled.scores[scored],
        1 / sampled.probabilities[scored],
        centred[scored],
    )
    clusters = np.arange(len(centred)) if sampled.clusters is None else sampled.clusters
    slopes = _slopes(scores, weights, offline=offline, folds=_folds(clusters[scored]))
    total = float(weights.sum())
    rest = scores - slopes * offline
    value = float(weights @ rest) / total
    slope = float(weights @ slopes) / total
    influence = slope * centred / len(centred)
    influence[scored] += weights * (rest - value) / total
    return _mean(
        value,
        influence,
        scored=(scores, weights),
        clusters=sampled.clusters,
        confidence=confidence,
        slope=slope,
    )


def _slopes(scores: Numbers, weights: Numbers, *, offline: Numbers, folds: Indices) -> Numbers:
    """Return for each turn the slope of the scores on ``offline``, computed without its fold.

    The slope gives the least variance of the mean. A turn with the weight 1 has no part in it,
    because turns like it were all scored. A slope that may be 0 by chance is brought nearer to 0.
    """
    gains = weights * (weights - 1)
    slopes = np.zeros(len(folds))
    for fold in np.unique(folds):
        inside = folds == fold
        slopes[inside] = _slope(
            scores[~inside], weights[~inside], offline=offline[~inside], gains=gains[~inside]
        )
    return slopes


def _slope(scores: Numbers, weights: Numbers, *, offline: Numbers, gains: Numbers) -> float:
    spread = float(gains @ offline**2)
    if spread <= 0 or len(scores) < _MIN:
        return 0.0
    centred = scores - float(weights @ scores) / float(weights.sum())
    slope = float(gains @ (centred * offline)) / spread
    rest = gains * offline * (centred - slope * offline)
    variance = float(rest @ rest) / spread**2
    return slope * max(0.0, 1 - variance / slope**2) if slope else 0.0


def _folds(clusters: Indices) -> Indices:
    """Return the number of a fold for each turn; turns of one cluster have the same fold."""
    _, numbers = np.unique(clusters, return_inverse=True)
    places = np.random.default_rng(0).permutation(int(numbers.max()) + 1)
    found: Indices = places[numbers] % _FOLDS
    return found


def _mean(
    value: float,
    influence: Numbers,
    *,
    scored: tuple[Numbers, Numbers],
    clusters: Indices | None,
    confidence: float,
    slope: float = 0.0,
) -> Mean:
    scores, weights = scored
    effective = float(weights.sum()) ** 2 / float(weights @ weights)
    if clusters is not None:
        numbers = np.unique(clusters, return_inverse=True)[1]
        influence = np.bincount(numbers, weights=influence).astype(np.float64)
    freedom = max(1.0, effective - 1)
    variance = float(influence @ influence) * (freedom + 1) / freedom
    quantile = student(0.5 + confidence / 2, freedom)
    if scores.min() >= 0 and scores.max() <= 1:
        value = min(1.0, max(0.0, value))
        interval = unit_interval(value, variance, quantile=quantile, effective=effective)
        figure = Figure(value=value, interval=interval)
    elif variance > 0:
        half = quantile * math.sqrt(variance)
        figure = Figure(value=value, interval=(value - half, value + half))
    else:
        figure = Figure(reason="all scores are equal, and their scale is unknown")
    return Mean(figure=figure, effective=effective, slope=slope)


def unit_interval(value: float, variance: float, *, quantile: float, effective: float) -> Interval:
    """Return the interval of a mean of scores in [0, 1], by Wilson's formula.

    The formula gets the number of yes-or-no scores that would have the same ``variance`` (Korn and
    Graubard 1998). If all scores are equal, the number is ``effective``: a few equal scores do not
    prove that all scores are equal.
    """
    spread = value * (1 - value)
    count = spread / variance if variance > 0 and spread > 0 else effective
    square = quantile * quantile / count
    middle = (value + square / 2) / (1 + square)
    half = math.sqrt(square * (spread + square / 4)) / (1 + square)
    return max(0.0, middle - half), min(1.0, middle + half)


def student(probability: float, freedom: float) -> float:
    """Return a quantile of Student's t distribution, for ``probability`` above 0.5.

    From 3 degrees of freedom on, it is the expansion of Cornish and Fisher (Abramowitz & Stegun
    26.7.5), whose error at 0.975 is below 0.5 %.
    """
    if freedom < 2:  # noqa: PLR2004
        return math.tan(math.pi * (probability - 0.5))
    if freedom < 3:  # noqa: PLR2004
        side = 2 * probability - 1
        return side * math.sqrt(2 / (1 - side * side))
    z = NormalDist().inv_cdf(probability)
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    return z + sum(term / freedom ** (i + 1) for i, term in enumerate(terms))


def _too_few(count: int) -> str:
    return "no scored turns" if not count else "one scored turn gives no interval"
