"""Options on the form of exported spans: attribute conventions, and events of scores."""

from __future__ import annotations

from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider

from live import KIND, STATUS, App, asked, attached, said, told
from rag_eval_otel import record_answer, record_question, record_retrieval
from rag_eval_otel.capture.conventions import read
from rag_eval_otel.capture.span import Span
from rag_eval_otel.export.attributes import SpanScores
from rag_eval_otel.types import Ending, Evaluation, Score


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


@pytest.mark.parametrize(("form", "logs"), [("log", 1), ("span", 0), ("both", 1)])
def test_scores_are_log_records_or_events_of_the_span(form: str, logs: int) -> None:
    """Each score is emitted in each chosen form, once."""
    with attached(score_events=form, metrics=["faithfulness"]) as app:
        app.turn()
        app.handle.flush()
        events = [event for span in app.exported() for event in span.events]
        assert len(events) == (form != "log")
        assert sum(app.scored_spans().values()) == logs


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


def test_events_of_scores_are_not_read_as_texts() -> None:
    """A span that left with its scores as events is read as the same span without them."""
    scores = SpanScores(events="span")
    one = Score(name="faithfulness", value=1.0, explanation="because")
    ending = Ending("scored", evaluation=Evaluation(scores=(one,)))
    tracer = TracerProvider().get_tracer("opentelemetry.instrumentation.openai_v2")
    span = tracer.start_span("chat", attributes={"gen_ai.operation.name": "chat"})
    span.add_event("gen_ai.user.message", {"content": asked(1)})
    span.add_event("gen_ai.choice", {"message": said(1)})
    span.end()
    assert isinstance(span, ReadableSpan)
    assert read(Span.from_sdk(scores.copy(span, ending))) == read(Span.from_sdk(span))
