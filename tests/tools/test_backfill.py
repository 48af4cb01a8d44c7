"""`rag-eval-otel backfill`: scores of stored turns, each once."""

import json
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from openai_server import ScriptedOpenAI
from rag_eval_otel import OpenAIJudge
from rag_eval_otel.export.backends import delivery
from rag_eval_otel.live.scorer import sampling_point
from rag_eval_otel.tools.cli import main
from support import names_asked
from tools.test_collect import lines, messages, phoenix_span, turn_spans

TURNS = 5


@pytest.fixture
def traces(tmp_path: Path) -> str:
    path = tmp_path / "traces.json"
    path.write_bytes(lines(m for n in range(1, TURNS + 1) for m in messages(turn_spans(n))))
    return str(path)


@pytest.fixture
def judge(monkeypatch: pytest.MonkeyPatch) -> Iterator[ScriptedOpenAI]:
    def reply(body: dict[str, Any]) -> object:
        said = {"passing": True, "reason": "so it is"}
        names = names_asked(body)
        return said if "passing" in names else dict.fromkeys(names, said)

    monkeypatch.setitem(OpenAIJudge.__init__.__kwdefaults__, "retries", 0)
    monkeypatch.setenv("OPENAI_API_KEY", "sk-none")
    with ScriptedOpenAI(reply) as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.base_url)
        yield server


def test_turns_in_files(
    traces: str, judge: ScriptedOpenAI, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The price is right, a killed run goes on, and another judge scores all turns again."""
    output, prices = tmp_path / "scores.jsonl", tmp_path / "prices.json"
    prices.write_text('{"models": {"gpt-x": {"input": 1000, "output": 1000}}}')
    scoring = ["--metrics", "context_agreement", "--embedder", "hashing", "--prices", str(prices)]
    command = ["backfill", traces, "-o", str(output), "--judge", "openai/gpt-x", *scoring]
    assert main(command) == 2
    told = capsys.readouterr().err
    assert re.search(
        r"5 turns with the judge gpt-x: about 5 requests, [\d,]+ \+ \d+ tokens, \d\.\d\d USD", told
    )
    assert "begin with --yes" in told
    assert not judge.requests
    assert not output.exists()
    assert main([*command, "--yes"]) == 0
    assert len(judge.requests) == TURNS
    rows = output.read_text().splitlines()
    assert [json.loads(row)["trace_id"] for row in rows] == [f"{n:032x}" for n in (1, 2, 3, 4, 5)]
    output.write_text("\n".join(rows)[:-9])  # a run was killed in the last line
    assert main([*command, "--yes"]) == 0
    assert len(judge.requests) == TURNS + 1
    assert [json.loads(row)["label"] for row in output.read_text().splitlines()] == ["pass"] * TURNS
    written = output.read_bytes()
    assert main([*command, "--yes"]) == 0
    assert output.read_bytes() == written
    assert len(judge.requests) == TURNS + 1
    assert main([*command, "--judge", "lexical", "--yes"]) == 0
    assert len(output.read_text().splitlines()) == 2 * TURNS
    assert main(["report", str(output)]) == 0


def test_errors_are_not_written(
    traces: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A turn whose metric fails is left to the next run; without a key, the run stops."""
    monkeypatch.setenv("OPENAI_API_KEY", "")
    output = tmp_path / "scores.jsonl"
    command = ["backfill", traces, "-o", str(output), "--judge", "openai/gpt-x", "--yes"]
    assert main([*command, "--metrics", "context_agreement", "--embedder", "hashing"]) == 1
    assert not output.read_text()
    assert "stopped (context_agreement: " in capsys.readouterr().err


def test_a_sample_of_a_period(traces: str, tmp_path: Path) -> None:
    """The traces are those that live evaluation chooses by their ids."""
    numbers = {}
    for name, options in {
        "half": ["--sample-rate", "0.5"],
        "before": ["--until", "2001-09-09"],
        "after": ["--since", "7d"],
    }.items():
        output = tmp_path / f"{name}.jsonl"
        assert main(["backfill", traces, "-o", str(output), "--yes", *options]) == 0
        rows = output.read_text().splitlines() if output.exists() else []
        numbers[name] = [int(json.loads(row)["trace_id"], 16) for row in rows]
    chosen = [n for n in range(1, TURNS + 1) if sampling_point(n) < 0.5]
    assert numbers == {"half": chosen, "before": [], "after": []}
    assert 0 < len(chosen) < TURNS


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["traces.json"], "traces.json is a file, so name an --output FILE.jsonl"),
        (["phoenix:"], "phoenix: is a file"),
        (["phoenix:shop", "-o", "x.jsonl"], "phoenix gets its scores itself"),
        (["mlflow:shop"], "MLFLOW_TRACKING_URI"),
        (["a.json", "-o", "NOTES"], "has no scores of stored turns, so none are added"),
        (["a.json", "-o", "x.jsonl", "--sample-rate", "2"], "--sample-rate must be above 0"),
        (["a.json", "-o", "x.jsonl", "--since", "1d", "--until", "2d"], "must be before --until"),
    ],
)
def test_misuse(
    arguments: Sequence[str],
    told: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The message says what to name instead."""
    monkeypatch.setattr(delivery, "distribution", lambda _: None)
    notes = tmp_path / "notes.jsonl"
    notes.write_text('{"question": "q"}\n')
    words = [str(notes) if word == "NOTES" else word for word in arguments]
    assert main(["backfill", *words, "--yes"]) == 2
    assert told in capsys.readouterr().err


class FakePhoenix:
    """A project with one turn; it answers ``status`` to annotations."""

    def __init__(self) -> None:
        self.spans = self.traces = self
        self.stored: list[Any] = []
        self.writes, self.status = 0, 200

    def get_spans(self, **_: object) -> list[Any]:
        return [*map(phoenix_span, turn_spans())]

    def get_span_annotations(self, **asked: Any) -> list[Any]:
        return [one for one in self.stored if one["span_id"] in asked["span_ids"]]

    def log_span_annotations(self, *, span_annotations: list[Any], **_: object) -> None:
        self.writes += 1
        if self.status != 200:
            request = httpx.Request("POST", "http://phoenix.example")
            response = httpx.Response(self.status, request=request)
            response.raise_for_status()
        self.stored += span_annotations

    log_trace_annotations = log_span_annotations


@pytest.fixture
def phoenix(monkeypatch: pytest.MonkeyPatch) -> FakePhoenix:
    client = FakePhoenix()
    for name in ("phoenix", "phoenix.client"):
        monkeypatch.setitem(sys.modules, name, SimpleNamespace(Client=lambda: client))
    monkeypatch.setattr(delivery, "distribution", lambda _: None)
    return client


def test_a_backend_gets_each_score_once(phoenix: FakePhoenix) -> None:
    """Scores that live evaluation has written count, too; those of other metrics do not."""
    command = ["backfill", "phoenix:shop", "--yes", "--metrics"]
    assert main([*command, "faithfulness"]) == 0
    names = [one["name"] for one in phoenix.stored]
    assert names == ["faithfulness", "rag.evaluation"]
    assert phoenix.stored[0]["metadata"]["sampling_probability"] == 1
    assert main([*command, "faithfulness"]) == 0
    assert phoenix.writes == 1
    del phoenix.stored[1]["metadata"]["backfill"]  # as live evaluation writes it
    assert main([*command, "faithfulness"]) == 0
    assert phoenix.writes == 1
    del phoenix.stored[1]  # a run was killed before it wrote the overall label
    assert main([*command, "faithfulness"]) == 0
    assert phoenix.writes == 2
    assert main([*command, "faithfulness,context_relevance"]) == 0
    assert phoenix.writes == 3


def test_a_backend_that_refuses(phoenix: FakePhoenix, capsys: pytest.CaptureFixture[str]) -> None:
    """A refused key ends the run."""
    phoenix.status = 401
    assert main(["backfill", "phoenix:shop", "--yes"]) == 1
    assert "phoenix takes no more scores (unauthorized): run the same" in capsys.readouterr().err
