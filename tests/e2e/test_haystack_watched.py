"""Haystack's own tracing, read by our processor alone."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from haystack import tracing

from apps import company
from e2e.checks import TRUTHS, assert_refused, assert_scored, test_turns_are_scored_from_spans_alone  # noqa: F401
from e2e.haystack_app import HandbookPipeline
from e2e.watched import Watched

otel = pytest.importorskip("haystack_integrations.tracing.opentelemetry")
program = HandbookPipeline


@contextmanager
def trace(watch: Watched) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tracing.tracer, "is_content_tracing_enabled", True)
        tracing.enable_tracing(otel.OpenTelemetryTracer(watch.provider.get_tracer("haystack")))
        yield
        tracing.disable_tracing()


def test_an_agent_that_searches_is_scored(watch: Watched) -> None:
    """The contexts are its tool's result; the span of the agent's run waits for the scores."""
    app = HandbookPipeline()

    def use() -> None:
        assert app.ask_agent(company.SPARS) == TRUTHS[company.SPARS].answer

    assert_scored(watch, use, company.SPARS)


def test_disabled_content_is_refused(watch: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without content, the default, the turn is refused."""
    monkeypatch.setattr(tracing.tracer, "is_content_tracing_enabled", False)
    assert_refused(watch, lambda: HandbookPipeline().ask(company.FOUNDED), "no_answer")
