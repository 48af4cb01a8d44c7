"""What is scored is on an exported span, or the outcome says why not."""

from __future__ import annotations

from typing import Any

import pytest
from opentelemetry import _logs
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
AS_JSON = f'{{"documents": [{{"page_content": "{told(1)[0]}", "type": "Document"}}]}}'


def prompted(app: App, parent: Span) -> None:
    chain = app.step("CHAIN", parent, **{"output.value": said(1)})
    app.step("PROMPT", chain, **{"output.value": RAW}).end()
    app.generate(1, chain)
    chain.end()


def test_a_prompt_with_unformatted_documents_is_no_retrieval() -> None:
    """The graph around retrieval and answer is scored, not the chain of prompt and model."""
    with attached() as app:
        graph = app.chain()
        app.retrieve(1, graph)
        prompted(app, graph)
        graph.end()
        assert app.handle.flush()
        assert app.counted() == SCORED
        assert app.scored_spans() == {id_of(graph): 1}
        assert app.status_of(graph) == "scored"


@pytest.mark.parametrize("documents", ["input.value", "output.value"])
def test_a_chain_that_passes_documents_on_hides_no_answer(documents: str) -> None:
    """A chain beside the model that received or returned documents does not claim the answer."""
    with attached() as app:
        graph = app.chain()
        app.retrieve(1, graph)
        inner = app.step("CHAIN", graph, **{"output.value": said(1)})
        app.step("CHAIN", inner, **{documents: AS_JSON}).end()
        app.generate(1, inner)
        inner.end()
        graph.end()
        assert app.handle.flush()
        assert app.counted() == SCORED
        assert app.statuses() == {"scored": 1, None: 4}


def id_of(span: Span) -> int:
    return span.get_span_context().span_id


def test_an_agent_whose_tools_are_turns() -> None:
    """The agent is scored, though each of its tools has a retrieval and an answer of its own."""
    with attached() as app:
        agent = app.step("AGENT", **{"input.value": asked(1), "output.value": said(1)})
        for number in (1, 2):
            tool = app.step("TOOL", agent, **{"input.value": asked(number)})
            app.turn(number, tool)
            tool.set_attribute("output.value", said(number))
            tool.end()
        prompt = "\n".join([said(1), said(2), asked(1)])
        shown = {"llm.input_messages.0.message.content": prompt}
        app.step("LLM", agent, **{**generated(1), **shown}).end()
        agent.end()
        assert app.handle.flush()
        assert app.counted() == SCORED
        assert app.status_of(agent) == "scored"


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


def test_one_answer_below_a_request_is_scored_on_the_request() -> None:
    """Another call below the request does not make the model's span that of the turn."""
    with attached() as app:
        span, _ = request(app, 1)
        assert app.handle.flush()
        assert app.counted() == SCORED
        assert app.status_of(span) == "scored"


def test_each_of_several_answers_below_a_request_is_scored_on_its_call() -> None:
    """The spans of the calls wait, because the request has only one status."""
    with attached() as app:
        _, calls = request(app, 1, 2)
        assert app.handle.flush()
        assert app.counted() == {("scored", None): 2}
        assert [app.status_of(call) for call in calls] == ["scored", "scored"]


def test_an_answer_from_tool_results_without_a_parent() -> None:
    """A call of a bare client whose prompt has the result of a search tool carries its scores."""
    with attached() as app:
        messages: dict[str, Any] = {
            "llm.input_messages.0.message.role": "user",
            "llm.input_messages.0.message.content": asked(1),
            "llm.input_messages.1.message.role": "tool",
            "llm.input_messages.1.message.name": "search_companies",
            "llm.input_messages.1.message.content": "\n\n".join(told(1)),
        }
        call = app.step("LLM", **{**generated(1), **messages})
        call.end()
        assert app.handle.flush()
        assert app.counted() == SCORED
        assert app.status_of(call) == "scored"


def test_a_model_that_starts_after_the_end_of_its_chain() -> None:
    """A stream that is read later: the chain waits because of its retrieval."""
    with attached() as app:
        root = app.plain("request")
        chain = app.chain(1, root)
        app.retrieve(1, chain)
        chain.end()
        app.generate(1, chain)
        root.end()
        assert app.handle.flush()
        assert app.counted() == SCORED
        assert app.status_of(chain) == "scored"


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


def test_an_agent_that_ends_before_its_steps() -> None:
    """The span around the last call has the scores, where that of the agent has left."""
    with attached() as app:
        agent = app.chain()
        agent.end()
        search = app.chain(1, agent)
        app.retrieve(1, search)
        search.end()
        step = app.chain(1, agent)
        app.generate(1, step)
        step.end()
        assert app.handle.flush()
        assert app.counted() == SCORED
        assert app.scored_spans() == {id_of(step): 1}
        assert app.status_of(step) == "scored"


def test_a_span_around_a_turn_leaves_without_a_status_at_its_deadline() -> None:
    """Only the span that is likely to get the scores says that they did not come in time."""
    with attached(hold_seconds=0.05) as app:
        root = app.plain("request")
        outer = app.chain(1, root)
        inner = app.turn(1, outer)
        outer.end()
        assert app.pipeline.store.wait_left(30)
        assert (app.status_of(inner), app.status_of(outer)) == ("timeout", None)
        root.end()


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


def test_the_api_s_stand_in_is_no_logger_provider(monkeypatch: pytest.MonkeyPatch) -> None:
    """If the application has set no global logger provider, the events are on spans."""
    stand_in = _logs.NoOpLoggerProvider()
    monkeypatch.setattr(_logs, "get_logger_provider", lambda: stand_in)
    assert len(events_on_spans()) == 2


def test_with_a_logger_provider_spans_have_no_events() -> None:
    """The events are log records then."""
    with attached(metrics=["faithfulness"]) as app:
        app.turn()
        assert app.handle.flush()
        assert sum(app.scored_spans().values()) == 1
        assert [span.events for span in app.exported() if span.events] == []
