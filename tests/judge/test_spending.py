"""Tokens and money of evaluations: what each metric takes, through the real client over HTTP."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from rag_eval_otel import Sample, evaluate
from rag_eval_otel.embed import OpenAIEmbedder
from rag_eval_otel.errors import ConfigError
from rag_eval_otel.judge.openai import OpenAIJudge
from rag_eval_otel.judge.openai_client import usage_of
from rag_eval_otel.judge.prices import Price, Prices, load_prices
from rag_eval_otel.testing import HttpReply, ScriptedOpenAI
from rag_eval_otel.types import Evaluation, Usage
from support import benchmark

TABLE = {"models": {"j": {"input": 1.0, "output": 4.0}, "e": {"input": 0.5}}}


TURNS = benchmark("_turns")
SAMPLE = Sample(**TURNS.turns()[7])


def measured(
    server: ScriptedOpenAI, *, judge: str = "j", embedder: str = "e", **options: Any
) -> Evaluation:
    """Evaluate the sample with a judge and an embedder behind ``server``."""
    asked = OpenAIJudge(judge, base_url=server.base_url, api_key="k", max_retries=0)
    vectors = OpenAIEmbedder(embedder, base_url=server.base_url, api_key="k", max_retries=0)
    options = {"prices": TABLE, **options}
    return asyncio.run(evaluate(SAMPLE, judge=asked, embedder=vectors, **options))


def test_shares_of_metrics_add_up_to_the_requests() -> None:
    """Fused requests are divided among four metrics, and no token is lost or counted twice."""
    with ScriptedOpenAI(TURNS.reply, lambda _: [1.0, 0.0]) as server:
        found = measured(server)
    assert found.usage.judge_requests == 2
    assert found.usage.embedding_requests == 1
    assert found.usage.embedding_tokens > 0
    assert sum((score.usage for score in found.scores), Usage()) == found.usage
    assert all(score.usage.prompt_tokens for score in found.scores)
    expected = (
        found.usage.prompt_tokens * 1.0
        + found.usage.completion_tokens * 4.0
        + found.usage.embedding_tokens * 0.5
    ) / 1e6
    assert found.cost == pytest.approx(expected)
    assert sum(score.cost or 0 for score in found.scores) == pytest.approx(expected)
    embedded = [score.name for score in found.scores if score.usage.embedding_tokens]
    assert embedded == ["answer_relevancy"]


def test_without_a_price_there_is_no_money(caplog: pytest.LogCaptureFixture) -> None:
    """Tokens are counted, and one line names the model and the option."""
    with ScriptedOpenAI(TURNS.reply, lambda _: [1.0, 0.0]) as server:
        found = [measured(server, judge="new-j", embedder="new-e") for _ in range(2)]
    assert [each.cost for each in found] == [None, None]
    assert found[0].usage.tokens > 0
    assert caplog.text.count("no price is known for new-j:") == 1
    assert caplog.text.count("no price is known for new-e:") == 1


def test_failed_requests_are_counted_without_tokens() -> None:
    """Requests that a server refuses have no cost, and are counted for the metrics that asked."""
    refused = HttpReply(status=404, body={"error": {"message": "no such model"}})
    with ScriptedOpenAI(lambda _: refused, lambda _: [1.0]) as server:
        found = measured(server)
        asked = [one for one in server.requests if "chat" in one.path]
    assert found.usage == Usage(judge_requests=len(asked))
    assert sum(score.usage.judge_requests for score in found.scores) == len(asked)
    assert found.cost is None


def test_offline_evaluations_cost_nothing() -> None:
    """Neither the offline judge nor the offline embedder uses tokens."""
    sample = Sample(question="Who?", contexts=["Ada."], answer="Ada.")
    found = asyncio.run(evaluate(sample, judge="lexical", embedder="hashing"))
    assert (found.usage.tokens, found.cost) == (0, None)


@pytest.mark.parametrize(
    "body",
    [
        None,
        {},
        {"usage": None},
        {"usage": {"prompt_tokens": "7", "completion_tokens": None, "total_tokens": float("nan")}},
        {"usage": {"prompt_tokens": -7}},
    ],
)
def test_a_usage_that_cannot_be_read_is_empty(body: object) -> None:
    """A server may leave it out or write nonsense, which costs no score."""
    assert usage_of(body) == Usage()


def test_thoughts_and_cached_tokens_are_read() -> None:
    """Thoughts that only the total has are reply tokens; a cache holds at most the prompt."""
    usage = {"prompt_tokens": 10, "completion_tokens": 3, "total_tokens": 20}
    found = usage_of({"usage": {**usage, "prompt_tokens_details": {"cached_tokens": 99}}})
    assert found == Usage(prompt_tokens=10, cached_tokens=10, completion_tokens=10)


def test_prices_are_read_from_a_mapping() -> None:
    """The option takes a table as well as a file; embedders need no price of replies."""
    found = load_prices({"currency": "EUR", "models": {"e": {"input": 2}}})
    assert found == Prices(models={"e": Price(input=2)}, currency="EUR")
    with pytest.raises(ConfigError, match=r"the price table must be JSON"):
        load_prices({"models": {"e": {"output": 2}}})
    assert load_prices().price_of("openai/text-embedding-3-small") == Price(input=0.02)
