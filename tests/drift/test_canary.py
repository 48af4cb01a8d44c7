"""A canary set next to a live pipeline."""

import math
import random
import threading
from contextlib import nullcontext
from typing import Any

import pytest

from live import ANSWER, CONTEXT, QUESTION, OnesEmbedder, attached, good_answers
from rag_eval_otel.drift import Drift, DriftOptions, Stream
from rag_eval_otel.drift.canary import Canary
from rag_eval_otel.errors import ConfigError
from rag_eval_otel.judge.tasks import Task
from rag_eval_otel.testing import FakeJudge
from rag_eval_otel.types import Evaluation, Sample, Score

ROWS = [Sample(question=f"{QUESTION} {at}", contexts=(CONTEXT,), answer=ANSWER) for at in range(12)]


def test_a_changed_judge_is_detected() -> None:
    """Model and texts are the same, and the reported cause is the judge."""
    mind = {"rating": 2}

    def answer(task: Task[Any]) -> object:
        reply = good_answers(task)
        return {**reply, **mind} if task.reply.__name__ == "Rating" else reply  # type: ignore[dict-item]

    told: list[Any] = []
    options = DriftOptions(on_drift=told.append)
    with attached(judge=FakeJudge(answer), drift=options, metrics=["context_relevance"]) as app:
        canary = app.handle.watch_canary(ROWS, minutes=1000)
        for _ in range(6):
            canary.run_once()
        assert not told
        mind["rating"] = 0
        for _ in range(3):
            canary.run_once()
        canary.stop()
    assert told[0].cause == "judge"
    assert told[0].stream.name == "canary.context_relevance"
    assert told[0].stream.service == "unknown_service:python"  # the SDK's, without a resource


def test_the_schedule_runs_until_it_is_stopped_or_the_pipeline_is() -> None:
    """Rounds run on a thread of their own; replies are not cached; a shutdown ends all."""
    asked: list[int] = []
    often = threading.Event()

    def answer(task: Task[Any]) -> object:
        asked.append(1)
        if len(asked) > 6:
            often.set()
        return good_answers(task)

    judge = FakeJudge(answer)
    with attached(judge=judge, embedder=OnesEmbedder(), metrics=["context_relevance"]) as app:
        canary = app.handle.watch_canary(ROWS[:1], minutes=0.0001)
        assert often.wait(30)
        canary.stop()
        canary = app.handle.watch_canary(ROWS[:1], minutes=1000)
        asked.clear()
        canary.run_once()
        assert asked
        app.handle.shutdown()
        asked.clear()
        canary.run_once()
        assert not asked


def test_an_exception_in_a_round_is_counted() -> None:
    """An internal error is counted and does not reach the application."""
    with attached(raise_errors=False) as app:
        canary = app.handle.watch_canary(ROWS[:2], minutes=1000)
        canary.measure = lambda _: None  # type: ignore[assignment,return-value]
        canary.run_once()
        canary.stop()
        errors = app.points("rag.evaluation.internal_errors")
    assert {p.attributes["place"] for p in errors} == {"canary"}


@pytest.mark.parametrize(
    ("data", "options", "minutes", "told"),
    [
        ([], {}, 1, "a canary set has 1 to 64 samples, not 0"),
        (ROWS * 10, {}, 1, "not 120"),
        (ROWS, {"drift": False}, 1, "needs drift=True"),
        *((ROWS, {}, bad, "minutes must be above 0") for bad in (0, -1, math.nan, math.inf)),
    ],
)
def test_invalid_canary_sets(data: Any, options: dict[str, Any], minutes: float, told: str) -> None:
    """The error says what is allowed; without a pause, the judge would be asked without end."""
    with attached(**options) as app, pytest.raises(ConfigError, match=told):
        app.handle.watch_canary(data, minutes=minutes)


STREAM = Stream(service="shop", name="faithfulness", version="1")


class Judged:
    """A canary set whose samples have the scores 0 to 1, less ``fall``; or None, which failed."""

    def __init__(self) -> None:
        self.reports: list[Drift] = []
        rows = [Sample(question=str(at / 9)) for at in range(10)]
        self.canary = Canary(
            rows, self.measure, self.reports.append, edge=nullcontext(), service="shop"
        )
        self.cause = self.canary.cause

    async def measure(self, sample: Sample) -> Evaluation:
        failed: dict[str, Any] = {"status": "error", "reason": "timeout"}
        if self.fall is not None:
            value = float(sample.question) - self.fall + self.dice.uniform(-0.05, 0.05)
            failed = {"value": min(1.0, max(0.0, value))}
        return Evaluation(scores=(Score(name="faithfulness", version="1", **failed),))

    def rounds(self, count: int, *, fall: float | None = 0.0, seed: int = 0) -> None:
        self.fall, self.dice = fall, random.Random(seed)
        for _ in range(count):
            self.canary.run_once()


def test_a_change_on_the_canary_set_has_the_cause_judge() -> None:
    """Alarms on live scores then have the same cause."""
    judged = Judged()
    assert judged.cause(STREAM) == "unknown"
    judged.rounds(30)
    assert judged.cause(STREAM) == "system"
    judged.rounds(10, fall=0.15, seed=1)
    assert judged.reports[0].cause == "judge"
    assert judged.reports[0].stream.name == "canary.faithfulness"
    assert judged.reports[0].alarm.direction == "down"
    assert judged.cause(STREAM) == "judge"


def test_a_steady_judge_raises_no_alarm() -> None:
    """Its rows differ from each other, not from their own earlier scores; a change wears off."""
    judged = Judged()
    judged.rounds(200)
    assert not judged.reports
    judged.rounds(8, fall=0.3, seed=1)
    assert judged.reports
    judged.rounds(30, seed=2)
    assert judged.cause(STREAM) == "system"


def test_failed_scores_are_not_evidence() -> None:
    """An unreachable judge has not changed; of another version nothing is known."""
    judged = Judged()
    judged.rounds(10)
    judged.rounds(20, fall=None)
    assert not judged.reports
    assert judged.cause(Stream(service="shop", name="faithfulness", version="2")) == "unknown"
