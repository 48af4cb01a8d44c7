"""Scores as log events."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider

from rag_eval_otel.config import ScoreEvents
from rag_eval_otel.export.attributes import EventSink, SpanScores
from rag_eval_otel.types import Ending, Evaluation, Score

OK = Score(name="faithfulness", value=1, label="pass", version="v", explanation="x" * 2000)
NORMAL = Score(name="correctness", value=4, normalized=0.75, label="pass")


class Noted:
    """A logger provider and logger that keeps the attributes of events."""

    def __init__(self) -> None:
        self.attributes: list[Mapping[str, Any]] = []

    def get_logger(self, *_: object, **__: object) -> Noted:
        return self

    def emit(self, *, attributes: Mapping[str, Any], **_: object) -> None:
        self.attributes.append(attributes)


def emitted(evaluation: Evaluation) -> list[Mapping[str, Any]]:
    provider = Noted()
    EventSink(provider)(evaluation)  # type: ignore[arg-type]
    return provider.attributes


def test_events_keep_the_scale_of_the_metric() -> None:
    """The standard attribute has the score, not the normalized one."""
    (event,) = emitted(Evaluation(scores=(NORMAL,)))
    assert event["gen_ai.evaluation.score.value"] == 4.0
    assert not any("normalized" in key for key in event)


SCORED = Ending("scored", evaluation=Evaluation(scores=(OK, NORMAL), judge="m"))


def ended(write: SpanScores | None = None) -> ReadableSpan:
    span = TracerProvider().get_tracer("app").start_span("turn")
    span.add_event("mine")
    if write is not None:
        write.write(span, SCORED)
    span.end()
    assert isinstance(span, ReadableSpan)
    return span


@pytest.mark.parametrize("events", ["span", "both"])
def test_scores_are_events_of_the_span(events: ScoreEvents) -> None:
    """The events on a span have the attributes of the log records, and a time each."""
    scores = SpanScores(events=events, clock=lambda: 7)
    copy, open_span = scores.copy(ended(), SCORED), ended(scores)
    for span in (copy, open_span):
        assert [event.name for event in span.events] == ["mine", *["gen_ai.evaluation.result"] * 2]
        found = [dict(event.attributes or {}) for event in span.events[1:]]
        assert SCORED.evaluation is not None
        assert found == emitted(SCORED.evaluation)
        assert {event.timestamp for event in span.events[1:]} == {7}
        assert (span.attributes or {})["rag.evaluation.faithfulness.score"] == 1.0


def test_scores_of_both_judges_of_a_cascade_are_events() -> None:
    """The offline scores have events of their own, with their judge."""
    offline = Evaluation(scores=(OK,), judge="lexical")
    both = Ending("scored", evaluation=Evaluation(scores=(OK,), judge="m", offline=offline))
    span = SpanScores(events="span").copy(ended(), both)
    judges = [(event.attributes or {})["rag.evaluation.judge"] for event in span.events[1:]]
    assert judges == ["m", "lexical"]


def test_log_records_leave_the_events_of_the_span_alone() -> None:
    """By default, scores are log records, and a span has no events of ours."""
    assert [event.name for event in SpanScores().copy(ended(), SCORED).events] == ["mine"]
