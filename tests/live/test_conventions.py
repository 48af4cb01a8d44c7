"""Options on the form of exported spans: attribute conventions, and events of scores."""

from __future__ import annotations

from live import App, asked, attached, said, told
from rag_eval_otel import record_answer, record_question, record_retrieval


def by_hand(app: App) -> None:
    with app.provider.get_tracer("app").start_as_current_span("turn"):
        record_question(asked(1))
        record_retrieval(asked(1), told(1))
        record_answer(said(1))
    app.handle.flush()


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
