"""The label of the metric against the human one: counts, sensitivity and specificity."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from rag_eval_otel.calibration.figure import Figure, Interval, Truths, known, unknown


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
