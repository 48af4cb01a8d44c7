"""`DatasetResult`: summary, table, dict, frame, and the comparison of two."""

from __future__ import annotations

import json
import math
import statistics
import subprocess
import sys
from typing import Any

import pytest

from offline import EMBEDDER, JUDGED, Reads, asked_rows, judge, numbers
from rag_eval_otel.dataset.result import DatasetResult
from rag_eval_otel.dataset.run import evaluate_dataset
from rag_eval_otel.dataset.summary import t_quantile
from rag_eval_otel.errors import ConfigError, MissingDependencyError


def result_on(*answers: object, **options: Any) -> DatasetResult:
    """Return the result of evaluating rows with these answers."""
    metrics = [Reads(**options)]
    return evaluate_dataset(numbers(*answers), metrics, judge=judge(), embedder=EMBEDDER)


# --- the interval ---------------------------------------------------------------------------------


# --- sums -----------------------------------------------------------------------------------------


def test_dict_is_json_without_texts() -> None:
    """Each sample is identified by a digest."""
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


def test_frame_has_a_line_for_each_row() -> None:
    """Values are floats, NaN if missing, with status and reason beside."""
    frame = result_on(1, "?").to_pandas()
    assert frame["reads"].dtype == "float64"
    assert frame["reads"].isna().tolist() == [False, True]
    assert frame["reads.status"].tolist() == ["ok", "undefined"]
    assert frame["reads.reason"].tolist()[1] == "no_claims"
    assert list(result_on().to_pandas().columns) == list(frame.columns)


def test_without_pandas_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    """The extra is named."""
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(MissingDependencyError, match=r"pip install 'rag-eval-otel\[dataset\]'"):
        result_on(1).to_pandas()


def test_unknown_metric_is_an_error() -> None:
    """The error lists the metrics."""
    with pytest.raises(KeyError, match=r"there are.*reads"):
        result_on(1)["other"]


@pytest.mark.slow
def test_optional_libraries_are_imported_on_use() -> None:
    """Evaluating a list imports neither pandas nor Arrow nor LangChain."""
    code = "import sys, rag_eval_otel.dataset.run; print(*sys.modules)"
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.split()
    assert not {"pandas", "pyarrow", "langchain_core", "openai", "opentelemetry.sdk"} & set(loaded)


# --- comparison -----------------------------------------------------------------------------------


def test_paired_differences() -> None:
    """The difference is over pairs of ok scores; other rows are counted."""
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


def test_comparison_has_a_table_and_a_dict() -> None:
    """Metrics that only one result has are named."""
    data = [{**row, "answer": "1"} for row in asked_rows(2)]
    options: dict[str, Any] = {"judge": judge(), "embedder": EMBEDDER}
    here = evaluate_dataset(data, [Reads(), Reads(name="mine")], **options)
    there = evaluate_dataset(data, [Reads(), Reads(name="yours")], **options)
    found = here.compare(there)
    assert (found.only_b, found.only_a) == (("mine",), ("yours",))
    assert "mine: only in this result" in repr(found)
    assert "+0.000" in repr(found)
    assert found.to_dict()["metrics"][0]["pairs"] == 2
    with pytest.raises(KeyError, match="no metric 'mine' in both"):
        found["mine"]


def test_difference_without_pairs_is_none() -> None:
    """Without pairs there is no difference, and no 0 either."""
    found = result_on("?").compare(result_on(1))["reads"]
    assert (found.mean, found.interval, found.pairs) == (None, None, 0)
    assert result_on().compare(result_on()).metrics == ()
    assert repr(result_on("?").compare(result_on(1))).splitlines()[1].split()[1] == "-"


def test_different_versions_are_compared_on_demand() -> None:
    """Scores of another judge are refused by default."""
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


def test_different_rows_are_not_compared() -> None:
    """Other questions, more rows, and no common metric are errors."""
    with pytest.raises(ConfigError, match="2 rows in this result, 1 in the other"):
        result_on(1, 2).compare(result_on(1))
    other = evaluate_dataset(
        [{"question": "Another?", "answer": "1"}], [Reads()], judge=judge(), embedder=EMBEDDER
    )
    with pytest.raises(ConfigError, match="row 0 has another question"):
        result_on(1).compare(other)
    with pytest.raises(ConfigError, match="in common: reads in this result, mine in the other"):
        result_on(1).compare(result_on(1, name="mine"))
