"""Two score files compared row by row: in the terminal, as JSON and as a page."""

import json
import math
import re
import statistics
from pathlib import Path
from typing import Any

import pytest

from rag_eval_otel.tools.cli import main
from rag_eval_otel.tools.compare import compare_files
from rag_eval_otel.tools.stats import t_quantile
from score_files import jsonl, span
from tools.test_report import parsed

HOSTILE = "</title><script>document.title='owned'</script>\x1b[2J"


def scored(index: int, value: float | None, **cells: Any) -> dict[str, Any]:
    score: dict[str, Any] = {"value": value, "status": "ok", "version": "1"}
    if value is None:
        score |= {"status": "undefined", "reason": "no_claims"}
    else:
        label = "pass" if value >= 0.5 else "fail"
        score |= {"label": label, "explanation": f"because {value:.2f}"}
    row = {"row": index, "question_id": f"q{index}", "scores": {"faithfulness": score}}
    return {**row, **cells}


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    a, b = [], []
    for i in range(40):
        value = 0.9 if i < 10 else 0.4
        texts = {"question": f"Question {i}?", "answer": f"Old {i}."}
        a.append(scored(i, value, **texts))
        changed = value - 0.5 - i / 100 if i < 10 else value + 0.3 if i < 15 else value
        answer = {"question": f"Question {i}?", "answer": f"New {i}."}
        b.append(scored(i, None if i == 39 else changed, **answer))
    b.append(scored(40, 0.5))
    return jsonl(tmp_path / "a.jsonl", a), jsonl(tmp_path / "b.jsonl", b[::-1])


def printed(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> str:
    assert main(["report", *map(str, arguments)]) == 0
    return capsys.readouterr().out


def test_the_table_has_both_means_and_the_paired_difference(
    files: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    """With an interval, the numbers of pairs, lower and higher rows, and the passes of both."""
    changes = [-0.5 - i / 100 for i in range(10)] + [0.3] * 5 + [0.0] * 24
    half = t_quantile(0.975, 38) * statistics.stdev(changes) / math.sqrt(39)
    assert f"{statistics.mean(changes) - half:.3f}" == "-0.193"
    out = printed(capsys, *files)
    assert re.search(
        r"faithfulness +0.525 +0.429 +-0.101 +\[-0.193, -0.010\] +39 +10 +5 +10/40 +6/40", out
    )
    assert "faithfulness: rows only in A: 0, only in B: 1" in out
    assert "faithfulness: rows with a score only in A: 1, only in B: 0" in out


def test_turns_that_changed_the_most_are_listed_with_their_texts(
    files: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    """The largest change first, the first row first among equals, and each row of each file."""
    out = printed(capsys, *files, "--worst", "2")
    worse, better = out.split("turns that got ")[1:]
    assert [line.split("  ") for line in worse.splitlines()[1:3]] == [
        ["", "row 31 (A: row 9)", "0.900 -> 0.310", "-0.590", "Question 9?"],
        ["", "row 32 (A: row 8)", "0.900 -> 0.320", "-0.580", "Question 8?"],
    ]
    assert "Question 14?" in better
    assert "Question" not in printed(capsys, *files, "--texts", "off")
    assert "turns that got" not in printed(capsys, *files, "--worst", "0")


def test_json_has_the_same(files: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    """Without the single scores; texts only if they are asked for."""
    found = json.loads(printed(capsys, *files, "--json"))
    metric = found["metrics"]["faithfulness"]
    assert metric["pairs"] == 39
    assert metric["interval"][1] < 0
    assert metric["a"]["labelled"] == 40
    assert metric["worse"][0]["answer_a"] == "Old 9."
    assert metric["worse"][0]["explanation"] == "because 0.31"
    plain = json.loads(printed(capsys, *files, "--json", "--texts", "off"))
    assert set(plain["metrics"]["faithfulness"]["worse"][0]) == {"a", "b", "row_a", "row_b"}


def test_the_page_shows_both_runs(files: tuple[Path, Path], tmp_path: Path) -> None:
    """What is clear, two drawings for each metric, and turns with the answers of both runs."""
    page = tmp_path / "compare.html"
    assert main(["report", *map(str, files), "--output", str(page)]) == 0
    found = parsed(page.read_text(encoding="utf-8"))
    assert found.tags.count("svg") == 2
    assert "faithfulness fell by 0.101" in found.text
    for text in ("25 %", "15 %", "Old 9.", "New 9.", "because 0.31", "row 31 (A: row 9)"):
        assert text in found.text
    assert "[-0.193, -0.010]" in found.text
    assert not {"img", "link"} & set(found.tags)
    assert found.tags.count("script") == 1


def test_hostile_texts_control_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Texts of users and models are escaped."""
    one = jsonl(tmp_path / "a.jsonl", [scored(i, 0.9, question=HOSTILE) for i in range(3)])
    two = jsonl(tmp_path / "b.jsonl", [scored(i, 0.1, question=HOSTILE) for i in range(3)])
    page = tmp_path / "compare.html"
    assert "\x1b" not in printed(capsys, one, two, "--output", page)
    found = parsed(page.read_text(encoding="utf-8"))
    assert found.tags.count("script") == 1
    assert "\x1b" not in found.text


def test_repeated_questions_are_paired_in_their_order(tmp_path: Path) -> None:
    """A question that is asked three times has three pairs."""
    a = jsonl(tmp_path / "a.jsonl", [scored(i, i / 10, question_id="q") for i in range(3)])
    b = jsonl(tmp_path / "b.jsonl", [scored(i, i / 10 + 0.5, question_id="q") for i in range(4)])
    (metric,) = compare_files(a, b).metrics
    assert metric.differences == pytest.approx([0.5] * 3)
    assert metric.unpaired == 1


@pytest.mark.parametrize(
    ("rows", "told"),
    [
        ([], "has no scores"),
        ([{"row": 0, "question_id": "x", "scores": {"faithfulness": 1}}], "no row of"),
        ([{"row": 0, "question_id": "q0", "scores": {"other": 1}}], "no metric in common"),
        ([scored(0, 0.5) | {"scores": {"faithfulness": {"value": 1.0, "version": "2"}}}],
         "different ways: 2 and 1 (1 rows)"),
        ([span(0, faithfulness__score=0.5)], "row 0 does not say its question"),
    ],
)  # fmt: skip
def test_files_that_cannot_be_compared(
    rows: list[Any], told: str, files: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    """Status 2, and a message that names the file and the way out."""
    jsonl(files[1], rows)
    assert main(["report", *map(str, files)]) == 2
    assert told in capsys.readouterr().err


def test_a_failed_score_has_no_version(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its version names the model that was asked; that of a score names the model that replied."""
    failed = {"faithfulness": {"value": None, "status": "error", "version": "gpt"}}
    rows = [
        scored(i, 0.5) | {"scores": {"faithfulness": {"value": 0.5, "version": "gpt-2026"}}}
        for i in range(3)
    ]
    a = jsonl(tmp_path / "a.jsonl", rows)
    b = jsonl(tmp_path / "b.jsonl", [rows[0] | {"scores": failed}, *rows[1:]])
    out = printed(capsys, a, b)
    assert "rows with a score only in A: 1, only in B: 0" in out
    assert "different ways" not in out


def test_other_versions_on_demand(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The table says that they are other measurements."""
    a = jsonl(tmp_path / "a.jsonl", [scored(i, 0.5) for i in range(3)])
    other = {"faithfulness": {"value": 0.6, "version": "2"}, "new": 1.0}
    b = jsonl(tmp_path / "b.jsonl", [scored(i, 0.5) | {"scores": other} for i in range(3)])
    out = printed(capsys, a, b, "--versions", "any")
    assert "faithfulness: A and B were measured in different ways: 1 and 2" in out
    assert "new: only in B" in out
    assert "+0.100  [0.100, 0.100]" in out
