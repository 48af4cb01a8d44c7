"""Means, intervals and tables of a dataset's scores."""

from __future__ import annotations

import math
import statistics
from contextlib import closing
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from offline import EMBEDDER, Reads, judge, numbers
from rag_eval_otel.dataset.result import DatasetResult
from rag_eval_otel.dataset.run import evaluate_dataset
from rag_eval_otel.dataset.summary import Summary, mean_interval, score_interval, t_quantile
from rag_eval_otel.types import Evaluation, Score

T_975 = {1: 12.7062047364, 2: 4.3026527297, 9: 2.2621571628, 30: 2.0422724563, 200: 1.9718962236}


def result_on(*answers: object, **options: Any) -> DatasetResult:
    """Return the result of evaluating rows with these answers."""
    metrics = [Reads(**options)]
    return evaluate_dataset(numbers(*answers), metrics, judge=judge(), embedder=EMBEDDER)


@pytest.mark.parametrize(("df", "t"), T_975.items())
def test_quantiles_of_students_t(df: int, t: float) -> None:
    """Quantiles agree with published tables."""
    assert t_quantile(0.975, df) == pytest.approx(t, abs=1e-9)


def test_quantiles_are_continuous() -> None:
    """They do not jump where the expansion begins, and end in those of the normal distribution."""
    assert 0 < t_quantile(0.975, 200) - t_quantile(0.975, 201) < 1e-4
    normal = statistics.NormalDist().inv_cdf(0.975)
    assert t_quantile(0.975, 10**9) == pytest.approx(normal, abs=1e-8)


def test_intervals_cover_the_true_mean() -> None:
    """Of 2,000 intervals of five normal numbers, 95 % hold the true mean (within 3 deviations)."""
    drawn = np.random.default_rng(7).normal(size=(2000, 5))
    intervals = [mean_interval(float(r.mean()), float(r.std(ddof=1)), n=5) for r in drawn]
    held = sum(low <= 0 <= high for low, high in filter(None, intervals))
    assert abs(held / 2000 - 0.95) < 3 * math.sqrt(0.95 * 0.05 / 2000)


def test_single_value_has_no_interval() -> None:
    """It has no deviation."""
    result = result_on(1)
    assert (result["reads"].mean, result["reads"].interval) == (1.0, None)


@given(st.lists(st.floats(-1e6, 1e6), max_size=50))
def test_summary_agrees_with_the_list_of_values(values: list[float]) -> None:
    """Mean, median and interval are those of the whole list; the interval stays on the scale."""
    with closing(Summary(["m"])) as summary:
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


@pytest.mark.parametrize(
    ("scores", "low", "high"),
    [([1.0] * 9 + [0.9], 0, 1), ([0.0] * 9 + [0.1], 0, 1), ([1.0] * 5, 0, 1)],
)
def test_intervals_stay_inside_the_scale(scores: list[float], low: float, high: float) -> None:
    """Near an end of the scale the interval ends there, and equal scores do not make it a point."""
    with closing(Summary(["unit", "stars"])) as summary:
        for value in scores:
            stars = Score(name="stars", value=1 + 4 * value, normalized=value)
            summary.add(Evaluation(scores=(Score(name="unit", value=value), stars)))
        totals = summary.totals()
    found = totals["unit"].interval
    assert found is not None
    assert low <= found[0] < found[1] <= high
    assert found[1] - found[0] > 0.01
    own = totals["stars"].interval
    assert own is not None
    if len(set(scores)) > 1:  # equal scores do not tell the scale of stars
        assert own == pytest.approx((1 + 4 * found[0], 1 + 4 * found[1]))


@pytest.mark.slow
def test_unit_intervals_cover_the_true_mean() -> None:
    """Of 2,000 intervals of 40 scores near the upper end, at least 93 % hold the true mean."""
    drawn = np.random.default_rng(5).beta(8, 0.8, size=(2000, 40))
    intervals = [
        score_interval(float(r.mean()), float(r.std(ddof=1)), n=40, scale=(0.0, 1.0)) for r in drawn
    ]
    held = sum(low <= 8 / 8.8 <= high for low, high in filter(None, intervals))
    assert held >= 1860


def test_mean_is_shown_on_both_scales() -> None:
    """On the metric's own scale, and from 0 to 1."""
    result = result_on(2, 4, scale=4.0)
    assert (result["reads"].mean, result["reads"].normalized_mean) == (3.0, 0.75)
    assert "reads: mean on the scale 0 to 1: 0.750" in repr(result)


def test_mixture_of_versions_is_shown() -> None:
    """The table names the versions in a mean."""
    with closing(Summary(["m"])) as summary:
        for version in ("m/1", "m/2"):
            summary.add(Evaluation(scores=(Score(name="m", value=1.0, version=version),)))
        totals = summary.totals()
    assert totals["m"].versions == ("m/1", "m/2")
    assert "m: a mixture of versions: m/1, m/2" in repr(totals)


def test_table_has_counts_beside_every_mean() -> None:
    """A missing number is a dash."""
    lines = repr(result_on(1, 2, "?", "wrong")).splitlines()
    assert lines[0].startswith("4 rows, 1 with errors; judge -, 0 judge requests")
    assert lines[1].split() == (
        ["metric", "mean", "95", "%", "interval", "median", "ok", "undefined", "error", "pass"]
    )
    assert lines[2].split()[:2] == ["reads", "1.500"]
    assert lines[2].split()[-4:] == ["2", "1", "1", "2/2"]
    assert lines[3] == "  reads: 1 internal, 1 no_claims"
    assert repr(result_on("?")).splitlines()[2].split() == (
        ["reads", "-", "-", "-", "0", "1", "0", "-"]
    )
    assert repr(result_on(1)).startswith("1 row,")
