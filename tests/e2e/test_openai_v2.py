"""Beside OpenTelemetry's own OpenAI instrumentation, which traces suppressed calls as well."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from e2e import beside

openai_v2 = pytest.importorskip("opentelemetry.instrumentation.openai_v2")


@pytest.fixture(scope="module")
def runs() -> dict[str, beside.Seen]:
    """Run the turns once."""
    return beside.run_beside([openai_v2.OpenAIInstrumentor()])


@pytest.fixture(params=beside.PROTOCOLS)
def seen(request: pytest.FixtureRequest, runs: dict[str, beside.Seen]) -> beside.Seen:
    """What arrived over each protocol."""
    return runs[request.param]


@pytest.mark.parametrize("check", beside.CHECKS, ids=lambda check: check.__name__)
def test_beside(seen: beside.Seen, check: Callable[[beside.Seen], None]) -> None:
    """Scores once, spans once, none of the judge's."""
    check(seen)


def test_its_spans_are_there(seen: beside.Seen) -> None:
    """Of each request to the app's model it has one span."""
    spans = seen.of_scope("opentelemetry.instrumentation.openai_v2")
    assert len(spans) == len(seen.app.requests)
