"""Faults of load: overload, slow judges, many spans, repeated turns."""

import asyncio
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any

import pytest

from live import GatedJudge, OnesEmbedder, Row, attached, good_answers, good_judge
from processes import PATIENCE, until
from rag_eval_otel.judge.tasks import Task
from rag_eval_otel.testing import FakeJudge
from rag_eval_otel.types import Replies
from support import ManualClock


class SteppingJudge:
    """A judge that answers about one more turn at each `step`; ``asked`` has the questions."""

    model = "stepping"

    def __init__(self) -> None:
        self.asked: list[str] = []
        self._gates: list[Future[None]] = []
        self._judge = good_judge()
        self._is_open = False

    def step(self) -> None:
        self._gates[-1].set_result(None)

    def open(self) -> None:
        self._is_open = True
        for gate in self._gates:
            if not gate.done():
                gate.set_result(None)

    async def reply(self, tasks: Sequence[Task[Any]]) -> Replies:
        question = tasks[0].text("question")
        if question not in self.asked:
            self._gates.append(Future())
            self.asked.append(question)
        if not self._is_open:
            await asyncio.wrap_future(self._gates[self.asked.index(question)])
        return await self._judge.reply(tasks)


@pytest.mark.slow
@pytest.mark.fault(14, expected="at least 95 % of the paid evaluations are on a span")
@pytest.mark.parametrize("overload", [2, 10])
def test_fault_14_under_overload_paid_evaluations_are_on_a_span(overload: int, row: Row) -> None:
    """Turns come faster than the judge answers; the time is the test's, one second a round."""
    judge, clock, rounds = SteppingJudge(), ManualClock(), 30
    with attached(
        judge=judge,
        metrics=["context_relevance"],
        embedder=OnesEmbedder(),
        concurrency=1,
        hold_seconds=5.0,
    ) as app:
        app.store._now = clock  # type: ignore[method-assign]  # noqa: SLF001
        for made in range(rounds):
            for number in range(overload):
                app.record(overload * made + number)
            until(lambda: not app.store.traces)
            until(lambda made=made: len(judge.asked) > made)  # type: ignore[misc]
            clock.advance(1.0)
            judge.step()
        judge.open()
        assert app.handle.flush(PATIENCE)
        turns = rounds * overload
        row.check(app, turns=turns, spans=turns)
        counted, statuses = app.counted(), app.statuses()
    paid, on_span = len(judge.asked), statuses["scored"]
    row.measured("turns, evaluations paid for, spans with scores", (turns, paid, on_span))
    assert paid >= rounds
    assert on_span >= 0.95 * paid
    assert counted["dropped", "overload"] == turns - paid


@pytest.mark.slow
@pytest.mark.fault(13, expected="turns conserved, memory bounded, drops counted")
def test_fault_13_a_judge_that_is_much_too_slow(row: Row) -> None:
    """The judge answers none of 3,000 turns; at most ``max_held`` spans wait at any time."""
    judge, most = GatedJudge(), 0
    with attached(judge=judge, embedder=OnesEmbedder(), max_held=100, hold_seconds=0.5) as app:
        for number in range(3000):
            app.record(number)
            most = max(most, app.handle.stats.held)
        until(lambda: app.handle.stats.held == 0)
        judge.open()
        assert app.handle.flush(PATIENCE)
        app.handle.shutdown(PATIENCE)
        row.check(app, turns=3000, spans=3000)
        counted = row.counted(app)
    row.measured("most spans held", most)
    assert most <= 100
    assert counted["dropped", "overload"] >= 2500


@pytest.mark.fault(17, expected="each turn is scored, in the two requests of any turn")
@pytest.mark.parametrize(
    "turns", [16, *(pytest.param(n, marks=pytest.mark.slow) for n in (2_000, 10_000))]
)
def test_fault_17_identical_turns_are_scored_each(turns: int, row: Row) -> None:
    """Nothing is shared between turns, and nothing waits for another turn."""
    judge = FakeJudge(good_answers)
    with attached(judge=judge, max_held=20_000, hold_seconds=600) as app:
        for made in range(1, turns + 1):
            app.record(1)
            if made % 500 == 0 or made == turns:  # fewer than the traces that are kept
                until(lambda: app.handle.stats.held == 0, seconds=600)
        assert app.handle.flush(PATIENCE)
        row.check(app, turns=turns, spans=turns)
        assert app.counted() == {("scored", None): turns}
    row.measured(f"requests to the judge for {turns} turns", len(judge.requests))
    assert len(judge.requests) == 2 * turns
