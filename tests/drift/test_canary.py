"""Whose change it is: the judge's, or the system's."""

from __future__ import annotations

import random

from rag_eval_otel.drift.canary import CanaryWatch
from rag_eval_otel.drift.records import Drift, Stream
from rag_eval_otel.types import Evaluation, Score

ROWS = 10
LEVELS = [at / (ROWS - 1) for at in range(ROWS)]
STREAM = Stream(service="shop", name="faithfulness", version="1")


def rounds(watch: CanaryWatch, count: int, *, fall: float = 0.0, seed: int = 0) -> None:
    """Score the set so many times with a judge that is a little unsteady, and lower by ``fall``."""
    dice = random.Random(seed)
    for _ in range(count):
        watch.begin_round()
        for row, level in enumerate(LEVELS):
            value = min(1.0, max(0.0, level - fall + dice.uniform(-0.05, 0.05)))
            watch.take(
                row, Evaluation(scores=(Score(name="faithfulness", value=value, version="1"),))
            )


def watched() -> tuple[CanaryWatch, list[Drift]]:
    """Return a watch and what it reported."""
    reports: list[Drift] = []
    return CanaryWatch(reports.append, rows=ROWS, service="shop"), reports


def test_a_change_of_the_judge_is_its_own() -> None:
    """The same texts get other scores; what changes on live traffic then is the judge's, too."""
    watch, reports = watched()
    assert watch.cause(STREAM) == "unknown"
    rounds(watch, 30)
    assert watch.cause(STREAM) == "system"
    rounds(watch, 10, fall=0.15, seed=1)
    assert reports[0].cause == "judge"
    assert reports[0].stream.name == "canary.faithfulness"
    assert reports[0].alarm.direction == "down"
    assert watch.cause(STREAM) == "judge"


def test_a_steady_judge_is_no_alarm() -> None:
    """However long, and although the rows differ from each other."""
    watch, reports = watched()
    rounds(watch, 200)
    assert not reports


def test_the_judge_explains_only_what_is_near() -> None:
    """Twenty rounds after it has become steady again, a change is the system's."""
    watch, reports = watched()
    rounds(watch, 30)
    rounds(watch, 8, fall=0.3, seed=1)
    assert reports
    rounds(watch, 30, seed=2)
    assert watch.cause(STREAM) == "system"


def test_another_version_is_learned_anew() -> None:
    """Of a measurement that the canary set has not seen nothing is known."""
    watch, _ = watched()
    rounds(watch, 10)
    assert watch.cause(Stream(service="shop", name="faithfulness", version="2")) == "unknown"


def test_failed_scores_say_nothing() -> None:
    """A judge that is out of reach has not changed its mind."""
    watch, reports = watched()
    rounds(watch, 10)
    failed = Evaluation(
        scores=(Score(name="faithfulness", status="error", reason="timeout", version="1"),)
    )
    for row in range(ROWS * 20):
        watch.take(row % ROWS, failed)
    assert not reports
