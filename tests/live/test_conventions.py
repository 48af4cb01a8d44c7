"""Options on the form of exported spans: attribute conventions, and events of scores."""

from __future__ import annotations

from typing import Any

import pytest

from live import KIND, STATUS, App, asked, attached, said, told
from rag_eval_otel import record_answer, record_question, record_retrieval


def by_hand(app: App) -> None:
    with app.provider.get_tracer("app").start_as_current_span("turn"):
        record_question(asked(1))
        record_retrieval(asked(1), told(1))
        record_answer(said(1))
    app.handle.flush()


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, {KIND: "CHAIN"}),
        (
            {"export_content": "all"},
            {KIND: "CHAIN", "input.value": asked(1), "output.value": said(1)},
        ),
    ],
)
def test_a_turn_recorded_by_hand_is_shown_by_openinference(
    options: dict[str, Any], expected: dict[str, str]
) -> None:
    """The exported span has a kind, and with content capture its input and output."""
    with attached(**options) as app:
        by_hand(app)
        (span,) = app.exported()
        found = dict(span.attributes or {})
        assert found[STATUS] == "scored"
        names = (KIND, "input.value", "output.value")
        assert {name: found[name] for name in names if name in found} == expected


def test_an_exported_turn_recorded_by_hand_is_read_again() -> None:
    """A span that left with both conventions gives the same turn in another pipeline."""
    with attached(export_content="all") as app:
        by_hand(app)
        (span,) = app.exported()
    with attached() as second:
        assert second.processor is not None
        second.processor.on_end(span)
        second.handle.flush()
        assert second.handle.stats.turns == {"scored": 1}
