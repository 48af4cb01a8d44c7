"""Each convention is read for what it says, and whatever is wrong with a span nothing raises."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from plain_views import Role, View, Word, circle, ring
from rag_eval_otel.capture.conventions import (
    CONVENTIONS,
    convention_of,
    haystack,
    holds_documents,
    is_flat,
    kind_of,
    load,
    owner_of,
    read,
    shows_documents,
)
from rag_eval_otel.capture.conventions.convention import Convention
from rag_eval_otel.capture.conventions.openinference import described
from rag_eval_otel.capture.conventions.openinference import texts as written_texts
from rag_eval_otel.capture.span import LogView, Span
from rag_eval_otel.capture.step import Result, Step
from rag_eval_otel.errors import ConfigError
from rag_eval_otel.registry import Registry
from rag_eval_otel.types import Passage
from recordings import misread

ASKED, TOLD = "When was it founded?", "It was founded in 1949, says the book."
PAGE = "The house was founded in 1949."
REDACTED = "__REDACTED__"
OI = "openinference.span.kind"


def span(attributes: Mapping[str, Any], mark: str = "", **fields: Any) -> Span:
    """Build a span with ``mark``, a name and its value; other data than texts become JSON."""
    name, _, value = mark.partition("=")
    texts = {k: v if isinstance(v, str) else json.dumps(v) for k, v in attributes.items()}
    return View(attributes={name: value, **texts} if mark else attributes, **fields)


def platform(mark: str, inputs: object, outputs: object, *keys: str, **fields: Any) -> Span:
    return span(dict(zip(keys, (inputs, outputs), strict=True)), mark, **fields)


FOUND, QUERY = [{"page_content": PAGE}], {"query": ASKED}
CHAT = [{"role": "user", "content": ASKED}]
SAID = [{"role": "assistant", "parts": [{"type": "text", "content": TOLD}]}]
LANGFUSE = ("langfuse.observation.input", "langfuse.observation.output")
LANGSMITH = ("gen_ai.prompt", "gen_ai.completion")
MLFLOW = ("mlflow.spanInputs", "mlflow.spanOutputs")
VERCEL = ("ai.prompt.messages", "ai.response.text")
RETRIEVALS = {  # where no recording has them
    "langfuse": platform(
        "langfuse.observation.type=retriever", {"args": [ASKED], "kwargs": {}}, FOUND, *LANGFUSE
    ),
    "langsmith": platform("langsmith.span.kind=retriever", QUERY, {"output": FOUND}, *LANGSMITH),
    "mlflow": platform('mlflow.spanType="RETRIEVER"', QUERY, FOUND, *MLFLOW),
    "traceloop": span(
        {
            "gen_ai.operation.name": "vector_db_retrieve",
            "traceloop.entity.input": QUERY,
            "traceloop.entity.output": {"documents": FOUND},
        },
        "traceloop.span.kind=task",
    ),
}
CALLS = {  # where no recording has them
    "langsmith": platform(
        "langsmith.span.kind=llm",
        {"messages": [[{"type": "human", "content": ASKED}]]},
        {"generations": [[{"text": TOLD}]]},
        *LANGSMITH,
    ),
    "mlflow": platform(
        'mlflow.spanType="CHAT_MODEL"',
        {"messages": CHAT},
        {"choices": [{"message": SAID[0]}]},
        *MLFLOW,
    ),
    "vercel": platform("ai.operationId=ai.streamText.doStream", CHAT, TOLD, *VERCEL),
}


@pytest.mark.parametrize("name", RETRIEVALS)
def test_a_retrieval(name: str) -> None:
    """Query and documents are told, whoever wrote them down."""
    step = read(RETRIEVALS[name])
    assert convention_of(RETRIEVALS[name]) == name
    assert step.kind == kind_of(RETRIEVALS[name]) == "retriever"
    assert (step.input, step.documents) == (ASKED, (Passage(text=PAGE),))


@pytest.mark.parametrize("name", CALLS)
def test_a_call(name: str) -> None:
    """What an LLM was shown and what it said are told, whoever wrote them down."""
    step = read(CALLS[name])
    assert step.kind == kind_of(CALLS[name]) == "llm"
    assert (step.input, step.prompt, step.output) == (ASKED, (ASKED,), TOLD)
    assert not step.calls_tools


def test_a_vector_database() -> None:
    """The results of a query are events. Without them a span is no retrieval."""
    result = {"db.query.result.id": "d1", "db.query.result.document": PAGE}
    found = span({"db.system": "chroma"}, events=[("a", {}), ("db.query.result", result)])
    bare = span({"db.system": "qdrant", "db.operation": "query", "db.vector.query.top_k": 2})
    table = span({"db.system": "postgresql", "db.operation": "query"})
    spring = read(span({"db.system": "simple", "db.vector.query.content": ASKED}))
    assert (spring.kind, spring.input, spring.documents) == ("retriever", ASKED, None)
    assert read(found).documents == (Passage(text=PAGE, id="d1"),)
    assert [kind_of(bare), kind_of(table)] == ["other", "other"]


def test_the_ai_sdk() -> None:
    """A tool has its own name, and a call that ends with tool calls is no answer."""
    named = {"ai.toolCall.name": "search", "ai.toolCall.result": json.dumps([PAGE, TOLD])}
    found = span({**named, "ai.toolCall.args": QUERY}, "ai.operationId=ai.toolCall")
    step = read(found)
    assert (step.kind, step.name, step.input) == ("tool", "search", ASKED)
    assert step.documents == (Passage(text=PAGE), Passage(text=TOLD))
    whole = read(span({"ai.prompt": {"prompt": ASKED}}, "ai.operationId=ai.generateText"))
    assert (whole.kind, whole.input) == ("chain", ASKED)
    asked = {"ai.response.finishReason": "tool-calls", "ai.response.text": ""}
    assert read(span(asked, "ai.operationId=ai.generateText.doGenerate")).calls_tools
    assert all(owner_of(name) for name in (*VERCEL, *named, "ai.prompt") if name[-4:] != "name")
    assert not owner_of("ai.toolCall.name")


def test_a_call_that_said_nothing_was_left() -> None:
    """A span with a prompt and no word of the model was ended by whoever ended all of them."""
    asked = {"gen_ai.operation.name": "chat", "gen_ai.input.messages": ASKED}
    asked["gen_ai.prompt.variable.topic"] = "houses"
    assert (read(span(asked)).end, read(span(asked)).variables) == (None, {"topic": "houses"})
    assert read(span({**asked, "gen_ai.output.messages": "[]"})).end is not None


@pytest.mark.parametrize(("texts", "told"), [(["", TOLD], TOLD), ([TOLD, PAGE], None)])
def test_the_output_of_an_agent(texts: Sequence[str], told: str | None) -> None:
    """Of several replies, the call of the model says which is the answer."""
    replies = [{"role": "assistant", "content": text} for text in texts]
    view = span({"gen_ai.output.messages": replies}, "gen_ai.operation.name=invoke_agent")
    assert read(view).output == told


def test_documents_that_a_pipeline_was_given() -> None:
    """Another one retrieved them: a span above this one waits for its scores."""
    for documents in ([{"id": "a", "content": PAGE}], []):
        given = json.dumps({"query": ASKED, "documents": documents})
        assert shows_documents(span({"haystack.component.input": given})) is bool(documents)


def test_hidden_documents() -> None:
    """Where one document is hidden all are; their output is not read in their place."""
    hidden = {
        OI: "RETRIEVER",
        "output.value": json.dumps({"documents": [{"page_content": PAGE}]}),
        "retrieval.documents.0.document.content": REDACTED,
    }
    assert read(span(hidden)).documents is None
    assert read(span(hidden)).hidden == {"documents"}


@pytest.mark.parametrize("first", [0, 3])
def test_dropped_documents(first: int) -> None:
    """The SDK drops the oldest attributes: the best documents are the first to go."""
    numbers = range(first, first + 2)
    contents = {f"retrieval.documents.{n}.document.content": f"page {n}" for n in numbers}
    step = read(span({OI: "RETRIEVER", **contents}, dropped=4))
    assert (step.documents is None) == ("documents" in step.cut) == (first > 0)


def test_a_convention_that_cannot_be_imported_is_left_out(caplog: pytest.LogCaptureFixture) -> None:
    """A broken entry point of another package costs a warning, not the application's spans."""
    places = {
        "acme": "acme.spans:CONVENTION",
        "none": "rag_eval_otel.semconv:SCOPE",
        "ours": "rag_eval_otel.capture.conventions.genai:CONVENTION",
    }
    registry = Registry(kind="convention", built_in=places)
    assert [convention.name for convention in load(registry)] == ["genai"]
    assert "the convention 'acme' (acme.spans:CONVENTION) could not be imported" in caplog.text
    assert "the convention 'none' is no Convention" in caplog.text


@pytest.mark.parametrize("options", [{"content": ("(",)}, {"instrumentations": "["}])
def test_a_convention_with_invalid_patterns_is_refused(options: dict[str, Any]) -> None:
    """The error names the convention; another package's is then left out with a warning."""
    with pytest.raises(ConfigError, match="convention 'acme'"):
        Convention(name="acme", kind=lambda _: None, to_step=CONVENTIONS[0].to_step, **options)


def test_a_postprocessor_of_llamaindex_under_any_name() -> None:
    """OpenLLMetry names the span after the class; what takes nodes and returns a list filters."""
    attributes = {"traceloop.span.kind": "task", "traceloop.entity.name": "WithoutWord.task"}
    nodes = {"traceloop.entity.input": '{"nodes": ["{}"], "query_bundle": {}}'}
    told = {"traceloop.entity.output": json.dumps([json.dumps({"node": {"text": PAGE}})])}
    assert kind_of(span({**attributes, **nodes, **told})) == "reranker"
    assert kind_of(span({**attributes, **nodes, "traceloop.entity.output": TOLD})) == "chain"


# --- Haystack, by OpenInference: members of Enums, and reprs --------------------------------------

SHORT, ANSWER = "Acme's founder is Wile E. Coyote.", "It's from 1987."
LONG = "Acme was founded in 1987. " * 8


def of_haystack(name: str, kind: str = "CHAIN", *, asked: Any, told: Any, **more: Any) -> Span:
    return View(
        name=name,
        scope="openinference.instrumentation.haystack",
        attributes={
            "openinference.span.kind": kind,
            "input.value": json.dumps(asked),
            "output.value": json.dumps(told),
            **more,
        },
    )


def message(role: str, part: str) -> str:
    return f"ChatMessage(_role=<ChatRole.{role.upper()}: {role!r}>, _content=[{part}], _meta={{}})"


def document(text: str, *, name: str = "a1b2") -> str:
    shown = text if len(text) < 100 else f"{text[:100]}..."
    return f"Document(id={name}, content: '{shown}', meta: {{'source': 'it\\'s'}}, score: 0.5)"


SAID = message("assistant", f"TextContent(text={ANSWER!r})")
RESULT = message("tool", f"ToolCallResult(result={SHORT!r}, origin=ToolCall(tool_name='search'))")


def test_windows_are_what_was_found() -> None:
    """A retriever of windows tells them in full, unlike the documents they are of."""
    told = {"context_windows": [LONG], "context_documents": [document(LONG)]}
    step = read(
        of_haystack("SentenceWindowRetriever.run", asked={"retrieved_documents": []}, told=told)
    )
    assert step.kind == "reranker"
    assert [p.text for p in step.documents or ()] == [LONG]


def test_results_of_tools_are_in_the_reprs_alone() -> None:
    """A model was shown what a tool said, though its messages leave that out."""
    messages = [message("user", f"TextContent(text={ASKED!r})"), RESULT]
    shown = "llm.input_messages"
    view = of_haystack(
        "OpenAIChatGenerator.run",
        "LLM",
        asked={"messages": messages},
        told={"replies": [SAID]},
        **{
            f"{shown}.0.message.role": Role.USER,
            f"{shown}.0.message.content": ASKED,
            f"{shown}.1.message.role": Role.TOOL,
            "llm.output_messages.0.message.role": Role.ASSISTANT,
            "llm.output_messages.0.message.content": ANSWER,
        },
    )
    step = read(view)
    assert (step.input, step.output) == (ASKED, ANSWER)
    assert [one.text for one in step.tool_results] == [SHORT]


# --- LlamaIndex: agents that think in text, rerankers, structured answers -------------------------

ACTION = 'Thought: I need a tool.\nAction: search\nAction Input: {"input": "founded"}'
DONE = f"Thought: I can answer.\nAnswer: {TOLD}"
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
    """What an agent thinks is left out; one that says which tool it wants has not answered yet."""
    messages = [("user", ASKED), ("assistant", ACTION), ("user", OBSERVATION)]
    steps = [read(call(source, *messages, told=told)) for told in (DONE, ACTION)]
    assert [(step.output, step.calls_tools) for step in steps] == [(TOLD, False), (None, True)]


def test_an_observation_is_what_a_tool_said() -> None:
    """What the agent tells itself as the user comes from a tool."""
    step = read(call("openinference", ("user", ASKED), ("user", OBSERVATION), told=DONE))
    assert (step.input, [result.text for result in step.tool_results]) == (ASKED, [OBSERVATION])


@both
def test_a_reranker_is_one_by_its_name(source: str) -> None:
    """What a model says to a reranker is none of a turn's calls."""
    name = "LLMRerank._postprocess_nodes"
    view = native(name) if source == "native" else openinference(name, "CHAIN")
    assert kind_of(view) == read(view).kind == "reranker"
    assert kind_of(openinference("OpenAI._as_query_component", "LLM")) == "chain"


@pytest.mark.parametrize("name", ["RetrieverQueryEngine.query", "CompactAndRefine.asynthesize"])
def test_a_structured_answer_is_its_json(name: str) -> None:
    """An engine that answers with a record of the application's own answers with its JSON."""
    told = json.dumps({"founder": "Wile", "year": 1987})
    assert read(openinference(name, "CHAIN", told=told)).output == told


# --- frameworks of agents -------------------------------------------------------------------------


def of_agent(framework: str, kind: str, asked: object, told: object, name: str = "step") -> Step:
    values = {"input.value": asked, "output.value": told}
    scope = f"openinference.instrumentation.{framework}"
    return read(span(values, f"{OI}={kind}", name=name, scope=scope))


TASKS = {"raw": TOLD, "tasks_output": [{"description": ASKED}]}
FIELDS = f"[[ ## reasoning ## ]]\nWell.\n\n[[ ## answer ## ]]\n{TOLD}\n\n[[ ## completed ## ]]\n"
NEXT = "[[ ## next_tool_name ## ]]\nsearch\n[[ ## completed ## ]]"
OF_AGENTS: dict[str, tuple[Step, str | None, str | None]] = {
    "a message to an agent of CrewAI": (
        of_agent("crewai", "AGENT", {"messages": ASKED}, TASKS),
        *(ASKED, TOLD),
    ),
    "a crew's input": (of_agent("crewai", "CHAIN", {"question": ASKED}, {"raw": 7}), ASKED, None),
    "the only task of a crew": (of_agent("crewai", "CHAIN", {"agent": "a"}, TASKS), ASKED, TOLD),
    "several tasks": (
        of_agent("crewai", "CHAIN", {"agent": "a"}, {**TASKS, "tasks_output": [{}, {}]}),
        *(None, TOLD),
    ),
    "the answer of DSPy": (of_agent("dspy", "LLM", "", FIELDS), None, TOLD),
    "another field of DSPy": (
        of_agent("dspy", "LLM", "", FIELDS.replace("answer", "x")),
        *(None, TOLD),
    ),
    "a tool that DSPy calls": (of_agent("dspy", "LLM", "", NEXT), None, None),
    "a module of DSPy": (
        of_agent("dspy", "CHAIN", {"input_args": {"question": ASKED}}, {"answer": TOLD}),
        *(ASKED, TOLD),
    ),
    "the task of smolagents": (of_agent("smolagents", "AGENT", {"task": ASKED}, TOLD), ASKED, TOLD),
    "no task": (of_agent("smolagents", "AGENT", {"question": ASKED}, TOLD), None, TOLD),
    "an agent of ADK": (of_agent("google_adk", "AGENT", ASKED, TOLD), ASKED, None),
    "a tool of ADK": (
        of_agent("google_adk", "TOOL", {"query": ASKED}, {"response": {"result": PAGE}, "id": "1"}),
        *(ASKED, PAGE),
    ),
}


@pytest.mark.parametrize(("step", "asked", "told"), OF_AGENTS.values(), ids=OF_AGENTS)
def test_agents(step: Step, asked: str | None, told: str | None) -> None:
    """Question and answer are where each framework writes them."""
    assert (step.input, step.output) == (asked, told)
    assert step.calls_tools == (step.kind == "llm" and told is None)


def test_documents_of_agents() -> None:
    """A DSPy module is handed them, Strands has blocks of text."""
    inputs = {"input_args": {"question": ASKED, "context": [PAGE, "b"]}}
    inner = of_agent("dspy", "CHAIN", inputs, TOLD, name="Predict(Answer).forward")
    assert inner.recorded == {"documents"}
    assert inner.documents == (Passage(text=PAGE), Passage(text="b"))
    assert of_agent("dspy", "CHAIN", inputs, TOLD, name="RAG.forward").recorded == set()
    result = {"gen_ai.tool.call.result": [{"text": PAGE}, {"text": "b"}]}
    strands = span(result, "gen_ai.operation.name=execute_tool", scope="strands.telemetry.tracer")
    assert read(strands).output == f"{PAGE}b"
    late = span({}, f"{OI}=LLM", name="invoke_agent x", scope="gcp.vertex.agent", start=1, end=9)
    assert (read(late).start, read(replace(late, name="call_llm")).start) == (9, 1)


# --- what the forms have in common ----------------------------------------------------------------


def test_messages_may_be_events() -> None:
    """Of the span, or log records; of alternatives, the first is the reply."""
    first = json.dumps({"role": "assistant", "content": TOLD})
    events = [
        ("gen_ai.system.message", {"content": "Be brief."}),
        ("gen_ai.user.message", {"content": ASKED}),
        ("gen_ai.choice", {"index": 1, "message": "Perhaps."}),
        ("gen_ai.choice", {"index": 0, "message": first}),
    ]
    view = span({}, "gen_ai.operation.name=chat", events=events)
    step = read(view)
    assert (step.prompt, step.output) == (("Be brief.", ASKED), TOLD)
    assert read(replace(view, events=events[:3])).output == "Perhaps."
    assert read(replace(view, events=events[:2])).output is None
    assert read(replace(view, dropped_events=1)).output is None
    logs = [LogView(event=name, body={"content": ASKED}) for name, _ in events[1:2]]
    assert read(replace(view, events=[], logs=logs)).prompt == (ASKED,)


RESULT_SHOWN = [{"role": "tool", "parts": [{"type": "tool_call_response", "response": PAGE}]}]
DETAILS = "gen_ai.client.inference.operation.details"
CHATS, CALLS_TOOL = "gen_ai.operation.name=chat", "gen_ai.operation.name=execute_tool"
IN_DETAILS = {"gen_ai.input.messages": json.dumps(RESULT_SHOWN)}
TOOL_EVENT = [("gen_ai.tool.message", {"content": PAGE})]


@pytest.mark.parametrize(
    ("view", "has_documents"),
    [
        (span({"gen_ai.input.messages": RESULT_SHOWN}, CHATS), True),
        (span({"gen_ai.input.messages": CHAT}, CHATS), False),
        (span({}, CHATS, events=TOOL_EVENT), True),
        (span({}, CALLS_TOOL, events=TOOL_EVENT), False),
        (span({}, "gen_ai.operation.name=embeddings", events=TOOL_EVENT), False),
        (span({}, CHATS, events=[(DETAILS, IN_DETAILS)]), True),
        (span({"llm.input_messages.0.message.role": "tool"}, f"{OI}=LLM"), True),
        (span({"llm.input_messages.0.message.role": "user"}, f"{OI}=LLM"), False),
    ],
)
def test_what_a_tool_said_is_in_a_prompt(view: Span, *, has_documents: bool) -> None:
    """So a call without a retrieval may be a turn."""
    assert holds_documents(view) == has_documents


@pytest.mark.parametrize(
    ("view", "expected"),
    [
        (span({}), True),
        (span({"rag.question": ASKED}), False),
        (span({}, scope="openinference.instrumentation.langchain"), False),
        (span({}, f"{OI}=CHAIN"), False),
    ],
)
def test_a_span_without_a_form_may_hold_several_questions(view: Span, *, expected: bool) -> None:
    """One of an instrumentation, or with a record, is not such."""
    assert is_flat(view) == expected


def test_what_we_write_as_openinference_is_read_back() -> None:
    """Kind, tokens, the last twenty messages and the first thirty documents."""
    spoken = [("system", "Be brief."), *[("user", f"{n} {ASKED}") for n in range(20)]]
    written = described("llm", model="m", provider="p", system="s", finish="stop", tokens=(3, 4))
    call = read(span({**written, **written_texts(asked=ASKED, told=TOLD, messages=spoken)}))
    assert (call.kind, call.output) == ("llm", TOLD)
    assert call.prompt == tuple(text for _, text in spoken[1:])
    assert written["llm.token_count.total"] == 7
    assert "tool.name" not in written
    found = [Passage(text=f"page {number}", id=str(number), score=1) for number in range(31)]
    shown = written_texts(asked=ASKED, told=None, documents=found)
    step = read(span(described("retriever") | shown))
    assert (step.kind, step.input, step.documents) == ("retriever", ASKED, tuple(found[:30]))
    assert described("other") == {OI: "CHAIN"}
    named = described("tool", name="t", call_id="c")
    assert named == {OI: "TOOL", "tool.name": "t", "tool.id": "c"}


@pytest.mark.parametrize(
    ("view", "kind"),
    [
        (span({"trace.annotations.0.annotation.name": "a"}, links=[1]), "aside"),
        (span({"evaluations.0.evaluation.name": "a"}, f"{OI}=LLM", links=[1]), "aside"),
        (span({"evaluations.0.evaluation.name": "a"}, f"{OI}=LLM"), "llm"),
        (span({}, f"{OI}=LLM", links=[1]), "llm"),
        (span({}, f"{OI}=LLM", scope="rag_eval_otel"), "other"),
        (span({}, f"{OI}=GUARDRAIL"), "aside"),
        (span({}, f"{OI}=GUARDRAIL", scope="openinference.instrumentation.guardrails"), "chain"),
        (span({}, "gen_ai.operation.name=invent"), "chain"),
        (span({}, "gen_ai.operation.name=update_memory"), "aside"),
        (span({}, "gen_ai.operation.name=create_agent"), "other"),
        (native("FunctionTool.acall"), "tool"),
    ],
)
def test_kinds(view: Span, kind: str) -> None:
    """An evaluator's scores of a linked span are no turn, and guards may wrap the model's call."""
    assert read(view).kind == kind_of(view) == kind


def test_contents_in_blocks() -> None:
    """What a user wrote in blocks is one text; what a tool returned stays as it is."""
    blocks = json.dumps([{"type": "text", "text": "When "}, {"type": "text", "text": "was it?"}])
    role = "llm.input_messages.0.message.role"
    shown = {"llm.input_messages.0.message.content": blocks}
    assert read(span({**shown, role: "user"}, f"{OI}=LLM")).prompt == ("When was it?",)
    shown |= {role.replace("0", "1"): "tool", "llm.input_messages.1.message.content": blocks}
    shown |= {role.replace("0", "2"): "tool", "llm.input_messages.2.message.name": "add"}
    called = "llm.input_messages.0.message.tool_calls.0.tool_call.function.name"
    found = read(span({**shown, role: "assistant", called: "search"}, f"{OI}=LLM")).tool_results
    assert found == (Result(text=blocks, tool="search"), Result(text="", tool="add"))


def test_a_streamed_reply() -> None:
    """The deltas of LlamaIndex once the stream has ended, and the last event of OpenAI's."""
    deltas = [("StreamChatDeltaReceivedEvent", {"delta": text}) for text in (TOLD[:9], TOLD[9:])]
    view = native("Model.chat", messages=[("user", ASKED)])
    ended = [view.events[0], *deltas, ("StreamChatEndEvent", {})]
    assert read(replace(view, events=ended)).output == TOLD
    assert read(replace(view, events=ended[:-1])).output is None
    said = {"type": "message", "role": "assistant", "content": [{"text": TOLD}]}
    whole = {"object": "response", "output": [said]}
    assert read(span({"output.value": [{}, whole]}, f"{OI}=LLM")).output == TOLD
    parts = {f"llm.output_messages.{n}.message.content": text for n, text in enumerate("abc")}
    assert read(span({**parts, "output.value": whole}, f"{OI}=LLM")).output == "c"
    for prefix in ("llm.output_messages", "llm.choices"):
        view = span({f"{prefix}.1.message.content": TOLD}, f"{OI}=LLM")
        assert read(view).cut == {"output"}


def test_calls_and_tools_of_older_openllmetry() -> None:
    """Messages are attributes each, or the input and output of the entity."""
    old = {"gen_ai.prompt.0.role": "user", "gen_ai.prompt.0.content": ASKED}
    old |= {"gen_ai.completion.0.role": "assistant", "gen_ai.completion.0.content": TOLD}
    step = read(span(old, "llm.request.type=chat"))
    assert (step.kind, step.prompt, step.output) == ("llm", (ASKED,), TOLD)
    assert kind_of(span({}, "llm.request.type=embedding")) == "embedding"
    entity = {"traceloop.entity.input": ASKED, "traceloop.entity.output": TOLD}
    step = read(span(entity, "llm.request.type=chat"))
    assert (step.prompt, step.output) == ((ASKED,), TOLD)
    used = span(
        {"tool.name": "search", "traceloop.entity.output": TOLD}, "traceloop.span.kind=task"
    )
    assert (read(used).kind, read(used).name) == ("tool", "search")


def test_what_the_application_recorded() -> None:
    """It is taken in place of what is elsewhere, also if it is redacted or cut."""
    written = {"rag.question": ASKED, "rag.answer": REDACTED, "rag.contexts": [PAGE]}
    chat = {"gen_ai.input.messages": "[REDACTED]", "gen_ai.output.messages": TOLD}
    step = read(span({**chat, **written}, CHATS))
    assert (step.kind, step.input, step.output) == ("llm", ASKED, None)
    assert step.documents == (Passage(text=PAGE),)
    assert (step.recorded, step.hidden) == ({"input", "output", "documents"}, {"prompt", "output"})
    found = {"rag.retrieval.query": "founding", "rag.retrieval.documents": [PAGE, TOLD]}
    marks = {"rag.retrieval.recorded": True, **written}
    view = View(
        attributes={**marks, "rag.contexts": ["b"]}, events=[("rag.retrieval", found), ("x", {})]
    )
    step = read(view)
    assert (step.kind, step.query, len(step.documents or ())) == ("chain", "founding", 3)
    for lost in (replace(view, dropped_events=1), replace(view, events=[])):
        assert read(lost).cut == {"documents"}


# --- values that nobody expects -------------------------------------------------------------------


ODD = {
    "array": np.array([["a", "b"]]),
    "bytes": b"\xff\xfe\x00",
    "circle": circle(),
    "class": object(),
    "date": np.datetime64("2026-01-01"),
    "deep": json.loads("[" * 500 + "]" * 500),
    "enum": Role.USER,
    "nan": math.nan,
    "nest": "[" * 10_000,
    "no JSON": '{"messages": [{"role": "user", "content": "',
    "number": np.float32(1.5),
    "pair": ("user", Role.USER),
    "quote": '"',
    "ring": ring(),
    "set": frozenset({Role.USER}),
    "surrogate": "\ud800",
    "without text": [{"id": "1", "metadata": {}}, {"page_content": None}],
    "word": Word("said"),
    "zero": "\x00",
}


def spans_with(value: Any) -> list[Span]:
    """Return a span of each convention on which every known attribute has this value."""
    names = ("input.value", "output.value", "llm.input_messages.0.message.content", "metadata")
    names += ("llm.output_messages.0.message.content", "retrieval.documents.0.document.content")
    names += ("retrieval.documents.0.document.metadata", "traceloop.entity.input", "user.id")
    names += ("traceloop.entity.output", "gen_ai.prompt.0.content", "gen_ai.completion.0.content")
    names += ("gen_ai.input.messages", "gen_ai.output.messages", "gen_ai.tool.call.result")
    names += ("gen_ai.retrieval.documents", "langfuse.observation.input", "gen_ai.prompt")
    names += ("langfuse.observation.output", "gen_ai.completion", "mlflow.spanInputs")
    names += ("mlflow.spanOutputs", "haystack.component.input", "haystack.component.output")
    names += ("rag.question", "rag.contexts", "rag.answer", *VERCEL, "ai.toolCall.result")
    marks: list[Mapping[str, Any]] = [
        {"openinference.span.kind": kind} for kind in ("LLM", "TOOL", "CHAIN", "RETRIEVER", value)
    ]
    marks += [{"traceloop.span.kind": kind} for kind in ("workflow", "tool", value)]
    marks += [{"gen_ai.operation.name": kind} for kind in ("chat", "execute_tool", "retrieval")]
    marks += [{"langfuse.observation.type": kind} for kind in ("generation", "retriever", "tool")]
    marks += [{"langsmith.span.kind": "llm"}, {"mlflow.spanType": "RETRIEVER"}]
    marks += [{"ai.operationId": "ai.toolCall"}, {"evaluations.0.evaluation.name": value}]
    marks += [{"haystack.component.type": kind} for kind in ("OpenAIGenerator", "Agent", value)]
    scopes = ["strands.telemetry.tracer", "llamaindex.opentelemetry.tracer"]
    frameworks = ("autogen_agentchat", "crewai", "dspy", "google_adk", "haystack")
    frameworks += ("llama_index", "smolagents")
    scopes += [f"openinference.instrumentation.{name}" for name in frameworks]
    both = [("somebody", mark) for mark in marks]
    both += [(scope, mark) for scope in scopes for mark in (*marks[:3], marks[8], marks[9])]
    events = ("gen_ai.choice", "gen_ai.user.message", "RetrievalEndEvent", "LLMChatEndEvent")
    about = {"content": value, "message": value, "nodes": value, "messages": value}
    return [
        View(
            name="haystack.component.run",
            scope=scope,
            attributes={**dict.fromkeys(names, value), **mark},
            events=[(name, about) for name in events],
            logs=[LogView(event="gen_ai.choice", body=value)],
            links=[value],
        )
        for scope, mark in both
    ]


@pytest.mark.parametrize("name", ODD)
def test_no_value_breaks_a_convention(name: str) -> None:
    """Every convention reads every value, and tells nothing that is not a plain string."""
    for view in spans_with(ODD[name]):
        step = read(view)
        assert step.kind == kind_of(view)
        assert isinstance(holds_documents(view) or shows_documents(view) or is_flat(view), bool)
        texts = [step.input, step.output, *step.prompt, *(p.text for p in step.documents or ())]
        assert {type(text) for text in texts} <= {str, type(None)}


def test_every_convention_is_tried() -> None:
    """The spans of these tests are of every convention there is, but of databases."""
    read_by = {convention_of(view) for view in spans_with("x")}
    assert {convention.name for convention in CONVENTIONS} - read_by == {"vectordb"}


def test_recordings() -> None:
    """The spans of recorded applications are read as they were."""
    assert misread() == []


def test_the_question_of_a_pipeline() -> None:
    """Components that got different ones leave it open."""
    for inputs, question in (
        ({}, None),
        ({"query": "q"}, "q"),
        ({"data": {"a": {"query": "q"}, "b": {"query": "q"}}}, "q"),
        ({"a": {"query": "q"}, "b": {"query": "other"}}, None),
        ({"a": {"messages": [{"role": "user", "content": "q"}]}, "b": 7}, "q"),
    ):
        assert haystack.query_of(inputs) == question


def test_the_answer_of_a_pipeline() -> None:
    """That of an answer builder goes first; several leave it open."""
    for outputs, answer in (
        ({"model": {"replies": ["a"]}, "count": 7}, "a"),
        ({"model": {"replies": ["a"]}, "other": {"replies": ["b"]}}, None),
        ({"model": {"replies": ["b"]}, "builder": {"answers": [{"data": "a"}]}}, "a"),
    ):
        assert haystack.answer_of_components(outputs) == answer
