"""Haystack's own tracing, read by our processor alone."""

from collections.abc import Callable, Iterator

import pytest
from haystack import tracing

from apps import company
from e2e.checks import CHECKS, TRUTHS, assert_refused, assert_scored
from e2e.haystack_app import HandbookPipeline
from e2e.watched import Watched, watched

otel = pytest.importorskip("haystack_integrations.tracing.opentelemetry")


@pytest.fixture(scope="module")
def watch() -> Iterator[Watched]:
    """A provider for its spans with content."""
    with pytest.MonkeyPatch.context() as patch, watched() as found:
        patch.setattr(tracing.tracer, "is_content_tracing_enabled", True)
        tracing.enable_tracing(otel.OpenTelemetryTracer(found.provider.get_tracer("haystack")))
        yield found
        tracing.disable_tracing()


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_turns_are_scored_from_spans_alone(watch: Watched, check: Callable[..., None]) -> None:
    """Scores and spans arrive once, and only the turn's span waits for scores."""
    check(watch, HandbookPipeline())


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
