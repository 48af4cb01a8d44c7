"""The circuit breaker: an outage costs a few requests, not one for every turn."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from rag_eval_otel.errors import (
    JudgeRequestError,
    JudgeTransportError,
    JudgeUnavailableError,
    UnparsableReplyError,
)
from rag_eval_otel.judge.lexical import LexicalJudge
from rag_eval_otel.judge.models import CircuitBreaker
from rag_eval_otel.judge.tasks import Task
from rag_eval_otel.testing import ManualClock
from rag_eval_otel.types import Replies

OK = Replies(parts=(), model="real")
DOWN = JudgeTransportError("down")


class Scripted:
    """Does what it is told to next; counts how often it was asked."""

    model = "scripted"

    def __init__(self) -> None:
        """Answer well until told otherwise."""
        self.outcome: Replies | BaseException = OK
        self.requests = 0
        self.gate: asyncio.Event | None = None

    async def reply(self, tasks: Sequence[Task[Any]]) -> Replies:
        """Answer, or raise."""
        self.requests += 1
        if self.gate:
            await self.gate.wait()
        if isinstance(self.outcome, BaseException):
            raise self.outcome
        return self.outcome


class Scenario:
    """A breaker of three failures and ten seconds, on a clock of its own."""

    def __init__(self) -> None:
        """Start with the circuit closed."""
        self.judge = Scripted()
        self.clock = ManualClock()
        self.breaker = CircuitBreaker(self.judge, failures=3, cooldown=10, clock=self.clock)

    def ask(self, outcome: Replies | BaseException = OK) -> Replies:
        """Put one request, to which the judge has this outcome."""
        self.judge.outcome = outcome
        return asyncio.run(self.breaker.reply([]))

    def fail(self, times: int, error: BaseException = DOWN) -> None:
        """Let requests fail."""
        for _ in range(times):
            with pytest.raises(type(error)):
                self.ask(error)


def test_it_answers_as_the_judge_does() -> None:
    """While all is well nobody notices it."""
    scenario = Scenario()
    assert scenario.ask() is OK
    assert scenario.breaker.model == "scripted"


def test_it_opens_after_failures_in_a_row() -> None:
    """After the third failure the judge is not asked, and the error says for how long."""
    scenario = Scenario()
    scenario.fail(3)
    scenario.clock.advance(4)
    with pytest.raises(JudgeUnavailableError, match="3 requests failed in a row; next try in 6 s"):
        scenario.ask()
    assert scenario.judge.requests == 3


@pytest.mark.parametrize(
    "between",
    [
        lambda s: s.ask(),
        lambda s: s.fail(1, UnparsableReplyError("prose")),
        lambda s: s.fail(1, JudgeRequestError("HTTP 400: the context is too long")),
    ],
    ids=["success", "unparsable", "refused"],
)
def test_an_answer_starts_the_count_again(between: Callable[[Scenario], object]) -> None:
    """Only failures in a row are an outage; a judge that talks nonsense, or says no, is there."""
    scenario = Scenario()
    scenario.fail(2)
    between(scenario)
    scenario.fail(2)
    assert scenario.ask() is OK


@pytest.mark.parametrize("error", [RuntimeError("bug"), asyncio.CancelledError()])
def test_any_failure_counts(error: BaseException) -> None:
    """A judge that is given up as too slow, or that breaks, is not there either."""
    scenario = Scenario()
    scenario.fail(3, error)
    with pytest.raises(JudgeUnavailableError):
        scenario.ask()


def test_success_after_the_cooldown_closes_it() -> None:
    """One request is tried; when it succeeds, all are let through again."""
    scenario = Scenario()
    scenario.fail(3)
    scenario.clock.advance(10)
    assert scenario.ask() is OK
    scenario.fail(2)
    assert scenario.ask() is OK


def test_failure_after_the_cooldown_keeps_it_open() -> None:
    """One failed try is enough for another cool-down."""
    scenario = Scenario()
    scenario.fail(3)
    scenario.clock.advance(10)
    scenario.fail(1)
    with pytest.raises(JudgeUnavailableError, match="next try in 10 s"):
        scenario.ask()
    assert scenario.judge.requests == 4


def test_only_one_request_is_tried_at_a_time() -> None:
    """While the try is under way the others are refused, and let through once it succeeded."""
    scenario = Scenario()
    scenario.fail(3)
    scenario.clock.advance(10)

    async def use() -> list[Replies]:
        scenario.judge.outcome, scenario.judge.gate = OK, asyncio.Event()
        tried = asyncio.ensure_future(scenario.breaker.reply([]))
        await asyncio.sleep(0)
        with pytest.raises(JudgeUnavailableError):
            await scenario.breaker.reply([])
        scenario.judge.gate.set()
        return [await tried, await scenario.breaker.reply([])]

    assert asyncio.run(use()) == [OK, OK]
    assert scenario.judge.requests == 5


def test_what_the_label_goes_by_is_passed_on() -> None:
    """A judge may name the metrics whose label counts; most do not."""
    assert CircuitBreaker(LexicalJudge()).label_metrics == LexicalJudge.label_metrics
    assert CircuitBreaker(Scripted()).label_metrics is None
