"""``rag-eval-otel evaluate`` as a gate: its exit statuses, its table and its files."""

import json
import re
from pathlib import Path

import pytest

from openai_server import HttpReply, ScriptedOpenAI
from rag_eval_otel import OpenAIJudge
from rag_eval_otel.tools.cli import _options, main, registered
from score_files import jsonl

ROOT = Path(__file__).parents[2]
MEASURED = ("--metrics", "answer_exact_match,semantic_similarity")


def written(path: Path, right: int) -> Path:
    """Write 20 rows, of which the first ``right`` have the right answer."""
    answers = enumerate(["yes"] * right + ["no"] * (20 - right))
    return jsonl(path, [{"question": f"{i}?", "reference": "yes", "answer": a} for i, a in answers])


def status(path: Path, *options: str) -> int:
    return main(["evaluate", str(path), *MEASURED, *options])


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--fail-under", "answer_exact_match=0.5"], 0),
        (["--fail-under", "answer_exact_match=0.5,semantic_similarity=0.9"], 3),
        (["--fail-under", "answer_exact_match=0.5", "--fail-under", "semantic_similarity=0.9"], 3),
        (["--fail-under-pass-rate", "0.9"], 3),
        (["--fail-under", "answer_exact_match=high"], 2),
        (["--fail-under", "faithfulness=0.5"], 2),
        (["--fail-under", "answer_exact_match=8"], 2),
        (["--fail-under-pass-rate", "90"], 2),
        (["--no-worse", "answer_exact_match"], 2),
        (["--fail-under="], 2),
        (["--level", "0.05"], 2),
        (["--fail-under", "answer_exact_match=0.5", "--versions", "any"], 2),
    ],
)
def test_the_status_says_whether_the_gate_passed(
    options: list[str], expected: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """0: passed; 3: a condition is not met; 2: a condition that cannot be checked."""
    assert status(written(tmp_path / "data.jsonl", 10), *options) == expected
    out, err = capsys.readouterr()
    assert ("gate: failed" in out) is (expected == 3)
    assert bool(err) is (expected == 2)


def test_rows_are_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The table has the paired interval, the JSON its ends."""
    before, after = tmp_path / "before.csv", tmp_path / "after.jsonl"
    assert status(written(tmp_path / "old.jsonl", 20), "--output", str(before)) == 0
    compared = ("--baseline", str(before), "--no-worse", "answer_exact_match")
    data = written(tmp_path / "new.jsonl", 10)
    assert status(data, *compared, "--output", str(after)) == 3
    assert re.search(r"answer_exact_match no worse +-0.500 +\[-0\.\d+, -0\.\d+\] 98.2 % +20 +FAIL",
                     capsys.readouterr().out)  # fmt: skip
    assert status(data, *compared, "--json") == 3
    gate = json.loads(capsys.readouterr().out)["gate"]
    assert gate["conditions"][0]["interval"][1] < 0
    assert status(data, "--baseline", str(after), "--no-worse", "answer_exact_match") == 0


def test_the_baseline_is_not_replaced_by_the_output(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Otherwise a failed gate would pass at the next run."""
    scores = str(tmp_path / "scores.jsonl")
    data = written(tmp_path / "data.jsonl", 20)
    assert status(data, "--output", scores) == 0
    compared = ("--baseline", scores, "--no-worse", "answer_exact_match")
    assert status(data, "--output", scores, *compared) == 2
    assert "is the file that is read; name another" in capsys.readouterr().err


def test_scores_stay_in_the_cache_if_the_baseline_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The next run, with another baseline or --versions any, need not ask the judge again."""
    data, output = written(tmp_path / "data.jsonl", 10), tmp_path / "scores.jsonl"
    old = {"answer_exact_match": {"value": 1.0, "status": "ok", "version": "old"}}
    row = {"row": 0, "question": "0?", "reference": "yes", "scores": old}
    baseline = jsonl(tmp_path / "baseline.jsonl", [row])
    gate = ("--baseline", str(baseline), "--no-worse", "answer_exact_match")
    assert status(data, *gate, "--output", str(output)) == 2
    assert "(--versions any)" in capsys.readouterr().err
    cache = tmp_path / "scores.jsonl.cache"
    assert cache.is_file()
    assert status(data, *gate, "--versions", "any", "--output", str(output)) == 0
    assert not cache.exists()


def test_failed_scores_come_before_the_gate(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A judge that is down is status 1, as the gate cannot know the scores that are missing."""
    monkeypatch.setenv("OPENAI_API_KEY", "sk-none")
    monkeypatch.setitem(OpenAIJudge.__init__.__kwdefaults__, "retries", 0)
    path = jsonl(tmp_path / "data.jsonl", [{"question": "q?", "contexts": ["c"], "answer": "a"}])
    with ScriptedOpenAI(lambda _: HttpReply(status=500)) as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.base_url)
        judge = ("--judge", "openai/gpt-x")
        options = ("--metrics", "context_agreement", "--fail-under", "context_agreement=0.5")
        assert main(["evaluate", str(path), *judge, "--embedder", "hashing", *options]) == 1
    out, err = capsys.readouterr()
    assert "gate: failed, 1 of 1 conditions not met" in out
    assert "1 rows have errors instead of scores" in err


def test_one_table_has_the_statuses_of_all_commands() -> None:
    """A line for each command, in the order of the help."""
    text = (ROOT / "docs" / "ci.md").read_text(encoding="utf-8")
    table = text.split("## Exit statuses")[1].split("\n## ")[0]
    assert re.findall(r"^\| `([\w-]+)` \|", table, flags=re.MULTILINE) == list(registered())


def test_the_example_for_github_actions_has_options_that_exist() -> None:
    """The command in the workflow is read as it stands."""
    workflow = (ROOT / "examples" / "github-actions.yml").read_text(encoding="utf-8")
    found = re.search(r"rag-eval-otel (evaluate .+?)\n +env:", workflow, flags=re.DOTALL)
    assert found is not None
    options = _options(found[1].split())
    assert options.no_worse == ["faithfulness,answer_relevancy"]
