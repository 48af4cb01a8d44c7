"""Tokens and money of evaluations: what each metric takes, through the real client over HTTP."""

from __future__ import annotations

import asyncio
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from openai_server import HttpReply, ScriptedOpenAI
from rag_eval_otel import Sample, aevaluate
from rag_eval_otel.config import limits_of
from rag_eval_otel.embed import OpenAIEmbedder
from rag_eval_otel.errors import ConfigError
from rag_eval_otel.judge.budget import Budget
from rag_eval_otel.judge.limits import Endpoint, Limits
from rag_eval_otel.judge.models import ProtectedJudge
from rag_eval_otel.judge.openai import OpenAIJudge, usage_of
from rag_eval_otel.metrics.custom import Guideline
from rag_eval_otel.prices import Price, Prices, _list_price, load_prices
from rag_eval_otel.testing import FakeJudge
from rag_eval_otel.types import Evaluation, Replies, Usage
from support import benchmark

TABLE = {"models": {"j": {"input": 1.0, "output": 4.0}, "e": {"input": 0.5}}}


TURNS = benchmark("_turns")
SAMPLE = Sample(**TURNS.turns()[7])


def measured(
    server: ScriptedOpenAI, *, judge: str = "j", embedder: str = "e", **options: Any
) -> Evaluation:
    asked = OpenAIJudge(judge, base_url=server.base_url, api_key="k", retries=0)
    vectors = OpenAIEmbedder(embedder, base_url=server.base_url, api_key="k", retries=0)
    options = {"prices": TABLE, **options}
    return asyncio.run(aevaluate(SAMPLE, judge=asked, embedder=vectors, **options))


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


@pytest.mark.parametrize(
    "body",
    [
        None,
        {},
        {"usage": None},
        {"usage": {"prompt_tokens": "7", "completion_tokens": None, "total_tokens": float("nan")}},
        {"usage": {"prompt_tokens": -7}},
        {"usage": {"prompt_tokens": 0, "total_tokens": 0}, "data": []},
    ],
)
def test_a_usage_that_cannot_be_read_is_unknown(body: object) -> None:
    """A server may leave it out or write nonsense, which costs no score, and is not 0 tokens."""
    assert usage_of(body) is None


def test_thoughts_and_cached_tokens_are_read() -> None:
    """Thoughts that only the total has are reply tokens; a cache holds at most the prompt."""
    usage = {"prompt_tokens": 10, "completion_tokens": 3, "total_tokens": 20}
    found = usage_of({"usage": {**usage, "prompt_tokens_details": {"cached_tokens": 99}}})
    assert found == Usage(prompt_tokens=10, cached_tokens=10, completion_tokens=10)


def test_replies_without_a_price_have_no_cost(caplog: pytest.LogCaptureFixture) -> None:
    """A price without ``output`` is that of an embedder: replies are not free, but unknown."""
    prices = load_prices({"models": {"half": {"input": 1.0}}})
    replied = Usage(prompt_tokens=1_000_000, completion_tokens=1_000_000)
    assert prices.cost("half", replied) is None
    assert prices.cost_of(replied, judge=("half",), embedder="half") is None
    assert "no price is known for half" in caplog.text
    assert prices.cost("half", Usage(embedding_tokens=1_000_000)) == 1.0
    budget = Budget(limits_of("1 USD/day", where="budget"), prices=prices)
    budget.require_price("half", "embedder")
    with pytest.raises(ConfigError, match=r'judge \'half\', whose price has no "output"'):
        budget.require_price("half", "judge")


@pytest.mark.parametrize(
    ("model", "price"),
    [
        ("Llama-3.1", 1),
        ("meta-llama/Llama-3.1", 2),
        ("together/meta-llama/Llama-3.1", 2),
        ("meta-llama/Llama-3.1-2026-01-31", 2),
        ("together/Llama-3.1", 1),
        ("qwen/Llama-3.1", 1),
        ("meta-llama/Llama", None),
        ("/", None),
    ],
)
def test_the_price_of_the_longest_part_of_a_name_counts(model: str, price: float | None) -> None:
    """A table may name a model with its providers, or without them."""
    table = {"Llama-3.1": {"input": 1}, "meta-llama/Llama-3.1": {"input": 2}}
    found = load_prices({"models": table}).price_of(model)
    assert (found and found.input) == price


def test_prices_are_read_from_a_mapping() -> None:
    """The option takes a table as well as a file; embedders need no price of replies."""
    found = load_prices({"currency": "EUR", "models": {"e": {"input": 2}}})
    assert found == Prices(models={"e": Price(input=2)}, currency="EUR")
    for wrong in (
        {"models": {"e": {"output": 2}}},
        {"models": {5: {"input": 2}}},
        {"models": {"e": {"input": 2}}, "currency": None},
        {"models": {"e": {"input": 2}}, "currency": "dollars"},
    ):
        with pytest.raises(ConfigError, match=r"prices \(RAG_EVAL_PRICES\): the price table must"):
            load_prices(wrong)


def test_other_models_have_list_prices() -> None:
    """The library of prices knows models of providers, but no embedders and no private names."""
    prices = load_prices({"models": {"mine": {"input": 2}}})
    assert prices.price_of("mine") == Price(input=2)
    listed = prices.price_of("openai/gpt-4o-mini-2024-07-18")
    assert listed == Price(input=0.15, cached_input=0.075, output=0.6)
    assert load_prices().price_of("gpt-4o-mini") == listed
    assert load_prices().price_of("text-embedding-3-small") is None
    assert load_prices({"currency": "EUR", "models": {}}).price_of("gpt-4o-mini") is None


def test_without_the_library_of_prices_there_is_a_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """A budget of money says what to install, or to name."""
    monkeypatch.setitem(sys.modules, "genai_prices", None)
    _list_price.cache_clear()
    budget = Budget(limits_of("1 USD/day", where="budget"), prices=Prices())
    with pytest.raises(ConfigError, match="in the option prices, install the extra prices"):
        budget.require_price("gpt-4o-mini", "judge")
    _list_price.cache_clear()


class OddError(Exception):
    """An exception of another library, with attributes that look like ours."""

    requests = "all of them"

    def __init__(self) -> None:
        self.response = SimpleNamespace(headers=["retry-after"])


class Odd(FakeJudge):
    """A judge with exceptions of its own."""

    async def reply(self, tasks: Any) -> Replies:
        raise OddError


def test_attributes_of_an_exception_of_others_are_not_taken_for_ours() -> None:
    """A request that fails in a judge of the user counts once, and its place becomes free."""
    budget = Budget(limits_of("3 requests/day", where="budget"))
    endpoint = Endpoint("judge odd", Limits(retries=0, concurrency=1))
    judge = ProtectedJudge(Odd(lambda _: {}), endpoint)
    metric = Guideline(guidelines="It is polite.", name="polite")
    found = asyncio.run(aevaluate(SAMPLE, [metric], judge=judge, embedder="hashing", budget=budget))
    assert found.scores[0].detail["error"] == "OddError"
    assert found.usage.judge_requests == 1
    assert endpoint.state.in_flight == 0
    assert budget.left()[0][1] == 2
