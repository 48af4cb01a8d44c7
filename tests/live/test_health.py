"""Every turn that is found has one outcome: ``captured`` is the sum of outcomes and ``pending``."""

from __future__ import annotations

from typing import Any

import pytest

from live import App, attached, points_of
from pipeline import GatedJudge
from runs import run_chain

TURNS = 5


def conserved(app: App) -> tuple[int, int]:
    """Return captured and pending turns, after a check of the metrics and of ``Handle.stats``."""
    stats = app.handle.stats
    assert stats.captured == sum(stats.turns.values()) + stats.pending
    assert stats.pending >= 0
    points = points_of(app.reader)
    captured, turns, pending = (
        sum(point.value for point in points.get(f"rag.evaluation.{name}", ()))
        for name in ("captured", "turns", "pending")
    )
    assert captured == turns + pending
    return stats.captured, stats.pending


def make_spans(app: App, number: int) -> None:
    app.turn(number)


def make_runs(app: App, number: int) -> None:
    run_chain(app.handle.callback, f"turn {number}")


SOURCES = pytest.mark.parametrize("make", [make_spans, make_runs])


@SOURCES
def test_a_turn_is_pending_until_it_has_an_outcome(make: Any) -> None:
    """While the judge is busy, all turns are captured and pending; after a drain, none is."""
    judge = GatedJudge()
    with attached(judge=judge) as app:
        assert conserved(app) == (0, 0)
        for number in range(TURNS):
            make(app, number)
        app.pipeline.submit_ended()
        judge.asked.result(60)
        app.pipeline.evaluator.flush(0.0)
        while app.handle.stats.captured < TURNS:  # the evaluator reads the other turns now
            app.pipeline.evaluator.flush(0.01)
        assert conserved(app) == (TURNS, TURNS)
        judge.open()
        assert app.handle.flush(60)
        assert conserved(app) == (TURNS, 0)
        assert app.handle.stats.turns == {"scored": TURNS}
