"""Spans of LangChain runs: operations, names, errors, and content if it is enabled."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import partial
from typing import Any
from uuid import UUID

import pytest
from langchain_core.documents import Document
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.outputs import Generation, LLMResult
from opentelemetry.sdk.trace import ReadableSpan, Span, SpanProcessor
from opentelemetry.trace import SpanKind

from rag_eval_otel.config import Spans
from recording import ANSWER, PAGE, QUESTION, Capture, begin, capture, fail, finish, run_turn


def attributes(span: ReadableSpan) -> Mapping[str, Any]:
    return dict(span.attributes or {})


def tree(captured: Capture) -> dict[str, str | None]:
    names = {span.context.span_id: span.name for span in captured.spans}
    return {s.name: names[s.parent.span_id] if s.parent else None for s in captured.spans}


def test_a_chat() -> None:
    """The span of a model call has provider, models and token counts."""
    captured = capture()
    metadata = {"ls_provider": "mistralai", "ls_model_name": "m", "ls_temperature": 1}
    said = AIMessage(
        "a",
        id="r-1",
        response_metadata={"model_name": "m-2026", "finish_reason": "stop"},
        usage_metadata={
            "input_tokens": 7,
            "output_tokens": 3,
            "total_tokens": 10,
            "input_token_details": {"cache_read": 4, "cache_creation": 2},
            "output_token_details": {"reasoning": 1},
        },
    )
    asked = [HumanMessage("q")]
    finish(captured, begin(captured, "llm", 1, asked=asked, told=said, metadata=metadata))
    span = captured.span("chat m")
    assert span.kind is SpanKind.CLIENT
    assert attributes(span) == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "mistral_ai",
        "gen_ai.request.model": "m",
        "gen_ai.request.temperature": 1.0,
        "gen_ai.response.finish_reasons": ("stop",),
        "gen_ai.response.model": "m-2026",
        "gen_ai.response.id": "r-1",
        "gen_ai.usage.input_tokens": 7,
        "gen_ai.usage.output_tokens": 3,
        "gen_ai.usage.cache_read.input_tokens": 4,
        "gen_ai.usage.cache_write.input_tokens": 2,
        "gen_ai.usage.reasoning.output_tokens": 1,
        "openinference.span.kind": "LLM",
        "llm.model_name": "m-2026",
        "llm.provider": "mistralai",
        "llm.system": "mistralai",
        "llm.finish_reason": "stop",
        "llm.token_count.prompt": 7,
        "llm.token_count.completion": 3,
        "llm.token_count.total": 10,
    }


@pytest.mark.parametrize(("documents", "count"), [(None, None), ([], 0), ([Document("x")] * 2, 2)])
def test_a_retrieval(documents: list[Document] | None, count: int | None) -> None:
    """It says how many documents it found, where that is known."""
    captured = capture()
    run = begin(captured, "retriever", 1, told=documents)
    if documents is None:
        fail(captured, run, ValueError())
    else:
        finish(captured, run)
    span = captured.span("retrieval")
    assert span.kind is SpanKind.CLIENT
    assert attributes(span).get("rag.retrieval.document_count") == count


@pytest.mark.parametrize(
    ("calls_tools", "kind", "operation"),
    [(True, "tool", "invoke_agent"), (True, "chain", "invoke_workflow"), (False, "tool", None)],
)
def test_an_agent_calls_tools_that_run(
    calls_tools: bool,  # noqa: FBT001
    kind: Any,
    operation: str | None,
) -> None:
    """A tool call without a tool run is a structured output; a tool without a call is a step."""
    captured = capture()
    root = begin(captured, "chain", 1)
    calls = [{"name": "t", "args": {}, "id": "1"}] if calls_tools else []
    call = begin(captured, "llm", 2, under=1, told=AIMessage("", tool_calls=calls))
    finish(captured, call, begin(captured, kind, 3, under=1), root)
    name = operation or "invoke_workflow"
    found = attributes(captured.span(f"{name} chain1"))
    key = "gen_ai.agent.name" if name == "invoke_agent" else "gen_ai.workflow.name"
    of = "AGENT" if name == "invoke_agent" else "CHAIN"
    assert found == {"gen_ai.operation.name": name, key: "chain1", "openinference.span.kind": of}


@pytest.mark.parametrize(
    ("metadata", "expected"),
    [
        ({}, {}),
        (
            {"session_id": "s", "thread_id": "t", "user_id": "u"},
            {"session.id": "s", "gen_ai.conversation.id": "t", "user.id": "u"},
        ),
        ({"thread_id": 7, "conversation_id": "c"}, {"gen_ai.conversation.id": "c"}),
        ({"thread_id": 7, "user_id": 0}, {"gen_ai.conversation.id": "7"}),
        (
            {"langfuse_session_id": "s", "langfuse_user_id": "u"},
            {"session.id": "s", "gen_ai.conversation.id": "s", "user.id": "u"},
        ),
        ({"tenant": "a", "tier": 2, "tags": ["x"]}, {"rag.metadata.tenant": "a"}),
    ],
)
def test_who_speaks(metadata: dict[str, object], expected: dict[str, str]) -> None:
    """Session and user are on each span, the conversation on calls, other metadata on the root."""
    captured = capture(metadata_keys=["tenant", "tags"])
    root = begin(captured, "chain", 1, metadata=metadata)
    finish(captured, begin(captured, "tool", 2, under=1, metadata=metadata), root)
    names = ("session.id", "user.id", "gen_ai.conversation.id", "rag.metadata.tenant")
    found = attributes(captured.span("invoke_workflow chain1"))
    assert {
        k: v for k, v in found.items() if k in names or k.startswith("rag.metadata")
    } == expected
    of_tool = attributes(captured.span("execute_tool tool2"))
    shared = {k: v for k, v in expected.items() if not k.startswith("rag.metadata")}
    assert {k: v for k, v in of_tool.items() if k in names} == shared


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"temperature": 0, "stop": "x"}, {"temperature": 0.0, "stop_sequences": ("x",)}),
        *[({name: 3}, {name: 3}) for name in ("top_p", "max_tokens", "top_k", "seed")],
        (
            {"max_completion_tokens": 9, "stop": ["a", "b"], "model": "m"},
            {"max_tokens": 9, "stop_sequences": ("a", "b"), "model": "m"},
        ),
        ({"n": 1, "stop": [], "seed": True, "top_k": 1.5, "api_key": "secret"}, {}),
        (
            {"n": 2, "stop": None, "frequency_penalty": 1},
            {"choice.count": 2, "frequency_penalty": 1},
        ),
    ],
)
def test_parameters_of_a_request(given: dict[str, Any], expected: dict[str, Any]) -> None:
    """Those of the convention have its names and types; others, and empty ones, are left out."""
    captured = capture()
    said = LLMResult(generations=[[Generation(text="t")]])
    start = partial(captured.handler.on_chat_model_start, None, [[HumanMessage("q")]])
    start(run_id=UUID(int=1), invocation_params=given)
    captured.handler.on_llm_end(said, run_id=UUID(int=1))
    (span,) = captured.spans
    found = {
        name.removeprefix("gen_ai.request."): value
        for name, value in attributes(span).items()
        if name.startswith("gen_ai.request.")
    }
    assert found == expected
    assert span.name == ("chat m" if "model" in given else "chat")


@pytest.mark.parametrize(
    ("provider", "expected"),
    [
        ("openai", ("openai", "openai", "openai")),
        ("google_genai", ("gcp.gemini", "google", "vertexai")),
        ("acme", ("acme", "acme", "acme")),
        (None, ("unknown", None, "unknown")),
    ],
)
def test_names_of_providers(provider: str | None, expected: tuple[Any, ...]) -> None:
    """Both conventions have names of their own; what is not known keeps LangChain's."""
    captured = capture()
    metadata = {} if provider is None else {"ls_provider": provider}
    finish(captured, begin(captured, "llm", 1, told=named(None), metadata=metadata))
    found = attributes(captured.spans[0])
    names = ("gen_ai.provider.name", "llm.provider", "llm.system")
    assert tuple(map(found.get, names)) == expected


@pytest.mark.parametrize("made", ["lc_run--7-0", "run-7-0", None])
def test_the_id_of_a_run_is_no_id_of_a_response(made: str | None) -> None:
    """LangChain makes it if the provider gives none."""
    captured = capture()
    finish(captured, begin(captured, "llm", 1, told=AIMessage("a", id=made)))
    assert "gen_ai.response.id" not in attributes(captured.spans[0])


def test_a_type_is_no_name_of_a_workflow() -> None:
    """All chains would have the same."""
    captured = capture()
    captured.handler.on_chain_start(None, "q", run_id=UUID(int=1), name="RunnableSequence")
    captured.handler.on_chain_end("a", run_id=UUID(int=1))
    (span,) = captured.spans
    assert span.name == "invoke_workflow"
    assert "gen_ai.workflow.name" not in attributes(span)


def test_the_call_of_a_tool() -> None:
    """Arguments and result are objects, and messages have parts for the call and its result."""
    captured = capture(content="all")
    root, handler = begin(captured, "chain", 1), captured.handler
    call = {"name": "search", "args": {"q": "kites"}, "id": "call-1"}
    chosen = AIMessage("", tool_calls=[call])
    first = begin(captured, "llm", 2, under=1, asked=[HumanMessage("q")], told=chosen)
    finish(captured, first)
    about = {"name": "search", "description": "Searches."}
    handler.on_tool_start(about, "kites", run_id=UUID(int=3), parent_run_id=UUID(int=1))
    handler.on_tool_end(ToolMessage("two", tool_call_id="call-1"), run_id=UUID(int=3))
    asked = [chosen, ToolMessage("two", tool_call_id="call-1")]
    finish(captured, begin(captured, "llm", 4, under=1, asked=asked, told=AIMessage("a")), root)
    tool = attributes(captured.span("execute_tool search"))
    assert json.loads(tool["gen_ai.tool.call.arguments"]) == {"input": "kites"}
    assert json.loads(tool["gen_ai.tool.call.result"]) == {"output": "two"}
    assert tool["gen_ai.tool.description"] == tool["tool.description"] == "Searches."
    assert tool["gen_ai.tool.call.id"] == tool["tool.id"] == "call-1"
    assert (tool["gen_ai.tool.type"], tool["gen_ai.agent.name"]) == ("function", "chain1")
    in_order = sorted(captured.spans, key=lambda span: span.start_time or 0)
    calls = [attributes(span) for span in in_order if span.name == "chat"]
    part = {"type": "tool_call", "id": "call-1", "name": "search", "arguments": {"q": "kites"}}
    said = {"role": "assistant", "parts": [part]}
    assert json.loads(calls[0]["gen_ai.output.messages"]) == [said]
    result = {"type": "tool_call_response", "id": "call-1", "response": "two"}
    expected = [said, {"role": "tool", "parts": [result]}]
    assert json.loads(calls[1]["gen_ai.input.messages"]) == expected


def named(model: Any) -> LLMResult:
    return LLMResult(generations=[[Generation(text="t")]], llm_output={"model_name": model})


def nested(spans: Spans) -> Capture:
    """Record a chain in a chain, with a tool, and a retriever with all that it may use."""
    captured = capture(spans=spans)
    root = begin(captured, "chain", 1)
    runs = [
        begin(captured, "chain", 2, under=1),
        begin(captured, "tool", 3, under=2),
        begin(captured, "retriever", 4, under=3),
        begin(captured, "chain", 5, under=4),
        begin(captured, "retriever", 6, under=5),
        begin(captured, "llm", 7, under=5, told=named("m")),
    ]
    finish(captured, *reversed(runs), root)
    return captured


def test_which_runs_have_a_span() -> None:
    """Essential: the root, calls, tools and outermost retrievals, without gaps; or all; or none."""
    assert tree(nested("essential")) == {
        "invoke_workflow chain1": None,
        "execute_tool tool3": "invoke_workflow chain1",
        "retrieval": "execute_tool tool3",
        "text_completion": "retrieval",
    }
    captured = nested("all")
    assert len(captured.spans) == 7
    assert tree(captured)["chain5"] == "retrieval"
    assert tree(captured)["text_completion"] == "chain5"
    assert nested("none").spans == ()


@pytest.mark.parametrize("late", [False, True], ids=["before", "after"])
def test_a_run_that_never_ended_ends_with_its_root(late: bool) -> None:  # noqa: FBT001
    """But not before it began, if its root had ended by then."""
    captured = capture(grace=5.0)
    root = begin(captured, "chain", 1)
    other = begin(captured, "tool", 2, under=1)
    if late:
        finish(captured, root)
    never = begin(captured, "tool", 3, under=1)
    if late:
        never.start = (root.end or 0) + 10
    finish(captured, root, other)
    captured.recorder.flush()
    span = captured.span("execute_tool tool3")
    assert span.end_time == (never.start if late else root.end)


def message(role: str, text: str) -> dict[str, object]:
    return {"role": role, "parts": [{"type": "text", "content": text}]}


def test_content_of_a_turn() -> None:
    """Messages, query and documents are on the spans, as JSON that can be read."""
    captured = capture(content="all")
    run_turn(captured)
    root = attributes(captured.span("invoke_workflow chain1"))
    assert json.loads(root["gen_ai.input.messages"]) == [message("user", QUESTION)]
    assert json.loads(root["gen_ai.output.messages"]) == [message("assistant", ANSWER)]
    search = attributes(captured.span("retrieval"))
    assert search["gen_ai.retrieval.query.text"] == QUESTION
    assert json.loads(search["gen_ai.retrieval.documents"]) == [{"content": PAGE}]
    call = attributes(captured.span("chat"))
    expected_messages = [message("system", PAGE), message("user", QUESTION)]
    assert json.loads(call["gen_ai.input.messages"]) == expected_messages


def test_many_documents_leave_room_on_the_span() -> None:
    """A hundred documents do not push other attributes out at the SDK's limit of 128."""
    captured = capture(content="all")
    documents = [Document(f"{PAGE} {i}", id=str(i), metadata={"score": 1}) for i in range(100)]
    finish(captured, begin(captured, "retriever", 1, asked=QUESTION, told=documents))
    shown = [HumanMessage(f"{QUESTION} {i}") for i in range(100)]
    finish(captured, begin(captured, "llm", 2, asked=shown, told=AIMessage(ANSWER)))
    captured.flush()
    for span in captured.spans:
        assert span.dropped_attributes == 0
        assert len(attributes(span)) < 110
    search, call = (attributes(captured.span(name)) for name in ("retrieval", "chat"))
    assert len(json.loads(search["gen_ai.retrieval.documents"])) == 100
    assert "retrieval.documents.29.document.content" in search
    assert "retrieval.documents.30.document.content" not in search
    assert call["llm.input_messages.19.message.content"] == f"{QUESTION} 99"


class Stubborn(SpanProcessor):
    """Raises at the start or at the end of the retrieval's span."""

    def __init__(self, moment: str) -> None:
        self._moment = moment

    def on_start(self, span: Span, parent_context: object = None) -> None:
        if self._moment == "start" and span.name == "retrieval":
            raise RuntimeError

    def on_end(self, span: ReadableSpan) -> None:
        if self._moment == "end" and span.name == "retrieval":
            raise RuntimeError


@pytest.mark.parametrize(("moment", "written"), [("start", 2), ("end", 3)])
def test_a_processor_that_fails_costs_one_span(moment: str, written: int) -> None:
    """Where one of the application's own raises, the other spans, and the turn, stay."""
    captured = capture(raise_errors=False)
    captured.provider.add_span_processor(Stubborn(moment))
    run_turn(captured)
    assert len(captured.spans) == written
    assert captured.errors == ["callback"]
    assert len(captured.samples) == 1
