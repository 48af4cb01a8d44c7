"""Kappa, Spearman, AUROC, shares and the corrected rate: values of peers, and laws."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rag_eval_otel.tools.agreement import (
    MIN_YOUDEN,
    Confusion,
    Figure,
    auroc,
    confusion_of,
    corrected_rate,
    spearman,
    wilson,
)

PEERS = json.loads(Path(__file__).with_name("peers.json").read_text(encoding="utf-8"))
NUMBERS = st.integers(-1000, 1000).map(lambda n: n / 8)


def columns(pairs: list[tuple[Any, Any]], second: type = float) -> tuple[Any, Any]:
    """Return the two columns of ``pairs`` as arrays."""
    first, other = zip(*pairs, strict=True)
    return np.array(first, dtype=float), np.array(other, dtype=second)


def close(figure: Figure, expected: float | None) -> bool:
    """Return True if ``figure`` is ``expected`` to 1e-12."""
    if expected is None or figure.value is None:
        return figure.value is expected
    return math.isclose(figure.value, expected, abs_tol=1e-12)


@pytest.mark.parametrize("case", PEERS["ratings"])
def test_spearman_is_that_of_scipy(case: dict[str, Any]) -> None:
    """Equal ratings included; exchanging the ratings changes nothing."""
    a, b = np.array(case["a"], dtype=float), np.array(case["b"], dtype=float)
    assert close(spearman(a, b), case["spearman"])
    assert close(spearman(b, a), case["spearman"])
    assert close(spearman(a, a), 1.0)


@pytest.mark.parametrize("case", PEERS["labelled"])
def test_auroc_is_that_of_scikit_learn(case: dict[str, Any]) -> None:
    """Equal scores included."""
    scores, truths = np.array(case["scores"]), np.array(case["labels"], dtype=bool)
    assert close(auroc(scores, truths), case["auroc"])
    assert close(spearman(scores, truths.astype(float)), case["spearman"])


@pytest.mark.parametrize(("shift", "area"), [(0.0, 0.5), (1.0, 0.760250), (2.0, 0.921350)])
def test_interval_of_auroc_covers_the_true_area(shift: float, area: float) -> None:
    """About 95 % of 400 intervals from two normal classes contain the true area."""
    draw = np.random.default_rng(1)
    truths = np.arange(60) < 25
    hits = 0
    for _ in range(400):
        low, high = auroc(draw.normal(shift * truths, 1), truths).interval or (1, 0)
        hits += low <= area <= high
    assert hits >= 372  # 93 %


SAME = np.array([0.5, 0.5, 0.5])
RISING = np.array([0.1, 0.2, 0.3])


@pytest.mark.parametrize(
    ("figure", "reason"),
    [
        (Confusion(true_pass=0, false_pass=0, true_fail=0, false_fail=0).kappa, "no rows"),
        (Confusion(true_pass=9, false_pass=0, true_fail=0, false_fail=0).kappa, "are pass"),
        (Confusion(true_pass=9, false_pass=0, true_fail=0, false_fail=0).specificity, "fail"),
        (Confusion(true_pass=0, false_pass=1, true_fail=5, false_fail=0).sensitivity, "pass"),
        (spearman(SAME[:1], SAME[:1]), "fewer than two rows"),
        (spearman(SAME, RISING), "scores are all the same"),
        (spearman(RISING, SAME), "labels are all the same"),
        (auroc(SAME[:0], SAME[:0] > 0), "no rows"),
        (auroc(RISING, SAME > 0), "all labels are pass"),
        (auroc(RISING, SAME > 1), "all labels are fail"),
    ],
)
def test_degenerate_sample_gives_a_reason(figure: Figure, reason: str) -> None:
    """There is no number, but the reason why."""
    assert figure.value is None
    assert reason in figure.reason


# --- intervals ------------------------------------------------------------------------------------


def test_kappa_and_its_standard_error_are_those_of_statsmodels() -> None:
    """Of statsmodels 0.15 for the same table; the interval is on Fisher's scale."""
    estimate, error = 0.6060684647302904, 0.0637226134880012
    found = counts(126, 15, 39, 16).kappa
    assert close(found, estimate)
    assert found.interval is not None
    widths = [math.atanh(bound) - math.atanh(estimate) for bound in found.interval]
    half = 1.959963984540054 * error / (1 - estimate**2)
    assert widths == pytest.approx([-half, half])


@pytest.mark.slow
def test_intervals_cover_the_true_correlation() -> None:
    """About 95 % of intervals from 40 rows contain the correlation of a million rows."""
    draw = np.random.default_rng(0)

    def rated(n: int) -> tuple[Any, Any]:
        """Return two ratings from 1 to 5 of ``n`` rows that have something in common."""
        common = draw.normal(size=n)
        first, second = (np.clip(np.round(3 + common + draw.normal(size=n)), 1, 5) for _ in "ab")
        return first, second

    truth = spearman(*rated(1_000_000)).value
    intervals = [spearman(*rated(40)).interval for _ in range(1000)]
    assert 920 <= sum(low <= truth <= high for low, high in filter(None, intervals)) <= 980


def test_perfect_agreement_and_few_rows_have_no_interval() -> None:
    """The formula would give an interval of width 0, or divide by zero."""
    a = np.array([1.0, 2.0, 3.0, 3.0])
    assert counts(3, 0, 2, 0).kappa == Figure(value=1.0)
    assert spearman(a, a).interval is None
    assert spearman(a[:3], np.array([1.0, 3.0, 2.0])).interval is None


# --- shares and rates -----------------------------------------------------------------------------

COUNTS = st.integers(0, 60)
CONFUSIONS = st.builds(
    Confusion, true_pass=COUNTS, false_pass=COUNTS, true_fail=COUNTS, false_fail=COUNTS
)


@pytest.mark.parametrize("case", PEERS["labelled"])
def test_confusion_is_that_of_scikit_learn(case: dict[str, Any]) -> None:
    """Confusion, accuracy and kappa are scikit-learn's."""
    found = confusion_of(np.array(case["scores"]) >= 0.5, np.array(case["labels"], dtype=bool))
    [[true_fail, false_pass], [false_fail, true_pass]] = case["confusion"]
    assert found == counts(true_pass, false_pass, true_fail, false_fail)
    assert close(found.accuracy, case["accuracy"])
    assert close(found.kappa, case["kappa"])


@pytest.mark.parametrize("case", PEERS["wilson"])
def test_wilson_interval_is_that_of_scipy(case: dict[str, Any]) -> None:
    """The interval is scipy's."""
    assert wilson(case["k"], case["n"]) == pytest.approx((case["low"], case["high"]), abs=1e-9)


# --- the corrected rate ---------------------------------------------------------------------------


def counts(true_pass: int, false_pass: int, true_fail: int, false_fail: int) -> Confusion:
    """Return a confusion from its counts."""
    return Confusion(
        true_pass=true_pass, false_pass=false_pass, true_fail=true_fail, false_fail=false_fail
    )


GOOD = counts(90, 30, 70, 10)  # sensitivity .9, specificity .7


def test_corrected_rate_is_that_of_rogan_and_gladen() -> None:
    """Sensitivity .9, specificity .7 and 60 % passed: (.6 + .7 - 1) / (.7 + .9 - 1)."""
    found = corrected_rate(GOOD, passed=600, n=1000)
    assert found.value == pytest.approx(0.5, abs=1e-12)


def test_interval_of_the_corrected_rate_is_that_of_lee() -> None:
    """Computed by hand from the published formula: rows added, centre shifted, delta method."""
    z = 1.959963984540054
    n, m0, m1 = 1000 + z**2, 102, 102
    p, q0, q1 = (600 + z**2 / 2) / n, 71 / m0, 91 / m1
    rate = (p + q0 - 1) / (q0 + q1 - 1)
    shift = 2 * z**2 * (-(1 - rate) * q0 * (1 - q0) / m0 + rate * q1 * (1 - q1) / m1)
    variance = p * (1 - p) / n + (1 - rate) ** 2 * q0 * (1 - q0) / m0 + rate**2 * q1 * (1 - q1) / m1
    half = z * math.sqrt(variance) / (q0 + q1 - 1)
    found = corrected_rate(GOOD, passed=600, n=1000)
    assert found.interval == pytest.approx((rate + shift - half, rate + shift + half), abs=1e-12)


@given(CONFUSIONS, st.integers(0, 300), st.integers(0, 300))
def test_corrected_rate_is_a_rate_or_refused(confusion: Confusion, passed: int, rest: int) -> None:
    """For any counts, the rate and its interval lie in [0, 1], or there is a reason."""
    found = corrected_rate(confusion, passed=passed, n=passed + rest)
    if found.value is None:
        assert found.reason
    else:
        low, high = found.interval or (1, 0)
        assert 0 <= low <= found.value <= high <= 1
        assert confusion.youden >= MIN_YOUDEN


@pytest.mark.parametrize(
    ("confusion", "n", "reason"),
    [
        (GOOD, 0, "no rows without a label"),
        (
            Confusion(true_pass=9, false_pass=0, true_fail=0, false_fail=1),
            10,
            "no row is labelled fail",
        ),
        (
            Confusion(true_pass=0, false_pass=1, true_fail=9, false_fail=0),
            10,
            "no row is labelled pass",
        ),
        (Confusion(true_pass=59, false_pass=40, true_fail=60, false_fail=41), 10, "too weak"),
        (Confusion(true_pass=10, false_pass=90, true_fail=10, false_fail=90), 10, "too weak"),
        (Confusion(true_pass=2, false_pass=0, true_fail=1, false_fail=6), 10, "too few"),
    ],
)
def test_rate_that_cannot_be_corrected_is_refused(
    confusion: Confusion, n: int, reason: str
) -> None:
    """No rows, an empty class and a weak judge give a reason."""
    found = corrected_rate(confusion, passed=n // 2, n=n)
    assert found.value is None
    assert reason in found.reason


@pytest.mark.parametrize("rate", [0.05, 0.5, 0.8])
@pytest.mark.parametrize(("q0", "q1"), [(0.7, 0.9), (0.95, 0.8)])
@pytest.mark.parametrize(("n", "labelled"), [(1000, 200), (150, 60)])
def test_interval_covers_the_true_rate(
    rate: float, q0: float, q1: float, n: int, labelled: int
) -> None:
    """At least 93 % of 600 simulated intervals contain the true rate."""
    draw = np.random.default_rng(7)
    hits = refused = 0
    for _ in range(600):
        passes = int(draw.binomial(labelled - 20, 0.5)) + 10
        passed = int(draw.binomial(n, rate * q1 + (1 - rate) * (1 - q0)))
        true_pass, true_fail = draw.binomial([passes, labelled - passes], [q1, q0])
        false = (labelled - passes - int(true_fail), passes - int(true_pass))
        found = corrected_rate(
            counts(int(true_pass), false[0], int(true_fail), false[1]), passed=passed, n=n
        )
        low, high = found.interval or (1, 0)
        refused += found.value is None
        hits += low <= rate <= high
    assert hits >= 0.93 * (600 - refused)
    assert refused <= 3
