"""Files of scores and samples: cells that a spreadsheet would run, and what reading gives back."""

import csv
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rag_eval_otel.dataset.read import open_dataset
from rag_eval_otel.errors import ConfigError
from rag_eval_otel.results.files import _quoted, _unquoted, source_of, writing, writing_samples
from rag_eval_otel.results.rows import TEXTS, Row
from rag_eval_otel.types import Evaluation, Sample, Score

FORMULAS = ("=1+1", "+1", "-1", "@SUM(A1)", "\tx", "\rx", "'=x", "''-x")


@pytest.mark.parametrize("told", [*FORMULAS, "plain", "'quoted'", "it's -1"])
def test_an_explanation_is_no_formula_and_reads_back(tmp_path: Path, told: str) -> None:
    """A cell never begins with a sign of a formula; a number keeps its sign."""
    path = tmp_path / "scores.csv"
    score = Score(name="m", value=-0.25, explanation=told)
    with writing(path, ["m"]) as write:
        write(Row(index=0, evaluation=Evaluation(scores=(score,), judge="=cmd|' /C calc'!A0")))
    with path.open(newline="", encoding="utf-8") as file:
        (raw,) = csv.DictReader(file)
    assert raw["m.explanation"][0] not in "=+-@\t\r"
    assert raw["judge"].startswith("'=")
    assert raw["m"] == "-0.25"
    (record,) = source_of(path).records()
    assert record.cells["m.explanation"] == told  # type: ignore[index]


CUT = "Who wrote \ud83d"
"""A text that was cut inside an emoji; half of a surrogate pair cannot be encoded as UTF-8."""


@pytest.mark.parametrize(("suffix", "expected"), [("jsonl", CUT), ("csv", None), ("parquet", None)])
def test_texts_that_are_not_unicode_are_written(
    tmp_path: Path, suffix: str, expected: str | None
) -> None:
    """JSON keeps them; in a table a question mark stands for what cannot be encoded."""
    path, scored = tmp_path / f"scores.{suffix}", Evaluation(scores=(Score(name="m", value=1.0),))
    sample = Sample(question=CUT, contexts=[CUT], answer="Ada 😀")
    with writing(path, ["m"], further=TEXTS) as write:
        write(Row(index=0, evaluation=scored, sample=sample))
    (record,) = source_of(path).records()
    cells = dict(record.cells)  # type: ignore[arg-type]
    assert cells["question"] == (expected or "Who wrote ?")
    assert cells["answer"] == "Ada 😀"


@pytest.mark.parametrize(("suffix", "expected"), [("jsonl", CUT), ("parquet", "Who wrote ?")])
def test_samples_that_are_not_unicode_are_written(
    tmp_path: Path, suffix: str, expected: str
) -> None:
    """A trace with such a text does not end the collection."""
    path = tmp_path / f"samples.{suffix}"
    with writing_samples(path) as write:
        write({"question": CUT, "contexts": [CUT, {"text": CUT, "id": "1"}], "answer": "Ada"})
    (record,) = source_of(path).records()
    cells = dict(record.cells)  # type: ignore[arg-type]
    contexts = [one if isinstance(one, str) else one["text"] for one in cells["contexts"]]
    assert [cells["question"], *contexts] == [expected] * 3


@given(st.text() | st.sampled_from(FORMULAS))
def test_a_cell_reads_back(cell: str) -> None:
    """Quoting a cell can be undone."""
    assert _unquoted(str(_quoted(cell))) == cell


@pytest.mark.parametrize("column", ["contexts", "retrieved_ids", "rubric", "grades", "extra"])
def test_a_cell_that_is_nested_too_deeply_is_named(tmp_path: Path, column: str) -> None:
    """The error names the row and the column; a deep list is no crash."""
    path = tmp_path / "rows.csv"
    deep = "[" * 200_000 + "]" * 200_000
    path.write_text(f"question,answer,{column}\nQ,A,{deep}\n", encoding="utf-8")
    with pytest.raises(ConfigError, match=rf"row 0 \(line 2\), column '{column}': .*nested"):
        open_dataset(path)
