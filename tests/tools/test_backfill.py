"""`rag-eval-otel backfill`: scores of stored turns, each once; and what `collect` reads there."""

import json
import re
import sys
from collections.abc import Iterator, Sequence
from datetime import datetime, timezone
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from openai_server import ScriptedOpenAI
from rag_eval_otel import OpenAIJudge
from rag_eval_otel.capture.span import Span
from rag_eval_otel.export.backends import delivery
from rag_eval_otel.live.scorer import sampling_point
from rag_eval_otel.tools.cli import main
from support import yes
from tools.test_collect import TOLD, turn_spans

TURNS = 5


def phoenix_span(span: Span) -> dict[str, Any]:
    """Return ``span`` as Phoenix shows it, with ids of spans that no other trace has."""
    assert span.end is not None
    first = 10 * span.trace_id
    return {
        "id": "U3BhbjoxMTA=",
        "name": span.name,
        "context": {"trace_id": f"{span.trace_id:032x}", "span_id": f"{first + span.span_id:016x}"},
        "span_kind": span.attributes["openinference.span.kind"],
        "parent_id": None if span.parent_id is None else f"{first + span.parent_id:016x}",
        "start_time": datetime.fromtimestamp(span.start / 1e9, timezone.utc).isoformat(),
        "end_time": datetime.fromtimestamp(span.end / 1e9, timezone.utc).isoformat(),
        "status_code": "UNSET",
        "status_message": "",
        "attributes": dict(span.attributes),
        "events": [],
    }


class FakePhoenix:
    """The project ``shop`` with some turns; ``error`` is raised on reading, or on writing."""

    def __init__(self) -> None:
        self.spans = self.traces = self
        self.stored: list[Any] = []
        self.writes = 0
        self.unread: Exception | None = None
        self.unwritten: Exception | None = None

    def get_spans(self, **asked: Any) -> list[Any]:
        if self.unread is not None:
            raise self.unread
        assert asked["project_identifier"] == "shop"
        spans = [turn_spans(n, before="" if n > 1 else "A firm?") for n in range(1, TURNS + 1)]
        return [phoenix_span(span) for turn in spans for span in turn]

    def get_span_annotations(self, **asked: Any) -> list[Any]:
        return [one for one in self.stored if one["span_id"] in asked["span_ids"]]

    def log_span_annotations(self, *, span_annotations: list[Any], **_: object) -> None:
        self.writes += 1
        if self.unwritten is not None:
            raise self.unwritten
        self.stored += span_annotations

    log_trace_annotations = log_span_annotations

    def named(self, name: str) -> list[Any]:
        return [one for one in self.stored if one["name"] == name]


@pytest.fixture
def phoenix(monkeypatch: pytest.MonkeyPatch) -> FakePhoenix:
    client = FakePhoenix()
    for name in ("phoenix", "phoenix.client"):
        monkeypatch.setitem(sys.modules, name, SimpleNamespace(Client=lambda: client))
    monkeypatch.setattr(delivery, "distribution", lambda _: None)
    return client


@pytest.fixture
def judge(monkeypatch: pytest.MonkeyPatch) -> Iterator[ScriptedOpenAI]:
    monkeypatch.setitem(OpenAIJudge.__init__.__kwdefaults__, "retries", 0)
    monkeypatch.setenv("OPENAI_API_KEY", "sk-none")
    with ScriptedOpenAI(yes) as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.base_url)
        yield server


COMMAND = ["backfill", "phoenix:shop", "--metrics"]
MODEL = [*COMMAND, "context_agreement", "--judge", "openai/gpt-x", "--embedder", "hashing"]


def test_a_price_is_told_before_it_begins(
    phoenix: FakePhoenix, judge: ScriptedOpenAI, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The price is right, and another judge scores all turns again."""
    prices = tmp_path / "prices.json"
    prices.write_text('{"models": {"gpt-x": {"input": 1000, "output": 1000}}}')
    command = [*MODEL, "--prices", str(prices)]
    assert main(command) == 2
    told = capsys.readouterr().err
    assert re.search(
        r"5 turns with the judge gpt-x: about 5 requests, [\d,]+ \+ \d+ tokens, \d\.\d\d USD", told
    )
    assert "begin with --yes" in told
    assert not judge.requests + phoenix.stored
    for _ in range(2):
        assert main([*command, "--yes"]) == 0
        assert len(judge.requests) == len(phoenix.named("context_agreement")) == TURNS
    assert main([*command, "--judge", "lexical", "--yes"]) == 0
    assert len(phoenix.named("context_agreement")) == 2 * TURNS


def test_errors_are_scored_again(
    phoenix: FakePhoenix,
    judge: ScriptedOpenAI,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A turn whose metric fails is left to the next run, and so are all without a key."""
    with monkeypatch.context() as patch:
        patch.setenv("OPENAI_API_KEY", "")
        assert main([*MODEL, "--yes"]) == 1
    assert "5 turns have errors instead of scores" in capsys.readouterr().err
    assert main([*MODEL, "--yes"]) == 0
    assert len(judge.requests) == TURNS


def test_a_backend_gets_each_score_once(phoenix: FakePhoenix) -> None:
    """Scores that live evaluation has written count, too; those of other metrics do not."""
    command = [*COMMAND, "faithfulness", "--yes"]
    assert main(command) == 0
    assert len(phoenix.named("faithfulness")) == len(phoenix.named("rag.evaluation")) == TURNS
    assert phoenix.stored[0]["metadata"]["sampling_probability"] == 1
    writes = phoenix.writes
    assert main(command) == 0
    assert phoenix.writes == writes
    for overall in phoenix.named("rag.evaluation"):
        del overall["metadata"]["backfill"]  # as live evaluation writes it
    assert main(command) == 0
    assert phoenix.writes == writes
    phoenix.stored.remove(overall)  # a run was killed before it wrote the overall label
    assert main(command) == 0
    assert phoenix.writes == writes + 1
    assert main([*COMMAND, "faithfulness,context_relevance", "--yes"]) == 0
    assert len(phoenix.named("context_relevance")) == TURNS


def test_a_sample_of_a_period(phoenix: FakePhoenix) -> None:
    """The traces are those that live evaluation chooses by their ids."""
    assert main([*COMMAND, "faithfulness", "--yes", "--since", "7d"]) == 0
    assert main([*COMMAND, "faithfulness", "--yes", "--until", "2001-09-09"]) == 0
    assert not phoenix.stored
    assert main([*COMMAND, "faithfulness", "--yes", "--sample-rate", "0.5"]) == 0
    found = {int(one["span_id"], 16) // 10 for one in phoenix.stored}
    assert found == {n for n in range(1, TURNS + 1) if sampling_point(n) < 0.5}
    assert 0 < len(found) < TURNS


def refused(status: int) -> httpx.HTTPStatusError:
    request = httpx.Request("GET", "http://phoenix.example/v1/projects/shop/spans")
    return httpx.HTTPStatusError("no", request=request, response=httpx.Response(status))


def test_a_backend_that_refuses(phoenix: FakePhoenix, capsys: pytest.CaptureFixture[str]) -> None:
    """A refused key ends the run."""
    phoenix.unwritten = refused(401)
    assert main([*COMMAND, "faithfulness", "--yes"]) == 1
    assert "phoenix takes no more scores (unauthorized): run the same" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["traces.json"], "SOURCE must be phoenix:PROJECT, mlflow:EXPERIMENT or langfuse"),
        (["phoenix:"], "SOURCE must be"),
        (["langfuse:shop"], "SOURCE must be"),
        (["mlflow:shop"], "MLFLOW_TRACKING_URI"),
        (["phoenix:shop", "--sample-rate", "2"], "the share must be above 0"),
        (["phoenix:shop", "--since", "1d", "--until", "2d"], "must be before --until"),
    ],
)
def test_misuse(
    arguments: Sequence[str], told: str, phoenix: FakePhoenix, capsys: pytest.CaptureFixture[str]
) -> None:
    """The message says what to name instead."""
    assert main(["backfill", *arguments, "--yes"]) == 2
    assert told in capsys.readouterr().err
    assert not phoenix.writes


def test_stored_turns_are_collected(tmp_path: Path, phoenix: FakePhoenix) -> None:
    """Phoenix keeps no scope; OpenInference is recognised by its attributes."""
    output = tmp_path / "samples.jsonl"
    assert main(["collect", "phoenix:shop", "-o", str(output), "--since", "2001-01-01"]) == 0
    found = [json.loads(line) for line in output.read_text().splitlines()]
    assert [(row["trace_id"], row["answer"], row["service"]) for row in found] == [
        (f"{n:032x}", TOLD, "shop") for n in range(1, TURNS + 1)
    ]
    assert phoenix.writes == 0


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (refused(404), "Phoenix answered 404 for the project 'shop'"),
        (refused(401), "check PHOENIX_ENDPOINT and PHOENIX_API_KEY"),
        (httpx.ConnectError("refused"), "cannot be reached: refused; set PHOENIX_ENDPOINT"),
    ],
)
def test_a_backend_that_does_not_answer(
    tmp_path: Path,
    phoenix: FakePhoenix,
    capsys: pytest.CaptureFixture[str],
    error: Exception,
    says: str,
) -> None:
    """The message says what to set; nothing is written."""
    phoenix.unread = error
    output = tmp_path / "samples.jsonl"
    assert main(["collect", "phoenix:shop", "-o", str(output)]) == 2
    assert says in capsys.readouterr().err
    assert not output.exists()
