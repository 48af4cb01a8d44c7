"""LlamaIndex, by OpenInference and natively: agents that think in text, rerankers, evaluators."""

import json
from collections.abc import Sequence

import pytest

from plain_views import View
from rag_eval_otel.capture.conventions import kind_of, read
from rag_eval_otel.capture.span import Span

QUESTION, ANSWER = "When was it founded?", "It was founded in 1987."
ACTION = 'Thought: I need a tool.\nAction: search\nAction Input: {"input": "founded"}'
DONE = f"Thought: I can answer.\nAnswer: {ANSWER}"
OBSERVATION = "Observation: Founded in 1987."


def openinference(
    name: str, kind: str, *, messages: Sequence[tuple[str, str]] = (), told: str = ""
) -> Span:
    shown = {
        f"llm.input_messages.{n}.message.{key}": text
        for n, message in enumerate(messages)
        for key, text in zip(("role", "content"), message, strict=True)
    }
    said = {
        "llm.output_messages.0.message.role": "assistant",
        "llm.output_messages.0.message.content": told,
    }
    return View(
        name=name,
        scope="openinference.instrumentation.llama_index",
        attributes={
            "openinference.span.kind": kind,
            "input.value": json.dumps({"messages": messages}),
            "output.value": told,
            **(shown | said if kind == "LLM" else {}),
        },
    )


def native(name: str, *, messages: Sequence[tuple[str, str]] = (), told: str = "") -> Span:
    shown = [
        {"role": role, "blocks": [{"block_type": "text", "text": text}]} for role, text in messages
    ]
    said = json.dumps([{"block_type": "text", "text": told}])
    events = [
        ("LLMChatStartEvent", {"messages": json.dumps(shown)}),
        ("LLMChatEndEvent", {"response.message.blocks": said}),
    ]
    return View(
        name=name, scope="llamaindex.opentelemetry.tracer", events=events if messages else []
    )


def call(source: str, *messages: tuple[str, str], told: str) -> Span:
    if source == "native":
        return native("Model.chat", messages=messages, told=told)
    return openinference("Model.chat", "LLM", messages=messages, told=told)


both = pytest.mark.parametrize("source", ["native", "openinference"])


@both
def test_a_thought_is_no_answer(source: str) -> None:
    """What an agent thinks before it answers is left out."""
    messages = [("user", QUESTION), ("assistant", ACTION), ("user", OBSERVATION)]
    step = read(call(source, *messages, told=DONE))
    assert (step.output, step.calls_tools) == (ANSWER, False)


@both
def test_an_action_calls_a_tool(source: str) -> None:
    """An agent that says which tool it wants has answered nothing yet."""
    step = read(call(source, ("user", QUESTION), told=ACTION))
    assert (step.output, step.calls_tools) == (None, True)


def test_an_observation_is_what_a_tool_said() -> None:
    """What the agent tells itself as the user comes from a tool."""
    step = read(call("openinference", ("user", QUESTION), ("user", OBSERVATION), told=DONE))
    assert (step.input, [result.text for result in step.tool_results]) == (QUESTION, [OBSERVATION])


@both
def test_a_reranker_is_one_by_its_name(source: str) -> None:
    """What a model says to a reranker is none of a turn's calls."""
    name = "LLMRerank._postprocess_nodes"
    view = native(name) if source == "native" else openinference(name, "CHAIN")
    assert kind_of(view) == read(view).kind == "reranker"


@pytest.mark.parametrize("name", ["RetrieverQueryEngine.query", "CompactAndRefine.asynthesize"])
def test_a_structured_answer_is_its_json(name: str) -> None:
    """An engine that answers with a record of the application's own answers with its JSON."""
    told = json.dumps({"founder": "Wile", "year": 1987})
    assert read(openinference(name, "CHAIN", told=told)).output == told


def test_a_response_is_no_structured_answer() -> None:
    """A response whose text is still to come is not an answer of its other members."""
    told = json.dumps({"response_gen": "<generator object>", "source_nodes": []})
    assert read(openinference("RetrieverQueryEngine.query", "CHAIN", told=told)).output is None
