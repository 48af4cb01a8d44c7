"""`calibrate` with labels of people and with built-in cases, and the command of that name."""

import argparse
import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from openai_server import ScriptedOpenAI
from rag_eval_otel.config import read_thresholds
from rag_eval_otel.errors import ConfigError
from rag_eval_otel.metrics.groundedness import sentences_of
from rag_eval_otel.tools.calibrate import (
    Calibration,
    Figure,
    Observation,
    built_in_cases,
    calibrate,
    observations,
)
from rag_eval_otel.tools.cli import main
from rag_eval_otel.tools.cli.commands import Calibrate
from rag_eval_otel.tools.rows import Row
from rag_eval_otel.types import Evaluation, Sample, Score
from score_files import jsonl
from support import names_asked, text_asked

SCORES = st.one_of(st.none(), st.sampled_from([0.0, 0.5, 1.0]), st.floats(0, 1))
LABELS = st.one_of(st.none(), st.booleans(), st.integers(0, 3), st.sampled_from(["pass", "fail"]))
ROWS = st.lists(st.tuples(SCORES, LABELS), max_size=25)
THRESHOLDS = st.one_of(st.none(), st.floats(0, 1))


def figures(calibration: Calibration) -> dict[str, Figure]:
    parts = {name: getattr(calibration, name) for name in calibration.__slots__}
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
    assert found.labelled + found.unlabelled + found.without_score == len(rows)
    assert json.loads(json.dumps(found.to_dict(), allow_nan=False))["labelled"] == found.labelled
    assert "nan" not in repr(found)


def test_labels_on_a_scale_need_a_label_threshold() -> None:
    """Without one, there are no figures, but the reason why."""
    scores, labels = [1, 2, 3, 4, 5, 5], [1, 2, 3, 5, 5, 4]
    whole = calibrate(scores, labels, threshold=4)
    assert "label_threshold" in whole.kappa.reason
    assert whole.confusion is None
    assert calibrate(scores, labels, threshold=4, label_threshold=4).kappa.value == 1.0


def test_without_a_threshold_there_is_no_pass_or_fail() -> None:
    """The threshold that fits is still computed."""
    found = calibrate([0.9, 0.2, 0.4], [1, 0, None], threshold=None)
    assert found.fitting_threshold.value == pytest.approx(0.55)
    assert found.confusion is None
    for name in ("kappa", "accuracy"):
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


def observed(
    *rows: dict[str, Any], metric: str | None = None
) -> Mapping[str, Sequence[Observation]]:
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
    found = observed({"score": 0.5, "label": label}, {"score": 0.1, "label": 1})
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
        ({"scores": {"score": {"value": 0.8, "status": [], "label": {}}}, "human": 1}, (0.8, 1.0)),
    ],
)
def test_score_without_a_number_is_none(row: dict[str, Any], observation: Any) -> None:
    """Also a failed one, whatever number is in its cell."""
    assert observed(row) == {"score": [observation]}


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
    assert observed({**row, "human": "fail"}) == {
        "faithfulness": [(0.8, 0.0)],
        "correctness": [(None, 0.0)],
    }
    with pytest.raises(ConfigError, match="no row has a human label"):
        observed(row)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"score": 1, "label": "good"}, r"row 1, score: the label must be .* not 'good'"),
        ({"score": 1, "label": {"a": 1}}, "the label must be pass or fail"),
        ({"score": "high", "label": 1}, "row 1, score: the score must be .* not 'high'"),
    ],
)
def test_unreadable_cell_is_an_error(row: dict[str, Any], message: str) -> None:
    """The error has the row, the metric and the value."""
    with pytest.raises(ConfigError, match=message):
        observed({"score": 0.5, "label": 1}, row)


def test_rows_without_a_metric_are_refused() -> None:
    """The error for no rows, no metric, or not the metric asked for lists what was found."""
    with pytest.raises(ConfigError, match=r"any metric .* Columns found: none"):
        observed()
    with pytest.raises(ConfigError, match=r"any metric .* Columns found: answer, human"):
        observed({"answer": "a", "human": 1})
    with pytest.raises(ConfigError, match=r"no scores of recall .* Columns found: faithfulness"):
        observed({"faithfulness": 1, "faithfulness.human": 1}, metric="recall")


def run(*arguments: object) -> int:
    parser = argparse.ArgumentParser()
    Calibrate.add_options(parser)
    return Calibrate.run(parser.parse_args([str(argument) for argument in arguments]))


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
        "  rows                  3 labelled, 1 without a label, 1 without a score",
        "  passes                score from 0.5, label from 1",
        "  kappa                 1.000",
    ]
    assert "  metric pass                      2           0" in first.splitlines()
    assert "score -, label from 1" in second
    assert "give the threshold that a score passes from" in second


def test_written_thresholds_can_be_read(tmp_path: Path) -> None:
    """Names of a user's own metrics may have spaces, dots and quotes."""
    names = ("faithfulness", "my metric", "faithfulness.full", 'the "best"')
    pairs = ((0, 0.2), (1, 0.4))
    rows = [
        {"scores": dict.fromkeys(names, b), "labels": dict.fromkeys(names, a)} for a, b in pairs
    ]
    path = jsonl(tmp_path / "labels.jsonl", rows)
    assert run(path, "--output", tmp_path / "chosen.toml") == 0
    assert read_thresholds(tmp_path / "chosen.toml") == pytest.approx(dict.fromkeys(names, 0.3))


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ([], "name a FILE with human labels, or --built-in"),
        (["a.jsonl", "--built-in"], "name a FILE with human labels, or --built-in"),
        (["--built-in", "--threshold", "1"], "--threshold can only be used without --built-in"),
        (["a.jsonl", "--bound", "1"], "--bound can only be used with --built-in"),
        (["--built-in", "-o", "/none/a.toml"], "--output /none/a.toml cannot be written"),
    ],
)
def test_unfitting_options(options: list[str], told: str, capsys: Any) -> None:
    """The message names what an option needs."""
    assert main(["calibrate", *options]) == 2
    assert told in capsys.readouterr().err


@dataclass(frozen=True, kw_only=True)
class Case:
    """A built-in case, with what the file says about it."""

    about: str
    language: str
    verdicts: tuple[int, ...]
    sample: Sample
    labels: Mapping[str, float]


def read_cases() -> list[Case]:
    path = Path(__file__).parents[2] / "rag_eval_otel" / "tools" / "judge_cases.json"
    topics = json.loads(path.read_text("utf-8"))["topics"]
    told = [{**topic, **case} for topic in topics for case in topic["cases"]]
    return [
        Case(
            about=cells["about"],
            language=cells["language"],
            verdicts=tuple(cells["verdicts"]),
            sample=sample,
            labels=labels,
        )
        for cells, (sample, labels) in zip(told, built_in_cases(), strict=True)
    ]


CASES = read_cases()
METRICS = ("context_relevance", "declines", "faithfulness", "response_groundedness")
Shown = Mapping[str, Sequence[str]]
Opinion = Callable[[Case], Case]
"""What a judge takes a case for."""


def right(case: Case) -> Case:
    return case


def agreeing(case: Case) -> Case:
    best = dict.fromkeys(case.labels, 1.0)
    return replace(case, verdicts=(1,) * len(case.verdicts), labels={**best, "declines": 0.0})


def shown_in(body: Mapping[str, Any]) -> Shown:
    parts = re.split(r"^\[\w+ (\w+)(?: \d+)?\]$", text_asked(body), flags=re.MULTILINE)
    shown: dict[str, list[str]] = {}
    for name, text in zip(parts[1::2], parts[2::2], strict=True):
        shown.setdefault(name, []).append(text.strip("\n"))
    return shown


@cache
def sentences(text: str) -> tuple[str, ...]:
    return tuple(sentence.text for sentence in sentences_of(text))


def cases_of(shown: Shown) -> list[Case]:
    found = list(CASES)
    if "contexts" in shown:
        found = [c for c in found if list(c.sample.context_texts) == shown["contexts"]]
    said = shown.get("answer") or shown.get("sentences") or shown.get("statements")
    if said:
        found = [c for c in found if sentences(" ".join(said)) == sentences(c.sample.answer)]
    return found


def reply_of(name: str, case: Case) -> object:
    declines = case.labels["declines"]
    return {
        "reverse_question": {"question": ["Q?", "R?", "S?"], "noncommittal": int(declines)},
        "context_relevance": round(2 * case.labels["context_relevance"]),
        "supported": list(case.verdicts),
        "groundedness": round(2 * case.labels.get("response_groundedness", 0.0)),
    }[name]


def judged(body: Mapping[str, Any], opinion: Opinion) -> dict[str, object]:
    case = opinion(cases_of(shown_in(body))[0])
    return {name: reply_of(re.sub(r"_\d$", "", name), case) for name in names_asked(body)}


def built_in(
    capsys: pytest.CaptureFixture[str], reply: Callable[[dict[str, Any]], object], *arguments: str
) -> tuple[int, str]:
    with (
        ScriptedOpenAI(reply, answered_model="gpt-4o-mini-2024-07-18") as server,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setenv("OPENAI_BASE_URL", server.base_url)
        status = main(["calibrate", "--built-in", "--judge", "openai/x", *arguments])
    return status, capsys.readouterr().out


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-x")


def test_cases_are_balanced() -> None:
    """Every language has every subject, and no constant answer is right."""
    assert len(CASES) >= 80
    languages = {case.language for case in CASES}
    assert len(languages) == 6
    assert {(c.language, c.about) for c in CASES} == {
        (language, about) for language in languages for about in {c.about for c in CASES}
    }
    for metric in METRICS:
        labels = [case.labels[metric] for case in CASES if metric in case.labels]
        assert 0.1 <= sum(label >= 0.5 for label in labels) / len(labels) <= 0.9, metric


def test_each_sentence_has_a_verdict() -> None:
    """Each answer has as many sentences as verdicts, in any script."""
    assert [c for c in CASES if len(sentences_of(c.sample.answer)) != len(c.verdicts)] == []


@pytest.mark.slow
def test_right_judge_has_perfect_figures(capsys: pytest.CaptureFixture[str]) -> None:
    """It agrees with every label, and the status is 0."""
    status, out = built_in(capsys, lambda body: judged(body, right), "--json")
    assert status == 0
    found = {each["metric"]: each for each in json.loads(out)}
    assert {name: each["accuracy"]["value"] for name, each in found.items()} == dict.fromkeys(
        METRICS, 1.0
    )
    assert found["faithfulness"]["accuracy"]["low"] > 0.9
    assert {each["without_score"] for each in found.values()} == {0}


@pytest.mark.slow
def test_agreeable_judge_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """It is right on good answers only, and the status is 1."""
    status, out = built_in(capsys, lambda body: judged(body, agreeing))
    assert status == 1
    table = out.partition("\nfaithfulness ")[2]
    assert re.search(r"sensitivity +1.000 ", table)
    assert re.search(r"specificity +0.000 ", table)


def test_missing_score_is_wrong() -> None:
    """It has no part in the accuracy, but in the share that `--bound` is about."""
    found = calibrate([1.0, None, 0.0, 1.0], [1, 1, 0, 1], threshold=0.5)
    assert (found.accuracy.value, found.right) == (1.0, 0.75)
