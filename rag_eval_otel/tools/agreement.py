"""Compute the agreement of a metric with human labels on the same rows, with 95 % intervals."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from rag_eval_otel.tools.stats import Numbers, Range, unit_interval

Truths: TypeAlias = NDArray[np.bool_]

Z: Final = 1.959963984540054
"""The quantile of the normal distribution for a 95 % interval."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """A statistic with its 95 % interval, or no ``value`` and the ``reason`` why there is none."""

    value: float | None = None
    interval: Range | None = None
    reason: str = ""

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
    """A confusion matrix. ``false_pass`` counts rows that the metric passes and the human fails."""

    true_pass: int
    false_pass: int
    true_fail: int
    false_fail: int

    @property
    def passes(self) -> int:
        return self.true_pass + self.false_fail

    @property
    def fails(self) -> int:
        return self.true_fail + self.false_pass

    @property
    def sensitivity(self) -> Figure:
        return proportion(self.true_pass, self.passes, none="no row is labelled pass")

    @property
    def specificity(self) -> Figure:
        return proportion(self.true_fail, self.fails, none="no row is labelled fail")

    @property
    def accuracy(self) -> Figure:
        return proportion(self.true_pass + self.true_fail, self.passes + self.fails)

    @property
    def kappa(self) -> Figure:
        """Cohen's kappa of the metric and the human, with a 95 % interval.

        The standard error is that of Fleiss, Cohen and Everitt (1969). The interval is computed on
        Fisher's scale, arctanh(kappa), so that it ends between -1 and 1.
        """
        if not (self.passes and self.fails):
            return Figure(reason=_one_class(self.passes, self.fails))
        cells = [[self.true_pass, self.false_fail], [self.false_pass, self.true_fail]]
        shares = np.array(cells) / (self.passes + self.fails)
        human, metric = shares.sum(axis=1), shares.sum(axis=0)
        chance = float(human @ metric)
        kappa = (float(np.trace(shares)) - chance) / (1 - chance)
        if abs(kappa) >= 1:
            return Figure(value=kappa)
        pulls = np.eye(2) - np.add.outer(metric, human) * (1 - kappa)
        spread = float(np.sum(shares * pulls**2)) - (kappa - chance * (1 - kappa)) ** 2
        error = math.sqrt(max(0.0, spread) / (self.passes + self.fails)) / (1 - chance)
        return Figure(value=kappa, interval=_on_fishers_scale(kappa, error / (1 - kappa**2)))


def confusion_of(decisions: Truths, truths: Truths) -> Confusion:
    return Confusion(
        true_pass=int(np.sum(decisions & truths)),
        false_pass=int(np.sum(decisions & ~truths)),
        true_fail=int(np.sum(~decisions & ~truths)),
        false_fail=int(np.sum(~decisions & truths)),
    )


def proportion(successes: int, n: int, *, none: str = "no rows") -> Figure:
    if not n:
        return Figure(reason=none)
    return Figure(value=successes / n, interval=wilson(successes, n))


def wilson(successes: int, n: int) -> Range:
    """Return Wilson's 95 % score interval (1927) of the proportion ``successes / n``."""
    low, high = unit_interval(successes / n, 0.0, quantile=Z, effective=n)
    return low if successes else 0.0, high if successes < n else 1.0


_BOUNDS = 100_001  # on the unit interval, of which those of an interval are taken


def _on_fishers_scale(value: float, error: float) -> Range:
    centre, half = math.atanh(value), Z * error
    return math.tanh(centre - half), math.tanh(centre + half)


def spearman(x: Numbers, y: Numbers) -> Figure:
    """Return Spearman's rank correlation, with the interval of Bonett and Wright (2000)."""
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
    return Figure(value=rho, interval=_on_fishers_scale(rho, error))


def _ranks(values: Numbers) -> Numbers:
    """Return the ranks of ``values``, from 1. Equal values get the mean of their ranks."""
    _, codes, counts = np.unique(values, return_inverse=True, return_counts=True)
    return (np.cumsum(counts) - (counts - 1) / 2)[codes]


def auroc(scores: Numbers, truths: Truths) -> Figure:
    """Return the area under the ROC curve; equal scores count one half (Mann-Whitney).

    The interval is Newcombe's fifth (2006), with the variance of Hanley and McNeil (1982) at the
    bound and not at the estimate, so that it also has a width if the area is 1.
    """
    passes = int(np.sum(truths))
    fails = len(truths) - passes
    if not passes or not fails:
        return Figure(reason=_one_class(passes, fails))
    above = float(np.sum(_ranks(scores)[truths])) - passes * (passes + 1) / 2
    area = above / (passes * fails)
    half = (passes + fails) / 2 - 1

    bounds = np.linspace(0, 1, _BOUNDS)
    spread = 1 + half * (1 - bounds) / (2 - bounds) + half * bounds / (1 + bounds)
    variance = bounds * (1 - bounds) * spread / (passes * fails)
    near = bounds[(area - bounds) ** 2 <= Z * Z * variance]
    return Figure(
        value=area,
        interval=(min(area, float(near.min(initial=1.0))), max(area, float(near.max(initial=0.0)))),
    )


def _one_class(passes: int, fails: int) -> str:
    if not (passes or fails):
        return "no rows with both a score and a label"
    return f"all labels are {'pass' if passes else 'fail'}; both are needed"


def fit_threshold(scores: Numbers, truths: Truths) -> tuple[Figure, Figure]:
    """Return the threshold whose passes agree best with ``truths``, and its Youden's J."""
    passes = int(np.sum(truths))
    fails = len(truths) - passes
    if not passes or not fails:
        none = Figure(reason=_one_class(passes, fails))
        return none, none
    chosen, best = _best(scores, truths)
    if best <= 0:
        return Figure(reason="no threshold is better than passing all rows"), Figure(value=0.0)
    return Figure(value=chosen), Figure(value=best)


def _best(scores: Numbers, truths: Truths) -> tuple[float, float]:
    """Return the threshold with the highest Youden's J, midway between two scores, and this J."""
    levels, codes = np.unique(scores, return_inverse=True)
    passes, fails = (np.bincount(codes[part], minlength=len(levels)) for part in (truths, ~truths))
    lost, spared = (np.cumsum(c) - c for c in (passes, fails))  # rows with lower scores
    gain = spared * int(passes.sum()) - lost * int(fails.sum())  # in integers: equal J are equal
    at = int(len(gain) - 1 - np.argmax(gain[::-1]))
    lower, upper = (float(levels[max(0, i)]) for i in (at - 1, at))
    middle = lower / 2 + upper / 2
    threshold = middle if lower < middle <= upper else upper
    return threshold, float(gain[at] / (passes.sum() * fails.sum()))
