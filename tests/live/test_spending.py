"""What live scoring does when the budget is nearly or fully spent."""

from __future__ import annotations

import asyncio

import pytest

from live import attached
from rag_eval_otel import Config, Sample
from rag_eval_otel.config import limits_of
from rag_eval_otel.errors import ConfigError
from rag_eval_otel.judge.budget import Budget
from rag_eval_otel.live.scorer import Evaluations, build_budget, build_measurement
from rag_eval_otel.metrics.custom import Guideline
from rag_eval_otel.sampling import Sampling
from rag_eval_otel.testing import FakeEmbedder, FakeJudge
from support import ManualClock

SAMPLE = Sample(question="Who?", contexts=["Ada."], answer="Ada.")
METRIC = Guideline(guidelines="It is polite.", name="polite")


def spending(clock: ManualClock, text: str) -> Evaluations:
    judge = FakeJudge(lambda _: {"passing": True})
    config = Config(judge=judge, embedder=FakeEmbedder({}), metrics=[METRIC], drift=False)
    measurement = build_measurement(config)
    budget = Budget(limits_of(text, where="budget"), clock=clock)
    return Evaluations(measurement, budget=budget)


def test_a_turn_in_the_middle_of_which_the_budget_ends_keeps_its_scores() -> None:
    """A turn all of whose requests were refused is skipped."""
    one = spending(ManualClock(), "1 requests/day")
    first = asyncio.run(one.of(SAMPLE, Sampling()))
    assert not isinstance(first, str)
    assert first.status == "scored"
    assert asyncio.run(one.of(Sample(question="Whom?", answer="A."), Sampling())) == "budget"


def test_wrong_budgets_are_refused_at_the_start() -> None:
    """A budget in money needs prices in its currency."""
    with pytest.raises(ConfigError, match=r"needs the price of the judge 'fake'"):
        spending(ManualClock(), "1 USD/day")
    with pytest.raises(ConfigError, match=r"is in EUR, but prices are in USD"):
        build_budget(Config(budget="5 EUR/day"))
    assert build_budget(Config()) is None


def test_offline_scoring_needs_no_budget() -> None:
    """The offline judge and embedder send no requests, so that no limit stops them."""
    with attached(judge="lexical", embedder="hashing", budget="1 requests/day") as app:
        for number in range(3):
            app.turn(number)
            app.handle.flush()
        assert sum(app.counted().values()) == app.counted()["scored", None] == 3


def test_what_was_paid_before_the_budget_ended_is_counted() -> None:
    """The turn has no score and is skipped, but its request was sent."""
    clock, spent = ManualClock(), list[int]()
    judge = FakeJudge(lambda _: {"nonsense": True})
    config = Config(judge=judge, embedder=FakeEmbedder({}), metrics=[METRIC], drift=False)
    budget = Budget(limits_of("1 requests/day", where="budget"), clock=clock)
    one = Evaluations(
        build_measurement(config),
        budget=budget,
        on_spent=lambda evaluation: spent.append(evaluation.usage.judge_requests),
    )
    assert asyncio.run(one.of(SAMPLE, Sampling())) == "budget"
    assert spent == [1]
