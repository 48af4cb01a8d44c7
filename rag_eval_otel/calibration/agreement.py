"""How well two ways of rating the same rows agree: kappa, weighted kappa, Spearman, AUROC."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

Numbers: TypeAlias = NDArray[np.float64]
Truths: TypeAlias = NDArray[np.bool_]
Interval: TypeAlias = tuple[float, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """A finite number with its confidence interval, where it has one; else ``reason`` says why not.

    ``value`` is None if and only if there is a ``reason``. It is never NaN.
    """

    value: float | None = None
    interval: Interval | None = None
    reason: str = ""

    def __post_init__(self) -> None:
        """Refuse NaN, infinities, and a number beside a reason for none."""
        if (self.value is None) != bool(self.reason):
            msg = f"a figure has either a value or a reason, not {self.value!r} and {self.reason!r}"
            raise ValueError(msg)
        if not all(map(math.isfinite, (self.value or 0.0, *(self.interval or ())))):
            msg = f"a figure must be finite, not {self.value!r} {self.interval!r}"
            raise ValueError(msg)

    def __str__(self) -> str:
        """Return ``0.812  [0.701, 0.889]``, or ``-  (why there is none)``."""
        if self.value is None:
            return f"-  ({self.reason})"
        if self.interval is None:
            return f"{self.value:.3f}"
        return f"{self.value:.3f}  [{self.interval[0]:.3f}, {self.interval[1]:.3f}]"

    def to_dict(self) -> Mapping[str, Any]:
        """Return ``value``, ``low``, ``high`` and ``reason``, as far as there are any."""
        low, high = self.interval or (None, None)
        parts = {"low": low, "high": high, "reason": self.reason or None}
        return {"value": self.value, **{k: v for k, v in parts.items() if v is not None}}


def known(value: float, interval: Interval | None = None) -> Figure:
    """Return a figure that could be had."""
    return Figure(value=float(value), interval=interval)


def unknown(reason: str) -> Figure:
    """Return a figure that could not be had, and why."""
    return Figure(reason=reason)


MIN_YOUDEN = 0.2
"""The least ``sensitivity + specificity - 1`` with which a rate is corrected."""


def corrected_rate(
    confusion: Confusion, *, passed: int, n: int, confidence: float = 0.95
) -> Figure:
    """Return the share that a human would pass of ``n`` rows of which the metric passed ``passed``.

    Rogan and Gladen (1978): ``(p + q0 - 1) / (q0 + q1 - 1)`` with the metric's pass rate p, its
    specificity q0 and its sensitivity q1 (those of ``confusion``), brought into [0, 1]. The
    interval carries the uncertainty of all three (Lang and Reiczigel 2014; for judges Lee et al.,
    arXiv 2511.21140, 2025): the delta method on estimates with ``z**2`` rows added to the test and
    2 to each class of the calibration, half of them right, with their shift of the centre.

    It holds where the labelled rows of either class are like those among the ``n``; the share of
    passes may differ. The labelled rows must not be among the ``n``.

    Refused where ``q0 + q1 - 1`` is below `MIN_YOUDEN`, as estimated or with the rows added.
    """
    if not n:
        return unknown("no rows without a label, whose rate could be corrected")
    for count, name in ((confusion.passes, "pass"), (confusion.fails, "fail")):
        if not count:
            return unknown(f"no row is labelled {name}")
    strength = youden(confusion)
    if strength < MIN_YOUDEN:
        return unknown(
            f"refused: sensitivity + specificity - 1 is {strength:.2f}, below {MIN_YOUDEN};"
            " the judge is too weak to correct for"
        )
    added = _with_added(confusion)
    if added[0] + added[1] - 1 < MIN_YOUDEN:
        return unknown(
            f"refused: {confusion.passes} rows labelled pass and {confusion.fails} labelled fail"
            " are too few to tell the judge from a weak one"
        )
    rate = (passed / n + confusion.true_fail / confusion.fails - 1) / strength
    low, high = _interval(confusion, passed=passed, n=n, confidence=confidence)
    clipped = _clip(rate)
    return known(clipped, (min(low, clipped), max(high, clipped)))


def _with_added(confusion: Confusion) -> tuple[float, float]:
    """Return specificity and sensitivity with one right and one wrong row added to each class."""
    return (
        (confusion.true_fail + 1) / (confusion.fails + 2),
        (confusion.true_pass + 1) / (confusion.passes + 2),
    )


def _interval(confusion: Confusion, *, passed: int, n: int, confidence: float) -> Interval:
    z = NormalDist().inv_cdf((1 + confidence) / 2)
    p = (passed + z * z / 2) / (n + z * z)
    q0, q1 = _with_added(confusion)
    strength = q0 + q1 - 1
    rate = (p + q0 - 1) / strength
    of_fails = q0 * (1 - q0) / (confusion.fails + 2)
    of_passes = q1 * (1 - q1) / (confusion.passes + 2)
    shift = 2 * z * z * (rate * of_passes - (1 - rate) * of_fails)
    of_test = p * (1 - p) / (n + z * z)
    variance = of_test + (1 - rate) ** 2 * of_fails + rate**2 * of_passes
    half = z * math.sqrt(variance) / strength
    return _clip(rate + shift - half), _clip(rate + shift + half)


def _clip(rate: float) -> float:
    return min(1.0, max(0.0, rate))


@dataclass(frozen=True, slots=True, kw_only=True)
class Confusion:
    """How often the metric's pass or fail met the human's.

    ``true_pass``: both say pass. ``false_pass``: the metric passes what the human fails.
    ``true_fail``: both say fail. ``false_fail``: the metric fails what the human passes.
    """

    true_pass: int
    false_pass: int
    true_fail: int
    false_fail: int

    @property
    def passes(self) -> int:
        """How many rows the human passes."""
        return self.true_pass + self.false_fail

    @property
    def fails(self) -> int:
        """How many rows the human fails."""
        return self.true_fail + self.false_pass

    def sensitivity(self, confidence: float = 0.95) -> Figure:
        """Return the share of the human's passes that the metric passes, Wilson's interval."""
        if not self.passes:
            return unknown("no row is labelled pass")
        return proportion(self.true_pass, self.passes, confidence=confidence)

    def specificity(self, confidence: float = 0.95) -> Figure:
        """Return the share of the human's fails that the metric fails, Wilson's interval."""
        if not self.fails:
            return unknown("no row is labelled fail")
        return proportion(self.true_fail, self.fails, confidence=confidence)

    def accuracy(self, confidence: float = 0.95) -> Figure:
        """Return the share of rows in which metric and human agree, Wilson's interval."""
        agreed = self.true_pass + self.true_fail
        return proportion(agreed, self.passes + self.fails, confidence=confidence)

    def balanced_accuracy(self) -> Figure:
        """Return the mean of sensitivity and specificity; .5 is what a constant label gets."""
        for part in (self.sensitivity(), self.specificity()):
            if part.value is None:
                return part
        return known((1 + youden(self)) / 2)


def youden(confusion: Confusion) -> float:
    """Return Youden's J, ``sensitivity + specificity - 1``, of rows of both classes."""
    return confusion.true_pass / confusion.passes + confusion.true_fail / confusion.fails - 1


def confusion_of(decisions: Truths, truths: Truths) -> Confusion:
    """Count how the metric's passes (``decisions``) meet the human's (``truths``)."""
    return Confusion(
        true_pass=int(np.sum(decisions & truths)),
        false_pass=int(np.sum(decisions & ~truths)),
        true_fail=int(np.sum(~decisions & ~truths)),
        false_fail=int(np.sum(~decisions & truths)),
    )


def proportion(successes: int, n: int, *, confidence: float = 0.95) -> Figure:
    """Return ``successes / n`` with Wilson's interval (1927); None of no rows."""
    if not n:
        return unknown("no rows")
    return known(successes / n, wilson(successes, n, confidence=confidence))


def wilson(successes: int, n: int, *, confidence: float = 0.95) -> Interval:
    """Return Wilson's score interval of a proportion, without correction for continuity."""
    z = NormalDist().inv_cdf((1 + confidence) / 2)
    share = successes / n
    centre = (share + z * z / (2 * n)) / (1 + z * z / n)
    half = z * math.sqrt(share * (1 - share) / n + (z / (2 * n)) ** 2) / (1 + z * z / n)
    low = 0.0 if successes == 0 else max(0.0, centre - half)
    high = 1.0 if successes == n else min(1.0, centre + half)
    return low, high


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
