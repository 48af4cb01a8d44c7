"""Find the threshold of a metric that fits human labels best, and cross-validate it."""

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
    trials = [_trial(scores, truths, min(FOLDS, smaller), draw) for _ in range(REPEATS)]
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
