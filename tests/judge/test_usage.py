"""Tokens and money of evaluations, through the real client over HTTP."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from contextlib import nullcontext, suppress
from dataclasses import replace
from typing import Any

import pytest
from langchain_core.language_models import FakeListChatModel

from openai_server import ScriptedOpenAI, estimate_tokens
from rag_eval_otel import Sample, aevaluate, errors
from rag_eval_otel.config import limits_of
from rag_eval_otel.embed import HashingEmbedder, OpenAIEmbedder
from rag_eval_otel.judge.budget import Budget
from rag_eval_otel.judge.langchain import LangChainJudge
from rag_eval_otel.judge.openai import OpenAIJudge
from rag_eval_otel.judge.usage import (
    Ledger,
    Meter,
    attempt,
    deadline_after,
    scope,
    shares,
    title_of,
)
from rag_eval_otel.prices import Price, Prices
from rag_eval_otel.providers import Part
from rag_eval_otel.types import Evaluation, Usage
from support import benchmark

TABLE = {"models": {"j": {"input": 1.0, "output": 4.0}, "e": {"input": 0.5}}}

TURNS = benchmark("_turns")
SAMPLE = Sample(**TURNS.turns()[7])
TRIAD = ("answer_relevancy", "context_relevance", "faithfulness")


def test_shares_of_metrics_add_up_to_the_requests() -> None:
    """Fused requests are divided among four metrics, and no token is lost or counted twice."""
    with ScriptedOpenAI(TURNS.reply, lambda _: [1.0, 0.0]) as server:
        options: Any = {"base_url": server.base_url, "api_key": "k", "retries": 0}
        judge, embedder = OpenAIJudge("j", **options), OpenAIEmbedder("e", **options)
        found = asyncio.run(aevaluate(SAMPLE, judge=judge, embedder=embedder, prices=TABLE))
    assert found.usage.judge_requests == 2
    assert found.usage.embedding_requests == 1
    assert found.usage.embedding_tokens > 0
    assert sum((score.usage for score in found.scores), Usage()) == found.usage
    assert all(score.usage.prompt_tokens for score in found.scores)
    prompt, completion = found.usage.prompt_tokens, found.usage.completion_tokens
    expected = (prompt + 4 * completion + 0.5 * found.usage.embedding_tokens) / 1e6
    assert found.cost == pytest.approx(expected)
    assert sum(score.cost or 0 for score in found.scores) == pytest.approx(expected)
    embedded = [score.name for score in found.scores if score.usage.embedding_tokens]
    assert embedded == ["answer_relevancy"]


def scored(metrics: Sequence[str], *, explanations: bool = False) -> Evaluation:
    options: Any = {"embedder": "hashing", "explanations": explanations}
    with ScriptedOpenAI(TURNS.reply, tokens=estimate_tokens) as server:
        judge = OpenAIJudge("m", base_url=server.base_url, api_key="sk-x")
        return asyncio.run(aevaluate(SAMPLE, metrics, judge=judge, **options))


@pytest.mark.parametrize(
    ("metrics", "shown", "most"), [(TRIAD, 1690, 95), (("default",), 1875, 150)]
)
def test_a_turn_takes_few_tokens(metrics: Sequence[str], shown: int, most: int) -> None:
    """Two requests: one for three questions, one for digits; texts are shown once."""
    evaluation = scored(metrics)
    assert [score.status for score in evaluation.scores] == ["ok"] * len(evaluation.scores)
    assert evaluation.usage.judge_requests == 2
    assert evaluation.usage.completion_tokens <= most
    assert evaluation.usage.prompt_tokens <= shown


def test_reasons_are_what_costs() -> None:
    """With explanations on, the judge writes more, and they are there."""
    plain, explained = scored(("default",)), scored(("default",), explanations=True)
    assert explained.usage.completion_tokens > 1.2 * plain.usage.completion_tokens
    assert "another year" in (explained["faithfulness"].explanation or "")
    assert "another year" not in str([score.explanation for score in plain.scores])
    versions = [score.version for score in (*plain.scores, *explained.scores)]
    assert len(set(versions)) == len(versions)


PRICES = Prices(models={"m": Price(input=1.0, output=10.0)})


def budget(text: str) -> Budget:
    return Budget(limits_of(text, where="budget"), prices=PRICES)


def meter_of(one: Budget, part: Part = "judge") -> Meter:
    return Meter(one, model="m", size=300, part=part)


async def metered(one: Budget, *attempts: Usage | BaseException) -> Meter:
    async with meter_of(one) as meter:
        for number, result in enumerate(attempts, start=1):
            with suppress(errors.JudgeTimeoutError, OSError):
                async with attempt() as made:
                    assert meter.close().judge_requests == number
                    if isinstance(result, BaseException):
                        raise result
                    made.usage = result
    return meter


def test_each_attempt_counts() -> None:
    """Three HTTP attempts of one request are three requests; none is made beyond the budget."""
    one, small = budget("10 requests/minute"), budget("2 requests/minute")
    tokens = Usage(prompt_tokens=7, completion_tokens=2)
    meter = asyncio.run(metered(one, OSError(), OSError(), tokens))
    assert meter.usage == meter.close() == replace(tokens, judge_requests=3)
    assert dict(one.left()) == {one.limits[0]: 7}
    with pytest.raises(errors.BudgetSpentError):
        asyncio.run(metered(small, OSError(), OSError(), tokens))
    assert dict(small.left()) == {small.limits[0]: 0}


def test_a_judge_that_counts_no_attempts_is_believed() -> None:
    """The usage in its replies counts; a request that it does not send costs nothing."""
    one = budget("10 requests/minute, 10k tokens/minute")
    unsent = errors.JudgeTimeoutError("no place in time")
    unsent.requests = 0

    async def asked(usage: Usage | None, error: Exception | None = None) -> Usage:
        with suppress(errors.JudgeTimeoutError):
            async with meter_of(one) as meter:
                if usage is not None:
                    meter.tell(usage)
                if error is not None:
                    raise error
        return meter.usage

    told = Usage(judge_requests=2, prompt_tokens=50)
    assert asyncio.run(asked(told)) == told
    assert [left for _, left in one.left()] == [8, 9_950]
    assert asyncio.run(asked(None)) == asyncio.run(asked(None, unsent)) == Usage()
    assert [left for _, left in one.left()] == [8, 9_950]


@pytest.mark.parametrize("calls", ["attempt", "nothing"])
@pytest.mark.parametrize(
    ("part", "named", "taken"),
    [
        ("judge", Usage(), (1, 356, 2_660)),
        ("judge", Usage(judge_requests=1), (1, 356, 2_660)),
        ("embedder", Usage(), (1, 100, 100)),
    ],
)
def test_a_reply_that_names_no_tokens_is_estimated(
    part: Part, named: Usage, taken: tuple[int, ...], calls: str
) -> None:
    """A reply without usage is a request, and takes the estimated tokens and money."""
    one = budget("10 requests/minute, 10k tokens/minute, 1 USD/minute")

    async def asked() -> Usage:
        async with meter_of(one, part) as meter:
            async with attempt() if calls == "attempt" else nullcontext():
                pass
            meter.tell(named)
        return meter.usage

    found = asyncio.run(asked())
    assert (found.judge_requests, found.embedding_requests) == (part == "judge", part != "judge")
    left = [limit.amount - rest for limit, rest in one.left()]
    assert [*left[:2], left[2] * 1e6] == pytest.approx(taken)


@pytest.mark.parametrize(
    ("error", "tokens"),
    [
        (errors.JudgeRateLimitError("slow down"), 0),
        (errors.JudgeTransportError("down"), 0),
        (errors.UnparsableReplyError("the reply is not JSON"), 356),
        (errors.JudgeTimeoutError("no reply in time"), 356),
        (ValueError("a defect in the judge"), 356),
    ],
)
@pytest.mark.parametrize("calls", ["attempt", "nothing"])
def test_failures_without_a_reply_are_free(error: Exception, tokens: int, calls: str) -> None:
    """A refusal takes no tokens; if a reply may have been paid for, the estimate counts."""
    one = budget("10k tokens/minute")

    async def asked() -> None:
        async with meter_of(one), attempt() if calls == "attempt" else nullcontext():
            raise error

    with pytest.raises(type(error)):
        asyncio.run(asked())
    assert [left for _, left in one.left()] == [10_000 - tokens]


def test_a_request_that_was_given_up_counts_once() -> None:
    """Its client may have sent it, so that a cancelled request without attempts counts as one."""
    one = budget("3 requests/day")
    meter = meter_of(one)

    async def waiting() -> None:
        async with meter:
            assert meter.close() == Usage(judge_requests=1)
            raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(waiting())
    assert meter.usage == Usage(judge_requests=1)
    assert [left for _, left in one.left()] == [2]


def test_titles_name_provider_model_and_address(monkeypatch: pytest.MonkeyPatch) -> None:
    """For models of servers, of LangChain and of users."""
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    there = OpenAIJudge("m", base_url="http://u:p@there/v1?key=sk-1", provider="vllm")
    assert title_of("judge", there) == "judge vllm/m at http://there/v1"
    assert title_of("judge", OpenAIJudge("m")) == "judge openai/m at https://api.openai.com/v1"
    model = FakeListChatModel(responses=["x"])
    assert title_of("judge", LangChainJudge(model, model="m")) == "judge FakeListChatModel/m"
    assert title_of("embedder", HashingEmbedder()) == "embedder hashing"
    assert title_of("embedder", object()) == "embedder object"


def test_the_earlier_deadline_counts() -> None:
    """Of a request and of the turn around it; without one, there is none."""
    with scope(deadline=7.0):
        found = [deadline_after(seconds, clock=lambda: 2.0) for seconds in (4, 6, None)]
    assert [*found, deadline_after(None)] == [6, 7, 7, math.inf]


def test_shares_add_up_exactly() -> None:
    """Tokens are divided by weight into whole numbers that lose nothing."""
    usage = Usage(judge_requests=1, prompt_tokens=100, cached_tokens=64, completion_tokens=7)
    for weights in ([1, 1, 1], [5, 0, 3], [0, 0], [997, 1]):
        found = shares(usage, weights)
        assert sum(found, Usage()) == usage
    assert shares(usage, []) == []


def test_a_question_of_two_metrics_is_divided_among_them() -> None:
    """A shared question costs each of its metrics half, and a question of one metric all."""
    ledger = Ledger()
    for metric, question in (("a", "both"), ("b", "both"), ("b", "own")):
        with scope(metric=metric):
            ledger.ask(question)
    ledger.ask("nobody's")
    ledger.spend({"both": 30, "own": 10}, Usage(prompt_tokens=400))
    ledger.spend({"nobody's": 1}, Usage(prompt_tokens=9))
    found = ledger.shares(["a", "b", "c"])
    assert [found[name].prompt_tokens for name in "abc"] == [150, 250, 0]
