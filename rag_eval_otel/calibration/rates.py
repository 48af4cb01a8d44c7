"""The true pass rate behind a judge that errs: Rogan-Gladen's correction, with its interval."""

from __future__ import annotations

import math
from statistics import NormalDist

from rag_eval_otel.calibration.confusion import Confusion, youden
from rag_eval_otel.calibration.figure import Figure, Interval, known, unknown

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
