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

_STEPS = 60  # of bisection: 2**-60 of the unit interval


def cohen_kappa(a: Numbers | Truths, b: Numbers | Truths) -> Figure:
    """Return Cohen's kappa (1960) of two ratings, each level a category of its own.

    ``(observed - expected) / (1 - expected)`` agreement; 1 is perfect, 0 what chance gives, the
    least is -1. None where both give one and the same level throughout.
    """
    if not len(a):
        return unknown("no rows")
    levels, codes = np.unique(np.concatenate([a, b]), return_inverse=True)
    first, second = codes[: len(a)], codes[len(a) :]
    shares = [np.bincount(part, minlength=len(levels)) / len(a) for part in (first, second)]
    expected = float(shares[0] @ shares[1])
    if len(levels) == 1:
        return unknown("both ratings are one and the same throughout")
    observed = float(np.mean(first == second))
    return known((observed - expected) / (1 - expected))


def weighted_kappa(a: Numbers, b: Numbers, *, weights: Weights) -> Figure:
    """Return Cohen's weighted kappa (1968) of two ratings on one scale of numbers.

    ``1 - observed / expected`` disagreement, where two ratings disagree by their difference
    (linear) or its square (quadratic). The differences are those of the numbers, not of the ranks
    of the levels that happen to occur: the same as scikit-learn's for levels in equal steps.
    None where both give one and the same level throughout.
    """
    if not len(a):
        return unknown("no rows")
    cost = _COSTS[weights]
    first, first_counts = np.unique(a, return_counts=True)
    second, second_counts = np.unique(b, return_counts=True)
    expected = sum(
        float(count * (first_counts @ cost(first - level)))
        for level, count in zip(second, second_counts, strict=True)
    )
    if expected == 0:
        return unknown("both ratings are one and the same throughout")
    return known(1 - len(a) * float(np.sum(cost(a - b))) / expected)


_COSTS: dict[Weights, Callable[[Numbers], Numbers]] = {"linear": np.abs, "quadratic": np.square}


def spearman(x: Numbers, y: Numbers) -> Figure:
    """Return Spearman's rank correlation, in [-1, 1]; equal values share the mean of their ranks.

    None where one of the two is constant, and of fewer than two rows.
    """
    if len(x) < 2:  # noqa: PLR2004  # one row has no order
        return unknown("fewer than two rows with both a score and a label")
    first, second = (_ranks(values) - (len(values) + 1) / 2 for values in (x, y))
    spreads = float(first @ first), float(second @ second)
    if 0 in spreads:
        return unknown("scores are all the same" if spreads[0] == 0 else "labels are all the same")
    return known(float(first @ second) / math.sqrt(math.prod(spreads)))


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
