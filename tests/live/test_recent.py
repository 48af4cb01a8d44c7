"""One turn, recorded by two: only the first counts. Identical turns share an evaluation."""

from __future__ import annotations

import asyncio
from concurrent.futures import Future
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from parallel import forking, in_child
from pipeline import QUESTION, turn
from rag_eval_otel import Evaluation
from rag_eval_otel.capture.sample import RecentTurns
from rag_eval_otel.capture.turns import Turn
from rag_eval_otel.live.scorer import Evaluations
from rag_eval_otel.types import Passage, Sample

SAMPLE = Sample(question=QUESTION, contexts=(Passage(text="a page"),), answer="In 1987.")


def recorded(by: str, start: int = 0, end: int | None = 100) -> Turn:
    found = turn()
    root = replace(found.path[-1], source=by, start=start, end=end)
    return replace(found, path=(*found.path[:-1], root))


def test_two_users_may_ask_the_same() -> None:
    """Two requests for the same at once, each recorded by both, are two turns."""
    recent = RecentTurns()
    seen = [
        recent.is_repeated(SAMPLE, recorded(by, start, start + 50))
        for by in ("handler", "openinference")
        for start in (0, 10)
    ]
    assert seen == [False, False, True, True]


def test_the_same_at_another_time_is_another_turn() -> None:
    """A question asked again later is another turn, with any instrumentation."""
    recent = RecentTurns()
    assert not recent.is_repeated(SAMPLE, recorded("handler", 0, 100))
    assert not recent.is_repeated(SAMPLE, recorded("openinference", 101, 200))


def test_only_the_last_turns_are_remembered() -> None:
    """Memory is bounded: the oldest are forgotten."""
    recent = RecentTurns(max_turns=2)
    samples = [replace(SAMPLE, answer=f"In {1980 + n}.") for n in range(3)]
    for sample in samples:
        assert not recent.is_repeated(sample, recorded("handler"))
    assert not recent.is_repeated(samples[0], recorded("openinference"))
    assert recent.is_repeated(samples[2], recorded("openinference"))


class GatedMeasurement:
    """Evaluates when it is told to."""

    judge = SimpleNamespace(model="m")
    budget, explanations = None, False

    def __init__(self) -> None:
        self.calls, self.go_on = 0, Future[None]()

    def clock(self) -> float:
        return 0.0

    def prepared(self, sample: Sample) -> tuple[Sample, dict[str, int]]:
        return sample, {}

    async def of_prepared(self, _: Sample, __: object) -> Evaluation:
        self.calls += 1
        await asyncio.wrap_future(self.go_on)
        return Evaluation(scores=(), judge="m", duration=0.0)


def test_a_caller_that_is_cancelled_cancels_no_other() -> None:
    """The callers that share an evaluation get it, whichever of them gives up."""
    measurement = GatedMeasurement()
    shared = Evaluations(cast("Any", measurement))

    async def use() -> list[Any]:
        calls = [asyncio.ensure_future(shared.of(SAMPLE)) for _ in "four"]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        calls[2].cancel()
        await asyncio.wait([calls[2]])
        measurement.go_on.set_result(None)
        return await asyncio.gather(*calls, return_exceptions=True)

    found = asyncio.run(use())
    assert [type(one) for one in found[:2] + found[3:]] == [Evaluation] * 3
    assert isinstance(found[2], asyncio.CancelledError)
    assert measurement.calls == 1


@pytest.mark.slow
@forking
def test_a_forked_child_waits_for_no_evaluation_of_its_parent() -> None:
    """The parent's evaluation never ends in the child, whose threads may have the same number."""
    measurement = GatedMeasurement()
    shared = Evaluations(cast("Any", measurement))

    async def use() -> None:
        first = asyncio.ensure_future(shared.of(SAMPLE))
        await asyncio.sleep(0)
        assert in_child(lambda: not shared._known)  # noqa: SLF001
        measurement.go_on.set_result(None)
        await first

    asyncio.run(use())
