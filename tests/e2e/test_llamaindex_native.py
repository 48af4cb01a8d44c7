"""What LlamaIndex's own tracing writes, read by our processor alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from apps import company
from e2e.checks import CHECKS, assert_refused, assert_scored, assert_streamed_turn
from e2e.llamaindex_app import HandbookEngine
from e2e.watched import Watched, watched

otel = pytest.importorskip("llama_index.observability.otel")


@pytest.fixture(scope="module")
def watch() -> Iterator[Watched]:
    """A provider that it writes to; its own processor exports to nowhere."""
    with watched() as found:
        otel.LlamaIndexOpenTelemetry(
            tracer_provider=found.provider, span_exporter=InMemorySpanExporter()
        ).start_registering()
        yield found


TOLD = [check for check in CHECKS if check is not assert_streamed_turn]


@pytest.mark.parametrize("check", TOLD, ids=lambda check: check.__name__)
def test_the_spans_are_enough(watch: Watched, check: Callable[..., None]) -> None:
    """Scores once, spans once, and only what is scored waits."""
    check(watch, HandbookEngine())


def test_nodes_that_were_filtered_out_are_no_contexts(watch: Watched) -> None:
    """Of what was retrieved, only what a postprocessor has kept is in the sample."""
    assert_scored(watch, lambda: HandbookEngine().ask_filtered(company.FOUNDED), company.FOUNDED)


def test_a_stream_is_not_guessed(watch: Watched) -> None:
    """What is streamed is called in another trace, without a text: both are refused."""
    use = HandbookEngine()
    assert_refused(watch, lambda: use.stream(company.FOUNDED), "no_answer", "no_retrieval")
