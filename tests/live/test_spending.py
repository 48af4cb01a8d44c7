"""What live scoring does when the budget is nearly or fully spent."""

from __future__ import annotations

import asyncio

import pytest
from opentelemetry.sdk.metrics import MeterProvider

from live import attached
from rag_eval_otel import Config, Sample
from rag_eval_otel.errors import ConfigError
from rag_eval_otel.export.metrics import InstrumentSink
from rag_eval_otel.live.scorer import TurnScorer, build_budget
from rag_eval_otel.metrics.custom import Guideline
from rag_eval_otel.testing import FakeEmbedder, FakeJudge
from rag_eval_otel.types import Evaluation, Sampling

SAMPLE = Sample(question="Who?", contexts=["Ada."], answer="Ada.")
METRIC = Guideline(guidelines="It is polite.", name="polite")


def scorer(budget: str, reply: object = None) -> TurnScorer:
    judge = FakeJudge(lambda _: {"passing": True} if reply is None else reply)
    embedder = FakeEmbedder({})
    config = Config(judge=judge, embedder=embedder, metrics=[METRIC], drift=False, budget=budget)
    return TurnScorer(config, instruments=InstrumentSink(MeterProvider()))


def judged(by: TurnScorer, sample: Sample = SAMPLE) -> Evaluation | None:
    return asyncio.run(by._judged(sample, Sampling()))  # noqa: SLF001


def test_a_turn_in_the_middle_of_which_the_budget_ends_keeps_its_scores() -> None:
    """A turn all of whose requests were refused is skipped."""
    one = scorer("1 requests/day")
    first = judged(one)
    assert first is not None
    assert first.status == "scored"
    assert judged(one, Sample(question="Whom?", answer="A.")) is None


def test_wrong_budgets_are_refused_at_the_start() -> None:
    """A budget in money needs prices in its currency."""
    with pytest.raises(ConfigError, match=r"needs the price of the judge 'fake'"):
        scorer("1 USD/day")
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
    one = scorer("1 requests/day", {"nonsense": True})
    spent: list[Evaluation] = []
    one.instruments.count_cost = spent.append  # type: ignore[method-assign]
    assert judged(one) is None
    assert [each.usage.judge_requests for each in spent] == [1]
