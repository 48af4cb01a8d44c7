"""Scores beside OpenTelemetry's own OpenAI instrumentation, which ignores suppression."""

from collections.abc import Callable

import pytest

from e2e import beside

openai_v2 = pytest.importorskip("opentelemetry.instrumentation.openai_v2")


@pytest.fixture(scope="module")
def runs() -> dict[str, beside.Seen]:
    return beside.run_beside([openai_v2.OpenAIInstrumentor()])


@pytest.fixture(params=beside.PROTOCOLS)
def seen(request: pytest.FixtureRequest, runs: dict[str, beside.Seen]) -> beside.Seen:
    return runs[request.param]


@pytest.mark.parametrize("check", beside.CHECKS, ids=lambda check: check.__name__)
def test_beside(seen: beside.Seen, check: Callable[[beside.Seen], None]) -> None:
    """Scores and spans arrive once, without spans of the judge."""
    check(seen)


def test_instrumentation_spans_arrive(seen: beside.Seen) -> None:
    """Each request to the app's model has one span."""
    spans = seen.of_scope("opentelemetry.instrumentation.openai_v2")
    assert len(spans) == len(seen.app.requests)
