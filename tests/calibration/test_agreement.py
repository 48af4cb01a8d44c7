"""Kappa, weighted kappa, Spearman and AUROC, against scipy and scikit-learn and by their laws."""

import json
import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rag_eval_otel.calibration.agreement import (
    Figure,
    Weights,
    auroc,
    cohen_kappa,
    spearman,
    weighted_kappa,
)

PEERS = json.loads(Path(__file__).with_name("peers.json").read_text(encoding="utf-8"))

RATINGS = st.lists(st.tuples(st.integers(1, 5), st.integers(1, 5)), min_size=1, max_size=40)
NUMBERS = st.integers(-1000, 1000).map(lambda n: n / 8)
LABELLED = st.lists(st.tuples(NUMBERS, st.booleans()), min_size=1, max_size=40)


def columns(pairs: list[tuple[Any, Any]], second: type = float) -> tuple[Any, Any]:
    """Return the two columns of ``pairs`` as arrays."""
    first, other = zip(*pairs, strict=True)
    return np.array(first, dtype=float), np.array(other, dtype=second)


def close(figure: Figure, expected: float | None) -> bool:
    """Tell whether ``figure`` is ``expected`` to 1e-12."""
    if expected is None or figure.value is None:
        return figure.value is expected
    return math.isclose(figure.value, expected, abs_tol=1e-12)


@pytest.mark.parametrize("case", PEERS["ratings"])
def test_ratings_agree_as_the_peers_say(case: dict[str, Any]) -> None:
    """The kappas are scikit-learn's, Spearman's correlation is scipy's, ties included."""
    a, b = np.array(case["a"], dtype=float), np.array(case["b"], dtype=float)
    assert close(cohen_kappa(a, b), case["kappa"])
    assert close(weighted_kappa(a, b, weights="linear"), case["linear"])
    assert close(weighted_kappa(a, b, weights="quadratic"), case["quadratic"])
    assert close(spearman(a, b), case["spearman"])


@pytest.mark.parametrize("case", PEERS["labelled"])
def test_an_order_is_as_good_as_the_peers_say(case: dict[str, Any]) -> None:
    """AUROC is scikit-learn's, with equal scores too."""
    scores, truths = np.array(case["scores"]), np.array(case["labels"], dtype=bool)
    assert close(auroc(scores, truths), case["auroc"])
    assert close(spearman(scores, truths.astype(float)), case["spearman"])


@given(RATINGS)
def test_agreement_is_mutual_and_bounded(pairs: list[tuple[int, int]]) -> None:
    """Who rates first does not matter, and no figure leaves [-1, 1]."""
    a, b = columns(pairs)
    kinds: tuple[Weights, ...] = ("linear", "quadratic")
    figures = [(cohen_kappa(a, b), cohen_kappa(b, a)), (spearman(a, b), spearman(b, a))]
    figures += [(weighted_kappa(a, b, weights=w), weighted_kappa(b, a, weights=w)) for w in kinds]
    for one, other in figures:
        assert close(one, other.value)
        assert one.value is None or -1 - 1e-12 <= one.value <= 1 + 1e-12


@given(st.lists(st.integers(1, 5), min_size=2, max_size=40).filter(lambda a: len(set(a)) > 1))
def test_perfect_agreement_is_one(ratings: list[int]) -> None:
    """Two equal ratings of more than one level agree perfectly by every figure."""
    a = np.array(ratings, dtype=float)
    assert close(cohen_kappa(a, a), 1.0)
    assert close(weighted_kappa(a, a, weights="linear"), 1.0)
    assert close(weighted_kappa(a, a, weights="quadratic"), 1.0)
    assert close(spearman(a, a), 1.0)
    truths = a > a.min()
    assert close(auroc(a, truths), 1.0)


@given(LABELLED)
def test_only_the_order_of_scores_counts(pairs: list[tuple[float, bool]]) -> None:
    """A rising transform changes neither AUROC nor Spearman; a falling one mirrors them."""
    scores, truths = columns(pairs, bool)
    labels = truths.astype(float)
    assert close(auroc(np.arctan(scores / 100), truths), auroc(scores, truths).value)
    assert close(spearman(np.arctan(scores / 100), labels), spearman(scores, labels).value)
    mirrored = auroc(-scores, truths)
    if mirrored.value is not None:
        assert close(auroc(scores, truths), 1 - mirrored.value)


@given(LABELLED)
def test_the_interval_of_auroc_holds_it(pairs: list[tuple[float, bool]]) -> None:
    """The interval lies in [0, 1], around the estimate, and is not a point even at 1."""
    found = auroc(*columns(pairs, bool))
    if found.value is None:
        assert found.interval is None
    else:
        assert found.interval is not None
        low, high = found.interval
        assert 0 <= low <= found.value <= high <= 1
        assert high > low


@pytest.mark.parametrize(("shift", "area"), [(0.0, 0.5), (1.0, 0.760250), (2.0, 0.921350)])
def test_the_interval_of_auroc_covers_the_truth(shift: float, area: float) -> None:
    """Of 400 samples of two normal classes, 95 % intervals miss the true area about as rarely."""
    draw = np.random.default_rng(1)
    truths = np.arange(60) < 25
    hits = 0
    for _ in range(400):
        low, high = auroc(draw.normal(shift * truths, 1), truths).interval or (1, 0)
        hits += low <= area <= high
    assert hits >= 372  # 93 %


NONE = np.array([], dtype=float)
ONE = np.array([0.5])
SAME = np.array([0.5, 0.5, 0.5])
RISING = np.array([0.1, 0.2, 0.3])


@pytest.mark.parametrize(
    ("figure", "reason"),
    [
        (cohen_kappa(NONE, NONE), "no rows"),
        (cohen_kappa(SAME, SAME), "the same constant"),
        (weighted_kappa(NONE, NONE, weights="linear"), "no rows"),
        (weighted_kappa(ONE, ONE, weights="quadratic"), "the same constant"),
        (spearman(ONE, ONE), "fewer than two rows"),
        (spearman(SAME, RISING), "scores are all the same"),
        (spearman(RISING, SAME), "labels are all the same"),
        (auroc(NONE, NONE.astype(bool)), "no rows"),
        (auroc(RISING, SAME > 0), "all labels are pass"),
        (auroc(RISING, SAME > 1), "all labels are fail"),
    ],
)
def test_what_cannot_be_said_has_a_reason(figure: Figure, reason: str) -> None:
    """A degenerate sample gives no number, and says why not."""
    assert figure.value is None
    assert reason in figure.reason


def test_equal_scores_order_nothing() -> None:
    """With all scores the same the AUROC is one half."""
    assert auroc(SAME, np.array([True, False, True])).value == 0.5


def test_levels_that_do_not_occur_keep_their_distance() -> None:
    """1 against 5 is four steps apart, though nobody gave a 2, 3 or 4."""
    a, b = np.array([1.0, 2, 5, 5]), np.array([1.0, 5, 5, 2])
    assert close(weighted_kappa(a, b, weights="linear"), 1 - (6 / 4) / (30 / 16))


@pytest.mark.parametrize(
    "parts",
    [
        {},
        {"value": 1.0, "reason": "why"},
        {"value": math.nan},
        {"value": 1, "interval": (0, math.inf)},
    ],
)
def test_a_figure_is_finite_or_has_a_reason(parts: dict[str, Any]) -> None:
    """There is no figure without both, with both, or that is no number."""
    with pytest.raises(ValueError, match="figure"):
        Figure(**parts)


# --- intervals ------------------------------------------------------------------------------------

TABLE = [[11, 2, 2, 0], [2, 10, 1, 3], [1, 3, 12, 2], [0, 4, 2, 15]]  # rows of the first rating


@pytest.mark.parametrize(
    ("kappa", "estimate", "error"),
    [
        (cohen_kappa, 0.5792349726775956, 0.07428410960881643),
        (partial(weighted_kappa, weights="linear"), 0.6312150148172538, 0.07353627204961614),
        (partial(weighted_kappa, weights="quadratic"), 0.6989247311827957, 0.07283460227122303),
    ],
)
def test_the_error_of_a_kappa_is_statsmodels(
    kappa: Callable[..., Figure], estimate: float, error: float
) -> None:
    """Estimate and standard error are those of statsmodels 0.15 for the same table."""
    pairs = [(i, j) for i, row in enumerate(TABLE) for j, n in enumerate(row) for _ in range(n)]
    found = kappa(*columns(pairs))
    assert close(found, estimate)
    assert found.interval is not None
    widths = [math.atanh(bound) - math.atanh(estimate) for bound in found.interval]
    half = 1.959963984540054 * error / (1 - estimate**2)
    assert widths == pytest.approx([-half, half])


def test_intervals_hold_what_they_promise() -> None:
    """Of 95 % intervals from 40 rows, about 95 % have the figure of a million rows in them."""
    draw = np.random.default_rng(0)

    def rated(n: int) -> tuple[Any, Any]:
        """Return two ratings from 1 to 5 of ``n`` rows that have something in common."""
        common = draw.normal(size=n)
        first, second = (np.clip(np.round(3 + common + draw.normal(size=n)), 1, 5) for _ in "ab")
        return first, second

    for figure in (partial(weighted_kappa, weights="quadratic"), spearman):
        truth = figure(*rated(1_000_000)).value
        found = [figure(*rated(40)).interval for _ in range(1000)]
        held = sum(low <= truth <= high for low, high in filter(None, found))
        assert 920 <= held <= 980


def test_there_is_no_interval_of_a_perfect_or_tiny_agreement() -> None:
    """Where the formula would give one of no width, or divide by nothing, it is left out."""
    a = np.array([1.0, 2.0, 3.0, 3.0])
    assert cohen_kappa(a, a).interval is None
    assert spearman(a, a).interval is None
    assert spearman(a[:3], np.array([1.0, 3.0, 2.0])).interval is None
