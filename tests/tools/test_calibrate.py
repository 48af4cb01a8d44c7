"""`calibrate`, and the command of that name."""

import argparse
import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rag_eval_otel.errors import ConfigError
from rag_eval_otel.tools.agreement import Figure
from rag_eval_otel.tools.calibrate import Calibration, calibrate
from rag_eval_otel.tools.cli import calibrate as command
from rag_eval_otel.tools.cli import main

SCORES = st.one_of(st.none(), st.sampled_from([0.0, 0.5, 1.0]), st.floats(0, 1))
LABELS = st.one_of(st.none(), st.booleans(), st.integers(0, 3), st.sampled_from(["pass", "fail"]))
ROWS = st.lists(st.tuples(SCORES, LABELS), max_size=25)
THRESHOLDS = st.one_of(st.none(), st.floats(0, 1))


def figures(calibration: Calibration) -> dict[str, Figure]:
    parts = {name: getattr(calibration, name) for name in calibration.__slots__}
    parts |= {f"fit.{name}": getattr(calibration.fit, name) for name in calibration.fit.__slots__}
    return {name: part for name, part in parts.items() if isinstance(part, Figure)}


@given(ROWS, THRESHOLDS, THRESHOLDS)
def test_every_figure_is_finite_or_has_a_reason(
    rows: list[tuple[Any, Any]], threshold: float | None, passing: float | None
) -> None:
    """For any rows nothing is NaN, nothing raises, and every row is counted."""
    scores, labels = [s for s, _ in rows], [label for _, label in rows]
    found = calibrate(scores, labels, threshold=threshold, label_threshold=passing)
    for figure in figures(found).values():
        assert (figure.value is None) == bool(figure.reason)
    assert found.labelled + found.unlabelled + sum(found.without_score.values()) == len(rows)
    assert json.loads(json.dumps(found.to_dict(), allow_nan=False))["labelled"] == found.labelled
    assert "nan" not in repr(found)


def test_labels_on_a_scale_need_a_label_threshold() -> None:
    """Only the rank correlation needs none."""
    scores, labels = [1, 2, 3, 4, 5, 5], [1, 2, 3, 5, 5, 4]
    whole = calibrate(scores, labels, threshold=4)
    assert whole.spearman.value == pytest.approx(0.868, abs=1e-3)
    assert "label_threshold" in whole.kappa.reason
    assert "label_threshold" in whole.auroc.reason
    assert whole.confusion is None
    assert calibrate(scores, labels, threshold=4, label_threshold=4).kappa.value == 1.0


def test_unlabelled_rows_have_a_corrected_rate() -> None:
    """The metric passes 600 of 1000 rows; corrected for its errors these are half."""
    scores = [1.0] * 90 + [0.0] * 10 + [1.0] * 30 + [0.0] * 70 + [1.0] * 600 + [0.0] * 400
    labels = [1] * 100 + [0] * 100 + [None] * 1000
    found = calibrate(scores, labels, threshold=0.5)
    assert (found.labelled, found.unlabelled) == (200, 1000)
    assert found.metric_rate.value == 0.6
    assert found.corrected_rate.value == pytest.approx(0.5)
    assert found.human_rate.value == 0.5


def test_without_a_threshold_there_is_no_pass_or_fail() -> None:
    """Order and the threshold that fits are still computed."""
    found = calibrate([0.9, 0.2, 0.4], [1, 0, None], threshold=None)
    assert found.auroc.value == 1.0
    assert found.fit.threshold.value == pytest.approx(0.55)
    assert found.confusion is None
    for name in ("kappa", "accuracy", "metric_rate", "corrected_rate"):
        assert getattr(found, name).reason == "give the threshold that a score passes from"


@pytest.mark.parametrize(
    ("scores", "labels", "options", "message"),
    [
        ([1], [1, 0], {}, "1 scores for 2 labels"),
        ([1, "x"], [1, 0], {}, r"row 1: the score must be .* a number, not 'x'"),
        ([1], ["fine"], {}, "row 0: the label must be pass or fail"),
        ([1], [1], {"threshold": math.nan}, "threshold must be a finite number"),
        ([1], [1], {"label_threshold": math.inf}, "label_threshold must be a finite number"),
    ],
)
def test_wrong_score_label_or_option_is_an_error(
    scores: list[Any], labels: list[Any], options: dict[str, Any], message: str
) -> None:
    """The error names the row."""
    with pytest.raises(ConfigError, match=message):
        calibrate(scores, labels, **{"threshold": 0.5, **options})


def run(*arguments: object) -> int:
    parser = argparse.ArgumentParser()
    command.add_options(parser)
    return command.run(parser.parse_args([str(argument) for argument in arguments]))


@pytest.fixture
def labelled(tmp_path: Path) -> Path:
    rows = [
        {
            "scores": {"faithfulness": score, "taste": score},
            "labels": {"faithfulness": label, "taste": label},
        }
        for score, label in [(0.9, "pass"), (0.6, "pass"), (0.4, "fail"), (None, "fail"), (1, None)]
    ]
    path = tmp_path / "labels.jsonl"
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    return path


def test_command_prints_a_table(labelled: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Every metric has a table; a built-in metric has its own threshold."""
    assert run(labelled) == 0
    first, second = capsys.readouterr().out.split("\n\n")
    assert first.splitlines()[:4] == [
        "faithfulness  (95% intervals in brackets)",
        "  rows                  3 labelled, 1 without a label, 1 without a score (1 undefined)",
        "  passes                score from 0.5, label from 1",
        "  kappa                 1.000",
    ]
    assert "  metric pass                      2           0" in first.splitlines()
    assert "cross-validated" in first
    assert "score -, label from 1" in second
    assert second.count("give the threshold that a score passes from") == 2  # not on every line


def test_command_names_file_row_and_line(tmp_path: Path) -> None:
    """The error for an unreadable cell says where it is."""
    path = tmp_path / "labels.jsonl"
    path.write_text('{"score": 1, "label": 1}\n\n{"score": 1, "label": "meh"}\n', encoding="utf-8")
    with pytest.raises(ConfigError, match=r"labels.jsonl, row 1 \(line 3\), score: the label must"):
        run(path)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ([], "name a FILE with human labels, or --built-in"),
        (["a.jsonl", "--built-in"], "name a FILE with human labels, or --built-in"),
        (["a.jsonl", "--form", "full"], "--form needs --built-in"),
        (["a.jsonl", "--prices", "p.json"], "--prices needs --built-in"),
    ],
)
def test_options_that_do_not_fit_are_refused(
    options: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The message names what an option needs."""
    assert main(["calibrate", *options]) == 2
    assert told in capsys.readouterr().err
