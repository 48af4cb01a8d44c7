"""Faults in the texts of turns, and texts that are made to do harm."""

from collections.abc import Callable

import pytest

from live import attached
from pipeline import good_answers
from rag_eval_otel.testing import FakeJudge

Measured = Callable[[str, object], None]
Invariants = Callable[..., None]
TURNS = 10


def broken(text: str) -> str:
    """Fail, with the text in the message."""
    raise KeyError(text)


@pytest.mark.fault(27, expected="the turn is skipped with redaction_error, nobody sees its texts")
def test_fault_27_a_redaction_function_raises(
    measured: Measured, check_invariants: Invariants
) -> None:
    """No text is judged, exported by us or logged, and each turn is counted with the reason."""
    judge = FakeJudge(good_answers)
    with attached(judge=judge, redact=[broken], content="strip") as app:
        spans = [app.turn(number) for number in range(TURNS)]
        assert app.handle.flush()
        check_invariants(app, turns=TURNS, spans=3 * TURNS, secrets=["founded company", "Ada the"])
        assert app.counted() == {("skipped", "redaction_error"): TURNS}
        assert {app.status_of(span) for span in spans} == {"skipped"}
        assert judge.requests == []
        measured("judge requests", len(judge.requests))
        measured("turns skipped with redaction_error", TURNS)
