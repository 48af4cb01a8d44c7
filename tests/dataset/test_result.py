"""`DatasetResult`: summary, table, dict, frame, and the comparison of two."""

from __future__ import annotations

import json
import math
import statistics
import subprocess
import sys
from contextlib import closing
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from offline import EMBEDDER, JUDGED, Reads, asked_rows, judge, numbers
from rag_eval_otel.dataset.result import DatasetResult
from rag_eval_otel.dataset.run import evaluate_dataset
from rag_eval_otel.dataset.summary import Summary, mean_interval, t_quantile
from rag_eval_otel.errors import ConfigError, MissingDependencyError
from rag_eval_otel.types import Evaluation, Score

T_975 = {1: 12.7062047364, 2: 4.3026527297, 9: 2.2621571628, 30: 2.0422724563, 200: 1.9718962236}


def result_on(*answers: object, **options: Any) -> DatasetResult:
    """Return the result of evaluating rows with these answers."""
    metrics = [Reads(**options)]
    return evaluate_dataset(numbers(*answers), metrics, judge=judge(), embedder=EMBEDDER)


# --- the interval ---------------------------------------------------------------------------------


@pytest.mark.parametrize(("df", "t"), T_975.items())
def test_quantiles_of_student(df: int, t: float) -> None:
    """Quantiles agree with the tables."""
    assert t_quantile(0.975, df) == pytest.approx(t, abs=1e-9)


def test_quantiles_of_many_degrees_join_on() -> None:
    """Where the expansion takes over nothing jumps, and at the end stands the normal one."""
    assert 0 < t_quantile(0.975, 200) - t_quantile(0.975, 201) < 1e-4
    normal = statistics.NormalDist().inv_cdf(0.975)
    assert t_quantile(0.975, 10**9) == pytest.approx(normal, abs=1e-8)


def test_intervals_hold_the_mean_as_often_as_they_say() -> None:
    """Of 2,000 intervals of five normal numbers, 95 % hold the true mean (within 3 deviations)."""
    drawn = np.random.default_rng(7).normal(size=(2000, 5))
    intervals = [mean_interval(float(r.mean()), float(r.std(ddof=1)), n=5) for r in drawn]
    held = sum(low <= 0 <= high for low, high in filter(None, intervals))
    assert abs(held / 2000 - 0.95) < 3 * math.sqrt(0.95 * 0.05 / 2000)


def test_one_value_has_no_interval() -> None:
    """There is nothing to tell a deviation from."""
    result = result_on(1)
    assert (result["reads"].mean, result["reads"].interval) == (1.0, None)


# --- sums -----------------------------------------------------------------------------------------


@given(st.lists(st.floats(-1e6, 1e6), max_size=50))
def test_sums_agree_with_those_over_all_values(values: list[float]) -> None:
    """Mean, median and interval come out of the stream as from the whole list."""
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
    if len(values) > 1:
        half = t_quantile(0.975, len(values) - 1) * statistics.stdev(values) / len(values) ** 0.5
        assert found.interval is not None
        assert found.interval[1] - found.interval[0] == pytest.approx(2 * half, abs=1e-5, rel=1e-6)


def test_both_scales_are_shown() -> None:
    """A metric with a scale of its own has its mean on it, and from 0 to 1."""
    result = result_on(2, 4, scale=4.0)
    assert (result["reads"].mean, result["reads"].normalized_mean) == (3.0, 0.75)
    assert "reads: mean on the scale 0 to 1: 0.750" in repr(result)


def test_a_mixture_of_versions_is_told() -> None:
    """A mean over different measurements says so."""
    with closing(Summary(["m"])) as summary:
        for version in ("m/1", "m/2"):
            summary.add(Evaluation(scores=(Score(name="m", value=1.0, version=version),)))
        totals = summary.totals()
    assert totals["m"].versions == ("m/1", "m/2")
    assert "m: a mixture of versions: m/1, m/2" in repr(totals)


def test_the_table_has_counts_beside_every_mean() -> None:
    """A result shows itself, with dashes where there is no number."""
    lines = repr(result_on(1, 2, "?", "wrong")).splitlines()
    assert lines[0].startswith("4 rows, 1 with failed scores; judge -, 0 judge requests")
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


def test_a_dict_is_json_without_the_texts() -> None:
    """Everything but the samples' texts, of which a digest stands for each."""
    found = json.loads(json.dumps(result_on(1, "?").to_dict()))
    assert found["row_count"] == 2
    assert found["metrics"]["reads"]["undefined"] == 1
    assert found["rows"][0]["scores"]["reads"]["value"] == 1.0
    assert found["rows"][1]["scores"]["reads"] == {
        "value": None,
        "status": "undefined",
        "reason": "no_claims",
        "version": found["rows"][1]["scores"]["reads"]["version"],
    }
    assert len({row["sample"] for row in found["rows"]}) == 2
    assert "Number" not in json.dumps(found)


def test_a_frame_has_a_line_for_each_row() -> None:
    """Values are floats; what has none is missing, with its status and reason beside."""
    frame = result_on(1, "?").to_pandas()
    assert frame["reads"].dtype == "float64"
    assert frame["reads"].isna().tolist() == [False, True]
    assert frame["reads.status"].tolist() == ["ok", "undefined"]
    assert frame["reads.reason"].tolist()[1] == "no_claims"
    assert list(result_on().to_pandas().columns) == list(frame.columns)


def test_without_pandas_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """The extra is named."""
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(MissingDependencyError, match=r"pip install 'rag-eval-otel\[dataset\]'"):
        result_on(1).to_pandas()


def test_an_unknown_metric_is_named() -> None:
    """The error says which there are."""
    with pytest.raises(KeyError, match=r"there are.*reads"):
        result_on(1)["other"]


def test_frames_are_imported_on_use() -> None:
    """Evaluating a list needs neither pandas nor Arrow, nor LangChain."""
    code = "import sys, rag_eval_otel.dataset.run; print(*sys.modules)"
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.split()
    assert not {"pandas", "pyarrow", "langchain_core", "openai", "opentelemetry.sdk"} & set(loaded)


# --- comparison -----------------------------------------------------------------------------------


def test_paired_differences() -> None:
    """The difference of pairs that are ok in both, with its interval; the rest is counted."""
    here, there = result_on(2, 4, "?", 5), result_on(2, 4, 1, "?")
    rows = [
        {**row, "answer": str(a)} for row, a in zip(numbers(0, 0, 0, 0), (1, 2, 1, 1), strict=True)
    ]
    there = evaluate_dataset(rows, [Reads()], judge=judge(), embedder=EMBEDDER)
    found = here.compare(there)["reads"]
    assert (found.pairs, found.unpaired, found.higher, found.lower) == (3, 1, 3, 0)
    assert found.mean == pytest.approx((1 + 2 + 4) / 3)
    half = t_quantile(0.975, 2) * statistics.stdev([1, 2, 4]) / math.sqrt(3)
    assert found.interval == pytest.approx((found.mean - half, found.mean + half))


def test_a_comparison_shows_itself() -> None:
    """As a table and as a dict; metrics that only one result has are named."""
    data = [{**row, "answer": "1"} for row in asked_rows(2)]
    options: dict[str, Any] = {"judge": judge(), "embedder": EMBEDDER}
    here = evaluate_dataset(data, [Reads(), Reads(name="mine")], **options)
    there = evaluate_dataset(data, [Reads(), Reads(name="yours")], **options)
    found = here.compare(there)
    assert (found.only_here, found.only_there) == (("mine",), ("yours",))
    assert "mine: only in this result" in repr(found)
    assert "+0.000" in repr(found)
    assert found.to_dict()["metrics"][0]["pairs"] == 2
    with pytest.raises(KeyError, match="no metric 'mine' in both"):
        found["mine"]


def test_nothing_compared_is_no_number() -> None:
    """Without pairs there is no difference, and no 0 either."""
    found = result_on("?").compare(result_on(1))["reads"]
    assert (found.mean, found.interval, found.pairs) == (None, None, 0)
    assert result_on().compare(result_on()).metrics == ()
    assert repr(result_on("?").compare(result_on(1))).splitlines()[1].split()[1] == "-"


def test_different_measurements_are_compared_on_demand_only() -> None:
    """Scores of another judge are refused unless asked for."""
    data = asked_rows(3)
    here = evaluate_dataset(data, [JUDGED], judge=judge(), embedder=EMBEDDER)
    other = judge(lambda task: {"passing": False})
    other.model = "stricter"
    there = evaluate_dataset(data, [JUDGED], judge=other, embedder=EMBEDDER)
    with pytest.raises(ConfigError, match=r"different ways: .*fake.*stricter.*versions='any'"):
        here.compare(there)
    assert here.compare(there, versions="any")[JUDGED.name].mean == 1.0
    with pytest.raises(ConfigError, match="must be 'same' or 'any'"):
        here.compare(there, versions="all")  # type: ignore[arg-type]


def test_other_rows_are_not_compared() -> None:
    """Reports on other questions, or more of them, or without a metric in common, are refused."""
    with pytest.raises(ConfigError, match="2 rows here, 1 there"):
        result_on(1, 2).compare(result_on(1))
    other = evaluate_dataset(
        [{"question": "Another?", "answer": "1"}], [Reads()], judge=judge(), embedder=EMBEDDER
    )
    with pytest.raises(ConfigError, match="row 0 has another question"):
        result_on(1).compare(other)
    with pytest.raises(ConfigError, match="no metric in common: reads here, mine there"):
        result_on(1).compare(result_on(1, name="mine"))
