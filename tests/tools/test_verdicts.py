"""Outcome, cause, direction and evidence in files, the gate, the page and the terminal."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import pytest

from offline import EMBEDDER, Reads, judge, numbers
from rag_eval_otel.errors import ConfigError
from rag_eval_otel.metrics import METRICS
from rag_eval_otel.tools.calibrate import calibrate
from rag_eval_otel.tools.cli import main
from rag_eval_otel.tools.collect import CollectedTurn
from rag_eval_otel.tools.compare import Gate
from rag_eval_otel.tools.dataset import evaluate_dataset
from rag_eval_otel.tools.read import open_dataset
from rag_eval_otel.tools.report import collect_scores
from rag_eval_otel.tools.rows import Row
from rag_eval_otel.tools.scores import read_scores
from rag_eval_otel.types import Sample
from score_files import event, jsonl, page_of, row, span

BORN = "Albert Einstein was born in Ulm, in the Kingdom of Württemberg, on 14 March 1879."
HISTORY = [["user", "When was Albert Einstein born?"], ["assistant", "On 14 March 1879."]]
WHERE = "Where was Albert Einstein born?"
ROWS: list[dict[str, Any]] = [
    {"question": WHERE, "contexts": ["The Eiffel Tower is in Paris."], "answer": "I don't know."},
    {"question": WHERE, "contexts": [BORN], "answer": "I don't know."},
    {"question": "And where?", "contexts": [BORN], "answer": "In Ulm.", "history": HISTORY},
    {"question": WHERE, "contexts": [BORN], "answer": "In Ulm. <b>Cats</b> purr loudly at night."},
]
"""A right and a needless refusal, a good answer, and one that is not backed."""
MEASURED = ("--metrics", "default,needless_refusal")


@pytest.fixture
def scores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RAG_EVAL_JUDGE", "lexical")
    rows = [{**each, "query": f"query {i}"} for i, each in enumerate(ROWS)]
    path = tmp_path / "scores.jsonl"
    data = jsonl(tmp_path / "data.jsonl", rows)
    assert main(["evaluate", str(data), *MEASURED, "--output", str(path)]) == 0
    return path


def rows_of(path: Path) -> list[Row]:
    return [*read_scores(path)]


def test_summary_and_file_have_verdicts(scores: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Counts first; each row of the file has outcome, cause and conversation."""
    assert main(["evaluate", str(scores.with_name("data.jsonl")), *MEASURED]) == 0
    out = capsys.readouterr().out.splitlines()
    assert "mixture" not in "".join(out)
    assert out[1].startswith("labels: 2 pass, 2 fail; outcomes: 2 declined, 2 answered; causes: 1")
    written = [json.loads(line) for line in scores.read_text(encoding="utf-8").splitlines()]
    assert [each.get("outcome") for each in written] == [*["declined"] * 2, *["answered"] * 2]
    causes = ["retrieval", "needless_refusal", None, "unsupported"]
    assert [each.get("cause") for each in written] == causes
    assert [each.get("query") for each in written] == [f"query {i}" for i in range(4)]
    read, again = rows_of(scores), list(open_dataset(scores).samples())
    assert [each.verdict["cause"] for each in read] == causes
    assert read[2].sample.history == again[2].history == tuple(map(tuple, HISTORY))
    assert read[2].sample.query == again[2].query == "query 2"
    start, end = read[3].unsupported[0]
    assert read[3].sample.answer[start:end] == "<b>Cats</b> purr loudly at night."


def test_tables_keep_verdicts_and_conversations(scores: Path) -> None:
    """CSV has the history as JSON, and the columns outcome and cause."""
    data, path = scores.with_name("data.jsonl"), scores.with_name("scores.csv")
    assert main(["evaluate", str(data), *MEASURED, "--output", str(path)]) == 0
    read = rows_of(path)
    assert [each.verdict for each in read] == [each.verdict for each in rows_of(scores)]
    assert read[2].sample == rows_of(scores)[2].sample
    assert {each.own_question_id for each in read} == {each.question_id for each in rows_of(scores)}


@pytest.mark.parametrize("detail", [None, 3, {"offsets": [[0]], "verdicts": [0]}, {"offsets": [1]}])
def test_malformed_places_are_left_out(detail: object, tmp_path: Path) -> None:
    """The score stays."""
    one = row(0, faithfulness={"value": 0.5, "detail": detail})
    (read,) = rows_of(jsonl(tmp_path / "scores.jsonl", [one]))
    assert (read["faithfulness"].value, read.unsupported) == (0.5, ())


def test_verdicts_of_spans_are_read(tmp_path: Path) -> None:
    """The file says them; the events of outcome and cause are no scores."""
    name, label = "gen_ai__evaluation__name", "gen_ai__evaluation__score__label"
    told = {"outcome": "declined", "cause": "retrieval", "label": "pass"}
    lines = [
        span(0, faithfulness__score=0.0, faithfulness__label="fail", **told),
        event(0, **{name: "cause", label: "retrieval"}),
    ]
    path = jsonl(tmp_path / "spans.jsonl", lines)
    (read,) = rows_of(path)
    assert read.verdict == told
    assert collect_scores(read_scores(path)).verdicts == {("declined", "pass", "retrieval"): 1}


def test_collected_turns_keep_their_conversation(tmp_path: Path) -> None:
    """What `collect` writes, `evaluate` reads."""
    sample = Sample(**{**ROWS[2], "query": "Where?"})
    turn = CollectedTurn(
        sample=sample, trace_id="1", span_id="2", time=0.0, service="shop", label=None
    )
    (read,) = open_dataset(jsonl(tmp_path / "turns.jsonl", [turn.to_dict()])).samples()
    assert (read.history, read.query) == (sample.history, "Where?")


def test_page_has_shares_and_marks(scores: Path) -> None:
    """Outcome and cause with their shares; unsupported sentences are marked and escaped."""
    page = page_of(scores, "--texts", "on")
    assert "Outcome and cause" in page
    assert page.count("25 %") >= 4
    assert "<mark>&lt;b&gt;Cats&lt;/b&gt; purr loudly at night.</mark>" in page
    assert "<b>" not in page
    assert "assistant: On 14 March 1879." in page
    section = page.partition(">needless_refusal</bdi></h2>")[2]
    assert section.partition("The worst scores")[2].split('scope="row">')[1].startswith("1.000")
    assert "mark>" not in page_of(scores, "--texts", "off")


@dataclass(frozen=True, slots=True, kw_only=True)
class Errors(Reads):
    """A number of which little is good."""

    name: str = "errors"
    threshold: float | None = 0.5
    direction: ClassVar[Literal["low"]] = "low"


@pytest.mark.parametrize(
    ("options", "status", "told"),
    [
        (["--fail-over", "needless_refusal=0.5"], 0, "needless_refusal <= 0.5"),
        (["--fail-over", "needless_refusal=0.2"], 3, "FAIL"),
        (["--fail-under", "needless_refusal=0.2"], 2, "low scores of needless_refusal are good"),
        (["--fail-over", "faithfulness=0.2"], 2, "use --fail-under"),
        (["--fail-over", "needless_refusal=2"], 2, "highest mean of needless_refusal must be from"),
        (["--fail-over="], 2, "--fail-over is empty"),
    ],
)
def test_gate_of_a_metric_whose_low_scores_are_good(
    options: Sequence[str], status: int, told: str, scores: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A mean that is higher fails; the option of the other direction is refused."""
    data = scores.with_name("data.jsonl")
    assert main(["evaluate", str(data), *MEASURED, *options]) == status
    out, err = capsys.readouterr()
    assert told in out + err


def test_directions_hold_in_python(tmp_path: Path) -> None:
    """Gate of a result, labels from a cache, and a threshold that is chosen with labels."""
    options: dict[str, Any] = {"judge": judge(), "embedder": EMBEDDER}
    result = evaluate_dataset(numbers(0, 0, 1), [Errors()], **options)
    assert result["errors"].direction == "low"
    assert result.check(Gate(most={"errors": 0.5})).passed
    assert not result.check(Gate(most={"errors": 0.2})).passed
    with pytest.raises(ConfigError, match="use --fail-over"):
        result.check(Gate(means={"errors": 0.2}))
    refusal, cache = METRICS["needless_refusal"], tmp_path / "cache"
    for threshold, label in ((0.5, "fail"), (1.0, "fail"), (None, None)):
        metric = refusal(threshold=threshold)
        turn = evaluate_dataset(ROWS[1:2], [metric], judge="lexical", cache=cache).rows[0]
        assert (turn["needless_refusal"].value, turn["needless_refusal"].label) == (1, label)
    found = calibrate(
        [0, 0.2, 0.8, 1], [1, 1, 0, 0], threshold=0.5, direction="low", metric="errors"
    )
    assert found.accuracy.value == 1
    assert found.fitting_threshold.value == pytest.approx(0.5)
