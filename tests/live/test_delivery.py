"""What is scored is on an exported span, or the outcome says why not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from opentelemetry._logs import NoOpLoggerProvider
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import Span

from live import App, answered, asked, attached, generated, retrieved, said, told
from pipeline import OnesEmbedder, good_judge
from rag_eval_otel import instrument
from runs import run_chain

SCORED = {("scored", None): 1}
RAW = f"Answer from [Document(metadata={{}}, page_content='{told(1)[0]}')]: {asked(1)}"


def id_of(span: Span) -> int:
    return span.get_span_context().span_id


def graph(app: App) -> Span:
    """The prompt has documents that a chain did not format: it is no retrieval of its own."""
    around = app.chain()
    app.retrieve(1, around)
    chain = app.step("CHAIN", around, **{"output.value": said(1)})
    app.step("PROMPT", chain, **{"output.value": RAW}).end()
    app.generate(1, chain)
    chain.end()
    around.end()
    return around


def agent(app: App) -> Span:
    """Each of its tools has a retrieval and an answer of its own."""
    around = app.step("AGENT", **{"input.value": asked(1), "output.value": said(1)})
    for number in (1, 2):
        tool = app.step("TOOL", around, **{"input.value": asked(number)})
        app.turn(number, tool)
        tool.set_attribute("output.value", said(number))
        tool.end()
    prompt = "\n".join([said(1), said(2), asked(1)])
    shown = {"llm.input_messages.0.message.content": prompt}
    app.step("LLM", around, **{**generated(1), **shown}).end()
    around.end()
    return around


def request(app: App, *numbers: int) -> tuple[Span, list[Span]]:
    """Record a request with a call that rewrites the question, then retrievals and answers."""
    span = app.plain("POST /ask")
    rewrite = {
        "llm.input_messages.0.message.role": "user",
        "llm.input_messages.0.message.content": f"Rewrite for a search: {asked(numbers[0])}",
        "output.value": asked(numbers[0]),
    }
    for number in numbers:
        app.retrieve(number, span)
    app.step("LLM", span, **rewrite).end()
    calls = [app.generate(number, span) for number in numbers]
    span.end()
    return span, calls


def bare_call(app: App) -> Span:
    """A call of a client without a parent, whose prompt has the result of a search tool."""
    messages: dict[str, Any] = {
        "llm.input_messages.0.message.role": "user",
        "llm.input_messages.0.message.content": asked(1),
        "llm.input_messages.1.message.role": "tool",
        "llm.input_messages.1.message.name": "search_companies",
        "llm.input_messages.1.message.content": "\n\n".join(told(1)),
    }
    call = app.step("LLM", **{**generated(1), **messages})
    call.end()
    return call


@pytest.mark.parametrize(
    "make",
    [graph, agent, lambda app: request(app, 1)[0], bare_call],
    ids=["graph", "agent", "request", "bare call"],
)
def test_the_outermost_span_of_a_turn_is_scored(make: Callable[[App], Span]) -> None:
    """It stands for the turn, and no other span has scores."""
    with attached() as app:
        span = make(app)
        assert app.handle.flush()
        assert app.counted() == SCORED
        assert app.scored_spans() == {id_of(span): 1}
        assert app.status_of(span) == "scored"


def test_each_of_several_answers_below_a_request_is_scored_on_its_call() -> None:
    """The spans of the calls wait, because the request has only one status."""
    with attached() as app:
        _, calls = request(app, 1, 2)
        assert app.handle.flush()
        assert app.counted() == {("scored", None): 2}
        assert [app.status_of(call) for call in calls] == ["scored", "scored"]


def test_spans_that_left_before_the_retrieval_ended() -> None:
    """The turn is scored in events and metrics, and the outcome says where its scores are not."""
    with attached() as app:
        chain = app.chain()
        chain.end()
        retrieval = app.step("RETRIEVER", chain, **retrieved(1))
        app.generate(1, chain)
        retrieval.end()
        assert app.handle.flush()
        assert app.counted() == {("scored", "span_missed"): 1}
        assert app.scored_spans() == {id_of(chain): 1}
        assert app.statuses() == {None: 3}


def test_spans_around_turns_take_no_place_of_those_of_turns() -> None:
    """With room for one span, a chain of many levels around a turn is scored as one of one."""
    with attached(max_held=1) as app:
        levels = [app.chain()]
        for _ in range(20):
            levels.append(app.chain(1, levels[-1]))
        app.retrieve(1, levels[-1])
        app.generate(1, levels[-1])
        for level in reversed(levels):
            level.end()
        assert app.handle.flush()
        assert app.counted() == SCORED
        assert app.statuses() == {"scored": 1, None: 22}


def events_on_spans(**options: Any) -> list[tuple[str, dict[str, Any]]]:
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    handle = instrument(
        tracer_provider=provider,
        meter_provider=MeterProvider(),
        judge=good_judge(),
        embedder=OnesEmbedder(),
        metrics=["faithfulness"],
        hold_seconds=60,
        raise_errors=True,
        **options,
    )
    try:
        tracer = provider.get_tracer("openinference.instrumentation.fake")
        kind = "openinference.span.kind"
        with tracer.start_as_current_span("chain", attributes={kind: "CHAIN", **answered(1)}):
            for name, attributes in (("RETRIEVER", retrieved(1)), ("LLM", generated(1))):
                tracer.start_span(name, attributes={kind: name, **attributes}).end()
        run_chain(handle.callback, "chain 2")
        assert handle.flush(60)
    finally:
        handle.shutdown()
        provider.shutdown()
    spans = exporter.get_finished_spans()
    return [(one.name, dict(one.attributes or {})) for span in spans for one in span.events]


@pytest.mark.parametrize("explanations", [False, True])
def test_without_a_logger_provider_the_event_is_on_the_span(explanations: Any) -> None:
    """The exported copy and our own span have an event for each score, with its attributes."""
    found = events_on_spans(logger_provider=NoOpLoggerProvider(), explanations=explanations)
    assert [name for name, _ in found] == ["gen_ai.evaluation.result"] * 2
    for _, attributes in found:
        assert attributes["gen_ai.evaluation.name"] == "faithfulness"
        assert attributes["gen_ai.evaluation.score.value"] == 1.0
        assert ("gen_ai.evaluation.explanation" in attributes) == (explanations)
