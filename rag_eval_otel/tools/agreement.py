"""Compute the agreement of a metric with human labels on the same rows.

The measures are Cohen's kappa, weighted kappa, Spearman's correlation, AUROC, and the rates of
right and wrong decisions. `fit_threshold` finds the threshold that fits the labels best.
"""

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
    """A finite number with its confidence interval, or the ``reason`` why there is no number.

    ``value`` is the number, which is never NaN. ``value`` is None if and only if there is a
    ``reason``. ``interval`` has the lower and the upper bound.
    """

    value: float | None = None
    interval: Interval | None = None
    reason: str = ""

    def __post_init__(self) -> None:
        if (self.value is None) != bool(self.reason):
            msg = f"a figure has either a value or a reason, not {self.value!r} and {self.reason!r}"
            raise ValueError(msg)
        if not all(map(math.isfinite, (self.value or 0.0, *(self.interval or ())))):
            msg = f"a figure must be finite, not {self.value!r} {self.interval!r}"
            raise ValueError(msg)

    def __str__(self) -> str:
        """Return the figure as text: ``0.812  [0.701, 0.889]``, or ``-  (reason)``."""
        if self.value is None:
            return f"-  ({self.reason})"
        if self.interval is None:
            return f"{self.value:.3f}"
        return f"{self.value:.3f}  [{self.interval[0]:.3f}, {self.interval[1]:.3f}]"

    def to_dict(self) -> Mapping[str, Any]:
        """Return ``value`` as a dict for JSON, with ``low``, ``high`` and ``reason`` if set."""
        low, high = self.interval or (None, None)
        parts = {"low": low, "high": high, "reason": self.reason or None}
        return {"value": self.value, **{k: v for k, v in parts.items() if v is not None}}


@dataclass(frozen=True, slots=True, kw_only=True)
class Confusion:
    """Count rows by two decisions: pass or fail of the metric, and pass or fail of the human.

    ``true_pass`` counts rows that both pass, ``false_pass`` rows that only the metric passes.
    ``true_fail`` counts rows that both fail, ``false_fail`` rows that only the metric fails.
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
        """Return the fraction of the human's passes that the metric passes too.

        The interval is Wilson's score interval at ``confidence``.
        """
        if not self.passes:
            return Figure(reason="no row is labelled pass")
        return proportion(self.true_pass, self.passes, confidence=confidence)

    def specificity(self, confidence: float = 0.95) -> Figure:
        """Return the fraction of the human's fails that the metric fails too.

        The interval is Wilson's score interval at ``confidence``.
        """
        if not self.fails:
            return Figure(reason="no row is labelled fail")
        return proportion(self.true_fail, self.fails, confidence=confidence)

    def accuracy(self, confidence: float = 0.95) -> Figure:
        """Return the fraction of rows on which the metric and the human agree.

        The interval is Wilson's score interval at ``confidence``.
        """
        agreed = self.true_pass + self.true_fail
        return proportion(agreed, self.passes + self.fails, confidence=confidence)

    def balanced_accuracy(self) -> Figure:
        """Return the mean of sensitivity and specificity, without an interval.

        A metric that passes all rows, or fails all rows, has 0.5.
        """
        for part in (self.sensitivity(), self.specificity()):
            if part.value is None:
                return part
        return Figure(value=(1 + youden(self)) / 2)


def youden(confusion: Confusion) -> float:
    """Return Youden's J of ``confusion``, which is ``sensitivity + specificity - 1``.

    There must be rows that the human passes and rows that the human fails.
    """
    return confusion.true_pass / confusion.passes + confusion.true_fail / confusion.fails - 1


def confusion_of(decisions: Truths, truths: Truths) -> Confusion:
    """Count the rows by the decision of the metric and the decision of the human.

    ``decisions`` is True for each row that the metric passes, ``truths`` for each row that the
    human passes.
    """
    return Confusion(
        true_pass=int(np.sum(decisions & truths)),
        false_pass=int(np.sum(decisions & ~truths)),
        true_fail=int(np.sum(~decisions & ~truths)),
        false_fail=int(np.sum(~decisions & truths)),
    )


def proportion(successes: int, n: int, *, confidence: float = 0.95) -> Figure:
    """Return ``successes / n`` as a `Figure` with Wilson's score interval (1927).

    If ``n`` is 0, the figure has no number, and its reason is "no rows".
    """
    if not n:
        return Figure(reason="no rows")
    return Figure(value=successes / n, interval=wilson(successes, n, confidence=confidence))


def wilson(successes: int, n: int, *, confidence: float = 0.95) -> Interval:
    """Return Wilson's score interval of the proportion ``successes / n``.

    The interval has no continuity correction.
    """
    z = NormalDist().inv_cdf((1 + confidence) / 2)
    share = successes / n
    centre = (share + z * z / (2 * n)) / (1 + z * z / n)
    half = z * math.sqrt(share * (1 - share) / n + (z / (2 * n)) ** 2) / (1 + z * z / n)
    low = 0.0 if successes == 0 else max(0.0, centre - half)
    high = 1.0 if successes == n else min(1.0, centre + half)
    return low, high


# --- rates ----------------------------------------------------------------------------------------

MIN_YOUDEN = 0.2
"""The lowest ``sensitivity + specificity - 1`` at which `corrected_rate` returns a rate."""


def corrected_rate(
    confusion: Confusion, *, passed: int, n: int, confidence: float = 0.95
) -> Figure:
    """Estimate the fraction of ``n`` unlabelled rows that a human would pass.

    The metric passes ``passed`` of the ``n`` rows, and makes errors. ``confusion`` counts the
    errors of the metric on other rows that have human labels, and the estimate corrects for these
    errors. The estimate of Rogan and Gladen (1978) is ``(p + q0 - 1) / (q0 + q1 - 1)``, clipped to
    [0, 1]. Here p is ``passed / n``, q0 is the specificity and q1 the sensitivity of the metric in
    ``confusion``.

    The interval includes the uncertainty of p, q0 and q1 (Lang and Reiczigel 2014; for judges Lee
    et al., arXiv 2511.21140, 2025). It is computed by the delta method on adjusted estimates. For
    the adjusted estimates, ``z**2`` rows are added to the ``n`` rows, and 2 rows to each class of
    the labelled rows. Half of the added rows count as passed or as right. The centre of the
    interval is shifted as these authors propose.

    The method assumes that labelled and unlabelled rows of a class are alike. The fraction of
    passes may differ. The labelled rows must not be among the ``n`` rows.

    If ``q0 + q1 - 1`` is below `MIN_YOUDEN`, with or without the added rows, the figure has no
    number but a reason.
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
    # Specificity and sensitivity after two rows are added to each class, one of them decided
    # rightly.
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

_STEPS = 60  # steps of bisection: the error is 2**-60 of the unit interval


def cohen_kappa(a: Numbers | Truths, b: Numbers | Truths, *, confidence: float = 0.95) -> Figure:
    """Return Cohen's kappa (1960) of ``a`` and ``b``, two ratings of the same rows.

    Each different number is a category. Kappa is ``(observed - expected) / (1 - expected)``, where
    ``observed`` is the fraction of rows with equal ratings and ``expected`` is the fraction
    expected by chance. Kappa is 1 for perfect agreement, 0 for agreement by chance, and -1 at the
    least. If both ratings are the same constant, kappa is undefined. The interval uses the standard
    error of Fleiss, Cohen and Everitt (1969).
    """
    first, second = np.asarray(a, dtype=float), np.asarray(b, dtype=float)
    return _kappa(first, second, np.sign, confidence=confidence)


def weighted_kappa(a: Numbers, b: Numbers, *, weights: Weights, confidence: float = 0.95) -> Figure:
    """Return Cohen's weighted kappa (1968) of ``a`` and ``b``, two ratings on one scale of numbers.

    Weighted kappa is ``1 - observed / expected``, where ``observed`` is the mean disagreement of
    the two ratings of a row and ``expected`` is the mean disagreement by chance. The disagreement
    is the difference of the two numbers (``linear``) or its square (``quadratic``). If the possible
    ratings are in equal steps, the result equals the result of scikit-learn. If both ratings are
    the same constant, kappa is undefined. The interval uses the standard error of Fleiss, Cohen and
    Everitt (1969).
    """
    return _kappa(a, b, _COSTS[weights], confidence=confidence)


_COSTS: dict[Weights, Cost] = {"linear": lambda distance: distance, "quadratic": np.square}


def _kappa(a: Numbers, b: Numbers, cost: Cost, *, confidence: float) -> Figure:
    # The standard error is that of Fleiss, Cohen and Everitt (1969), computed as a sum over rows.
    # The interval is computed on Fisher's scale, where it is accurate for fewer rows.
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
    """Return the confidence interval of ``value``, computed on Fisher's scale.

    ``error`` is the standard error of the inverse hyperbolic tangent of ``value``.
    """
    centre, half = math.atanh(value), NormalDist().inv_cdf((1 + confidence) / 2) * error
    return math.tanh(centre - half), math.tanh(centre + half)


def spearman(x: Numbers, y: Numbers, *, confidence: float = 0.95) -> Figure:
    """Return Spearman's rank correlation of ``x`` and ``y``, in [-1, 1].

    Equal values get the mean of their ranks. If ``x`` or ``y`` is constant, or if there are fewer
    than two rows, the correlation is undefined. The interval is that of Bonett and Wright
    (Psychometrika 65, 2000). There is no interval for fewer than four rows, or if the two orders
    are equal or opposite.
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
    """Return the ranks of ``values``, from 1. Equal values get the mean of their ranks."""
    _, codes, counts = np.unique(values, return_inverse=True, return_counts=True)
    return (np.cumsum(counts) - (counts - 1) / 2)[codes]


def auroc(scores: Numbers, truths: Truths, *, confidence: float = 0.95) -> Figure:
    """Return the area under the ROC curve of ``scores`` for the labels ``truths``.

    This is the probability that a row labelled pass has a higher score than a row labelled fail.
    Equal scores count one half (Mann-Whitney). The area is 1 for a perfect order and 0.5 for a
    random order.

    The interval is Newcombe's fifth (Statistics in Medicine 25, 2006). It uses the variance of
    Hanley and McNeil (1982) at the bound and not at the estimate, so that it also has a width if
    the area is 1. Equal scores make it slightly too wide. If all labels are the same, the area is
    undefined.
    """
    passes = int(np.sum(truths))
    fails = len(truths) - passes
    if not passes or not fails:
        return Figure(reason=one_class(truths))
    above = float(np.sum(_ranks(scores)[truths])) - passes * (passes + 1) / 2
    area = above / (passes * fails)
    return Figure(value=area, interval=_auroc_interval(area, passes, fails, confidence=confidence))


def one_class(truths: Truths) -> str:
    """Return a text that says why scores cannot be compared with the labels ``truths``.

    Either there are no rows, or all rows have the same label.
    """
    if not len(truths):
        return "no rows with both a score and a label"
    return f"all labels are {'pass' if truths[0] else 'fail'}; both are needed"


def _auroc_interval(area: float, passes: int, fails: int, *, confidence: float) -> Interval:
    z = NormalDist().inv_cdf((1 + confidence) / 2)
    half = (passes + fails) / 2 - 1

    def is_far(bound: float) -> bool:
        spread = 1 + half * (1 - bound) / (2 - bound) + half * bound / (1 + bound)
        variance = bound * (1 - bound) * spread / (passes * fails)
        return (area - bound) ** 2 > z * z * variance

    return _edge(0.0, area, is_far), _edge(1.0, area, is_far)


def _edge(outside: float, inside: float, is_far: Callable[[float], bool]) -> float:
    # Bisection: ``is_far`` may be True near ``outside`` and is False near ``inside``.
    if outside == inside or not is_far(outside):
        return outside
    for _ in range(_STEPS):
        middle = (outside + inside) / 2
        outside, inside = (middle, inside) if is_far(middle) else (outside, middle)
    return outside


# --- the threshold that fits ----------------------------------------------------------------------

_FOLDS = 5
_REPEATS = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class ThresholdFit:
    """The threshold of a metric that fits the human labels best.

    This threshold has the highest Youden's J, which is ``sensitivity + specificity - 1``.
    ``threshold`` is the lowest score that passes. It lies midway between two scores in the data. If
    several thresholds fit equally well, the highest is chosen, because passing a bad answer is the
    worse error.

    ``youden`` is J on the rows that the threshold was chosen on. This J is too optimistic.
    ``cross_validated`` is J on rows that the threshold was not chosen on. Expect this J on new
    rows.
    """

    threshold: Figure
    youden: Figure
    cross_validated: Figure

    def to_dict(self) -> dict[str, Any]:
        """Return the three figures as a dict for JSON."""
        names = ("threshold", "youden", "cross_validated")
        return {name: getattr(self, name).to_dict() for name in names}


def fit_threshold(scores: Numbers, truths: Truths, *, seed: int = 0) -> ThresholdFit:
    """Find the threshold of ``scores`` that separates passes from fails best.

    ``truths`` tells for each row whether the human passes it. The threshold is cross-validated: the
    rows are divided into 5 folds that contain both passes and fails, or into fewer folds if there
    are fewer than 5 passes or fails. The cross-validation is repeated with 10 random divisions, and
    the result is the mean. ``seed`` determines the divisions. If all labels are the same, or if no
    threshold is better than passing all rows, the threshold is undefined.
    """
    if np.all(truths) or not np.any(truths):
        none = Figure(reason=one_class(truths))
        return ThresholdFit(threshold=none, youden=none, cross_validated=none)
    chosen, best = _best(scores, truths)
    if best <= 0:
        none = Figure(reason="no threshold is better than passing all rows")
        return ThresholdFit(threshold=none, youden=Figure(value=0.0), cross_validated=none)
    return ThresholdFit(
        threshold=Figure(value=chosen),
        youden=Figure(value=best),
        cross_validated=_cross_validated(scores, truths, seed=seed),
    )


def _best(scores: Numbers, truths: Truths) -> tuple[float, float]:
    """Return the threshold with the highest Youden's J, and this J.

    The lowest score is a candidate too. It passes all rows.
    """
    levels, codes = np.unique(scores, return_inverse=True)
    passes, fails = (np.bincount(codes[part], minlength=len(levels)) for part in (truths, ~truths))
    lost, spared = (np.cumsum(c) - c for c in (passes, fails))  # rows with lower scores
    gain = spared * int(passes.sum()) - lost * int(fails.sum())  # in integers: equal J are equal
    at = int(len(gain) - 1 - np.argmax(gain[::-1]))
    return _midway(levels, at), float(gain[at] / (passes.sum() * fails.sum()))


def _midway(levels: Numbers, at: int) -> float:
    """Return a number above the level at ``at - 1`` and not above the level at ``at``."""
    upper = float(levels[at])
    if at == 0:
        return upper
    lower = float(levels[at - 1])
    middle = lower / 2 + upper / 2
    return middle if lower < middle <= upper else upper


def _cross_validated(scores: Numbers, truths: Truths, *, seed: int) -> Figure:
    smaller = int(min(np.sum(truths), np.sum(~truths)))
    if smaller < 2:  # noqa: PLR2004  # one row to choose the threshold, another to test it
        return Figure(reason="a class has one row only")
    draw = np.random.default_rng(seed)
    trials = [_trial(scores, truths, min(_FOLDS, smaller), draw) for _ in range(_REPEATS)]
    return Figure(value=float(np.mean([youden(trial) for trial in trials])))


def _trial(scores: Numbers, truths: Truths, folds: int, draw: np.random.Generator) -> Confusion:
    """Decide each row with a threshold chosen on the rows of the other folds.

    Return the counts of right and wrong decisions.
    """
    fold_of = np.empty(len(truths), dtype=int)
    for part in (truths, ~truths):
        fold_of[part] = draw.permutation(int(np.sum(part))) % folds
    decisions = np.empty(len(truths), dtype=bool)
    for fold in range(folds):
        held = fold_of == fold
        decisions[held] = scores[held] >= _best(scores[~held], truths[~held])[0]
    return confusion_of(decisions, truths)
