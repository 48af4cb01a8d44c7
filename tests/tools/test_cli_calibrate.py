"""`rag-eval-otel calibrate --disagreements`: the rows on which metric and label disagree."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rag_eval_otel.tools.cli import main
from score_files import jsonl

SCORES = [0.9, 0.95, 0.1, 0.6, 0.55, 0.2]
LABELS = [1, 0, 1, 0, 1, 0]


def rows(**texts: Any) -> list[dict[str, Any]]:
    return [
        {
            "row": i,
            "scores": {"faithfulness": {"value": score, "status": "ok"}},
            "human": label,
            **{
                name: value if isinstance(value, list) else f"{value} {i}"
                for name, value in texts.items()
            },
        }
        for i, (score, label) in enumerate(zip(SCORES, LABELS, strict=True))
    ]


def test_rows_are_listed_with_their_texts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The row whose score is the farthest from the threshold comes first."""
    found = rows(question="why", contexts=["because", "or not"], answer="so")
    path = str(jsonl(tmp_path / "a.jsonl", found))
    assert main(["calibrate", path, "--threshold", "0.5", "--disagreements", "2"]) == 0
    _, listed = capsys.readouterr().out.split(
        "faithfulness, rows on which metric and label disagree:"
    )
    assert listed.strip().splitlines() == [
        f"{path}, row 1 (line 2): score 0.950, label 0",
        "    question: why 1",
        "    contexts: because",
        "    contexts: or not",
        "    answer: so 1",
        f"  {path}, row 2 (line 3): score 0.100, label 1",
        "    question: why 2",
        "    contexts: because",
        "    contexts: or not",
        "    answer: so 2",
    ]
