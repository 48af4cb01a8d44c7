"""Runs over a dataset that stop, because no further row would be scored."""

import logging
import random
import time
from pathlib import Path
from typing import Any

import pytest

from offline import asked_rows
from openai_server import HttpReply, ScriptedOpenAI
from rag_eval_otel.embed import HashingEmbedder
from rag_eval_otel.judge.openai import OpenAIJudge
from rag_eval_otel.tools.cli import main
from rag_eval_otel.tools.dataset import DatasetResult, evaluate_dataset
from rag_eval_otel.types import Sample
from support import good_parts

pytestmark = pytest.mark.slow  # each runs a command against a server

KEY = "sk-not-to-be-shown"


def evaluated(base_url: str, number: int, **options: Any) -> DatasetResult:
    judge = OpenAIJudge("m", base_url=base_url, api_key=KEY, timeout=30.0)
    given: dict[str, Any] = {"judge": judge, "embedder": HashingEmbedder(), **options}
    return evaluate_dataset(asked_rows(number), **given)


@pytest.mark.parametrize("status", [401, 403])
def test_wrong_keys_stop_it(status: int, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """5,000 rows cost those of ten and of what is under way; the message says how to go on."""
    cache = tmp_path / "scores.cache"
    refusal = HttpReply(status=status, body={"error": {"message": f"no access with {KEY}"}})
    with ScriptedOpenAI(lambda _: refusal) as server, caplog.at_level(logging.WARNING):
        result = evaluated(server.base_url, 5000, cache=cache)
        sent = len(server.requests)
    assert sent <= 2 * 64
    assert len(result.rows) <= 64
    told = result.totals.stopped or ""
    assert f"HTTP {status}" in told
    assert told in repr(result)
    assert told in caplog.text
    assert str(cache) in caplog.text
    assert KEY not in told + caplog.text


def test_a_403_for_some_rows_does_not_stop_a_run() -> None:
    """A server that refuses some texts with 403 is asked for the other rows."""
    draw, asked = random.Random(5), [0]

    def reply(body: dict[str, Any]) -> object:
        asked[0] += 1
        is_refused = asked[0] > 2 and draw.random() < 0.3
        return HttpReply(status=403) if is_refused else good_parts(body)

    with ScriptedOpenAI(reply) as server:
        result = evaluated(server.base_url, 60, concurrency=1)
    assert (len(result.rows), result.totals.stopped) == (60, None)
    assert 0 < result.totals.failed < 60


def test_a_server_that_is_down_stops_a_run() -> None:
    """5,000 rows for a closed port end within 15 s."""
    with ScriptedOpenAI(good_parts) as server:
        address = server.base_url
    began = time.monotonic()
    result = evaluated(address, 5000)
    assert time.monotonic() - began < 15
    assert len(result.rows) <= 64
    assert "10 rows in a row: " in (result.totals.stopped or "")


@pytest.mark.parametrize("status", [400, 404, 500])
def test_a_server_that_answers_with_an_error_does_not_stop_a_run(status: int) -> None:
    """It answers, so each row is asked for; its error is in the row."""
    with ScriptedOpenAI(lambda _: HttpReply(status=status)) as server:
        result = evaluated(server.base_url, 20)
    assert (len(result.rows), result.totals.failed) == (20, 20)
    assert result.totals.stopped is None


def test_the_command_writes_what_is_done_and_says_how_to_go_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The status is 1, the output has the rows that are done, and the cache stays."""
    file, output = tmp_path / "rows.csv", tmp_path / "scores.jsonl"
    lines = [f'Who founded {i}?,"[""Ann founded {i}.""]",Ann.' for i in range(200)]
    file.write_text("\n".join(["question,contexts,answer", *lines]), encoding="utf-8")
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    with ScriptedOpenAI(lambda _: HttpReply(status=401)) as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.base_url)
        status = main(["evaluate", str(file), "--judge", "openai/m", "--output", str(output)])
        assert len(server.requests) <= 2 * 64
        assert not [one for one in server.requests if one.path.endswith("embeddings")]
    told = capsys.readouterr().err
    assert status == 1
    assert "stopped after" in told
    assert "HTTP 401" in told
    assert "run the same command again" in told
    assert len(output.read_text(encoding="utf-8").splitlines()) <= 64
    assert output.with_name("scores.jsonl.cache").exists()


class RefusedError(Exception):
    """An error of a page that a metric of the user reads."""

    status = 401


@pytest.mark.parametrize("error", [RefusedError, ConnectionError])
def test_errors_of_a_users_metric_stop_nothing(error: type[Exception]) -> None:
    """Only the judge and the embedder can make the other rows useless."""

    def broken(_: Sample) -> float:
        raise error

    for metrics in ([broken], ["faithfulness", broken]):
        found = evaluate_dataset(asked_rows(30), metrics, judge="lexical", embedder="hashing")
        assert (len(found.rows), found.totals.stopped) == (30, None)
