"""The threshold that fits the human labels best, with cross-validation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from rag_eval_otel.calibration.agreement import (
    Confusion,
    Figure,
    Numbers,
    Truths,
    confusion_of,
    one_class,
    youden,
)

FOLDS = 5
REPEATS = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class ThresholdFit:
    """The threshold with the highest Youden's J, ``sensitivity + specificity - 1``.

    ``threshold`` is the lowest score that passes, midway between two scores that occur. Of several
    that fit equally well it is the highest, because passing a bad answer is the worse error.
    ``youden`` is its J on the same rows, which is too optimistic. ``cross_validated`` is the J on
    rows that the threshold was not chosen on: the one to expect.
    """

    threshold: Figure
    youden: Figure
    cross_validated: Figure

    def to_dict(self) -> dict[str, Any]:
        """Return the figures for JSON."""
        names = ("threshold", "youden", "cross_validated")
        return {name: getattr(self, name).to_dict() for name in names}


def fit_threshold(scores: Numbers, truths: Truths, *, seed: int = 0) -> ThresholdFit:
    """Return the threshold that separates passes from fails best.

    Cross-validation: 5 folds (fewer where a class has fewer rows) with both classes in each, the
    mean of 10 divisions drawn from ``seed``. No threshold if all labels are the same, or if none is
    better than passing all rows.
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
    """Return the best threshold and its J; the lowest score, which passes all rows, is one too."""
    levels, codes = np.unique(scores, return_inverse=True)
    passes, fails = (np.bincount(codes[part], minlength=len(levels)) for part in (truths, ~truths))
    lost, spared = (np.cumsum(c) - c for c in (passes, fails))  # in the levels below each level
    gain = spared * int(passes.sum()) - lost * int(fails.sum())  # J in whole numbers: ties are ties
    at = int(len(gain) - 1 - np.argmax(gain[::-1]))
    return _midway(levels, at), float(gain[at] / (passes.sum() * fails.sum()))


def _midway(levels: Numbers, at: int) -> float:
    """Return a number above the level before ``at`` and not above ``at``."""
    upper = float(levels[at])
    if at == 0:
        return upper
    lower = float(levels[at - 1])
    middle = lower / 2 + upper / 2
    return middle if lower < middle <= upper else upper


def _cross_validated(scores: Numbers, truths: Truths, *, seed: int) -> Figure:
    smaller = int(min(np.sum(truths), np.sum(~truths)))
    if smaller < 2:  # noqa: PLR2004  # one is needed to choose on, another to try on
        return Figure(reason="a class has one row only")
    draw = np.random.default_rng(seed)
    trials = [_trial(scores, truths, min(FOLDS, smaller), draw) for _ in range(REPEATS)]
    return Figure(value=float(np.mean([youden(trial) for trial in trials])))


def _trial(scores: Numbers, truths: Truths, folds: int, draw: np.random.Generator) -> Confusion:
    """Return the confusion of all folds, each with the threshold chosen on the other folds."""
    fold_of = np.empty(len(truths), dtype=int)
    for part in (truths, ~truths):
        fold_of[part] = draw.permutation(int(np.sum(part))) % folds
    decisions = np.empty(len(truths), dtype=bool)
    for fold in range(folds):
        held = fold_of == fold
        decisions[held] = scores[held] >= _best(scores[~held], truths[~held])[0]
    return confusion_of(decisions, truths)
