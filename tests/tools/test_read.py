"""`open_dataset`: formats, columns and cells, and errors for those that cannot be used."""

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from offline import Reads
from rag_eval_otel.errors import ConfigError
from rag_eval_otel.metrics import METRICS
from rag_eval_otel.tools.read import Dataset, check_needs, open_dataset, source_of, writing
from rag_eval_otel.tools.rows import TEXTS, Row
from rag_eval_otel.types import Evaluation, Passage, Sample, Score

ROWS: list[dict[str, Any]] = [
    {"question": "Who?", "contexts": ["One, two.", 'Three\n"four"'], "answer": "She."},
    {"question": "What?", "contexts": [], "answer": ""},
]
EXPECTED = [Sample(**row) for row in ROWS]
SUFFIXES = (".jsonl", ".csv", ".parquet")


def samples(data: object, **columns: str) -> list[Sample]:
    return list(open_dataset(data, columns).samples())


def one(**cells: Any) -> Sample:
    (sample,) = samples([cells])
    return sample


def write(path: Path, rows: list[dict[str, Any]]) -> None:
    if path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
    elif path.suffix == ".csv":
        cells = pd.DataFrame(rows).map(lambda c: json.dumps(c) if isinstance(c, list) else c)
        cells.to_csv(path, index=False)
    else:
        path.write_text("\n\n".join(map(json.dumps, rows)) + "\n", encoding="utf-8")


class IterableRows:
    """An iterable that can be read again, as a Hugging Face dataset."""

    def __iter__(self) -> Any:
        return iter(ROWS)


@pytest.mark.parametrize(
    "data",
    [
        EXPECTED,
        ROWS,
        tuple(ROWS),
        iter(ROWS),
        IterableRows(),
        {name: [row[name] for row in ROWS] for name in ROWS[0]},
        pd.DataFrame(ROWS),
        pd.DataFrame(ROWS).assign(contexts=[np.array(row["contexts"]) for row in ROWS]),
        pa.Table.from_pylist(ROWS),
    ],
    ids=["samples", "dicts", "tuple", "iterator", "iterable", "columns", "frame", "array", "arrow"],
)
def test_tables_and_lists_are_read(data: object) -> None:
    """All containers give the same rows, and can be read again."""
    dataset = open_dataset(data)
    assert list(dataset.samples()) == list(dataset.samples()) == EXPECTED
    assert dataset.count == 2
    assert {"question", "contexts", "answer"} <= set(dataset.columns)


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_files_are_read(suffix: str, tmp_path: Path) -> None:
    """JSON Lines, CSV and Parquet hold the same rows, named by path or text."""
    path = tmp_path / f"rows{suffix}"
    write(path, ROWS)
    assert samples(path) == samples(str(path)) == EXPECTED


def test_limit_takes_the_first_rows() -> None:
    """Rows after the limit are not read."""
    dataset = open_dataset([*ROWS, "no row"], limit=2)
    assert (dataset.count, list(dataset.samples())) == (2, EXPECTED)


CONTEXTS = (Passage(text="c"),)


@pytest.mark.parametrize(
    "row",
    [
        {"user_input": "q", "retrieved_contexts": ["c"], "response": "a", "reference": "r"},
        {"question": "q", "contexts": ["c"], "answer": "a", "ground_truth": "r"},
        {"question": "q", "contexts": ["c"], "answer": "a", "ground_truths": ["r"]},
        {"query": "q", "contexts": ["c"], "response": "a", "reference_answer": "r"},
        {"question": "q", "contexts": ["c"], "predicted_answer": "a", "ground_truth_answer": "r"},
        {"Question": "q", "Contexts": "c", "Answer": "a", "Ground Truth": "r"},
    ],
)
def test_columns_of_the_peers_are_recognised(row: dict[str, Any]) -> None:
    """Ragas old and new, LlamaIndex, Haystack, in any case."""
    assert one(**row) == Sample(question="q", contexts=CONTEXTS, answer="a", reference="r")


@pytest.mark.parametrize(
    "row",
    [
        {"retrieved_context_ids": ["1", "2"], "reference_context_ids": [2]},
        {"retrieved_ids": '["1", "2"]', "expected_ids": "[2]"},
        {"retrieved_ids": ("1", "2"), "relevant_ids": np.array(["2"])},
    ],
)
def test_ids_are_recognised(row: dict[str, Any]) -> None:
    """Ids of ragas and LlamaIndex, as lists or as JSON."""
    assert one(**row) == Sample(retrieved_ids=["1", "2"], relevant_ids=["2"])


HISTORY = [{"role": "user", "content": "Who?"}, {"role": "assistant", "content": "Ada."}]


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("name", ["history", "Chat-History", "conversation_history"])
def test_a_conversation_is_read(name: str, suffix: str, tmp_path: Path) -> None:
    """A list of messages, as JSON in a cell; rows may have none."""
    path = tmp_path / f"data{suffix}"
    write(path, [{"question": "Where?", name: HISTORY}, {"question": "When?", name: None}])
    first, second = samples(path)
    assert first.history == (("user", "Who?"), ("assistant", "Ada."))
    assert second.history == ()


def test_a_query_is_the_question_if_it_is_alone() -> None:
    """Beside a question, it is the text that was searched for."""
    assert one(query="a") == one(question="a") == one(Queries="a")
    assert one(question="a", query="b") == one(user_input="a", query="b")
    assert one(question="a", query="b") == Sample(question="a", query="b")
    (chosen,) = samples([{"prompt": "a", "query": "b"}], question="prompt")
    assert chosen == Sample(question="a", query="b")
    (only,) = samples([{"text": "b"}], query="text")
    assert (only.question, only.query) == ("", "b")


def test_grades_and_rubrics_are_read() -> None:
    """Keys without a value, which belong to other rows, are left out."""
    sample = one(
        relevant_ids={"a": 2, "b": None},
        rubrics='{"score1_description": "bad", "score2_description": "good"}',
    )
    assert (sample.relevant_ids, sample.grades) == (("a",), (2.0,))
    assert sample.rubric == {"score1_description": "bad", "score2_description": "good"}
    assert one(relevant_ids=["a"], grades="[3]").grades == (3.0,)


def test_chosen_column_has_precedence() -> None:
    """Over a column that would be recognised by name."""
    rows = [{"prompt": "q", "question": "other", "answer": "a"}]
    assert samples(rows, question="prompt") == [
        Sample(question="q", answer="a", extra={"question": "other"})
    ]


def test_other_texts_are_extra() -> None:
    """Other values are left out."""
    sample = one(question="q", topic="law", year=1879, extra={"tone": "dry"})
    assert sample.extra == {"topic": "law", "tone": "dry"}


@pytest.mark.parametrize(
    ("cell", "texts"),
    [
        ('["a", "b"]', ("a", "b")),
        ("['a', 'b']", ("a", "b")),
        ("a", ("a",)),
        ("[1] a note", ("[1] a note",)),
        ("  ", ()),
        ([{"text": "a", "id": 7}, {"page_content": "b"}, {"content": "c"}], ("a", "b", "c")),
        ([Passage(text="a")], ("a",)),
        (None, ()),
        (pd.NA, ()),
    ],
)
def test_contexts_in_a_cell(cell: object, texts: tuple[str, ...]) -> None:
    """A list, a list as text, a text, documents, or nothing."""
    assert tuple(p.text for p in one(contexts=cell).contexts) == texts


@pytest.mark.parametrize(
    ("row", "told"),
    [
        ({"question": 7}, "row 0, column 'question': must be text, not int"),
        ({"user_input": [{"role": "user"}]}, "column 'user_input': must be text, not list"),
        ({"contexts": 7}, "column 'contexts': must be a list of texts, or one text, not int"),
        ({"contexts": [7]}, "each context must be text, not int"),
        ({"contexts": [{"body": "a"}]}, "a context needs text"),
        ({"contexts": "['a' 'b']"}, "looks like a list"),
        ({"retrieved_ids": "a,b"}, "must be a list of ids"),
        ({"rubric": "good"}, "must be a mapping to texts"),
        ({"grades": 1}, "must be a list of numbers"),
        ({"relevant_ids": ["a"], "grades": [1, 2]}, "row 0: 2 grades for 1 relevant_ids"),
        ({"question": "a", "user_input": "b"}, "columns 'question' and 'user_input' both hold"),
        ({"question": "a", "history": ["text"]}, "column 'history': must be a list of messages"),
        ({"question": "a", "chat_history": [{"role": 1}]}, "row 0: Sample.history takes messages"),
    ],
)
def test_unusable_cell_is_an_error(row: dict[str, Any], told: str) -> None:
    """The error names the row, the column and the problem."""
    with pytest.raises(ConfigError, match=r"^(the list|columns)") as caught:
        open_dataset([row])
    assert told in str(caught.value)


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (7, "samples must be a list of Sample or dict"),
        (["a"], "row 0: must be a Sample or a mapping, not str"),
        ({"train": object()}, "one split of a dataset"),
        ({"question": "a"}, r"a single row as \[row\]"),
        ({"question": ["a"], "answer": []}, "lists of one length"),
        ("rows.xlsx", r"cannot read \.xlsx; use \.jsonl"),
        ("nowhere.jsonl", "no such file"),
    ],
)
def test_unusable_data_is_an_error(data: object, told: str) -> None:
    """The error names what can be used."""
    with pytest.raises(ConfigError, match=told):
        open_dataset(data)


@pytest.mark.parametrize(
    ("name", "content", "told"),
    [
        ("a.jsonl", b'{"question": "q"}\n{"question": 7}\n', r"a\.jsonl, row 1 \(line 2\), column"),
        ("a.jsonl", b'{"question": "q"}\n{"question\n', r"a\.jsonl, line 2: is not JSON"),
        ("a.jsonl", b"[1]\n", r"line 1: must be a JSON object, not list"),
        ("a.jsonl", b'{"question": "\xe9"}', r"a\.jsonl cannot be read: .*Save it as UTF-8"),
        ("a.csv", b"question,answer\nq\n", r"line 2: has 1 cells, but the header 2"),
        ("a.csv", b"question,question\n", r"line 1: a column is named twice"),
        ("a.csv", b'question\n"q', r"a\.csv cannot be read"),
        ("a.parquet", b"no parquet", r"a\.parquet cannot be read"),
    ],
)
def test_broken_file_is_an_error(name: str, content: bytes, told: str, tmp_path: Path) -> None:
    """The error names the file and the line; what is not UTF-8 is not misread."""
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=told):
        open_dataset(path)


def needs_met(dataset: Dataset, *names: str) -> bool:
    check_needs([METRICS[name]() for name in names], dataset)
    return True


def test_unmet_need_is_an_error() -> None:
    """The error names metric, missing field, its usual columns, and the columns found."""
    dataset = open_dataset([{"user_input": "q", "contexts": [], "response": "", "reference": None}])
    assert needs_met(dataset, "faithfulness")
    with pytest.raises(ConfigError, match="context_recall needs reference") as caught:
        needs_met(dataset, "faithfulness", "context_recall", "mrr")
    told = str(caught.value)
    assert "mrr needs relevant_ids, retrieved_ids" in told
    assert "Columns found: user_input, contexts, response, reference." in told
    assert "reference or reference_answer or ground_truth" in told
    assert "faithfulness" not in told


def test_extra_meets_the_need_of_a_custom_metric() -> None:
    """A need that is no field of `Sample` is looked up in ``extra``."""

    class Toned(Reads):
        needs = frozenset({"tone"})

    check_needs([Toned()], open_dataset([{"answer": "1", "tone": "dry"}]))
    with pytest.raises(ConfigError, match=r"needs tone.*Add tone \(tone\)"):
        check_needs([Toned()], open_dataset([Sample(answer="1")]))


FORMULAS = ("=1+1", "+1", "-1", "@SUM(A1)", "\tx", "\rx", "\nx", "'=x", "''-x")
UNSEEN = (" ", "\n", "\x1f", "\x85", "\xa0", "\xad", "\u034f", "\u200b", "\u200e", "\u2028")
UNSEEN += ("\u202e", "\u2060", "\u3000", "\ufe0f", "\ufeff", "\U000e0041", "\ufeff'")
UNSEEN += ("\t\u200b \r\n",)
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


CUT = "Who wrote \ud83d"
"""A text that was cut inside an emoji; half of a surrogate pair cannot be encoded as UTF-8."""


@pytest.mark.parametrize("suffix", ["jsonl", "csv"])
def test_texts_that_are_not_unicode_are_written(tmp_path: Path, suffix: str) -> None:
    """A question mark stands for what cannot be encoded."""
    path, scored = tmp_path / f"scores.{suffix}", Evaluation(scores=(Score(name="m", value=1.0),))
    sample = Sample(question=CUT, contexts=[CUT], answer="Ada 😀")
    with writing(path, ["m"], further=TEXTS) as write:
        write(Row(index=0, evaluation=scored, sample=sample))
    ((_, cells),) = source_of(path).rows()
    assert cells["question"] == "Who wrote ?"
    assert cells["answer"] == "Ada 😀"


@given(st.text())
@example("\0=1+1")
def test_a_cell_reads_back(tmp_path_factory: pytest.TempPathFactory, cell: str) -> None:
    """Quoting a cell can be undone, but for NUL, which csv of Python 3.10 cannot write."""
    path = tmp_path_factory.getbasetemp() / "cell.csv"
    with writing(path, ["m"]) as write:
        score = Score(name="m", value=1.0, explanation=cell)
        write(Row(index=0, evaluation=Evaluation(scores=(score,))))
    ((_, cells),) = source_of(path).rows()
    assert (cells["m.explanation"] or "") == cell.replace("\0", "?")


@pytest.mark.parametrize("column", ["contexts", "retrieved_ids", "rubric", "grades", "extra"])
def test_a_cell_that_is_nested_too_deeply_is_named(tmp_path: Path, column: str) -> None:
    """The error names the row and the column; a deep list is no crash."""
    path = tmp_path / "rows.csv"
    deep = "[" * 200_000 + "]" * 200_000
    path.write_text(f"question,answer,{column}\nQ,A,{deep}\n", encoding="utf-8")
    with pytest.raises(ConfigError, match=rf"row 0 \(line 2\), column '{column}': .*nested"):
        open_dataset(path)
