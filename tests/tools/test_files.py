"""Files of scores and samples: cells that a spreadsheet would run, and what reading gives back."""

import csv
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rag_eval_otel.errors import ConfigError
from rag_eval_otel.tools.files import source_of, writing
from rag_eval_otel.tools.read import open_dataset
from rag_eval_otel.tools.rows import TEXTS, Row
from rag_eval_otel.types import Evaluation, Sample, Score

FORMULAS = ("=1+1", "+1", "-1", "@SUM(A1)", "\tx", "\rx", "\nx", "'=x", "''-x")
UNSEEN = (" ", "\n", "\x1f", "\x85", "\xa0", "\xad", "\u034f", "\u200b", "\u200e", "\u2028")
UNSEEN += (
    "\u202e",
    "\u2060",
    "\u3000",
    "\ufe0f",
    "\ufeff",
    "\U000e0041",
    "\t\u200b \r\n",
    "\ufeff'",
)
SIGNS = "=+-@\uff1d\uff0b\uff0d\uff20\ufe66\ufe62\ufe63\ufe6b\u207a\u208c"
HIDDEN = (*(f"{one}=1+1" for one in UNSEEN), *(f"{sign}1+1" for sign in SIGNS), " \u200b\uff1d1")
PLAIN = ("plain", "'quoted'", "it's -1", " 1 - 1", "\u200b", "", "1=1", "\u2260", "#=1", " ")


@pytest.mark.parametrize("told", [*FORMULAS, *HIDDEN, *PLAIN])
def test_an_explanation_is_no_formula_and_reads_back(tmp_path: Path, told: str) -> None:
    """A text that may run begins with an apostrophe, others do not; a number keeps its sign."""
    path = tmp_path / "scores.csv"
    score = Score(name="m", value=-0.25, explanation=told)
    with writing(path, ["m"]) as write:
        write(Row(index=0, evaluation=Evaluation(scores=(score,), judge="=cmd|' /C calc'!A0")))
    with path.open(newline="", encoding="utf-8") as file:
        (raw,) = csv.DictReader(file)
    assert raw["m.explanation"] == (told if told in PLAIN else f"'{told}")
    assert raw["judge"].startswith("'=")
    assert raw["m"] == "-0.25"
    ((_, cells),) = source_of(path).rows()
    assert (cells["m.explanation"] or "") == told


def test_a_nul_is_a_question_mark_in_csv(tmp_path: Path) -> None:
    """The module csv of Python 3.10 can neither write nor read it."""
    path = tmp_path / "scores.csv"
    with writing(path, ["m"]) as write:
        score = Score(name="m", value=1.0, explanation="\x00=1+1")
        write(Row(index=0, evaluation=Evaluation(scores=(score,))))
    ((_, cells),) = source_of(path).rows()
    assert cells["m.explanation"] == "?=1+1"


CUT = "Who wrote \ud83d"
"""A text that was cut inside an emoji; half of a surrogate pair cannot be encoded as UTF-8."""


@pytest.mark.parametrize("suffix", ["jsonl", "csv", "parquet"])
def test_texts_that_are_not_unicode_are_written(tmp_path: Path, suffix: str) -> None:
    """A question mark stands for what cannot be encoded."""
    path, scored = tmp_path / f"scores.{suffix}", Evaluation(scores=(Score(name="m", value=1.0),))
    sample = Sample(question=CUT, contexts=[CUT], answer="Ada 😀")
    with writing(path, ["m"], further=TEXTS) as write:
        write(Row(index=0, evaluation=scored, sample=sample))
    ((_, cells),) = source_of(path).rows()
    assert cells["question"] == "Who wrote ?"
    assert cells["answer"] == "Ada 😀"


@given(st.text().filter(lambda text: "\0" not in text))
def test_a_cell_reads_back(tmp_path_factory: pytest.TempPathFactory, cell: str) -> None:
    """Quoting a cell can be undone."""
    path = tmp_path_factory.getbasetemp() / "cell.csv"
    with writing(path, ["m"]) as write:
        score = Score(name="m", value=1.0, explanation=cell)
        write(Row(index=0, evaluation=Evaluation(scores=(score,))))
    ((_, cells),) = source_of(path).rows()
    assert (cells["m.explanation"] or "") == cell


@pytest.mark.parametrize("column", ["contexts", "retrieved_ids", "rubric", "grades", "extra"])
def test_a_cell_that_is_nested_too_deeply_is_named(tmp_path: Path, column: str) -> None:
    """The error names the row and the column; a deep list is no crash."""
    path = tmp_path / "rows.csv"
    deep = "[" * 200_000 + "]" * 200_000
    path.write_text(f"question,answer,{column}\nQ,A,{deep}\n", encoding="utf-8")
    with pytest.raises(ConfigError, match=rf"row 0 \(line 2\), column '{column}': .*nested"):
        open_dataset(path)
