"""Budgets: what judge and embedder may take, in requests and money, on a clock of the test."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from live import OnesEmbedder, Row, attached
from openai_server import ScriptedOpenAI
from rag_eval_otel import Sample, aevaluate
from rag_eval_otel.config import limits_of
from rag_eval_otel.embed import HashingEmbedder
from rag_eval_otel.judge.budget import NANO, Budget
from rag_eval_otel.judge.openai import OpenAIJudge
from rag_eval_otel.metrics.custom import Guideline
from rag_eval_otel.prices import Price, Prices
from rag_eval_otel.types import Usage
from support import ManualClock

THREADS = 64
PRICES = Prices(models={"j": Price(input=100.0, output=400.0)})
METRIC = Guideline(guidelines="It is polite.", name="polite")


def sample(number: int) -> Sample:
    return Sample(question=f"Who is {number}?", contexts=["Ada."], answer=f"Ada {number}.")


async def judged(judge: OpenAIJudge, budget: Budget, numbers: range) -> list[Any]:
    reasons = []
    for number in numbers:
        found = await aevaluate(
            sample(number), [METRIC], judge=judge, embedder=HashingEmbedder(), budget=budget
        )
        reasons.append(found.scores[0].reason)
    return reasons


def judge_of(server: ScriptedOpenAI) -> OpenAIJudge:
    return OpenAIJudge("j", base_url=server.base_url, api_key="k", retries=0)


def in_threads(server: ScriptedOpenAI, budget: Budget, each: int) -> list[Any]:
    def run(thread: int) -> list[Any]:
        numbers = range(thread * each, (thread + 1) * each)
        return asyncio.run(judged(judge_of(server), budget, numbers))

    with ThreadPoolExecutor(THREADS) as pool:
        return [reason for reasons in pool.map(run, range(THREADS)) for reason in reasons]


def passed(_: dict[str, Any]) -> object:
    return {"guideline": True}


@pytest.mark.slow
@pytest.mark.fault(38, expected="exactly the limit with 64 threads; the rest is refused; resumes")
def test_fault_38_a_budget_of_requests_is_exact(row: Row) -> None:
    """64 threads send as many HTTP requests as the budget allows, and again in the next window."""
    clock = ManualClock()
    budget = Budget(limits_of("100 requests/minute", where="budget"), clock=clock)
    with ScriptedOpenAI(passed) as server:
        reasons = in_threads(server, budget, each=3)
        first = len(server.requests)
        clock.advance(30)
        in_threads(server, budget, each=1)
        half = len(server.requests)
        clock.advance(31)
        in_threads(server, budget, each=3)
        second = len(server.requests)
    row.measured("requests of 192 in the first minute", first)
    row.measured("requests of 192 in the next minute", second - half)
    assert (first, half, second) == (100, 100, 200)
    assert reasons.count("budget") == 3 * THREADS - 100


@pytest.mark.slow
@pytest.mark.fault(38, expected="a budget of money is exceeded by at most one request a thread")
def test_fault_38_a_budget_of_money_holds_with_64_threads(row: Row) -> None:
    """Requests that cost more than was estimated exceed the budget by less than one a thread."""
    budget = Budget(limits_of("1 USD/day", where="budget"), prices=PRICES, clock=ManualClock())
    # A reply of 1,000 words is four times as long as the first estimate.
    wordy = " ".join(["so"] * 1_000)
    usages: list[Usage] = []

    def reply(body: dict[str, Any]) -> object:
        asked = sum(len(str(one["content"]).split()) for one in body["messages"])
        usages.append(Usage(prompt_tokens=asked, completion_tokens=1_003))
        return f'{{"guideline": true, "reason": "{wordy}"}}'

    with ScriptedOpenAI(reply) as server:
        in_threads(server, budget, each=2)
    costs = [PRICES.models["j"].of(usage) for usage in usages]
    spent = sum(costs)
    row.measured("money spent of 1 USD", f"{spent:.2f}")
    row.measured("the most that 64 requests cost", f"{THREADS * max(costs):.2f}")
    assert spent <= 1 + THREADS * max(costs)
    assert spent >= 1 - 2 * max(costs)
    (used,) = budget._used()  # noqa: SLF001
    assert used == pytest.approx(spent * NANO, rel=0.01)


@pytest.mark.fault(38, expected="drop: turns beyond the budget are skipped, the judge not asked")
def test_fault_38_turns_beyond_the_budget_are_dropped(row: Row) -> None:
    """Their spans say skipped, the counter says budget, and the gauge says that nothing is left."""
    options = {"embedder": OnesEmbedder(), "metrics": [METRIC], "budget": "3 requests/day"}
    with ScriptedOpenAI(passed) as server, attached(judge=judge_of(server), **options) as app:
        for number in range(5):
            app.turn(number)
            app.handle.flush()
        row.check(app, turns=5, spans=15)
        assert app.counted() == {("scored", None): 3, ("skipped", "budget"): 2}
        assert app.statuses()["skipped"] == 2
        left = app.counted_by("rag.evaluation.budget.left", "limit")
        sent = len(server.requests)
    row.measured("requests of 5 turns with a budget of 3", sent)
    assert left == {"3 requests/day": 0}
    assert sent == 3
