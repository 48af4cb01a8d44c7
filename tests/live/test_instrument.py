"""Attaching to providers: existing ones, disabled ones, foreign ones, and letting go again."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from apps.parts import rag
from pipeline import RECORDED, GatedJudge, usual_options
from rag_eval_otel import Evaluation, LexicalJudge, RagEvalCallbackHandler, instrument
from rag_eval_otel.errors import ConfigError
from rag_eval_otel.live.instrument import pipeline_of
from rag_eval_otel.live.store import CHUNK

QUESTION = "When was Borealis Kites founded?"


def provider_with(exporter: InMemorySpanExporter, **provider: Any) -> TracerProvider:
    made = TracerProvider(**provider)
    made.add_span_processor(SimpleSpanProcessor(exporter))
    return made


def statuses(exporter: InMemorySpanExporter) -> Counter[Any]:
    spans = exporter.get_finished_spans()
    return Counter((span.attributes or {}).get("rag.evaluation.status") for span in spans)


def test_span_in_flight_and_processor_added_later() -> None:
    """A span that was open when we attached is held too; processors added later get everything."""
    early, late = InMemorySpanExporter(), InMemorySpanExporter()
    provider = provider_with(early)
    span = provider.get_tracer("app").start_span("in flight", attributes=RECORDED)
    handle = instrument(tracer_provider=provider, **usual_options())
    provider.add_span_processor(SimpleSpanProcessor(late))
    span.end()
    assert handle.flush()
    assert statuses(early) == statuses(late) == {"scored": 1}
    handle.shutdown()


def test_instrumenting_twice_gives_the_same_handle(caplog: pytest.LogCaptureFixture) -> None:
    """A provider is instrumented once; other options the second time are warned about."""
    provider = TracerProvider()
    first = instrument(tracer_provider=provider, **usual_options())
    assert instrument(tracer_provider=provider, judge="lexical") is first
    assert "already instrumented" in caplog.text
    first.shutdown()


def test_shutdown_leaves_the_provider_as_it_was() -> None:
    """After shutdown nothing is scored, which runs say, and the provider can be had anew."""
    exporter = InMemorySpanExporter()
    provider = provider_with(exporter)
    untouched = provider._active_span_processor.on_end  # noqa: SLF001
    handle = instrument(tracer_provider=provider, **usual_options())
    handle.shutdown()
    assert provider._active_span_processor.on_end == untouched  # noqa: SLF001
    rag().invoke(QUESTION, config={"callbacks": [handle.callback]})
    assert statuses(exporter) == {None: 2, "shutdown": 1}
    again = instrument(tracer_provider=provider, **usual_options())
    assert again is not handle
    rag().invoke(QUESTION, config={"callbacks": [again.callback]})
    assert again.flush()
    assert statuses(exporter) == {None: 4, "shutdown": 1, "scored": 1}
    again.shutdown()


@pytest.mark.parametrize(
    "more", [{}, {"cascade": LexicalJudge(), "sample_rate": [{"match": {"route": "*"}, "rate": 1}]}]
)
def test_sdk_disabled(more: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """With ``OTEL_SDK_DISABLED`` nothing is attached, scored, or started, whatever is asked for."""
    monkeypatch.setenv("OTEL_SDK_DISABLED", "true")
    exporter = InMemorySpanExporter()
    provider = provider_with(exporter)
    before = set(threading.enumerate())
    handle = instrument(tracer_provider=provider, **usual_options(**more))
    rag().invoke(QUESTION, config={"callbacks": [handle.callback]})
    assert handle.flush()
    assert not exporter.get_finished_spans()
    assert handle.processor is None
    assert set(threading.enumerate()) <= before  # one of another test may end meanwhile
    handle.shutdown()


class ForeignProvider(trace.TracerProvider):
    """A provider of another make: its spans come past no processor of the SDK's."""

    exporter = InMemorySpanExporter()

    def get_tracer(self, *_: Any, **__: Any) -> trace.Tracer:
        return provider_with(self.exporter).get_tracer("foreign")


def test_scores_on_spans_of_a_foreign_provider(caplog: pytest.LogCaptureFixture) -> None:
    """Its own spans are not seen, which is said; those of LangChain runs carry their scores."""

    class Watched(ForeignProvider):
        exporter = InMemorySpanExporter()

    found, provider = list[Evaluation](), Watched()
    handle = instrument(tracer_provider=provider, sinks=[found.append], **usual_options())
    assert "the spans of other instrumentations are not scored" in caplog.text
    rag().invoke(QUESTION, config={"callbacks": [handle.callback]})
    assert handle.flush()
    (evaluation,) = found
    assert evaluation.status == "scored"
    assert statuses(provider.exporter) == {"scored": 1, None: 2}
    handle.shutdown()


def test_handlers_share_the_pipeline_of_the_global_provider(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Handlers made before there is a provider find the global one at their first run."""
    handlers = [RagEvalCallbackHandler(**usual_options()) for _ in range(2)]
    exporter = InMemorySpanExporter()
    provider = provider_with(exporter)
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", provider)
    for handler in handlers:
        rag().invoke(QUESTION, config={"callbacks": [handler]})
    assert handlers[0].flush()
    assert statuses(exporter) == {"scored": 2, None: 4}
    assert handlers[0].stats == handlers[1].stats
    assert handlers[1].stats.turns == {"scored": 2}
    handlers[0].shutdown()


@pytest.mark.parametrize("broken", ["read", "score"])
def test_a_broken_pipeline_never_reaches_the_application(
    broken: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Our own failures are logged; the chain answers and each of its spans leaves once."""
    exporter = InMemorySpanExporter()
    handle = instrument(
        tracer_provider=provider_with(exporter), **usual_options(raise_errors=False)
    )
    if broken == "read":
        monkeypatch.setattr("rag_eval_otel.live.pipeline.find_turns", None)
    else:
        monkeypatch.setattr(pipeline_of(handle).scorer, "score", None)
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            assert rag().invoke(QUESTION, config={"callbacks": [handle.callback]})
        assert handle.flush()
    if broken == "read":
        told = [r for r in caplog.records if "the application is unaffected" in r.message]
        assert len(told) == 1
    else:
        assert statuses(exporter)["error"] == 2
    assert len(exporter.get_finished_spans()) == 6, "every span left, once"
    assert len(pipeline_of(handle).store) == 0
    handle.shutdown(0.0)


def test_others_that_stand_in_the_same_place_stay_there() -> None:
    """Overrides of other libraries, before ours and after it, survive our leaving."""
    exporter, seen = InMemorySpanExporter(), list[str]()
    provider = provider_with(exporter)
    multi = provider._active_span_processor  # noqa: SLF001

    def put_in_front(name: str) -> None:
        inner = multi.on_end

        def on_end(span: ReadableSpan) -> None:
            seen.append(name)
            inner(span)

        multi.on_end = on_end  # type: ignore[method-assign]

    put_in_front("first")
    handle = instrument(tracer_provider=provider, **usual_options())
    handle.shutdown()
    provider.get_tracer("app").start_span("s").end()
    assert seen == ["first"]
    handle = instrument(tracer_provider=provider, **usual_options())
    put_in_front("last")
    handle.shutdown()
    provider.get_tracer("app").start_span("s").end()
    assert seen == ["first", "last", "first"]
    assert len(exporter.get_finished_spans()) == 2


def test_a_processor_that_cannot_flush_costs_no_span() -> None:
    """A shutdown that finds more held than a queue takes releases all, whatever a flush raises."""

    class Broken(SimpleSpanProcessor):
        def force_flush(self, timeout_millis: int = 30_000) -> bool:
            raise RuntimeError(timeout_millis)

    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(Broken(exporter))
    instrument(
        tracer_provider=provider,
        **usual_options(judge=GatedJudge(), raise_errors=False, shutdown_seconds=0.01),
    )
    for _ in range(CHUNK + 1):
        provider.get_tracer("app").start_span("turn", attributes=RECORDED).end()
    provider.shutdown()
    assert statuses(exporter) == {"shutdown": CHUNK + 1}


def test_a_user_who_loses_patience_loses_no_span(monkeypatch: pytest.MonkeyPatch) -> None:
    """An interrupt of a waiting shutdown releases held spans, and shuts the next processor down."""
    exporter = InMemorySpanExporter()
    handle = instrument(
        wrap=SimpleSpanProcessor(exporter),
        tracer_provider=TracerProvider(),
        **usual_options(judge=GatedJudge()),
    )
    processor = handle.processor
    assert processor is not None

    def interrupt(_: float) -> bool:
        patched.undo()
        raise KeyboardInterrupt

    tracer = provider_with(InMemorySpanExporter()).get_tracer("app")
    span = tracer.start_span("turn", attributes=RECORDED)
    span.end()
    processor.on_end(span._readable_span())  # type: ignore[attr-defined]  # noqa: SLF001
    with monkeypatch.context() as patched:
        patched.setattr(pipeline_of(handle).store, "wait_left", interrupt)
        with pytest.raises(KeyboardInterrupt):
            processor.shutdown()
    handle.shutdown(timeout=0)
    assert statuses(exporter) == {"shutdown": 1}
    assert exporter._stopped  # noqa: SLF001


def test_attaching_that_fails_is_not_tried_at_every_event(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Exporters are made once, not for each event of each run; the developer may ask why."""
    made: list[str] = []

    def broken() -> Any:
        made.append("provider")
        msg = "no such exporter"
        raise ConfigError(msg)

    monkeypatch.setattr("rag_eval_otel.live.instrument.global_or_new_tracer_provider", broken)
    handler = RagEvalCallbackHandler(**usual_options(raise_errors=False))
    for _ in range(2):
        assert rag().invoke(QUESTION, config={"callbacks": [handler]})
    assert made == ["provider"]
    assert "the application is unaffected" in caplog.text
    with pytest.raises(ConfigError, match="no such exporter"):
        handler.flush()
