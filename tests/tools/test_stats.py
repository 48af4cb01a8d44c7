"""Means, intervals and tables of a dataset's scores."""

import statistics
import sys
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from offline import evaluated, numbers
from rag_eval_otel.errors import MissingDependencyError
from rag_eval_otel.tools import stats
from rag_eval_otel.tools.stats import Summary, score_interval, t_quantile, weighted_mean
from rag_eval_otel.types import Evaluation, Score


@given(st.lists(st.floats(-1e6, 1e6), max_size=50))
def test_summary_agrees_with_the_list_of_values(values: list[float]) -> None:
    """Mean, median and interval are those of the whole list; the interval stays on the scale."""
    summary = Summary(["m"])
    for value in values:
        summary.add(Evaluation(scores=(Score(name="m", value=value),)))
    found = summary.totals()["m"]
    assert found.ok == len(values)
    if not values:
        assert found.mean is found.median is found.interval is None
        return
    assert found.median == statistics.median(values)
    assert found.mean == pytest.approx(statistics.fmean(values), abs=1e-6, rel=1e-9)
    if len(values) > 1 and all(0 <= value <= 1 for value in values):
        assert found.interval is not None
        assert 0 <= found.interval[0] <= found.interval[1] <= 1
    elif len(values) > 1:
        half = t_quantile(0.975, len(values) - 1) * statistics.stdev(values) / len(values) ** 0.5
        assert found.interval is not None
        assert found.interval[1] - found.interval[0] == pytest.approx(2 * half, abs=1e-5, rel=1e-6)


@pytest.mark.parametrize("scores", [[1.0] * 9 + [0.9], [0.0] * 9 + [0.1], [1.0] * 5])
def test_intervals_stay_inside_the_scale(scores: list[float]) -> None:
    """Near an end of the scale the interval ends there, and equal scores do not make it a point."""
    summary = Summary(["unit", "stars"])
    for value in scores:
        stars = Score(name="stars", value=1 + 4 * value, normalized=value)
        summary.add(Evaluation(scores=(Score(name="unit", value=value), stars)))
    totals = summary.totals()
    found = totals["unit"].interval
    assert found is not None
    assert 0 <= found[0] < found[1] <= 1
    assert found[1] - found[0] > 0.01
    own = totals["stars"].interval
    assert own is not None
    if len(set(scores)) > 1:  # equal scores do not tell the scale of stars
        assert own == pytest.approx((1 + 4 * found[0], 1 + 4 * found[1]))


@pytest.mark.slow
def test_unit_intervals_cover_the_true_mean() -> None:
    """Of 2,000 intervals of 40 scores near the upper end, at least 93 % hold the true mean."""
    drawn = np.random.default_rng(5).beta(8, 0.8, size=(2000, 40))
    intervals = [score_interval(scores, (0.0, 1.0)) for scores in drawn]
    held = sum(low <= 8 / 8.8 <= high for low, high in filter(None, intervals))
    assert held >= 1860


def test_table_has_counts_beside_every_mean() -> None:
    """A missing number is a dash."""
    lines = repr(evaluated(numbers(1, 2, "?", "wrong"))).splitlines()
    assert lines[0].startswith("4 rows, 1 with errors; judge -, 0 judge requests")
    assert lines[1] == "labels: 2 pass"
    del lines[1]
    assert lines[1].split() == (
        ["metric", "mean", "95", "%", "interval", "median", "ok", "undefined", "error", "pass"]
    )
    assert lines[2].split()[:2] == ["reads", "1.500"]
    assert lines[2].split()[-4:] == ["2", "1", "1", "2/2"]
    assert lines[3] == "  reads: 1 internal, 1 no_claims"
    assert repr(evaluated(numbers("?"))).splitlines()[2].split() == (
        ["reads", "-", "-", "-", "0", "1", "0", "-"]
    )
    assert repr(evaluated(numbers(1))).startswith("1 row,")


@pytest.mark.parametrize(
    ("scores", "weights", "mean", "interval"),
    [
        ([1.0, 0.0], [4.0, 1.0], 0.8, (0.0, 1.0)),  # the turns that each score stands for
        ([0.5], [4.0], 0.5, None),
        ([1.0] * 10, [10.0] * 10, 1.0, (0.66, 1.0)),  # equal scores are no certainty
        ([1.0, 2.0, 3.0, 4.0], [1.0] * 4, 2.5, (0.446, 4.554)),  # Student's, on another scale
        ([3.0] * 4, [1.0] * 4, 3.0, None),
    ],
)
def test_means_are_weighted(
    scores: list[float], weights: list[float], mean: float, interval: Any
) -> None:
    """By the inverse probabilities, with an interval where one is known."""
    value, ends = weighted_mean(np.array(scores), np.array(weights))
    assert value == pytest.approx(mean)
    assert ends == (None if interval is None else pytest.approx(interval, abs=0.01))


@pytest.mark.slow
def test_weighted_intervals_cover_the_true_mean() -> None:
    """Of 500 samples in which low scores are more frequent, at least 92 % hold the true mean."""
    rng, held = np.random.default_rng(3), 0
    for _ in range(500):
        scores = rng.beta(4, 1.5, 4000)
        chances = np.where(scores < 0.7, 0.2, 0.05)
        chosen = rng.random(4000) < chances
        _, interval = weighted_mean(scores[chosen], 1 / chances[chosen])
        assert interval is not None
        held += interval[0] <= 4 / 5.5 <= interval[1]
    assert held >= 460


@pytest.mark.parametrize(
    ("part", "whole", "text"),
    [
        (0, 0, "-"),
        (0, 9, "0 %"),
        (1, 1000, "< 1 %"),
        (5, 8, "62 %"),
        (999, 1000, "> 99 %"),
        (9, 9, "100 %"),
    ],
)
def test_only_all_is_100_percent(part: int, whole: int, text: str) -> None:
    """And only nothing is 0 %."""
    assert stats.percent(part, whole) == text


def test_without_scipy_there_are_means_and_no_intervals(monkeypatch: pytest.MonkeyPatch) -> None:
    """The table says what to install; what is an interval alone is refused."""
    monkeypatch.setitem(sys.modules, "scipy.special", None)
    result = evaluated(numbers(1, 2, 3))
    assert (result["reads"].mean, result["reads"].interval) == (2.0, None)
    assert "intervals need SciPy: install the extra 'tools'" in repr(result)
    with pytest.raises(MissingDependencyError, match=r"rag-eval-otel\[tools\]"):
        stats.mean_interval([1.0, 2.0])
