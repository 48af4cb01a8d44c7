"""`rag-eval-otel estimate`: a table, JSON, and errors with the way out."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rag_eval_otel.cli import main


def file_of(tmp_path: Path, rows: int = 30, probability: float | None = 0.5) -> str:
    """Write a score file and return its path."""
    path = tmp_path / "scores.csv"
    lines = [
        f"{i},{0.5 + i / 100},{'' if probability is None else probability}" for i in range(rows)
    ]
    head = "id,score,sampling_probability"
    path.write_text("\n".join([head, *lines]) + "\n", encoding="utf-8")
    return str(path)


def test_a_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each group has a line with its mean and interval."""
    assert main(["estimate", file_of(tmp_path)]) == 0
    head, line = capsys.readouterr().out.splitlines()
    assert head.split() == ["metric", "turns", "judged", "mean", "95", "%", "method"]
    assert line.split()[:4] == ["score", "30", "30", "0.645"]


def test_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """All figures are in the JSON."""
    assert main(["estimate", file_of(tmp_path), "--json", "--confidence", "0.9"]) == 0
    (found,) = json.loads(capsys.readouterr().out)
    assert found["method"] == "weighted"
    assert found["mean"]["low"] < 0.645 < found["mean"]["high"]


def test_a_file_without_probabilities(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The error names the option that helps, and the status is 2."""
    assert main(["estimate", file_of(tmp_path, probability=None)]) == 2
    assert "--probability 1" in capsys.readouterr().err


def test_no_number_is_status_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """If no group has a number, the table has the reasons."""
    assert main(["estimate", file_of(tmp_path, rows=1)]) == 1
    assert "one scored turn gives no interval" in capsys.readouterr().out
