"""LlamaIndex's own tracing, read by our processor alone."""

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from apps import company
from e2e.checks import CHECKS, assert_refused, assert_scored, assert_streamed_turn
from e2e.llamaindex_app import HandbookEngine
from e2e.watched import Watched

otel = pytest.importorskip("llama_index.observability.otel")


def trace(watch: Watched) -> Any:
    otel.LlamaIndexOpenTelemetry(
        tracer_provider=watch.provider, span_exporter=InMemorySpanExporter()
    ).start_registering()
    return nullcontext()


TOLD = [check for check in CHECKS if check is not assert_streamed_turn]


@pytest.mark.parametrize("check", TOLD, ids=lambda check: check.__name__)
def test_turns_are_scored_from_spans_alone(watch: Watched, check: Callable[..., None]) -> None:
    """Scores and spans arrive once, and only the turn's span waits for scores."""
    check(watch, HandbookEngine())


def test_filtered_nodes_are_not_contexts(watch: Watched) -> None:
    """The sample holds only the retrieved nodes that a postprocessor has kept."""
    assert_scored(watch, lambda: HandbookEngine().ask_filtered(company.FOUNDED), company.FOUNDED)


def test_a_stream_is_refused(watch: Watched) -> None:
    """A streamed call is in another trace, without texts: both traces are refused."""
    use = HandbookEngine()
    assert_refused(watch, lambda: use.stream(company.FOUNDED), "no_answer", "no_retrieval")
