"""How well two ways of rating the same rows agree: kappa, weighted kappa, Spearman, AUROC."""

from __future__ import annotations

import math
from collections.abc import Callable
from statistics import NormalDist
from typing import Literal, TypeAlias

import numpy as np

from rag_eval_otel.calibration.figure import (
    Figure,
    Interval,
    Numbers,
    Truths,
    known,
    unknown,
)

Weights: TypeAlias = Literal["linear", "quadratic"]
Cost: TypeAlias = Callable[[Numbers], Numbers]

_STEPS = 60  # of bisection: 2**-60 of the unit interval


def cohen_kappa(a: Numbers | Truths, b: Numbers | Truths, *, confidence: float = 0.95) -> Figure:
    """Return Cohen's kappa (1960) of two ratings, each level a category of its own.

    ``(observed - expected) / (1 - expected)`` agreement; 1 is perfect, 0 what chance gives, the
    least is -1. None where both give one and the same level throughout. Interval: `_kappa`.
    """
    first, second = np.asarray(a, dtype=float), np.asarray(b, dtype=float)
    return _kappa(first, second, np.sign, confidence=confidence)


def weighted_kappa(a: Numbers, b: Numbers, *, weights: Weights, confidence: float = 0.95) -> Figure:
    """Return Cohen's weighted kappa (1968) of two ratings on one scale of numbers.

    ``1 - observed / expected`` disagreement, where two ratings disagree by their difference
    (linear) or its square (quadratic). The differences are those of the numbers, not of the ranks
    of the levels that happen to occur: the same as scikit-learn's for levels in equal steps.
    None where both give one and the same level throughout. Interval: `_kappa`.
    """
    return _kappa(a, b, _COSTS[weights], confidence=confidence)


_COSTS: dict[Weights, Cost] = {"linear": lambda distance: distance, "quadratic": np.square}


def _kappa(a: Numbers, b: Numbers, cost: Cost, *, confidence: float) -> Figure:
    """Return one minus the mean ``cost`` of the distances over the one that chance would give.

    The standard error is the one of Fleiss, Cohen and Everitt (1969), in the form of what each row
    adds to it; the interval is taken on Fisher's scale, where it holds with fewer rows.
    """
    if not len(a):
        return unknown("no rows")
    (left, at), (right, to) = (np.unique(rating, return_inverse=True) for rating in (a, b))
    shares = np.bincount(at) / len(a), np.bincount(to) / len(a)
    by_chance = np.array([cost(np.abs(right - level)) @ shares[1] for level in left])
    of_chance = np.array([cost(np.abs(left - level)) @ shares[0] for level in right])
    expected = float(shares[0] @ by_chance)
    if expected == 0:
        return unknown("both ratings are one and the same throughout")
    costs = cost(np.abs(a - b)) / expected
    kappa = 1 - float(np.mean(costs))
    pulls = (1 - kappa) * (by_chance[at] + of_chance[to]) / expected - costs
    error = float(np.std(pulls)) / math.sqrt(len(a))
    if abs(kappa) >= 1:
        return known(kappa)
    return known(kappa, _on_fishers_scale(kappa, error / (1 - kappa**2), confidence=confidence))


def _on_fishers_scale(value: float, error: float, *, confidence: float) -> Interval:
    """Return the interval of a ``value`` whose inverse hyperbolic tangent has this ``error``."""
    centre, half = math.atanh(value), NormalDist().inv_cdf((1 + confidence) / 2) * error
    return math.tanh(centre - half), math.tanh(centre + half)


def spearman(x: Numbers, y: Numbers, *, confidence: float = 0.95) -> Figure:
    """Return Spearman's rank correlation, in [-1, 1]; equal values share the mean of their ranks.

    None where one of the two is constant, and of fewer than two rows. The interval is the one of
    Bonett and Wright (Psychometrika 65, 2000); there is none of fewer than four rows, and none
    where the orders are one and the same, or opposite.
    """
    if len(x) < 2:  # noqa: PLR2004  # one row has no order
        return unknown("fewer than two rows with both a score and a label")
    first, second = (_ranks(values) - (len(values) + 1) / 2 for values in (x, y))
    spreads = float(first @ first), float(second @ second)
    if 0 in spreads:
        return unknown("scores are all the same" if spreads[0] == 0 else "labels are all the same")
    rho = float(first @ second) / math.sqrt(math.prod(spreads))
    if len(x) < 4 or math.isclose(abs(rho), 1):  # noqa: PLR2004  # the formula divides by n - 3
        return known(rho)
    error = math.sqrt((1 + rho**2 / 2) / (len(x) - 3))
    return known(rho, _on_fishers_scale(rho, error, confidence=confidence))


def _ranks(values: Numbers) -> Numbers:
    """Return the ranks, from 1, of ``values``; equal ones get the mean of theirs."""
    _, codes, counts = np.unique(values, return_inverse=True, return_counts=True)
    return (np.cumsum(counts) - (counts - 1) / 2)[codes]


def auroc(scores: Numbers, truths: Truths, *, confidence: float = 0.95) -> Figure:
    """Return the probability that a row labelled pass has a higher score than one labelled fail.

    Equal scores count one half (Mann-Whitney): 1 is a perfect order, .5 none. The interval is
    Newcombe's fifth (Statistics in Medicine 25, 2006): the variance of Hanley and McNeil (1982),
    taken at the bound and not at the estimate, so that it has a width at 1 too. Equal scores make
    it a little wide. None where all labels are the same.
    """
    passes = int(np.sum(truths))
    fails = len(truths) - passes
    if not passes or not fails:
        return unknown(one_class(truths))
    above = float(np.sum(_ranks(scores)[truths])) - passes * (passes + 1) / 2
    area = above / (passes * fails)
    return known(area, _auroc_interval(area, passes, fails, confidence=confidence))


def one_class(truths: Truths) -> str:
    """Say in words that there are no rows, or only rows of one class."""
    if not len(truths):
        return "no rows with both a score and a label"
    return f"all labels are {'pass' if truths[0] else 'fail'}; both are needed"


def _auroc_interval(area: float, passes: int, fails: int, *, confidence: float) -> Interval:
    z = NormalDist().inv_cdf((1 + confidence) / 2)
    half = (passes + fails) / 2 - 1

    def too_far(bound: float) -> bool:
        """Tell whether ``area`` is more than z standard deviations away, were ``bound`` true."""
        spread = 1 + half * (1 - bound) / (2 - bound) + half * bound / (1 + bound)
        variance = bound * (1 - bound) * spread / (passes * fails)
        return (area - bound) ** 2 > z * z * variance

    return _edge(0.0, area, too_far), _edge(1.0, area, too_far)


def _edge(outside: float, inside: float, too_far: Callable[[float], bool]) -> float:
    """Return where, between a point outside and one inside, ``too_far`` begins."""
    if outside == inside or not too_far(outside):
        return outside
    for _ in range(_STEPS):
        middle = (outside + inside) / 2
        outside, inside = (middle, inside) if too_far(middle) else (outside, middle)
    return outside
