"""Pass and fail against the human's, and the pass rate corrected for the judge's errors."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rag_eval_otel.calibration.agreement import (
    MIN_YOUDEN,
    Confusion,
    confusion_of,
    corrected_rate,
    proportion,
    wilson,
    youden,
)

PEERS = json.loads(Path(__file__).with_name("peers.json").read_text(encoding="utf-8"))
COUNTS = st.integers(0, 60)
CONFUSIONS = st.builds(
    Confusion, true_pass=COUNTS, false_pass=COUNTS, true_fail=COUNTS, false_fail=COUNTS
)


@pytest.mark.parametrize("case", PEERS["labelled"])
def test_the_counts_are_those_of_the_peers(case: dict[str, Any]) -> None:
    """Confusion, accuracy and balanced accuracy are scikit-learn's."""
    found = confusion_of(np.array(case["scores"]) >= 0.5, np.array(case["labels"], dtype=bool))
    [[true_fail, false_pass], [false_fail, true_pass]] = case["confusion"]
    assert found == counts(true_pass, false_pass, true_fail, false_fail)
    assert found.accuracy().value == pytest.approx(case["accuracy"], abs=1e-12)
    assert found.balanced_accuracy().value == pytest.approx(case["balanced_accuracy"], abs=1e-12)


@pytest.mark.parametrize("case", PEERS["wilson"])
def test_the_interval_of_a_share_is_wilsons(case: dict[str, Any]) -> None:
    """The interval is scipy's."""
    found = wilson(case["k"], case["n"], confidence=case["confidence"])
    assert found == pytest.approx((case["low"], case["high"]), abs=1e-9)


@given(st.integers(0, 50), st.integers(0, 50))
def test_the_interval_of_a_share_holds_it(successes: int, failures: int) -> None:
    """The interval lies in [0, 1] and around the share; of no rows there is neither."""
    found = proportion(successes, successes + failures)
    if found.value is None:
        assert found.reason == "no rows"
    else:
        low, high = found.interval or (1, 0)
        assert 0 <= low <= found.value <= high <= 1


@given(CONFUSIONS)
def test_shares_of_an_empty_class_are_no_numbers(found: Confusion) -> None:
    """Sensitivity needs a pass, specificity a fail, balanced accuracy both."""
    assert (found.sensitivity().value is None) == (found.passes == 0)
    assert (found.specificity().value is None) == (found.fails == 0)
    missing = 0 in {found.passes, found.fails}
    assert (found.balanced_accuracy().value is None) == missing


# --- the corrected rate ---------------------------------------------------------------------------


def counts(true_pass: int, false_pass: int, true_fail: int, false_fail: int) -> Confusion:
    """Return a confusion, row by row as it is printed."""
    return Confusion(
        true_pass=true_pass, false_pass=false_pass, true_fail=true_fail, false_fail=false_fail
    )


GOOD = counts(90, 30, 70, 10)  # sensitivity .9, specificity .7


def test_the_rate_is_corrected_as_rogan_and_gladen_do() -> None:
    """Sensitivity .9, specificity .7 and 60 % passed: (.6 + .7 - 1) / (.7 + .9 - 1)."""
    found = corrected_rate(GOOD, passed=600, n=1000)
    assert found.value == pytest.approx(0.5, abs=1e-12)


def test_the_interval_is_that_of_lee_and_others() -> None:
    """Worked by hand from the published formula: rows added, centre shifted, delta method."""
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
def test_the_corrected_rate_is_a_rate_or_refused(
    confusion: Confusion, passed: int, rest: int
) -> None:
    """Whatever was counted, the rate and its interval lie in [0, 1], or there is a reason."""
    found = corrected_rate(confusion, passed=passed, n=passed + rest)
    if found.value is None:
        assert found.reason
    else:
        low, high = found.interval or (1, 0)
        assert 0 <= low <= found.value <= high <= 1
        assert youden(confusion) >= MIN_YOUDEN


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
def test_a_rate_that_cannot_be_corrected_is_refused(
    confusion: Confusion, n: int, reason: str
) -> None:
    """Without rows, without a class, or with a judge that is too weak, there is no number."""
    found = corrected_rate(confusion, passed=n // 2, n=n)
    assert found.value is None
    assert reason in found.reason


@pytest.mark.parametrize("rate", [0.05, 0.5, 0.8])
@pytest.mark.parametrize(("q0", "q1"), [(0.7, 0.9), (0.95, 0.8)])
@pytest.mark.parametrize(("n", "labelled"), [(1000, 200), (150, 60)])
def test_the_interval_covers_the_true_rate(
    rate: float, q0: float, q1: float, n: int, labelled: int
) -> None:
    """Of 600 simulated calibrations, 95 % intervals hold the true rate in at least 93 %."""
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
