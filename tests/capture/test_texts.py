"""Questions and answers are read out of whatever applications pass around, and never guessed."""

from collections import OrderedDict
from dataclasses import dataclass
from types import MappingProxyType, SimpleNamespace
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.documents import Document
from langchain_core.messages import (
    AIMessage,
    AIMessageChunk,
    HumanMessage,
    SystemMessage,
    ToolMessage,
)
from pydantic import BaseModel

from rag_eval_otel.capture.langchain import note
from rag_eval_otel.capture.values import answer_in, plain, question_in

TEXTS: list[str | dict[str, object]] = [{"type": "text", "text": "a"}]
BLOCKS = [*TEXTS, "b", {"type": "image"}, {"text": None}, 7]
CHAT = [SystemMessage("s"), HumanMessage("q1"), AIMessage("a1"), HumanMessage("q2")]


class Form(BaseModel):
    """A pydantic model with an answer."""

    answer: str


class LongForm(Form):
    """One that inherits it, and adds nothing."""


@dataclass
class State:
    """A dataclass with a question and an answer."""

    question: str
    result: object = None


class Child(State):
    """One that inherits them."""


class Row(NamedTuple):
    """A tuple of texts."""

    question: str
    answer: str


class Plain:
    """An object of no known make."""

    def __init__(self) -> None:
        self.question, self.answer = "q", "a"


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("q", "q"),
        ("", ""),
        ({"question": "q", "input": "i"}, "q"),
        ({"input": "i", "question": None}, "i"),
        ({"other": "x"}, None),
        ({"input": {"query": "q"}}, "q"),
        ({"input": {"other": "x"}, "query": "q"}, "q"),
        ({"question": 5, "query": "q"}, "q"),
        ({"input": CHAT}, "q2"),
        ({"input": HumanMessage("q")}, "q"),
        ({"messages": CHAT}, "q2"),
        ({"messages": tuple(CHAT)}, "q2"),
        ({"messages": "x"}, None),
        ({"messages": [("user", "q"), ("assistant", "a")]}, "q"),
        ({"messages": [{"role": "user", "content": "q"}, {"role": "tool", "content": "t"}]}, "q"),
        ({"messages": [{"role": "user", "content": BLOCKS}]}, "ab"),
        ({"messages": [{"type": "human", "content": "q"}]}, "q"),
        ({"messages": []}, None),
        (OrderedDict(query="q"), "q"),
        (MappingProxyType({"query": "q"}), "q"),
        (CHAT, "q2"),
        (CHAT[:1], None),
        ([("human", "q")], "q"),
        ([], None),
        (["x", "y"], None),
        (HumanMessage("q"), "q"),
        (HumanMessage(content=[*TEXTS, "b"]), "ab"),
        (AIMessage("a"), None),
        (State(question="q"), "q"),
        (Child(question="q"), "q"),
        (Row("q", "a"), None),
        (Plain(), None),
        (SimpleNamespace(question="q"), None),
        (Document("x"), None),
        (None, None),
        (7, None),
        (b"q", None),
        (object(), None),
        (State, None),
        ({1, 2}, None),
    ],
)
def test_questions(value: object, expected: str | None) -> None:
    """A question is a string, the last of the user's messages, or under one of the usual keys."""
    assert question_in(plain(note(value))) == expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("a", "a"),
        ({"answer": "a", "result": "r"}, "a"),
        ({"result": "r"}, "r"),
        ({"generation": AIMessage("a")}, "a"),
        ({"output": {"output_text": "t"}}, "t"),
        ({"question": "q"}, None),
        (AIMessage("a"), "a"),
        (AIMessageChunk(content="a"), "a"),
        (AIMessage([{"type": "text", "text": "a"}, {"type": "tool_use"}]), "a"),
        (HumanMessage("q"), None),
        ({"messages": [*CHAT, AIMessage("a2")]}, "a2"),
        ({"messages": [*CHAT, AIMessage("a2"), ToolMessage("t", tool_call_id="1")]}, "a2"),
        (Form(answer="a"), "a"),
        (LongForm(answer="a"), "a"),
        (State(question="q", result=Form(answer="a")), "a"),
        (Plain(), None),
        (None, None),
    ],
)
def test_answers(value: object, expected: str | None) -> None:
    """An answer is a string, the assistant's last message, or under one of the usual keys."""
    assert answer_in(plain(note(value))) == expected


def test_an_answer_to_an_earlier_question_is_none() -> None:
    """A chat that ends with the user has no answer yet, whatever was said before."""
    chat = plain(note(CHAT))
    assert answer_in({"messages": chat}) is None


VALUES = st.recursive(
    st.none() | st.integers() | st.text(max_size=3) | st.just(HumanMessage("q")),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=2).map(tuple)
        | st.dictionaries(st.sampled_from(["question", "answer", "messages", "role"]), inner)
    ),
    max_leaves=8,
)


@given(VALUES)
def test_any_value_gives_a_text_or_none(value: object) -> None:
    """Whatever applications pass around, reading it does not fail."""
    data = plain(note(value))
    assert isinstance(question_in(data), str | None)
    assert isinstance(answer_in(data), str | None)
