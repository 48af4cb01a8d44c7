"""``rag-eval-otel drift``: input files, output, and invalid input."""

import json
import random
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest

from rag_eval_otel.tools.cli import main
from score_files import jsonl

pytestmark = pytest.mark.slow  # each runs a command


def scores(*parts: tuple[int, float], seed: int = 0) -> list[float]:
    dice = random.Random(seed)
    return [float(dice.random() < mean) for count, mean in parts for _ in range(count)]


FALLS = scores((1000, 0.9), (400, 0.4))
STAYS = scores((1400, 0.9))


def found(*arguments: object, capsys: pytest.CaptureFixture[str]) -> tuple[int, list[Any]]:
    status = main(["drift", *map(str, arguments), "--json"])
    return status, json.loads(capsys.readouterr().out)


def test_the_table_describes_each_stream(
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


def test_a_target_is_the_baseline(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The target is the baseline."""
    values = scores((300, 0.8), (600, 0.3))
    path = jsonl(tmp_path / "a.jsonl", [{"score": value} for value in values])
    status, (one,) = found(path, "--target", 0.8, capsys=capsys)
    assert status == 1
    assert one["learned_from"] == 0
    assert one["baseline"] == 0.8


def test_a_reference_is_the_baseline(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Scores that are lower than last month's from the first one on are a drift."""
    before = jsonl(tmp_path / "before.jsonl", [{"score": value} for value in STAYS])
    now = jsonl(tmp_path / "now.jsonl", [{"score": v} for v in scores((400, 0.5), seed=1)])
    status, (one,) = found(now, "--baseline", before, capsys=capsys)
    assert status == 1
    assert one["alarms"][0]["index"] < 100
    other = jsonl(tmp_path / "other.jsonl", [{"score": 0.5, "metric": "other"}] * 60)
    assert main(["drift", str(other), "--baseline", str(before)]) == 2
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
