"""Each convention is read for what it says, and whatever is wrong with a span nothing raises."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.sdk.trace import SpanLimits, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import Status, StatusCode

from rag_eval_otel.capture.conventions import (
    CONVENTIONS,
    convention_of,
    kind_of,
    load,
    read,
)
from rag_eval_otel.capture.conventions.convention import Convention
from rag_eval_otel.capture.span import LogView, Span
from rag_eval_otel.errors import ConfigError
from rag_eval_otel.registry import Registry
from rag_eval_otel.types import Passage
from steps import outcomes_of

ASKED, TOLD = "When was it founded?", "It was founded in 1949, says the book."
PAGE = "The house was founded in 1949."
REDACTED = "__REDACTED__"
OI = "openinference.span.kind"


def span(
    attributes: Mapping[str, Any],
    *,
    name: str = "step",
    scope: str = "",
    events: Sequence[tuple[str, Mapping[str, Any]]] = (),
    logs: Sequence[LogView] = (),
    dropped: int = 0,
    limit: int | None = None,
    number: int = 1,
    parent: int | None = None,
) -> Span:
    return Span(
        name=name,
        scope=scope,
        trace_id=1,
        span_id=number,
        parent_id=parent,
        parent_is_remote=False,
        start=number,
        end=1000 - number if parent is None else number,
        error=None,
        dropped=dropped,
        value_limit=limit,
        attributes=attributes,
        events=events,
        logs=logs,
    )


RETRIEVALS = {
    "openinference": span(
        {OI: "RETRIEVER", "input.value": ASKED, "retrieval.documents.0.document.content": PAGE}
    ),
    "langfuse": span(
        {
            "langfuse.observation.type": "retriever",
            "langfuse.observation.input": json.dumps({"args": [ASKED], "kwargs": {}}),
            "langfuse.observation.output": json.dumps([{"content": PAGE}]),
        }
    ),
    "langsmith": span(
        {
            "langsmith.span.kind": "retriever",
            "gen_ai.prompt": json.dumps({"query": ASKED}),
            "gen_ai.completion": json.dumps({"output": [{"page_content": PAGE}]}),
        }
    ),
    "mlflow": span(
        {
            "mlflow.spanType": '"RETRIEVER"',
            "mlflow.spanInputs": json.dumps({"query": ASKED}),
            "mlflow.spanOutputs": json.dumps([{"page_content": PAGE}]),
        }
    ),
    "haystack": span(
        {
            "haystack.component.type": "InMemoryBM25Retriever",
            "haystack.component.input": json.dumps({"query": ASKED}),
            "haystack.component.output": json.dumps({"documents": [{"content": PAGE}]}),
        },
        name="haystack.component.run",
    ),
    "llamaindex": span(
        {},
        scope="llamaindex.opentelemetry.tracer",
        events=[
            ("RetrievalStartEvent", {"str_or_query_bundle.query_str": ASKED}),
            ("RetrievalEndEvent", {"nodes": json.dumps([{"node": {"text": PAGE}}])}),
        ],
    ),
    "traceloop": span(
        {
            "traceloop.span.kind": "task",
            "gen_ai.operation.name": "vector_db_retrieve",
            "traceloop.entity.input": json.dumps({"query": ASKED}),
            "traceloop.entity.output": json.dumps({"documents": [{"page_content": PAGE}]}),
        }
    ),
    "genai": span(
        {
            "gen_ai.operation.name": "retrieval",
            "gen_ai.retrieval.query.text": ASKED,
            "gen_ai.retrieval.documents": json.dumps([{"id": None, "content": PAGE}]),
        }
    ),
}
MESSAGES = [{"role": "user", "parts": [{"type": "text", "content": ASKED}]}]
SAID = [{"role": "assistant", "parts": [{"type": "text", "content": TOLD}]}]
CALLS = {
    "openinference": span(
        {
            OI: "LLM",
            "llm.input_messages.0.message.role": "user",
            "llm.input_messages.0.message.contents.0.message_content.text": ASKED,
            "llm.output_messages.0.message.content": TOLD,
        }
    ),
    "langfuse": span(
        {
            "langfuse.observation.type": "generation",
            "langfuse.observation.input": json.dumps([{"role": "user", "content": ASKED}]),
            "langfuse.observation.output": json.dumps({"role": "assistant", "content": TOLD}),
        }
    ),
    "langsmith": span(
        {
            "langsmith.span.kind": "llm",
            "gen_ai.prompt": json.dumps({"messages": [[{"type": "human", "content": ASKED}]]}),
            "gen_ai.completion": json.dumps({"generations": [[{"text": TOLD}]]}),
        }
    ),
    "mlflow": span(
        {
            "mlflow.spanType": '"CHAT_MODEL"',
            "mlflow.spanInputs": json.dumps({"messages": [{"role": "user", "content": ASKED}]}),
            "mlflow.spanOutputs": json.dumps({"choices": [{"message": SAID[0]}]}),
        }
    ),
    "haystack": span(
        {
            "haystack.component.type": "OpenAIChatGenerator",
            "haystack.component.input": json.dumps({"messages": MESSAGES}),
            "haystack.component.output": json.dumps({"replies": SAID}),
        },
        name="haystack.component.run",
    ),
    "llamaindex": span(
        {},
        scope="llamaindex.opentelemetry.tracer",
        events=[
            ("LLMChatStartEvent", {"messages": json.dumps(MESSAGES)}),
            (
                "LLMChatEndEvent",
                {"response.message.blocks": json.dumps([{"block_type": "text", "text": TOLD}])},
            ),
        ],
    ),
    "traceloop": span(
        {
            "llm.request.type": "chat",
            "gen_ai.prompt.0.role": "user",
            "gen_ai.prompt.0.content": ASKED,
            "gen_ai.completion.0.content": TOLD,
        }
    ),
    "genai": span(
        {
            "gen_ai.operation.name": "chat",
            "gen_ai.input.messages": json.dumps(MESSAGES),
            "gen_ai.output.messages": json.dumps(SAID),
        }
    ),
    "genai logs": span(
        {"gen_ai.operation.name": "chat"},
        logs=[
            LogView(event="gen_ai.user.message", body={"content": ASKED}),
            LogView(
                event="gen_ai.choice", body={"message": {"role": "assistant", "content": TOLD}}
            ),
        ],
    ),
    "genai details": span(
        {"gen_ai.operation.name": "chat"},
        logs=[
            LogView(
                event="gen_ai.client.inference.operation.details",
                attributes={"gen_ai.input.messages": MESSAGES, "gen_ai.output.messages": SAID},
            )
        ],
    ),
}


@pytest.mark.parametrize("name", RETRIEVALS)
def test_a_retrieval(name: str) -> None:
    """Query and documents are told, whoever wrote them down."""
    step = read(RETRIEVALS[name])
    assert convention_of(RETRIEVALS[name]) == name
    assert step.kind == kind_of(RETRIEVALS[name]) == "retriever"
    assert step.input == ASKED
    assert step.documents == (Passage(text=PAGE),)


@pytest.mark.parametrize("name", CALLS)
def test_a_call(name: str) -> None:
    """What an LLM was shown and what it said are told, whoever wrote them down."""
    step = read(CALLS[name])
    assert step.kind == kind_of(CALLS[name]) == "llm"
    assert step.input == ASKED
    assert step.prompt == (ASKED,)
    assert step.output == TOLD
    assert not step.calls_tools


def test_a_vector_database() -> None:
    """The results of a query are events. Without them a span is no retrieval."""
    result = {"db.query.result.id": "d1", "db.query.result.document": PAGE}
    found = span({"db.system": "chroma"}, events=[("db.query.result", result)])
    bare = span({"db.system": "qdrant", "db.operation": "query", "db.vector.query.top_k": 2})
    table = span({"db.system": "postgresql", "db.operation": "query"})
    assert read(found).documents == (Passage(text=PAGE, id="d1"),)
    assert [kind_of(bare), kind_of(table)] == ["other", "other"]


def test_a_call_that_said_nothing_was_left() -> None:
    """A span with a prompt and no word of the model was ended by whoever ended all of them."""
    asked = {"gen_ai.operation.name": "chat", "gen_ai.input.messages": ASKED}
    assert read(span(asked)).end is None
    assert read(span({**asked, "gen_ai.output.messages": "[]"})).end is not None


def test_a_haystack_pipeline_with_a_callback_in_its_inputs() -> None:
    """Where JSON fails Haystack writes a repr, whose data is the same."""
    inputs = {"embedder": {"text": ASKED}, "llm": {"streaming_callback": print}}
    component = {"haystack.component.type": "OpenAIChatGenerator"}
    said = "ChatMessage(_role=<ChatRole.USER: 'user'>, _content=[TextContent(text='Hi')])"
    shown = f"{{'messages': [{said}]}}"
    pipeline = read(
        span({"haystack.pipeline.input_data": repr(inputs)}, name="haystack.pipeline.run")
    )
    call = read(
        span({**component, "haystack.component.input": shown}, name="haystack.component.run")
    )
    assert pipeline.input == ASKED
    assert call.prompt == ("Hi",)


@pytest.mark.parametrize("marker", [REDACTED, "<masked>", "REDACTED", "***", "[ redacted ]"])
def test_what_is_hidden_is_not_there(marker: str) -> None:
    """A marker in place of a text says that it must not be looked for elsewhere."""
    step = read(span({OI: "CHAIN", "input.value": ASKED, "output.value": marker}))
    assert step.output is None
    assert step.hidden == {"output"}


@pytest.mark.parametrize("text", ["masked", "Nothing was hidden.", "<b>removed items</b> are back"])
def test_a_text_about_hiding_is_a_text(text: str) -> None:
    """Only what is nothing but a marker is one."""
    assert read(span({OI: "CHAIN", "output.value": text})).output == text


def test_hidden_documents() -> None:
    """Where one document is hidden all are; their output is not read in their place."""
    hidden = {
        OI: "RETRIEVER",
        "output.value": json.dumps({"documents": [{"page_content": PAGE}]}),
        "retrieval.documents.0.document.content": REDACTED,
    }
    assert read(span(hidden)).documents is None
    assert read(span(hidden)).hidden == {"documents"}


def test_a_cut_text() -> None:
    """At the limit of its length a text is cut, whether it was JSON or not."""
    plain = span({OI: "CHAIN", "output.value": TOLD[:20]}, limit=20)
    broken = span({OI: "CHAIN", "output.value": '{"answer": "It was'})
    assert read(plain).cut == read(broken).cut == {"output"}
    assert read(plain).output is read(broken).output is None


@pytest.mark.parametrize("first", [0, 3])
def test_dropped_documents(first: int) -> None:
    """The SDK drops the oldest attributes: the best documents are the first to go."""
    numbers = range(first, first + 2)
    contents = {f"retrieval.documents.{n}.document.content": f"page {n}" for n in numbers}
    step = read(span({OI: "RETRIEVER", **contents}, dropped=4))
    assert (step.documents is None) == (first > 0)
    assert ("documents" in step.cut) == (first > 0)


@pytest.mark.parametrize(
    "text",
    [
        "null",
        "<generator object rag at 0x7f>",
        "StopEvent(result=AgentOutput(response=...",
        "ChatMessage(_role='user')",
        "SerializationIterator(gen)",
        "<openai.Stream object at 0x7f>",
    ],
)
def test_a_repr_is_no_text(text: str) -> None:
    """What Python prints of an object is not what it says."""
    assert read(span({OI: "CHAIN", "output.value": text})).output is None


def test_a_span_of_the_sdk() -> None:
    """A real span is seen as it is, with the limit at which its values are cut."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider(span_limits=SpanLimits(max_span_attribute_length=50))
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    tracer = provider.get_tracer("somebody")
    with tracer.start_as_current_span("root"), tracer.start_as_current_span("inner") as inner:
        inner.set_attribute(OI, "CHAIN")
        inner.set_attribute("input.value", ASKED)
        inner.add_event("happened", {"a": 1})
        inner.set_status(Status(StatusCode.ERROR, "it broke"))
    child, root = (Span.from_sdk(one) for one in exporter.get_finished_spans())
    assert (child.name, child.scope, child.error) == ("inner", "somebody", "it broke")
    assert (child.trace_id, child.parent_id) == (root.trace_id, root.span_id)
    assert (root.parent_id, root.parent_is_remote, root.error) == (None, False, None)
    assert [(name, dict(attributes)) for name, attributes in child.events] == [
        ("happened", {"a": 1})
    ]
    assert (child.value_limit, child.dropped, tuple(child.logs)) == (50, 0, ())
    assert read(child).input == ASKED
    assert read(root).end is not None


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    "role",
                    "content",
                    "type",
                    "parts",
                    "documents",
                    "node",
                    "text",
                    "lc",
                    "kwargs",
                    "data",
                    "messages",
                    "args",
                    "inputs",
                    "tool_calls",
                    "message",
                    "id",
                ]
            ),
            inner,
            max_size=3,
        )
    ),
    max_leaves=8,
)
KNOWN = [*RETRIEVALS.values(), *CALLS.values()]


@pytest.mark.slow
@given(st.data())
def test_garbage_is_refused(data: st.DataObject) -> None:
    """Attributes of any type, JSON of any shape, cut or not: nothing raises."""
    spans = []
    for number, known in enumerate(data.draw(st.lists(st.sampled_from(KNOWN), max_size=4)), 1):
        values = JSON | JSON.map(json.dumps) | JSON.map(lambda v: json.dumps(v)[:-1])
        attributes = {k: data.draw(values | st.just(v)) for k, v in known.attributes.items()}
        events = [
            (n, {k: data.draw(values | st.just(v)) for k, v in a.items()}) for n, a in known.events
        ]
        parent = data.draw(st.none() | st.integers(1, 5))
        changed = span(
            attributes,
            name=known.name,
            scope=known.scope,
            events=events,
            number=number,
            parent=parent,
            dropped=data.draw(st.integers(0, 1)),
        )
        spans.append(changed)
    outcomes_of(spans)
    assert all(kind_of(one) == read(one).kind for one in spans)


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
