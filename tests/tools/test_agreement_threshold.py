"""The threshold that fits, and its quality on other rows."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rag_eval_otel.tools.agreement import confusion_of, fit_threshold

PEERS = json.loads(Path(__file__).with_name("peers.json").read_text(encoding="utf-8"))
SCORES = st.one_of(st.sampled_from([0.0, 0.5, 1.0]), st.floats(0, 1), st.floats(-1e300, 1e300))
LABELLED = st.lists(st.tuples(SCORES, st.booleans()), max_size=30)


def fitted(pairs: list[tuple[float, bool]]) -> Any:
    """Return the fit to ``pairs`` of score and label."""
    return fit_threshold(
        np.array([score for score, _ in pairs]), np.array([label for _, label in pairs], dtype=bool)
    )


@pytest.mark.parametrize("case", PEERS["labelled"])
def test_no_threshold_is_better(case: dict[str, Any]) -> None:
    """Youden's J is the best on scikit-learn's ROC curve."""
    scores, truths = np.array(case["scores"]), np.array(case["labels"], dtype=bool)
    found = fit_threshold(scores, truths)
    assert found.youden.value == pytest.approx(case["youden"], abs=1e-12)


@given(LABELLED)
def test_threshold_has_the_stated_youden(pairs: list[tuple[float, bool]]) -> None:
    """On the rows it was chosen on."""
    found = fitted(pairs)
    if found.threshold.value is None:
        assert found.threshold.reason
    else:
        scores, truths = np.array(pairs, dtype=float).T
        counts = confusion_of(scores >= found.threshold.value, truths > 0)
        assert found.youden.value == pytest.approx(counts.youden, abs=1e-12)
        assert found.cross_validated.value is None or -1 <= found.cross_validated.value <= 1


def test_threshold_lies_midway() -> None:
    """It is halfway between the highest fail and the lowest pass."""
    found = fitted([(0.1, False), (0.2, False), (0.6, True), (0.9, True)])
    assert found.threshold.value == pytest.approx(0.4)
    assert found.youden.value == 1.0
    assert found.cross_validated.value == 1.0


def test_strictest_of_equal_thresholds_is_chosen() -> None:
    """A threshold of .3 would gain one pass and cost one fail."""
    found = fitted([(0.1, False), (0.3, True), (0.3, False), (0.7, True)])
    assert found.threshold.value == 0.5


def test_youden_on_the_same_rows_is_too_optimistic() -> None:
    """For random scores the best J is above 0, and the cross-validated one is not."""
    draw = np.random.default_rng(3)
    fits = [fit_threshold(draw.random(40), np.arange(40) < 20) for _ in range(40)]
    told = [fit.youden.value for fit in fits if fit.youden.value is not None]
    kept = [fit.cross_validated.value for fit in fits if fit.cross_validated.value is not None]
    assert sum(told) / len(told) > 0.15
    assert abs(sum(kept) / len(kept)) < 0.1


@pytest.mark.parametrize(
    ("pairs", "reason"),
    [
        ([], "no rows"),
        ([(0.5, True)], "all labels are pass"),
        ([(0.5, False), (0.1, False)], "all labels are fail"),
        ([(0.5, True), (0.5, False)], "no threshold is better"),
        ([(0.1, True), (0.5, False)], "no threshold is better"),
    ],
)
def test_useless_threshold_has_a_reason(pairs: list[tuple[float, bool]], reason: str) -> None:
    """One class, equal scores or a reversed judge have none."""
    found = fitted(pairs)
    assert found.threshold.value is None
    assert reason in found.threshold.reason
    assert found.cross_validated.value is None


def test_single_row_of_a_class_prevents_cross_validation() -> None:
    """A threshold is chosen with a single fail, but not tried on others."""
    found = fitted([(0.1, False), (0.5, True), (0.6, True)])
    assert found.threshold.value == pytest.approx(0.3)
    assert found.cross_validated.reason == "a class has one row only"
