"""The scorer: admission of turns, and log messages about failing scores."""

from __future__ import annotations

import logging

import pytest

from pipeline import running
from rag_eval_otel.config import TURNS, Limit
from rag_eval_otel.errors import JudgeAuthError, JudgeTransportError
from rag_eval_otel.live.scorer import Admission
from rag_eval_otel.testing import FakeJudge
from rag_eval_otel.types import Sampling, SkipReason
from support import ManualClock


def refusal_of(admission: Admission, trace_id: int) -> SkipReason | None:
    found = admission.draw(trace_id)
    return None if isinstance(found, Sampling) else found


def turns(number: int, *, seconds: float = 60) -> list[Limit]:
    return [Limit(amount=number, unit=TURNS, seconds=seconds)]


def test_budget_is_spent_and_earned_again() -> None:
    """So many turns in any minute are admitted; unused turns are not carried over."""
    clock = ManualClock()
    admission = Admission(limits=turns(2), clock=clock)
    assert refusal_of(admission, 1) is None
    clock.advance(30)
    assert [refusal_of(admission, 1) for _ in range(2)] == [None, "budget"]
    clock.advance(31)
    assert [refusal_of(admission, 1) for _ in range(2)] == [None, "budget"]
    clock.advance(3600)
    assert [refusal_of(admission, 1) for _ in range(3)] == [None, None, "budget"]


def test_failing_scores_are_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    """Each reason for failing scores is logged once a minute, however many turns it costs."""
    errors = [JudgeAuthError("HTTP 401: refused")] * 8 + [JudgeTransportError("reset")] * 99
    judge = FakeJudge(lambda _: errors.pop(0))
    with running(judge=judge) as app, caplog.at_level(logging.WARNING, "rag_eval_otel"):
        for _ in range(4):
            app.run_turns(1)
            app.handle.flush()
    told = [record.getMessage() for record in caplog.records if "scores are failing" in record.msg]
    assert len(told) == 2
    assert "unauthorized" in told[0]
    assert "transport" in told[1]
