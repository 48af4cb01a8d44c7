"""Reading scores and human labels from rows."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from opentelemetry.trace import format_trace_id

from live import attached
from rag_eval_otel import record_feedback
from rag_eval_otel.errors import ConfigError
from rag_eval_otel.tools.cli import main
from rag_eval_otel.tools.labels import Observation, observations, rated
from rag_eval_otel.tools.rows import FeedbackRow, Row, UnscoredTurn
from rag_eval_otel.tools.scores import read_feedback
from rag_eval_otel.types import Evaluation, Sample, Score
from score_files import exported, jsonl


def read(*rows: dict[str, Any], metric: str | None = None) -> dict[str, list[Observation]]:
    return observations(((f"row {n}", row) for n, row in enumerate(rows)), metric=metric)


def seen(score: float | None, label: float | None, status: Any = "ok") -> Observation:
    return Observation(score=score, label=label, status=status)


@pytest.mark.parametrize(
    ("label", "expected"),
    [
        (1, 1.0),
        (0, 0.0),
        (True, 1.0),
        (False, 0.0),
        ("pass", 1.0),
        (" FAIL ", 0.0),
        ("yes", 1.0),
        ("no", 0.0),
        ("true", 1.0),
        ("False", 0.0),
        ("1", 1.0),
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
    assert found == {"score": [seen(0.5, expected), seen(0.1, 1.0)]}


@pytest.mark.parametrize(
    ("row", "observation"),
    [
        ({"score": 0.8, "label": 1}, seen(0.8, 1.0)),
        ({"score": "0.8", "label": "1"}, seen(0.8, 1.0)),
        ({"score": None, "label": 1}, seen(None, 1.0, "missing")),
        ({"score": "", "label": 1}, seen(None, 1.0, "missing")),
        ({"score": math.nan, "label": 1}, seen(None, 1.0, "missing")),
        ({"score": None, "label": 1, "status": "error"}, seen(None, 1.0, "error")),
        ({"score": 0.0, "label": 1, "status": "undefined"}, seen(None, 1.0, "undefined")),
        ({"score": 0.8, "human": "pass", "label": "fail"}, seen(0.8, 1.0)),
    ],
)
def test_score_without_a_number_has_a_status(row: dict[str, Any], observation: Any) -> None:
    """A failed score is counted by its status, whatever number is in its cell."""
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
        "faithfulness": [seen(0.8, 0.0)],
        "correctness": [seen(None, 0.0, "error")],
    }
    with pytest.raises(ConfigError, match="no row has a human label"):
        read(row)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"score": "high", "label": 1}, r"row 1, score: the score must be a number, not 'high'"),
        ({"score": True, "label": 1}, "the score must be a number, not True"),
        ({"score": math.inf, "label": 1}, "the score must be a number, not inf"),
        ({"score": [1], "label": 1}, "the score must be a number"),
        ({"score": 1, "label": "good"}, r"the label must be pass or fail, .* not 'good'"),
        ({"score": 1, "label": {"a": 1}}, "the label must be pass or fail"),
        ({"scores": 1, "label": 1}, "row 1: scores must be an object by metric, not 1"),
        ({"scores": {"a": 1}, "labels": 1}, "row 1: labels must be an object by metric, not 1"),
    ],
)
def test_unreadable_cell_is_an_error(row: dict[str, Any], message: str) -> None:
    """The error has the row, the metric and the value."""
    with pytest.raises(ConfigError, match=message):
        read({"score": 0.5, "label": 1}, row)


def test_rows_without_a_metric_are_refused() -> None:
    """The error for no rows, no metric, or not the metric asked for lists what was found."""
    with pytest.raises(ConfigError, match="there are no rows"):
        read()
    with pytest.raises(ConfigError, match=r"any metric .* Columns found: answer, human"):
        read({"answer": "a", "human": 1})
    with pytest.raises(ConfigError, match=r"no scores of recall .* Metrics found: faithfulness"):
        read({"faithfulness": 1, "faithfulness.human": 1}, metric="recall")


def trace(number: int) -> str:
    return f"{number:032x}"


def scored(number: int, value: float) -> dict[str, Any]:
    ids = {"trace_id": trace(number), "span_id": f"{number:016x}"}
    return {**ids, "metric": "faithfulness", "score": value}


def calibrated(
    capsys: pytest.CaptureFixture[str], scores: Path, feedback: Path, *options: str
) -> dict[str, Any]:
    assert main(["calibrate", str(scores), "--feedback", str(feedback), "--json", *options]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)[0]
    return found


def test_live_scores_and_live_feedback(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The file of the collector is enough: it has the scores and the feedback."""
    options: dict[str, Any] = {"metrics": ["faithfulness"], "drift": False}
    with attached(**options) as app:
        spans = [app.turn(number) for number in range(4)]
        assert app.handle.flush()
        for score, span in zip((1, 1, 0), spans, strict=False):
            trace_id = format_trace_id(span.get_span_context().trace_id)
            record_feedback(score, trace_id=trace_id)
        assert app.handle.flush()
        path = jsonl(tmp_path / "otlp.json", exported(app))
    found = calibrated(capsys, path, path)
    assert found["metric"] == "faithfulness"
    assert (found["labelled"], found["unlabelled"]) == (3, 1)
    assert found["confusion"] == {"true_pass": 2, "false_pass": 1, "true_fail": 0, "false_fail": 0}


def test_feedback_in_a_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A backend's export joins by trace, by span, and with ids in capitals or as UUIDs."""
    scores = jsonl(tmp_path / "s.jsonl", [scored(n, n / 10) for n in range(1, 9)])
    feedback = jsonl(
        tmp_path / "f.jsonl",
        [
            {"trace_id": trace(1), "score": 0},
            {"trace_id": trace(2).upper(), "span_id": f"{2:016X}", "value": False},
            {"trace_id": "00000000-0000-0000-0000-000000000007", "label": "pass"},
            {"trace_id": trace(8), "span_id": "ab" * 8, "rating": 0.75},
            {"trace_id": trace(99), "score": 1},
        ],
    )
    found = calibrated(capsys, scores, feedback, "--threshold", "0.5")
    assert (found["labelled"], found["unlabelled"]) == (4, 4)
    assert found["accuracy"]["value"] == 1.0
    assert found["label_threshold"] == 0.5
    assert main(["calibrate", str(scores), "--feedback", str(feedback)]) == 0
    told = capsys.readouterr()
    assert "4 labelled, 4 without a label" in told.out
    assert "1 feedback on turns without scores was left out (the first: " in told.err
    assert "f.jsonl, row 4)" in told.err


def row(number: int, *scores: Score, **more: Any) -> Row:
    turn = f"{trace(number)}/{number:016x}"
    evaluation = Evaluation(scores=scores, **more)
    return Row(index=number, evaluation=evaluation, trace=trace(number), turn=turn)


def feedback(number: int, score: object, name: str = "user") -> FeedbackRow:
    return FeedbackRow(score=score, trace=trace(number), name=name, place=f"row {number}")


FAITHFUL = Score(name="faithfulness", value=1.0, version="1")
RELEVANT = Score(name="answer_relevancy", value=1.0, version="1")


def test_feedback_named_like_a_metric_is_about_it_alone() -> None:
    """Other metrics of the turn get the label of the user, or none."""
    said = [feedback(1, 0, "faithfulness"), feedback(1, 1), feedback(1, 0.9)]
    found, _ = rated([row(1, FAITHFUL, RELEVANT)], said)
    labels = {name: [one.label for one in seen] for (name, _), seen in found.items()}
    assert labels == {"faithfulness": [0.0], "answer_relevancy": [0.9]}


def test_versions_are_not_mixed() -> None:
    """Scores of two judges on the same turns are two metrics."""
    other = Score(name="faithfulness", value=0.0, version="2")
    found, _ = rated([row(1, FAITHFUL), row(1, other)], [feedback(1, 1)])
    assert sorted(found) == [("faithfulness", "1"), ("faithfulness", "2")]


def test_feedback_on_a_turn_without_scores_is_not_about_its_neighbour() -> None:
    """A trace may have several turns, of which one was scored. A span that is no turn is joined."""
    skipped = UnscoredTurn(service="", status="skipped", turn=f"{trace(1)}/{9:016x}")
    said = [replace(feedback(1, 0), turn=f"{trace(1)}/{span:016x}") for span in (9, 5)]
    found, unmatched = rated([row(1, FAITHFUL), skipped], [said[0], feedback(1, 1)])
    assert [one.turn for one in unmatched] == [said[0].turn]
    assert [one.label for one in found["faithfulness", "1"]] == [1.0]
    assert not rated([row(1, FAITHFUL), skipped], said[1:])[1]


@pytest.mark.parametrize(("times", "expected"), [((9, 1), 0.0), ((1, 9), 1.0), ((9, None), 1.0)])
def test_the_last_feedback_of_a_person_counts(
    times: tuple[float | None, float | None], expected: float
) -> None:
    """By its time, because the export of a backend may have the newest first."""
    given = zip((feedback(1, 0), feedback(1, 1)), times, strict=True)
    found, _ = rated([row(1, FAITHFUL)], [replace(one, time=time) for one, time in given])
    (seen,) = found["faithfulness", "1"]
    assert seen.label == expected


@pytest.mark.parametrize(
    ("rows", "options", "expected"),
    [
        ([{"score": 1}], [], "row 0 has no trace_id, turn_id, id, or row with sample: score"),
        ([{"trace_id": "1"}], [], "row 0 has no score, value, rating, feedback or label: trace_id"),
        ([], [], "has no feedback"),
        ([{"trace_id": "run-7", "score": 1}], [], "no feedback is on a scored turn; "),
        ([{"trace_id": "run-7", "score": 1}], [], "'run-7', and the ids of scored turns look like"),
        (
            [{"trace_id": trace(1), "score": 1, "name": name} for name in ("user", "expert")],
            [],
            "there is feedback of expert, user: choose with --feedback-name",
        ),
        (
            [{"trace_id": trace(1), "score": 1}],
            ["--feedback-name", "expert"],
            "there is no feedback of the name expert",
        ),
        ([{"trace_id": trace(1), "score": "so so"}], [], "row 0: the label must be pass or fail"),
    ],
)
def test_feedback_that_cannot_be_used(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    rows: list[Any],
    options: list[str],
    expected: str,
) -> None:
    """The message names the row and what is missing."""
    scores = jsonl(tmp_path / "s.jsonl", [scored(1, 1.0)])
    given = jsonl(tmp_path / "f.jsonl", rows)
    assert main(["calibrate", str(scores), "--feedback", str(given), *options]) == 2
    assert expected in capsys.readouterr().err


def test_feedback_on_a_span_is_read(tmp_path: Path) -> None:
    """Feedback that reached the span before its export needs no log record."""
    with attached() as app:
        with app.provider.get_tracer("app").start_as_current_span("turn"):
            record_feedback(0.25, name="expert")
        assert app.handle.flush()
        spans, logs, _ = exported(app)
        on_span = list(read_feedback(jsonl(tmp_path / "spans.json", [spans])))
        in_logs = list(read_feedback(jsonl(tmp_path / "logs.json", [logs])))
    assert [(one.name, one.score, one.turn) for one in on_span] == [
        (one.name, one.score, one.turn) for one in in_logs
    ]
    assert on_span[0].score == 0.25
