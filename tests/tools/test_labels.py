"""Reading scores and human labels from rows."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from rag_eval_otel.errors import ConfigError
from rag_eval_otel.tools.calibrate import Observation, observations
from rag_eval_otel.tools.rows import Row
from rag_eval_otel.types import Evaluation, Sample, Score


def read(*rows: dict[str, Any], metric: str | None = None) -> Mapping[str, Sequence[Observation]]:
    return observations(((f"row {n}", row) for n, row in enumerate(rows)), metric=metric)


@pytest.mark.parametrize(
    ("label", "expected"),
    [
        (1, 1.0),
        (True, 1.0),
        ("pass", 1.0),
        (" FAIL ", 0.0),
        ("yes", 1.0),
        ("False", 0.0),
        ("4", 4.0),
        (3.5, 3.5),
        (np.int64(2), 2.0),
        (None, None),
        ("", None),
        (math.nan, None),
    ],
)
def test_labels_are_read_in_all_forms(label: object, expected: float | None) -> None:
    """Pass and fail in words, numbers and truth values; levels of a scale; no label."""
    found = read({"score": 0.5, "label": label}, {"score": 0.1, "label": 1})
    assert found == {"score": [(0.5, expected), (0.1, 1.0)]}


@pytest.mark.parametrize(
    ("row", "observation"),
    [
        ({"score": "0.8", "label": "1"}, (0.8, 1.0)),
        ({"score": None, "label": 1}, (None, 1.0)),
        ({"score": math.nan, "label": 1}, (None, 1.0)),
        ({"score": None, "label": 1, "status": "error"}, (None, 1.0)),
        ({"score": 0.0, "label": 1, "status": "undefined"}, (None, 1.0)),
        ({"score": 0.8, "human": "pass", "label": "fail"}, (0.8, 1.0)),
    ],
)
def test_score_without_a_number_is_none(row: dict[str, Any], observation: Any) -> None:
    """Also a failed one, whatever number is in its cell."""
    assert read(row) == {"score": [observation]}


def evaluated() -> Row:
    scores = (
        Score(name="faithfulness", value=0.8, label="pass"),
        Score(name="correctness", status="error", reason="timeout"),
    )
    return Row(index=0, sample=Sample(answer="a"), evaluation=Evaluation(scores=scores))


@pytest.mark.parametrize("form", ["to_dict", "to_flat"])
def test_evaluated_row_is_read_with_a_human_label(form: str) -> None:
    """The row's own label is not the human's."""
    row = getattr(evaluated(), form)()
    assert row["label"] == "pass"
    assert read({**row, "human": "fail"}) == {
        "faithfulness": [(0.8, 0.0)],
        "correctness": [(None, 0.0)],
    }
    with pytest.raises(ConfigError, match="no row has a human label"):
        read(row)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"score": 1, "label": "good"}, r"row 1, score: the label must be .* not 'good'"),
        ({"score": 1, "label": {"a": 1}}, "the label must be pass or fail"),
        ({"score": "high", "label": 1}, "row 1, score: the score must be .* not 'high'"),
        ({"score": 1, "labels": ["pass"]}, "labels must be an object"),
    ],
)
def test_unreadable_cell_is_an_error(row: dict[str, Any], message: str) -> None:
    """The error has the row, the metric and the value."""
    with pytest.raises(ConfigError, match=message):
        read({"score": 0.5, "label": 1}, row)


def test_rows_without_a_metric_are_refused() -> None:
    """The error for no rows, no metric, or not the metric asked for lists what was found."""
    with pytest.raises(ConfigError, match=r"any metric .* Columns found: none"):
        read()
    with pytest.raises(ConfigError, match=r"any metric .* Columns found: answer, human"):
        read({"answer": "a", "human": 1})
    with pytest.raises(ConfigError, match=r"no scores of recall .* Columns found: faithfulness"):
        read({"faithfulness": 1, "faithfulness.human": 1}, metric="recall")
