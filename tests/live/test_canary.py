"""A canary set beside a live pipeline."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from pipeline import ANSWER, CONTEXT, QUESTION, OnesEmbedder, good_answers, running
from rag_eval_otel.drift import DriftOptions
from rag_eval_otel.errors import ConfigError
from rag_eval_otel.judge.tasks import Task
from rag_eval_otel.live.canary import watch_canary
from rag_eval_otel.testing import FakeJudge

ROWS = [
    {"question": f"{QUESTION} {at}", "contexts": [CONTEXT], "answer": ANSWER} for at in range(12)
]


def test_a_judge_that_changes_its_mind_is_found() -> None:
    """Under the same name and with the same texts: the event says that it is the judge."""
    mind = {"rating": 2}

    def answer(task: Task[Any]) -> object:
        reply = good_answers(task)
        return {**reply, **mind} if task.reply.__name__ == "Rating" else reply  # type: ignore[dict-item]

    told: list[Any] = []
    options = DriftOptions(on_drift=told.append)
    with running(judge=FakeJudge(answer), drift=options, metrics=["context_relevance"]) as app:
        canary = watch_canary(app.handle, ROWS, minutes=1000)
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


def test_the_schedule_runs_until_it_is_stopped() -> None:
    """On a thread of its own, with a judge that is asked anew each time."""
    asked: list[int] = []
    often = threading.Event()

    def answer(task: Task[Any]) -> object:
        asked.append(1)
        if len(asked) > 6:
            often.set()
        return good_answers(task)

    with running(
        judge=FakeJudge(answer), embedder=OnesEmbedder(), metrics=["context_relevance"]
    ) as app:
        canary = watch_canary(app.handle, ROWS[:1], minutes=0.0001)
        assert often.wait(30)
        canary.stop()


def test_a_shutdown_ends_it() -> None:
    """Who shuts the pipeline down need not know of the canary: its judge is asked no more."""
    asked: list[int] = []

    def answer(task: Task[Any]) -> object:
        asked.append(1)
        return good_answers(task)

    with running(
        judge=FakeJudge(answer), embedder=OnesEmbedder(), metrics=["context_relevance"]
    ) as app:
        canary = watch_canary(app.handle, ROWS[:1], minutes=1000)
        canary.run_once()
        assert asked
        app.handle.shutdown()
        asked.clear()
        canary.run_once()
        assert not asked


def test_a_round_that_fails_is_counted() -> None:
    """What is not the judge's failure but ours is kept in like everywhere."""
    with running(errors="swallow") as app:
        canary = watch_canary(app.handle, ROWS[:2], minutes=1000)
        canary._measure = lambda _: None  # type: ignore[assignment,return-value]  # noqa: SLF001
        canary.run_once()
        canary.stop()
        app.stop()
        points = app.receiver.metrics()
    errors = [p for p in points if p.name == "rag.evaluation.internal_errors"]
    assert {p.attributes["place"] for p in errors} == {"canary"}


@pytest.mark.parametrize(
    ("data", "options", "told"),
    [
        ([], {}, "a canary set has 1 to 64 samples, not 0"),
        (ROWS * 10, {}, "not 120"),
        (ROWS, {"drift": "off"}, "needs drift='on'"),
        ("absent.jsonl", {}, "there is no such file"),
    ],
)
def test_what_cannot_be_a_canary_set_is_refused(
    data: Any, options: dict[str, Any], told: str
) -> None:
    """With what would do."""
    with running(**options) as app, pytest.raises(ConfigError, match=told):
        watch_canary(app.handle, data)


@pytest.mark.parametrize("minutes", [0, -1, float("nan"), float("inf")])
def test_rounds_without_a_pause_are_refused(minutes: float) -> None:
    """They would ask the judge without end."""
    with running() as app, pytest.raises(ConfigError, match="minutes must be above 0"):
        watch_canary(app.handle, ROWS, minutes=minutes)
