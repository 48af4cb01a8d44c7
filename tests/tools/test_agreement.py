"""Kappa, shares and the threshold: peers, and laws."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rag_eval_otel.tools.calibrate import Confusion, Figure, confusion_of, fit_threshold, wilson


def close(figure: Figure, expected: float | None) -> bool:
    if expected is None or figure.value is None:
        return figure.value is expected
    return math.isclose(figure.value, expected, abs_tol=1e-12)


def counts(true_pass: int, false_pass: int, true_fail: int, false_fail: int) -> Confusion:
    return Confusion(
        true_pass=true_pass, false_pass=false_pass, true_fail=true_fail, false_fail=false_fail
    )


def youden(confusion: Confusion) -> float:
    return (confusion.sensitivity.value or 0.0) + (confusion.specificity.value or 0.0) - 1


@pytest.mark.parametrize("digits", [1, 6])
@pytest.mark.parametrize("n", [7, 20, 100])
def test_figures_of_labelled_scores_are_those_of_peers(digits: int, n: int) -> None:
    """Counts of numpy, and the best of all thresholds."""
    draw = np.random.default_rng(n)
    truths = np.arange(n) < n // 3 + 1
    scores = np.clip(draw.normal(0.4 + 0.2 * truths, 0.25), 0, 1).round(digits)
    confusion = confusion_of(scores >= 0.5, truths)
    assert (confusion.passes, confusion.fails) == (truths.sum(), (~truths).sum())
    assert close(confusion.accuracy, float(np.mean((scores >= 0.5) == truths)))
    best = max(youden(confusion_of(scores >= level, truths)) for level in scores)
    assert fit_threshold(scores, truths)[1].value == pytest.approx(best, abs=1e-12)


@pytest.mark.parametrize(
    ("figure", "reason"),
    [
        (counts(0, 0, 0, 0).kappa, "no rows"),
        (counts(9, 0, 0, 0).kappa, "are pass"),
        (counts(0, 1, 5, 0).sensitivity, "pass"),
    ],
)
def test_degenerate_sample_gives_a_reason(figure: Figure, reason: str) -> None:
    """There is no number, but the reason why."""
    assert figure.value is None
    assert reason in figure.reason


def test_kappa_is_that_of_statsmodels() -> None:
    """Of statsmodels 0.15 for the same table; 1 for perfect agreement."""
    assert close(counts(126, 15, 39, 16).kappa, 0.6060684647302904)
    assert counts(3, 0, 2, 0).kappa == Figure(value=1.0)


@pytest.mark.parametrize(
    ("k", "n", "interval"),
    [
        (0, 5, (0.0, 0.43448246478317476)),
        (5, 5, (0.5655175352168251, 1.0)),
        (3, 9, (0.12058381838691096, 0.6457978644196036)),
        (81, 100, (0.7222115462093562, 0.8748524849023126)),
    ],
)
def test_wilson_interval_is_that_of_scipy(k: int, n: int, interval: tuple[float, float]) -> None:
    """Of ``binomtest`` of scipy 1.17; at both ends, too."""
    assert wilson(k, n) == pytest.approx(interval, abs=1e-9)


SCORES = st.one_of(st.sampled_from([0.0, 0.5, 1.0]), st.floats(0, 1), st.floats(-1e300, 1e300))


def fitted(pairs: list[tuple[float, bool]]) -> tuple[Figure, Figure]:
    return fit_threshold(
        np.array([score for score, _ in pairs]), np.array([label for _, label in pairs], dtype=bool)
    )


@given(st.lists(st.tuples(SCORES, st.booleans()), max_size=30))
def test_threshold_has_the_stated_youden(pairs: list[tuple[float, bool]]) -> None:
    """On the rows it was chosen on."""
    threshold, stated = fitted(pairs)
    if threshold.value is None:
        assert threshold.reason
    else:
        scores, truths = np.array(pairs, dtype=float).T
        found = youden(confusion_of(scores >= threshold.value, truths > 0))
        assert stated.value == pytest.approx(found, abs=1e-12)


@pytest.mark.parametrize(
    ("pairs", "threshold"),
    [
        ([(0.1, False), (0.2, False), (0.6, True), (0.9, True)], 0.4),  # midway
        ([(0.1, False), (0.3, True), (0.3, False), (0.7, True)], 0.5),  # the strictest of equals
        ([(0.1, False), (0.5, True), (0.6, True)], 0.3),
        ([], "no rows"),
        ([(0.5, True)], "all labels are pass"),
        ([(0.5, False), (0.1, False)], "all labels are fail"),
        ([(0.5, True), (0.5, False)], "no threshold is better"),
    ],
)
def test_a_threshold_lies_midway(pairs: list[tuple[float, bool]], threshold: object) -> None:
    """Between two scores; one class, equal scores or a reversed judge have none."""
    found, _ = fitted(pairs)
    if isinstance(threshold, str):
        assert found.value is None
        assert threshold in found.reason
    else:
        assert found.value == pytest.approx(threshold)
