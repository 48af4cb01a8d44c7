"""`RagEvalSpanProcessor` as a user adds it to a provider, like any other span processor."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import Counter
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from parallel import at_once
from pipeline import RECORDED, GatedJudge, usual_options
from rag_eval_otel import Evaluation, RagEvalCallbackHandler, RagEvalSpanProcessor, instrument
from rag_eval_otel.errors import ConfigError
from runs import run_chain

STATUS = "rag.evaluation.status"


@pytest.fixture
def exporter() -> InMemorySpanExporter:
    return InMemorySpanExporter()


@pytest.fixture
def provider() -> Iterator[TracerProvider]:
    made = TracerProvider()
    yield made
    made.shutdown()


def record_turn(provider: TracerProvider) -> None:
    tracer = provider.get_tracer("app")
    with tracer.start_as_current_span("turn", attributes=RECORDED):
        tracer.start_span("step").end()


def statuses(spans: tuple[ReadableSpan, ...]) -> dict[tuple[str, Any], int]:
    return Counter((span.name, (span.attributes or {}).get(STATUS)) for span in spans)


class ClosingSink:
    """Notes the calls of its methods."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def __call__(self, evaluation: Evaluation) -> None:
        self.calls.append(evaluation.status)

    def close(self) -> None:
        self.calls.append("closed")


SCORED = {("turn", "scored"): 1, ("step", None): 1}


def test_one_line_scores_the_turns_of_a_provider(
    provider: TracerProvider, exporter: InMemorySpanExporter
) -> None:
    """A turn is scored offline, its span leaves once with the scores, all others as they are."""
    provider.add_span_processor(RagEvalSpanProcessor(BatchSpanProcessor(exporter), judge="lexical"))
    record_turn(provider)
    assert provider.force_flush()
    assert statuses(exporter.get_finished_spans()) == SCORED
    (turn,) = (span for span in exporter.get_finished_spans() if span.name == "turn")
    assert (turn.attributes or {})["rag.evaluation.judge"] == "lexical"


def test_stats_count_turns_and_held_spans(
    provider: TracerProvider, exporter: InMemorySpanExporter
) -> None:
    """The handle of the processor shows held spans, and turns by outcome."""
    judge = GatedJudge()
    processor = RagEvalSpanProcessor(SimpleSpanProcessor(exporter), **usual_options(judge=judge))
    provider.add_span_processor(processor)
    record_turn(provider)
    assert processor.handle.stats.held == 1
    judge.asked.result(30)
    assert not processor.handle.stats.turns
    assert processor.handle.stats.scoring == 1
    judge.open()
    assert processor.handle.flush()
    stats = processor.handle.stats
    assert stats.turns == {"scored": 1}
    assert stats.released == {"scored": 1}
    assert (stats.held, stats.scoring, stats.failures) == (0, 0, {})
    assert stats.sources == {"native": 1}


def test_a_processor_of_ours_is_not_wrapped_again(exporter: InMemorySpanExporter) -> None:
    """A processor that wraps another one of ours is refused: it would score each turn twice."""
    inner = RagEvalSpanProcessor(SimpleSpanProcessor(exporter), **usual_options())
    with pytest.raises(ConfigError, match="wrap the one that exports, once"):
        RagEvalSpanProcessor(inner, **usual_options())
    inner.shutdown()


def test_a_second_processor_passes_its_spans_on(
    provider: TracerProvider, exporter: InMemorySpanExporter, caplog: pytest.LogCaptureFixture
) -> None:
    """The first scores; the second exports without scores, and closes no sink of the first."""
    second, sink = InMemorySpanExporter(), ClosingSink()
    for each in (exporter, second):
        options = usual_options() | {"sinks": [sink]}
        provider.add_span_processor(RagEvalSpanProcessor(SimpleSpanProcessor(each), **options))
    with caplog.at_level(logging.WARNING):
        record_turn(provider)
    assert provider.force_flush()
    assert statuses(exporter.get_finished_spans()) == SCORED
    assert statuses(second.get_finished_spans()) == {("turn", None): 1, ("step", None): 1}
    assert sink.calls == ["scored"]
    assert "has two pipelines" in caplog.text


def test_the_callback_handler_finds_a_processor(
    provider: TracerProvider, exporter: InMemorySpanExporter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A callback handler reports to the processor that the global provider has already."""
    monkeypatch.setattr("rag_eval_otel.live.instrument.get_tracer_provider", lambda: provider)
    monkeypatch.setattr(
        "rag_eval_otel.live.instrument.global_or_new_tracer_provider", lambda: provider
    )
    processor = RagEvalSpanProcessor(SimpleSpanProcessor(exporter), **usual_options())
    provider.add_span_processor(processor)
    handler = RagEvalCallbackHandler()
    run_chain(handler, "rag")
    assert handler.flush()
    assert handler.stats.turns == processor.handle.stats.turns == {"scored": 1}


def test_an_exporter_in_place_of_a_processor_is_refused() -> None:
    """The error says to wrap the exporter; nothing is built before."""
    with pytest.raises(ConfigError, match=r"wrap an exporter: BatchSpanProcessor\(exporter\)"):
        RagEvalSpanProcessor(InMemorySpanExporter(), judge="lexical")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="wrap an exporter"):
        instrument(wrap=5, judge="lexical")  # type: ignore[arg-type]


def test_a_provider_can_be_instrumented_after_its_processor_was_shut_down() -> None:
    """`instrument` does not return the handle of a pipeline that scores nothing any more."""
    provider = TracerProvider()
    processor = RagEvalSpanProcessor(SimpleSpanProcessor(InMemorySpanExporter()), judge="lexical")
    provider.add_span_processor(processor)
    processor.handle.shutdown()
    handle = instrument(tracer_provider=provider, judge="lexical")
    assert handle is not processor.handle
    handle.shutdown()


def test_a_handler_is_first_used_on_several_threads(
    provider: TracerProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It attaches once, and captures the run of each thread."""
    for name in ("get_tracer_provider", "global_or_new_tracer_provider"):
        monkeypatch.setattr(f"rag_eval_otel.live.instrument.{name}", lambda: provider)
    handler = RagEvalCallbackHandler(**usual_options())
    at_once(*(partial(run_chain, handler, "rag") for _ in range(8)))
    assert handler.flush()
    assert handler.stats.turns == {"scored": 8}
    handler.shutdown()


def test_spans_that_a_sink_starts_in_the_application_are_exported(
    provider: TracerProvider, exporter: InMemorySpanExporter
) -> None:
    """Only spans on the threads of this library are the judge's."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    saved: list[Any] = []

    async def save() -> None:
        provider.get_tracer("app").start_span("save").end()

    def sink(_: Evaluation) -> None:
        provider.get_tracer("client").start_span("request of the judge").end()
        saved.append(asyncio.run_coroutine_threadsafe(save(), loop))

    provider.add_span_processor(
        RagEvalSpanProcessor(SimpleSpanProcessor(exporter), sinks=[sink], **usual_options())
    )
    record_turn(provider)
    assert provider.force_flush()
    saved[0].result(60)
    loop.call_soon_threadsafe(loop.stop)
    thread.join(60)
    loop.close()
    assert sorted(span.name for span in exporter.get_finished_spans()) == ["save", "step", "turn"]
