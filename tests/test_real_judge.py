"""The benchmark of a real judge, against a scripted server."""

import json
from pathlib import Path

import pytest

from openai_server import ScriptedOpenAI
from score_files import jsonl
from support import benchmark

BENCHMARK, TURNS = benchmark("real_judge"), benchmark("_turns")


def test_agreement_with_people(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Figures by metric and language, tokens and stored replies; a second run asks for nothing."""
    rows = [
        {
            "question": f"When was house {i} built?",
            "contexts": [f"House {i} is of 1850.", "It is red."],
            "answer": f"House {i} was built in 1850. It is of stone.",
            "faithful": bool(i % 2),
            "answered": True,
            "language": "de" if i < 4 else None,
        }
        for i in range(6)
    ]
    path, replies = jsonl(tmp_path / "set.jsonl", rows), tmp_path / "replies.jsonl"
    monkeypatch.setenv("OPENAI_API_KEY", "key")
    with ScriptedOpenAI(TURNS.reply, TURNS.embed) as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.base_url)
        options = [str(path), "--judge", "openai/a-model", "--replies", str(replies)]
        assert BENCHMARK.main(options) == 0
        asked = len(server.requests)
        out = capsys.readouterr().out
        assert BENCHMARK.main(options) == 0
        assert len(server.requests) == asked
    lines = {tuple(line.split()[:2]): line.split()[2:] for line in out.splitlines()}
    assert lines["faithfulness", "all"][0] == "6"
    assert lines["faithfulness", "de"][0] == "4"
    assert lines["faithfulness", "en"][0] == "2"
    assert lines["faithfulness", "all"][2] == "0.500"
    assert lines["outcome", "all"][:3] == ["6", "0", "1.000"]
    assert "price not known" in out
    stored = [json.loads(line) for line in replies.read_text(encoding="utf-8").splitlines()]
    assert len(stored) >= 12
    assert all(one["prompt"] and one["replies"] for one in stored)
    follow_up = {"question": "And where?", "history": [["user", "Hello"]], "query": "Where?"}
    sample = BENCHMARK.sample_of(follow_up)
    assert (sample.history, sample.query) == ((("user", "Hello"),), "Where?")
