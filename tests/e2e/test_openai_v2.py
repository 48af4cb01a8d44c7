"""Scores beside OpenTelemetry's own OpenAI instrumentation, which ignores suppression."""

import pytest

from e2e.beside import Seen, runs, seen, test_beside  # noqa: F401

openai_v2 = pytest.importorskip("opentelemetry.instrumentation.openai_v2")


def instrumentors() -> list[object]:
    return [openai_v2.OpenAIInstrumentor()]


def test_instrumentation_spans_arrive(seen: Seen) -> None:  # noqa: F811
    """Each request to the app's model has one span."""
    spans = seen.of_scope("opentelemetry.instrumentation.openai_v2")
    assert len(spans) == len(seen.app.requests)
