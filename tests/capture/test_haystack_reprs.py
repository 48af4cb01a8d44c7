"""OpenInference over Haystack: what its spans hold live, that is members of Enums and reprs."""

import json
from enum import Enum
from typing import Any

import pytest

from plain_views import View
from rag_eval_otel.capture.conventions import kind_of, read
from rag_eval_otel.capture.span import Span

QUESTION, ANSWER = "When was it founded?", "It's from 1987."
SHORT = "Acme's founder is Wile E. Coyote."
LONG = "Acme was founded in 1987. " * 8


class ChatRole(str, Enum):
    """Haystack's roles."""

    USER = "user"
    ASSISTANT = "assistant"
    TOOL = "tool"


def span(name: str, kind: str = "CHAIN", *, asked: Any, told: Any, **more: Any) -> Span:
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


def test_a_pipeline_tells_question_and_answer() -> None:
    """The question is what all components were asked, the answer the text of the reply."""
    asked = {"data": {"bm25": {"query": QUESTION}, "prompt": {"question": QUESTION}}}
    step = read(span("Pipeline.run", asked=asked, told={"llm": {"replies": [SAID]}}))
    assert (step.kind, step.input, step.output) == ("chain", QUESTION, ANSWER)


def test_a_built_answer_is_the_answer() -> None:
    """What `AnswerBuilder` made is what the application reads, with documents beside it."""
    built = f"GeneratedAnswer(data={ANSWER!r}, query={QUESTION!r}, documents=[{document(SHORT)}])"
    told = {"builder": {"answers": [built]}, "llm": {"replies": [message("assistant", "None")]}}
    step = read(span("Pipeline.run", asked={"data": {"query": QUESTION}}, told=told))
    assert step.output == ANSWER


@pytest.mark.parametrize("name", ["SerperSearch.run", "MyRetriever.run"])
def test_what_makes_documents_of_a_query_retrieves(name: str) -> None:
    """A component of the application's own is a retrieval, by its name or by what it makes."""
    view = span(name, asked={"query": QUESTION}, told={"documents": [document(SHORT)]})
    step = read(view)
    assert kind_of(view) == step.kind == "retriever"
    assert [(p.text, p.id) for p in step.documents or ()] == [(SHORT, "a1b2")]


def test_a_cut_document_is_not_taken_for_a_whole_one() -> None:
    """Where a text is over a hundred characters, its beginning is no context."""
    listed = [document(SHORT), document(LONG)]
    step = read(span("MyRetriever.run", asked={"query": QUESTION}, told={"documents": listed}))
    assert (step.documents, step.cut) == (None, {"documents"})


def test_a_component_that_hands_documents_on_tells_which() -> None:
    """Of what a filter kept the ids are known."""
    listed = [document(LONG, name="x"), document(SHORT, name="y")]
    step = read(span("Keep.run", asked={"documents": listed}, told={"documents": listed[1:]}))
    assert (step.kind, step.kept_ids) == ("chain", ("y",))


def test_windows_are_what_was_found() -> None:
    """A retriever of windows tells them in full, unlike the documents they are of."""
    told = {"context_windows": [LONG], "context_documents": [document(LONG)]}
    step = read(span("SentenceWindowRetriever.run", asked={"retrieved_documents": []}, told=told))
    assert step.kind == "reranker"
    assert [p.text for p in step.documents or ()] == [LONG]


def test_results_of_tools_are_in_the_reprs_alone() -> None:
    """A model was shown what a tool said, though its messages leave that out."""
    messages = [message("user", f"TextContent(text={QUESTION!r})"), RESULT]
    shown = "llm.input_messages"
    view = span(
        "OpenAIChatGenerator.run",
        "LLM",
        asked={"messages": messages},
        told={"replies": [SAID]},
        **{
            f"{shown}.0.message.role": ChatRole.USER,
            f"{shown}.0.message.content": QUESTION,
            f"{shown}.1.message.role": ChatRole.TOOL,
            "llm.output_messages.0.message.role": ChatRole.ASSISTANT,
            "llm.output_messages.0.message.content": ANSWER,
        },
    )
    step = read(view)
    assert (step.input, step.output) == (QUESTION, ANSWER)
    assert [one.text for one in step.tool_results] == [SHORT]
