"""`calibrate`: peers and laws, labels of people and built-in cases, and the command."""

import argparse
import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from types import SimpleNamespace
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
    Confusion,
    Figure,
    Observation,
    built_in_cases,
    calibrate,
    confusion_of,
    fit_threshold,
    observations,
    wilson,
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
    return jsonl(tmp_path / "labels.jsonl", rows)


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
    with pytest.raises(ConfigError, match=r"--output /none/a\.toml cannot be written"):
        run(path, "--output", "/none/a.toml")


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ([], "name a FILE with human labels, or --built-in"),
        (["a.jsonl", "--built-in"], "name a FILE with human labels, or --built-in"),
        (["--built-in", "--threshold", "1"], "--threshold can only be used without --built-in"),
        (["a.jsonl", "--bound", "1"], "--bound can only be used with --built-in"),
    ],
)
def test_unfitting_options(options: list[str], told: str, capsys: Any) -> None:
    """The message names what an option needs."""
    assert main(["calibrate", *options]) == 2
    assert told in capsys.readouterr().err


def read_cases() -> list[Any]:
    """Return the built-in cases, each with what the file says about it."""
    path = Path(__file__).parents[2] / "rag_eval_otel" / "tools" / "judge_cases.json"
    topics = json.loads(path.read_text("utf-8"))["topics"]
    told = [{**topic, **case} for topic in topics for case in topic["cases"]]
    return [
        SimpleNamespace(**{**cells, "sample": sample, "labels": labels})
        for cells, (sample, labels) in zip(told, built_in_cases(), strict=True)
    ]


CASES = read_cases()
METRICS = ("context_relevance", "declines", "faithfulness", "response_groundedness")
Shown = Mapping[str, Sequence[str]]


def agreeing(case: Any) -> Any:
    best = dict.fromkeys(case.labels, 1.0)
    labels = {**best, "declines": 0.0}
    return SimpleNamespace(verdicts=[1] * len(case.verdicts), labels=labels)


def shown_in(body: Mapping[str, Any]) -> Shown:
    parts = re.split(r"^\[\w+ (\w+)(?: \d+)?\]$", text_asked(body), flags=re.MULTILINE)
    shown: dict[str, list[str]] = {}
    for name, text in zip(parts[1::2], parts[2::2], strict=True):
        shown.setdefault(name, []).append(text.strip("\n"))
    return shown


@cache
def sentences(text: str) -> tuple[str, ...]:
    return tuple(sentence.text for sentence in sentences_of(text))


def cases_of(shown: Shown) -> list[Any]:
    found = list(CASES)
    if "contexts" in shown:
        found = [c for c in found if list(c.sample.context_texts) == shown["contexts"]]
    said = shown.get("answer") or shown.get("sentences") or shown.get("statements")
    if said:
        found = [c for c in found if sentences(" ".join(said)) == sentences(c.sample.answer)]
    return found


def reply_of(name: str, case: Any) -> object:
    declines = case.labels["declines"]
    return {
        "reverse_question": {"question": ["Q?", "R?", "S?"], "noncommittal": int(declines)},
        "context_relevance": round(2 * case.labels["context_relevance"]),
        "supported": case.verdicts,
        "groundedness": round(2 * case.labels.get("response_groundedness", 0.0)),
    }[name]


def judged(body: Mapping[str, Any], opinion: Callable[[Any], Any]) -> dict[str, object]:
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
    """Every language has every subject, no constant is right, and each sentence has a verdict."""
    assert len(CASES) >= 80
    assert [c for c in CASES if len(sentences_of(c.sample.answer)) != len(c.verdicts)] == []
    languages = {case.language for case in CASES}
    assert len(languages) == 6
    assert {(c.language, c.about) for c in CASES} == {
        (language, about) for language in languages for about in {c.about for c in CASES}
    }
    for metric in METRICS:
        labels = [case.labels[metric] for case in CASES if metric in case.labels]
        assert 0.1 <= sum(label >= 0.5 for label in labels) / len(labels) <= 0.9, metric


@pytest.mark.slow
def test_right_judge_has_perfect_figures(capsys: pytest.CaptureFixture[str]) -> None:
    """It agrees with every label, and the status is 0."""
    status, out = built_in(capsys, lambda body: judged(body, lambda case: case), "--json")
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


def close(figure: Figure, expected: float | None) -> bool:
    if expected is None or figure.value is None:
        return figure.value is expected
    return math.isclose(figure.value, expected, abs_tol=1e-12)


def counts(true_pass: int, false_pass: int, true_fail: int, false_fail: int) -> Confusion:
    return Confusion(
        true_pass=true_pass, false_pass=false_pass, true_fail=true_fail, false_fail=false_fail
    )


def youden(confusion: Confusion) -> float:
    return (confusion.sensitivity.value or 0.0) + (confusion.specificity.value or 0.0) - 1


@pytest.mark.parametrize("digits", [1, 6])
@pytest.mark.parametrize("n", [7, 20, 100])
def test_figures_of_labelled_scores_are_those_of_peers(digits: int, n: int) -> None:
    """Counts of numpy, and the best of all thresholds."""
    draw = np.random.default_rng(n)
    truths = np.arange(n) < n // 3 + 1
    scores = np.clip(draw.normal(0.4 + 0.2 * truths, 0.25), 0, 1).round(digits)
    confusion = confusion_of(scores >= 0.5, truths)
    assert (confusion.passes, confusion.fails) == (truths.sum(), (~truths).sum())
    assert close(confusion.accuracy, float(np.mean((scores >= 0.5) == truths)))
    best = max(youden(confusion_of(scores >= level, truths)) for level in scores)
    assert fit_threshold(scores, truths)[1].value == pytest.approx(best, abs=1e-12)


@pytest.mark.parametrize(
    ("figure", "reason"),
    [
        (counts(0, 0, 0, 0).kappa, "no rows"),
        (counts(9, 0, 0, 0).kappa, "are pass"),
        (counts(0, 1, 5, 0).sensitivity, "pass"),
    ],
)
def test_degenerate_sample_gives_a_reason(figure: Figure, reason: str) -> None:
    """There is no number, but the reason why."""
    assert figure.value is None
    assert reason in figure.reason


def test_kappa_is_that_of_statsmodels() -> None:
    """Of statsmodels 0.15 for the same table; 1 for perfect agreement."""
    assert close(counts(126, 15, 39, 16).kappa, 0.6060684647302904)
    assert counts(3, 0, 2, 0).kappa == Figure(value=1.0)


@pytest.mark.parametrize(
    ("k", "n", "interval"),
    [
        (0, 5, (0.0, 0.43448246478317476)),
        (5, 5, (0.5655175352168251, 1.0)),
        (3, 9, (0.12058381838691096, 0.6457978644196036)),
        (81, 100, (0.7222115462093562, 0.8748524849023126)),
    ],
)
def test_wilson_interval_is_that_of_scipy(k: int, n: int, interval: tuple[float, float]) -> None:
    """Of ``binomtest`` of scipy 1.17; at both ends, too."""
    assert wilson(k, n) == pytest.approx(interval, abs=1e-9)


NUMBERS = st.one_of(st.sampled_from([0.0, 0.5, 1.0]), st.floats(0, 1), st.floats(-1e300, 1e300))


def fitted(pairs: list[tuple[float, bool]]) -> tuple[Figure, Figure]:
    return fit_threshold(
        np.array([score for score, _ in pairs]), np.array([label for _, label in pairs], dtype=bool)
    )


@given(st.lists(st.tuples(NUMBERS, st.booleans()), max_size=30))
def test_threshold_has_the_stated_youden(pairs: list[tuple[float, bool]]) -> None:
    """On the rows it was chosen on."""
    threshold, stated = fitted(pairs)
    if threshold.value is None:
        assert threshold.reason
    else:
        scores, truths = np.array(pairs, dtype=float).T
        found = youden(confusion_of(scores >= threshold.value, truths > 0))
        assert stated.value == pytest.approx(found, abs=1e-12)


@pytest.mark.parametrize(
    ("pairs", "threshold"),
    [
        ([(0.1, False), (0.2, False), (0.6, True), (0.9, True)], 0.4),  # midway
        ([(0.1, False), (0.3, True), (0.3, False), (0.7, True)], 0.5),  # the strictest of equals
        ([(0.1, False), (0.5, True), (0.6, True)], 0.3),
        ([], "no rows"),
        ([(0.5, True)], "all labels are pass"),
        ([(0.5, False), (0.1, False)], "all labels are fail"),
        ([(0.5, True), (0.5, False)], "no threshold is better"),
    ],
)
def test_a_threshold_lies_midway(pairs: list[tuple[float, bool]], threshold: object) -> None:
    """Between two scores; one class, equal scores or a reversed judge have none."""
    found, _ = fitted(pairs)
    if isinstance(threshold, str):
        assert found.value is None
        assert threshold in found.reason
    else:
        assert found.value == pytest.approx(threshold)
