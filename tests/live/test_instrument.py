"""Attach to providers of every kind, by `instrument` or as a span processor, and detach again."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Iterator
from importlib.metadata import EntryPoint
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from apps.parts import rag
from live import RECORDED, STATUS, GatedJudge, attached, usual_options
from rag_eval_otel import (
    Config,
    Evaluation,
    Handle,
    LexicalJudge,
    RagEvalSpanProcessor,
    Score,
    instrument,
    registry,
)
from rag_eval_otel.drift import DriftOptions
from rag_eval_otel.errors import ConfigError
from rag_eval_otel.export.attributes import EventSink
from rag_eval_otel.export.drift import DriftSink
from rag_eval_otel.live.instrument import SINKS, build_sinks, pipeline_of, print_scores

SCORED = {("turn", "scored"): 1, ("step", None): 1}
SIMPLE = SimpleSpanProcessor(InMemorySpanExporter())


@pytest.fixture
def exporter() -> InMemorySpanExporter:
    return InMemorySpanExporter()


@pytest.fixture
def bare() -> Iterator[TracerProvider]:
    """A provider without processors."""
    made = TracerProvider()
    yield made
    made.shutdown()


@pytest.fixture
def provider(bare: TracerProvider, exporter: InMemorySpanExporter) -> TracerProvider:
    bare.add_span_processor(SimpleSpanProcessor(exporter))
    return bare


def ask(handle: Handle) -> object:
    question = "When was Borealis Kites founded?"
    return rag().invoke(question, config={"callbacks": [handle.callback]})


def record_turn(provider: TracerProvider) -> None:
    tracer = provider.get_tracer("app")
    with tracer.start_as_current_span("turn", attributes=RECORDED):
        tracer.start_span("step").end()


def by_name(exporter: InMemorySpanExporter) -> dict[tuple[str, Any], int]:
    spans = exporter.get_finished_spans()
    return Counter((span.name, (span.attributes or {}).get(STATUS)) for span in spans)


def statuses(exporter: InMemorySpanExporter) -> Counter[Any]:
    spans = exporter.get_finished_spans()
    return Counter((span.attributes or {}).get(STATUS) for span in spans)


# --- as a span processor --------------------------------------------------------------------------


def test_one_line_scores_a_provider(bare: TracerProvider, exporter: InMemorySpanExporter) -> None:
    """A turn is scored offline, its span leaves once with the scores, all others as they are."""
    bare.add_span_processor(RagEvalSpanProcessor(BatchSpanProcessor(exporter), judge="lexical"))
    record_turn(bare)
    assert bare.force_flush()
    assert by_name(exporter) == SCORED
    (turn,) = (span for span in exporter.get_finished_spans() if span.name == "turn")
    assert (turn.attributes or {})["rag.evaluation.judge"] == "lexical"


def test_stats_count_turns_and_held_spans(bare: TracerProvider) -> None:
    """The handle of the processor shows held spans, and turns by outcome."""
    judge = GatedJudge()
    processor = RagEvalSpanProcessor(SIMPLE, **usual_options(judge=judge))
    bare.add_span_processor(processor)
    record_turn(bare)
    assert processor.handle.stats.held == 1
    judge.asked.result(30)
    assert not processor.handle.stats.turns
    assert processor.handle.stats.scoring == processor.handle.stats.pending == 1
    judge.open()
    assert processor.handle.flush()
    stats = processor.handle.stats
    assert stats.turns == stats.released == {"scored": 1}
    assert (stats.held, stats.scoring, stats.failures) == (0, 0, {})
    assert stats.sources == {"native": 1}


def test_arguments_of_a_handle(monkeypatch: pytest.MonkeyPatch) -> None:
    """Times are in seconds, those of a processor in milliseconds; ids are numbers or digits."""
    processor, times = RagEvalSpanProcessor(SIMPLE, **usual_options()), list[float]()
    for name in ("flush", "force_flush"):
        monkeypatch.setattr(pipeline_of(processor.handle), name, times.append)
    processor.handle.flush()
    processor.force_flush()
    processor.force_flush(2000)
    assert times == [30.0, 30.0, 2.0]
    pipeline_of(processor.handle).scorer.explanations.add(17, "no_question", "turn", ())
    assert processor.handle.explain("11") == processor.handle.explain(17) is not None
    processor.handle.shutdown()


def test_a_second_processor_passes_its_spans_on(
    bare: TracerProvider, exporter: InMemorySpanExporter, caplog: pytest.LogCaptureFixture
) -> None:
    """The first scores; the second exports without scores, and closes no sink of the first."""
    second, sink = InMemorySpanExporter(), Recorder()
    for each in (exporter, second):
        options = usual_options(sinks=[sink])
        bare.add_span_processor(RagEvalSpanProcessor(SimpleSpanProcessor(each), **options))
    with caplog.at_level(logging.WARNING):
        record_turn(bare)
    assert bare.force_flush()
    assert by_name(exporter) == SCORED
    assert by_name(second) == {("turn", None): 1, ("step", None): 1}
    assert ([each.status for each in sink.evaluations], sink.is_closed) == (["scored"], False)
    assert "has two pipelines" in caplog.text


def test_what_cannot_be_wrapped_is_refused() -> None:
    """An exporter has to be wrapped; a processor of ours would score each turn twice."""
    with pytest.raises(ConfigError, match=r"wrap an exporter: BatchSpanProcessor\(exporter\)"):
        RagEvalSpanProcessor(InMemorySpanExporter(), judge="lexical")  # type: ignore[arg-type]
    inner = RagEvalSpanProcessor(SIMPLE, **usual_options())
    with pytest.raises(ConfigError, match="wrap the one that exports, once"):
        RagEvalSpanProcessor(inner, **usual_options())
    inner.handle.shutdown()


def test_a_provider_can_be_instrumented_again(bare: TracerProvider) -> None:
    """`instrument` returns the handle of a processor, unless that scores nothing any more."""
    processor = RagEvalSpanProcessor(SIMPLE, judge="lexical")
    bare.add_span_processor(processor)
    assert instrument(tracer_provider=bare) is processor.handle
    processor.handle.shutdown()
    handle = instrument(tracer_provider=bare, judge="lexical")
    assert handle is not processor.handle
    handle.shutdown()


# --- by `instrument` ------------------------------------------------------------------------------


def test_span_in_flight_is_held(provider: TracerProvider, exporter: InMemorySpanExporter) -> None:
    """A span that was open when we attached is held too; processors added later get everything."""
    late = InMemorySpanExporter()
    span = provider.get_tracer("app").start_span("in flight", attributes=RECORDED)
    handle = instrument(tracer_provider=provider, **usual_options())
    provider.add_span_processor(SimpleSpanProcessor(late))
    span.end()
    assert handle.flush()
    assert statuses(exporter) == statuses(late) == {"scored": 1}
    handle.shutdown()


@pytest.mark.parametrize(
    ("first", "second", "is_told"),
    [
        ({"judge": "lexical"}, {"judge": "lexical"}, False),
        ({"judge": "lexical"}, {}, False),
        ({"judge": "lexical"}, {"judge": "lexical", "hold_seconds": 1.0}, True),
        ({"judge": "lexical"}, {"config": Config(judge="lexical", hold_seconds=1.0)}, True),
        ({"judge": "lexical", "sinks": [print]}, {"sinks": [print]}, False),
        ({"judge": "lexical", "sinks": ["print"]}, {"sinks": [print]}, True),
    ],
)
def test_instrumenting_twice_gives_the_same_handle(
    first: dict[str, Any],
    second: dict[str, Any],
    caplog: pytest.LogCaptureFixture,
    *,
    is_told: bool,
) -> None:
    """A provider is instrumented once; other options the second time are warned about."""
    provider = TracerProvider()
    handle = instrument(tracer_provider=provider, **first)
    assert instrument(tracer_provider=provider, **second) is handle
    assert ("already instrumented" in caplog.text) is is_told
    handle.shutdown()


def test_shutdown_puts_all_back(provider: TracerProvider, exporter: InMemorySpanExporter) -> None:
    """After shutdown nothing is scored, which runs say, and the provider can be had anew."""
    untouched = provider._active_span_processor.on_end  # noqa: SLF001
    handle = instrument(tracer_provider=provider, **usual_options())
    handle.shutdown()
    assert provider._active_span_processor.on_end == untouched  # noqa: SLF001
    ask(handle)
    assert statuses(exporter) == {None: 2, "shutdown": 1}
    again = instrument(tracer_provider=provider, **usual_options())
    assert again is not handle
    ask(again)
    assert again.flush()
    assert statuses(exporter) == {None: 4, "shutdown": 1, "scored": 1}
    again.shutdown()


@pytest.mark.parametrize(
    "more", [{}, {"cascade": LexicalJudge(), "sample_rate": [{"match": {"route": "*"}, "rate": 1}]}]
)
def test_sdk_disabled(
    provider: TracerProvider,
    exporter: InMemorySpanExporter,
    more: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With ``OTEL_SDK_DISABLED`` nothing is attached, scored, or started, whatever is asked for."""
    monkeypatch.setenv("OTEL_SDK_DISABLED", "true")
    before = set(threading.enumerate())
    handle = instrument(tracer_provider=provider, **usual_options(**more))
    ask(handle)
    assert handle.flush()
    assert not exporter.get_finished_spans()
    assert handle.processor is None
    assert set(threading.enumerate()) <= before  # one of another test may end meanwhile
    handle.shutdown()


class ForeignProvider(trace.TracerProvider):
    """A provider of another make: its spans come past no processor of the SDK's."""

    def __init__(self, inner: TracerProvider) -> None:
        self._inner = inner

    def get_tracer(self, *_: Any, **__: Any) -> trace.Tracer:
        return self._inner.get_tracer("foreign")


def test_scores_on_spans_of_a_foreign_provider(
    provider: TracerProvider, exporter: InMemorySpanExporter, caplog: pytest.LogCaptureFixture
) -> None:
    """Its own spans are not seen, which is said; those of LangChain runs carry their scores."""
    found, foreign = list[Evaluation](), ForeignProvider(provider)
    options = usual_options(export_content="none", sinks=[found.append])
    handle = instrument(tracer_provider=foreign, **options)
    assert "the spans of other instrumentations are not scored" in caplog.text
    assert "export_content='none' has no effect" in caplog.text
    ask(handle)
    assert handle.flush()
    assert [each.status for each in found] == ["scored"]
    assert statuses(exporter) == {"scored": 1, None: 2}
    handle.shutdown()


def test_others_in_our_place_stay(provider: TracerProvider, exporter: InMemorySpanExporter) -> None:
    """Overrides of other libraries, before ours and after it, survive our leaving."""
    seen, multi = list[str](), provider._active_span_processor  # noqa: SLF001

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


def test_a_user_who_loses_patience_loses_no_span(
    bare: TracerProvider, exporter: InMemorySpanExporter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An interrupt of a waiting shutdown releases held spans, and shuts the next processor down."""
    options = usual_options(judge=GatedJudge())
    simple = SimpleSpanProcessor(exporter)
    processor = RagEvalSpanProcessor(simple, tracer_provider=bare, **options)
    handle = processor.handle
    bare.add_span_processor(processor)

    def interrupt(_: float) -> bool:
        patched.undo()
        raise KeyboardInterrupt

    bare.get_tracer("app").start_span("turn", attributes=RECORDED).end()
    with monkeypatch.context() as patched:
        patched.setattr(pipeline_of(handle).clock, "wait_left", interrupt)
        with pytest.raises(KeyboardInterrupt):
            processor.shutdown()
    handle.shutdown(timeout=0)
    assert statuses(exporter) == {"shutdown": 1}
    assert exporter._stopped  # noqa: SLF001


# --- sinks ----------------------------------------------------------------------------------------


class Recorder:
    """A sink that keeps its evaluations."""

    def __init__(self) -> None:
        self.evaluations: list[Evaluation] = []
        self.is_closed = False

    def __call__(self, evaluation: Evaluation) -> None:
        self.evaluations.append(evaluation)

    def close(self) -> None:
        self.is_closed = True


@pytest.fixture
def recorders(monkeypatch: pytest.MonkeyPatch) -> list[Recorder]:
    """Return the recorders that the entry point ``recorder`` makes in a test."""
    made: list[Recorder] = []

    class Noted(Recorder):
        def __init__(self) -> None:
            super().__init__()
            made.append(self)

    entry = EntryPoint("recorder", "acme:Recorder", SINKS.group)
    monkeypatch.setattr(EntryPoint, "load", lambda _: Noted)
    monkeypatch.setattr(
        registry, "entry_points", lambda name="recorder", **_: (entry,) * (name == entry.name)
    )
    return made


def test_a_sink_is_found_by_name(recorders: list[Recorder]) -> None:
    """It gets every evaluation, and is closed at shutdown."""
    with attached(sinks=["recorder"]) as app:
        app.turns(2)
        assert app.handle.flush()
        (recorder,) = recorders
        assert len(recorder.evaluations) == 2
        app.handle.shutdown()
        assert recorder.is_closed


@pytest.mark.usefixtures("recorders")
@pytest.mark.parametrize(
    ("sinks", "told"),
    [
        (["recoder"], "unknown sink 'recoder'; did you mean 'recorder'?"),
        ([7], "a sink must be a name, a function, or an object with __call__, not 7"),
        ("print", "sinks must be a sequence of sinks and names, not 'print'"),
        (7, "sinks must be a sequence of sinks and names, not 7"),
    ],
)
def test_an_invalid_sink_is_refused(sinks: Any, told: str) -> None:
    """The error names the sinks there are."""
    with pytest.raises(ConfigError) as refusal:
        instrument(sinks=sinks)
    assert told in str(refusal.value)


def test_scores_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    """The sink ``print`` writes a line for each turn."""
    good = Score(name="a", value=0.756, label="pass")
    print_scores(Evaluation(scores=(good, Score(name="b", status="error", reason="timeout"))))
    print_scores(Evaluation(scores=(Score(name="b", value=1),)))
    assert capsys.readouterr().out == "pass: a 0.76 pass, b timeout\nno label: b 1.00\n"


@pytest.mark.parametrize(
    ("options", "sinks"),
    [
        ({"drift": False}, [EventSink]),
        ({"drift": False, "score_events": "span"}, []),
        ({"drift": True}, [EventSink, DriftSink]),
        ({"drift": DriftOptions(), "score_events": "span"}, [DriftSink]),
    ],
)
def test_built_in_sinks(options: Any, sinks: list[type]) -> None:
    """Events are log records unless they are on the span alone."""
    assert [type(sink) for sink in build_sinks(Config(**options), provider=None)] == sinks


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"config": {"judge": "lexical"}}, "config must be a Config, not .*; pass options by name"),
        ({"config": Config(), "sample_rate": 0.1}, "a config or options, not both: sample_rate"),
        ({"drift": DriftOptions(targets={"faithfullness": 0.9})}, "targets for faithfullness, but"),
    ],
)
def test_invalid_options_are_refused(options: Any, told: str) -> None:
    """Nothing is attached before the options are known to be valid."""
    with pytest.raises(ConfigError, match=told):
        instrument(**options)
