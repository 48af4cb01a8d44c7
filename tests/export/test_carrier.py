"""Spans for scores and feedback that come after the span of their turn has left."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import Span, SpanKind

from live import App, GatedJudge, answered, attached, retrieved
from rag_eval_otel import record_feedback

PATIENCE = 60
IDENTIFIER = {"identifier": "rag_eval_otel"}


def checked(carrier: ReadableSpan, target: Any) -> Mapping[str, Any]:
    """Assert what the convention asks of ``carrier``, and return its attributes."""
    (link,) = carrier.links
    assert (link.context.trace_id, link.context.span_id) == (target.trace_id, target.span_id)
    assert (carrier.parent, carrier.kind) == (None, SpanKind.INTERNAL)
    assert carrier.context.trace_id != target.trace_id
    found = carrier.attributes or {}
    assert found["openinference.span.kind"] == "EVALUATOR"
    assert not any(name.startswith("rag.") for name in found)
    return found


def field(found: Mapping[str, Any], leaf: str, term: str = "evaluation") -> list[Any]:
    values = (found.get(f"{term}s.{number}.{term}.{leaf}") for number in range(20))
    return [value for value in values if value is not None]


def rate(turn: Span, score: float = 0.0) -> None:
    context = turn.get_span_context()
    record_feedback(score, trace_id=context.trace_id, span_id=context.span_id, comment="wrong")


def missed(app: App) -> Span:
    """Make a turn whose spans end before its retrieval, so that they leave without scores."""
    chain = app.step("CHAIN", None, **answered(1), **{"session.id": "s", "user.id": "u"})
    chain.end()
    retrieval = app.step("RETRIEVER", chain, **retrieved(1))
    app.generate(1, chain)
    retrieval.end()
    return chain


@pytest.mark.parametrize("score_events", ["log", "span"])
def test_late_scores_are_on_a_span_of_their_own(score_events: Any) -> None:
    """With the ids of user and session. Its events are those that the span would have had."""
    with attached(score_events=score_events) as app:
        chain = missed(app)
        rate(chain)
        assert app.handle.flush(PATIENCE)
        assert app.counted() == {("scored", "span_missed"): 1}
        carrier, _of_feedback = app.carriers()
        found = checked(carrier, chain.get_span_context())
        assert (found["session.id"], found["user.id"]) == ("s", "u")
        assert {"faithfulness", "rag.evaluation"} <= set(field(found, "name"))
        assert set(field(found, "annotator_kind")) == {"LLM", "CODE"}
        events = [event.name for event in carrier.events]
        assert bool(events) == (score_events == "span")
        assert set(events) <= {"gen_ai.evaluation.result"}


@pytest.mark.parametrize("form", ["both", "openinference", "rag"])
def test_scores_that_come_after_the_deadline(form: Any) -> None:
    """The span has left with the status `timeout`, and another one has the scores, once."""
    judge = GatedJudge()
    with attached(judge=judge, hold_seconds=0, score_attributes=form) as app:
        chain = app.turn()
        app.pipeline.submit_ended()
        assert app.store.wait_left(PATIENCE)
        judge.open()
        assert app.handle.flush(PATIENCE)
        assert app.status_of(chain) == "timeout"
        assert len(app.carriers()) == (form != "rag")
        for carrier in app.carriers():
            assert "faithfulness" in field(checked(carrier, chain.get_span_context()), "name")


class Opening(BatchSpanProcessor):
    """Exports what it has at a flush; then the judge answers."""

    def __init__(self, judge: GatedJudge) -> None:
        self.batches, self.judge = InMemorySpanExporter(), judge
        super().__init__(self.batches, schedule_delay_millis=10**6)

    def force_flush(self, timeout_millis: int | None = None) -> bool:
        is_flushed = super().force_flush(timeout_millis)
        self.judge.open()
        return is_flushed


def test_a_flush_exports_scores_that_came_during_it() -> None:
    """Also through a processor that exports in batches, which was flushed before they came."""
    processor = Opening(GatedJudge())
    with attached(judge=processor.judge, hold_seconds=0) as app:
        app.provider.add_span_processor(processor)
        app.turn()
        app.pipeline.submit_ended()
        assert app.store.wait_left(PATIENCE)
        assert app.handle.flush(PATIENCE)
        names = [span.name for span in processor.batches.get_finished_spans()]
    assert names.count("evaluate turn") == 1


def test_feedback_after_the_scores_is_on_a_span_of_its_own() -> None:
    """Each on one, by a person; what came before is on the span of the turn."""
    with attached() as app:
        chain = app.turn()
        rate(chain, 1.0)
        assert app.handle.flush(PATIENCE)
        assert app.attributes_of(chain)["rag.feedback.user.score"] == 1.0
        assert not app.carriers()
        rate(chain)
        rate(chain, 0.5)
        assert app.handle.flush(PATIENCE)
        first, second = app.carriers()
        found = checked(first, chain.get_span_context())
        assert {name.split(".")[-1]: value for name, value in found.items() if "annot" in name} == {
            "name": "user",
            "score": 0.0,
            "label": "fail",
            "annotator_kind": "HUMAN",
            "explanation": "wrong",
            **IDENTIFIER,
        }
        assert field(second.attributes or {}, "score", "annotation") == [0.5]
