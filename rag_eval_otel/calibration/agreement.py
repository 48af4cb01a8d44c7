"""Agreement of two ratings of the same rows: kappa, weighted kappa, Spearman, AUROC, rates."""

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
    """A finite number and its confidence interval, or the ``reason`` why there is no number.

    ``value`` is None if and only if there is a ``reason``. It is never NaN.
    """

    value: float | None = None
    interval: Interval | None = None
    reason: str = ""

    def __post_init__(self) -> None:
        """Raise `ValueError` for NaN, infinities, and a number beside a reason."""
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
        """Return ``value``, and ``low``, ``high`` and ``reason`` if they are set."""
        low, high = self.interval or (None, None)
        parts = {"low": low, "high": high, "reason": self.reason or None}
        return {"value": self.value, **{k: v for k, v in parts.items() if v is not None}}


@dataclass(frozen=True, slots=True, kw_only=True)
class Confusion:
    """Numbers of rows by the metric's and the human's pass or fail.

    ``true_pass``: both pass. ``false_pass``: only the metric passes. ``true_fail``: both fail.
    ``false_fail``: only the metric fails.
    """

    true_pass: int
    false_pass: int
    true_fail: int
    false_fail: int

    @property
    def passes(self) -> int:
        """The number of rows that the human passes."""
        return self.true_pass + self.false_fail

    @property
    def fails(self) -> int:
        """The number of rows that the human fails."""
        return self.true_fail + self.false_pass

    def sensitivity(self, confidence: float = 0.95) -> Figure:
        """Return the share of the human's passes that the metric passes, with Wilson's interval."""
        if not self.passes:
            return Figure(reason="no row is labelled pass")
        return proportion(self.true_pass, self.passes, confidence=confidence)

    def specificity(self, confidence: float = 0.95) -> Figure:
        """Return the share of the human's fails that the metric fails, with Wilson's interval."""
        if not self.fails:
            return Figure(reason="no row is labelled fail")
        return proportion(self.true_fail, self.fails, confidence=confidence)

    def accuracy(self, confidence: float = 0.95) -> Figure:
        """Return the share of rows on which metric and human agree, with Wilson's interval."""
        agreed = self.true_pass + self.true_fail
        return proportion(agreed, self.passes + self.fails, confidence=confidence)

    def balanced_accuracy(self) -> Figure:
        """Return the mean of sensitivity and specificity, which is .5 for a constant label."""
        for part in (self.sensitivity(), self.specificity()):
            if part.value is None:
                return part
        return Figure(value=(1 + youden(self)) / 2)


def youden(confusion: Confusion) -> float:
    """Return Youden's J, ``sensitivity + specificity - 1``; there must be rows of both classes."""
    return confusion.true_pass / confusion.passes + confusion.true_fail / confusion.fails - 1


def confusion_of(decisions: Truths, truths: Truths) -> Confusion:
    """Count the rows by the metric's passes (``decisions``) and the human's (``truths``)."""
    return Confusion(
        true_pass=int(np.sum(decisions & truths)),
        false_pass=int(np.sum(decisions & ~truths)),
        true_fail=int(np.sum(~decisions & ~truths)),
        false_fail=int(np.sum(~decisions & truths)),
    )


def proportion(successes: int, n: int, *, confidence: float = 0.95) -> Figure:
    """Return ``successes / n`` with Wilson's interval (1927); no figure without rows."""
    if not n:
        return Figure(reason="no rows")
    return Figure(value=successes / n, interval=wilson(successes, n, confidence=confidence))


def wilson(successes: int, n: int, *, confidence: float = 0.95) -> Interval:
    """Return Wilson's score interval of a proportion, without correction for continuity."""
    z = NormalDist().inv_cdf((1 + confidence) / 2)
    share = successes / n
    centre = (share + z * z / (2 * n)) / (1 + z * z / n)
    half = z * math.sqrt(share * (1 - share) / n + (z / (2 * n)) ** 2) / (1 + z * z / n)
    low = 0.0 if successes == 0 else max(0.0, centre - half)
    high = 1.0 if successes == n else min(1.0, centre + half)
    return low, high


# --- rates ----------------------------------------------------------------------------------------

MIN_YOUDEN = 0.2
"""The lowest ``sensitivity + specificity - 1`` for which a rate is corrected."""


def corrected_rate(
    confusion: Confusion, *, passed: int, n: int, confidence: float = 0.95
) -> Figure:
    """Return the share of ``n`` rows that a human would pass, if the metric passes ``passed``.

    Rogan and Gladen (1978): ``(p + q0 - 1) / (q0 + q1 - 1)`` with the metric's pass rate p, its
    specificity q0 and its sensitivity q1 (those of ``confusion``), clipped to [0, 1]. The
    interval includes the uncertainty of all three (Lang and Reiczigel 2014; for judges Lee et al.,
    arXiv 2511.21140, 2025): the delta method on estimates with ``z**2`` rows added to the test and
    2 to each class of the calibration, half of them right, with their shift of the centre.

    It assumes that the labelled rows of each class are like those among the ``n``; the share of
    passes may differ. The labelled rows must not be among the ``n``.

    Refused if ``q0 + q1 - 1`` is below `MIN_YOUDEN`, as estimated or with the rows added.
    """
    if not n:
        return Figure(reason="no rows without a label, whose rate could be corrected")
    for count, name in ((confusion.passes, "pass"), (confusion.fails, "fail")):
        if not count:
            return Figure(reason=f"no row is labelled {name}")
    strength = youden(confusion)
    if strength < MIN_YOUDEN:
        return Figure(
            reason=f"refused: sensitivity + specificity - 1 is {strength:.2f}, below {MIN_YOUDEN};"
            " the judge is too weak to correct for"
        )
    added = _with_added(confusion)
    if added[0] + added[1] - 1 < MIN_YOUDEN:
        return Figure(
            reason=f"refused: {confusion.passes} rows labelled pass and {confusion.fails} labelled"
            " fail are too few to tell the judge from a weak one"
        )
    rate = (passed / n + confusion.true_fail / confusion.fails - 1) / strength
    low, high = _interval(confusion, passed=passed, n=n, confidence=confidence)
    clipped = _clip(rate)
    return Figure(value=clipped, interval=(min(low, clipped), max(high, clipped)))


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


# --- rank and level agreement ---------------------------------------------------------------------

Weights: TypeAlias = Literal["linear", "quadratic"]
Cost: TypeAlias = Callable[[Numbers], Numbers]

_STEPS = 60  # of bisection: 2**-60 of the unit interval


def cohen_kappa(a: Numbers | Truths, b: Numbers | Truths, *, confidence: float = 0.95) -> Figure:
    """Return Cohen's kappa (1960) of two ratings, each level a category of its own.

    ``(observed - expected) / (1 - expected)`` agreement: 1 is perfect, 0 is chance, -1 the minimum.
    No figure if both ratings are the same constant. Interval: see `_kappa`.
    """
    first, second = np.asarray(a, dtype=float), np.asarray(b, dtype=float)
    return _kappa(first, second, np.sign, confidence=confidence)


def weighted_kappa(a: Numbers, b: Numbers, *, weights: Weights, confidence: float = 0.95) -> Figure:
    """Return Cohen's weighted kappa (1968) of two ratings on one scale of numbers.

    ``1 - observed / expected`` disagreement, where two ratings disagree by their difference
    (linear) or its square (quadratic). The differences are those of the numbers, not of the ranks
    of the levels that occur: as scikit-learn's for levels in equal steps. No figure if both ratings
    are the same constant. Interval: see `_kappa`.
    """
    return _kappa(a, b, _COSTS[weights], confidence=confidence)


_COSTS: dict[Weights, Cost] = {"linear": lambda distance: distance, "quadratic": np.square}


def _kappa(a: Numbers, b: Numbers, cost: Cost, *, confidence: float) -> Figure:
    """Return one minus the mean ``cost`` of the distances, divided by that expected by chance.

    The standard error is that of Fleiss, Cohen and Everitt (1969), as a sum over rows; the interval
    is computed on Fisher's scale, where it is accurate for fewer rows.
    """
    if not len(a):
        return Figure(reason="no rows")
    (left, at), (right, to) = (np.unique(rating, return_inverse=True) for rating in (a, b))
    shares = np.bincount(at) / len(a), np.bincount(to) / len(a)
    by_chance = np.array([cost(np.abs(right - level)) @ shares[1] for level in left])
    of_chance = np.array([cost(np.abs(left - level)) @ shares[0] for level in right])
    expected = float(shares[0] @ by_chance)
    if expected == 0:
        return Figure(reason="both ratings are the same constant")
    costs = cost(np.abs(a - b)) / expected
    kappa = 1 - float(np.mean(costs))
    pulls = (1 - kappa) * (by_chance[at] + of_chance[to]) / expected - costs
    error = float(np.std(pulls)) / math.sqrt(len(a))
    if abs(kappa) >= 1:
        return Figure(value=kappa)
    interval = _on_fishers_scale(kappa, error / (1 - kappa**2), confidence=confidence)
    return Figure(value=kappa, interval=interval)


def _on_fishers_scale(value: float, error: float, *, confidence: float) -> Interval:
    """Return the interval of a ``value`` whose inverse hyperbolic tangent has this ``error``."""
    centre, half = math.atanh(value), NormalDist().inv_cdf((1 + confidence) / 2) * error
    return math.tanh(centre - half), math.tanh(centre + half)


def spearman(x: Numbers, y: Numbers, *, confidence: float = 0.95) -> Figure:
    """Return Spearman's rank correlation, in [-1, 1]; equal values share the mean of their ranks.

    No figure if one of them is constant or there are fewer than two rows. The interval is that of
    Bonett and Wright (Psychometrika 65, 2000); there is none for fewer than four rows, and none if
    the orders are equal or opposite.
    """
    if len(x) < 2:  # noqa: PLR2004  # one row has no order
        return Figure(reason="fewer than two rows with both a score and a label")
    first, second = (_ranks(values) - (len(values) + 1) / 2 for values in (x, y))
    spreads = float(first @ first), float(second @ second)
    if 0 in spreads:
        return Figure(
            reason="scores are all the same" if spreads[0] == 0 else "labels are all the same"
        )
    rho = float(first @ second) / math.sqrt(math.prod(spreads))
    if len(x) < 4 or math.isclose(abs(rho), 1):  # noqa: PLR2004  # the formula divides by n - 3
        return Figure(value=rho)
    error = math.sqrt((1 + rho**2 / 2) / (len(x) - 3))
    return Figure(value=rho, interval=_on_fishers_scale(rho, error, confidence=confidence))


def _ranks(values: Numbers) -> Numbers:
    """Return the ranks, from 1, of ``values``; equal values get the mean of their ranks."""
    _, codes, counts = np.unique(values, return_inverse=True, return_counts=True)
    return (np.cumsum(counts) - (counts - 1) / 2)[codes]


def auroc(scores: Numbers, truths: Truths, *, confidence: float = 0.95) -> Figure:
    """Return the probability that a row labelled pass has a higher score than one labelled fail.

    Equal scores count one half (Mann-Whitney): 1 is a perfect order, .5 none. The interval is
    Newcombe's fifth (Statistics in Medicine 25, 2006): the variance of Hanley and McNeil (1982),
    taken at the bound and not at the estimate, so that it has a width at 1 too. Equal scores make
    it slightly too wide. No figure if all labels are the same.
    """
    passes = int(np.sum(truths))
    fails = len(truths) - passes
    if not passes or not fails:
        return Figure(reason=one_class(truths))
    above = float(np.sum(_ranks(scores)[truths])) - passes * (passes + 1) / 2
    area = above / (passes * fails)
    return Figure(value=area, interval=_auroc_interval(area, passes, fails, confidence=confidence))


def one_class(truths: Truths) -> str:
    """Return the reason that there are no rows, or only rows of one class."""
    if not len(truths):
        return "no rows with both a score and a label"
    return f"all labels are {'pass' if truths[0] else 'fail'}; both are needed"


def _auroc_interval(area: float, passes: int, fails: int, *, confidence: float) -> Interval:
    z = NormalDist().inv_cdf((1 + confidence) / 2)
    half = (passes + fails) / 2 - 1

    def is_far(bound: float) -> bool:
        """Return True if ``area`` is more than z standard deviations away from ``bound``."""
        spread = 1 + half * (1 - bound) / (2 - bound) + half * bound / (1 + bound)
        variance = bound * (1 - bound) * spread / (passes * fails)
        return (area - bound) ** 2 > z * z * variance

    return _edge(0.0, area, is_far), _edge(1.0, area, is_far)


def _edge(outside: float, inside: float, is_far: Callable[[float], bool]) -> float:
    """Return the point between ``outside`` and ``inside`` from which ``is_far`` is True."""
    if outside == inside or not is_far(outside):
        return outside
    for _ in range(_STEPS):
        middle = (outside + inside) / 2
        outside, inside = (middle, inside) if is_far(middle) else (outside, middle)
    return outside
