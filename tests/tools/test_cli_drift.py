"""``rag-eval-otel drift``: input files, output, and invalid input."""

import json
import random
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest

from rag_eval_otel.tools.cli import main
from score_files import event, jsonl, span

pytestmark = pytest.mark.slow  # each runs a command


def scores(*parts: tuple[int, float], seed: int = 0) -> list[float]:
    dice = random.Random(seed)
    return [float(dice.random() < mean) for count, mean in parts for _ in range(count)]


FALLS = scores((1000, 0.9), (400, 0.4))
STAYS = scores((1400, 0.9))


def found(*arguments: object, capsys: pytest.CaptureFixture[str]) -> tuple[int, list[Any]]:
    status = main(["drift", *map(str, arguments), "--json"])
    return status, json.loads(capsys.readouterr().out)


FORMS: dict[str, Callable[[float], dict[str, Any]]] = {
    "score": lambda value: {"score": value, "metric": "faithfulness"},
    "scores": lambda value: {"scores": {"faithfulness": value}},
    "evaluate": lambda value: {
        "row": 1,
        "scores": {"faithfulness": {"value": 1 + 4 * value, "normalized": value, "version": "v"}},
    },
    "flat": lambda value: {"faithfulness": value, "faithfulness.status": "ok"},
}


@pytest.mark.parametrize("form", FORMS)
def test_rows_are_read_in_any_form(
    form: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One score a row, several by name, or the output of evaluate; drift is exit status 1."""
    path = jsonl(tmp_path / "scores.jsonl", map(FORMS[form], FALLS))
    status, (one,) = found(path, capsys=capsys)
    assert status == 1
    assert one["metric"] == "faithfulness"
    assert one["scores"] == 1400
    assert one["learned_from"] == 700
    (alarm, *_) = one["alarms"]
    assert alarm["direction"] == "down"
    assert 950 <= alarm["onset"] <= 1030
    assert alarm["at"] == f"row {alarm['index']}"


def span_request(at: int, value: float) -> dict[str, Any]:
    return span(at, faithfulness__score=value, faithfulness__version="v1")


def log_request(at: int, value: float | None) -> dict[str, Any]:
    score = {} if value is None else {"gen_ai__evaluation__score__value": value}
    names = {"gen_ai__evaluation__name": "faithfulness", "rag__evaluation__version": "v1"}
    return event(at, **names, **score)


@pytest.mark.parametrize("request_of", [span_request, log_request])
def test_otlp_files_are_read(
    request_of: Callable[[int, float], Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A collector writes one request a line; places are named by trace id."""
    path = jsonl(tmp_path / "out.jsonl", [request_of(at, v) for at, v in enumerate(FALLS)])
    status, (one,) = found(path, capsys=capsys)
    assert status == 1
    assert (one["service"], one["metric"], one["version"]) == ("shop", "faithfulness", "v1")
    assert one["alarms"][0]["since"].startswith("trace 0000")


def test_the_table_describes_drift_no_drift_and_too_few_scores(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each stream has its own lines."""
    rows = [{"scores": {"falls": a, "stays": b}} for a, b in zip(FALLS, STAYS, strict=True)]
    assert main(["drift", str(jsonl(tmp_path / "a.jsonl", rows))]) == 1
    out = capsys.readouterr().out
    assert "falls: 1400 scores, 0 without; baseline 0.8" in out
    assert "down   at row 1007, since about row 99" in out
    assert "stays: 1400 scores, 0 without" in out
    assert "no drift" in out
    assert main(["drift", str(jsonl(tmp_path / "b.jsonl", rows[:20]))]) == 0
    assert "too few scores: the baseline needs 50" in capsys.readouterr().out


def test_with_a_target_no_baseline_is_learned(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The target is the baseline."""
    values = scores((300, 0.8), (600, 0.3))
    path = jsonl(tmp_path / "a.jsonl", [{"score": value} for value in values])
    status, (one,) = found(path, "--target", 0.8, capsys=capsys)
    assert status == 1
    assert one["learned_from"] == 0
    assert one["baseline"] == 0.8


def test_a_reference_file_gives_the_baseline(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Scores that are lower than last month's from the first one on are a drift."""
    before = jsonl(tmp_path / "before.jsonl", [{"score": value} for value in STAYS])
    now = jsonl(tmp_path / "now.jsonl", [{"score": v} for v in scores((400, 0.5), seed=1)])
    status, (one,) = found(now, "--reference", before, capsys=capsys)
    assert status == 1
    assert one["alarms"][0]["index"] < 100
    other = jsonl(tmp_path / "other.jsonl", [{"score": 0.5, "metric": "other"}] * 60)
    assert main(["drift", str(other), "--reference", str(before)]) == 2
    assert "before.jsonl has no scores of other" in capsys.readouterr().err


def test_scores_are_sorted_by_time(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The file was written by several workers."""
    seconds = [*range(32400, 33100), *range(118800, 119500)]
    moments = [datetime.fromtimestamp(at, timezone.utc).isoformat() for at in seconds]
    rows = [{"score": v, "time": at} for v, at in zip(FALLS, moments, strict=True)]
    stamps = [{"score": v, "timestamp": at} for v, at in zip(FALLS, seconds, strict=True)]
    for name, ordered in (("text", rows), ("number", stamps)):
        path = jsonl(tmp_path / f"{name}.jsonl", [*ordered[700:], *ordered[:700]])
        status, (one,) = found(path, capsys=capsys)
        assert status == 1
        assert 900 < one["alarms"][0]["index"] < 1100


@pytest.mark.parametrize(
    ("name", "content", "told"),
    [
        ("a.jsonl", '{"question": "x"}\n', "has no scores; use score, scores, or a column"),
        ("a.jsonl", "", "has no scores"),
        ("a.json", "[1]", "must be OTLP JSON"),
        ("a.json", "{", "has no scores"),  # the collector is writing it
        ("a.json", '{"resourceSpans": [{"scopeSpans": 7}]}', "is not OTLP JSON"),
        ("a.txt", "", "cannot read .txt"),
    ],
)
def test_invalid_files_are_refused(
    name: str, content: str, told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The error says how a file must look."""
    path = tmp_path / name
    path.write_text(content, encoding="utf-8")
    assert main(["drift", str(path)]) == 2
    assert told in capsys.readouterr().err
