"""What is noted of an event: data that nobody changes any more, whatever the application does."""

from collections import UserDict
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType
from typing import Any

import numpy as np
import pandas as pd
import pytest
from langchain_core.documents import Document
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage
from pydantic import BaseModel

from recording import ANSWER, PAGE, QUESTION, Events, Spiteful, capture, generated

TURN = [(QUESTION, (PAGE,), ANSWER)]
BIG = "kites and sails " * 655_360  # 10 MB


def test_containers_that_are_changed() -> None:
    """A state that a graph goes on to fill, and a list of documents that is cleared."""
    sent = Events(capture())
    state: dict[str, Any] = {"question": QUESTION, "history": ["before"]}
    documents = [Document(PAGE)]
    sent.start(state)
    sent.retrieve(documents)
    state["question"] = "Something else?"
    state["history"].append("later")
    documents.clear()
    sent.ask()
    sent.answer()
    assert sent.end().truths == TURN


def test_messages_that_are_changed() -> None:
    """The list, a message in it, and the parts of its content."""
    sent = Events(capture())
    parts = [{"type": "text", "text": PAGE}]
    messages: list[Any] = [SystemMessage(parts), HumanMessage(QUESTION)]
    said = AIMessage(ANSWER)
    sent.start({"messages": messages})
    sent.retrieve()
    sent.ask([messages])
    parts[0]["text"] = messages[1].content = "changed"
    messages.clear()
    sent.answer(generated(said))
    outputs = {"messages": [HumanMessage(QUESTION), said]}
    root = sent.captured.recorder.runs[sent.root.int]
    captured = sent.end(outputs)
    said.content = "changed"
    assert captured.truths == TURN
    assert ANSWER in str(root.told)


def test_documents_that_are_changed() -> None:
    """Text, id and metadata, as rerankers and compressors change them."""
    sent = Events(capture())
    document = Document(PAGE, id="d1", metadata={"source": "a", "nested": {"score": 1}})
    sent.start()
    sent.retrieve([document])
    document.page_content, document.id = "changed", "changed"
    document.metadata.clear()
    sent.ask()
    sent.answer()
    captured = sent.end()
    assert captured.truths == TURN
    assert captured.samples[0].retrieved_ids == ("d1",)


class Tone(Enum):
    """How to answer."""

    KIND = "kind"


class Words(str, Enum):  # as applications write it
    """A text that is a member of an enumeration."""

    ASKED = QUESTION


@dataclass
class State:
    """The state of a graph, as a dataclass."""

    question: str
    tone: Tone = Tone.KIND
    me: Any = None


class Record(BaseModel):
    """The state of a graph, as a pydantic model."""

    question: str
    tone: Tone = Tone.KIND


class Text(str):
    """A text of a class of its own."""

    __slots__ = ()


def circular() -> dict[str, Any]:
    found: dict[str, Any] = {"question": QUESTION, "list": []}
    found["me"] = found
    found["list"].append(found["list"])
    return found


def deep() -> dict[str, Any]:
    nested: list[Any] = []
    for _ in range(100_000):
        nested = [nested]
    return {"question": QUESTION, "nested": nested}


INPUTS: dict[str, Any] = {
    "an enumeration": {"question": QUESTION, "tone": Tone.KIND, Tone.KIND: 1},
    "a text that is an enumeration": {"question": Words.ASKED},
    "a text of its own class": Text(QUESTION),
    "a dataclass": State(QUESTION),
    "a pydantic model": Record(question=QUESTION),
    "bytes": {"question": QUESTION, "image": b"\xff\x00" * 1000},
    "numpy": {"question": QUESTION, "vector": np.ones(1000), "score": np.float32(1)},
    "a numpy text": {"question": np.str_(QUESTION)},
    "pandas": {"question": QUESTION, "table": pd.DataFrame({"a": [1]}), "row": pd.Series([1])},
    "a circle": circular(),
    "a state in a circle": State(QUESTION, me=circular()),
    "depth": deep(),
    "a mapping of another kind": MappingProxyType({"question": QUESTION}),
    "a user's dict": UserDict({"question": QUESTION}),
    "a long list": {"question": QUESTION, "numbers": list(range(1_000_000))},
    "10 MB beside": {"question": QUESTION, "file": BIG},
    "a lone surrogate": {"question": QUESTION, "half": "\ud800"},
    "not a number": {"question": QUESTION, "score": float("nan")},
}


@pytest.mark.parametrize("inputs", INPUTS.values(), ids=INPUTS)
def test_inputs_of_every_kind(inputs: Any) -> None:
    """The question is found beside whatever else there is; nothing fails."""
    captured = Events(capture()).turn(inputs=inputs)
    assert captured.truths == TURN
    assert captured.errors == []
    assert len(captured.spans) == 3


@pytest.mark.parametrize(
    "documents",
    [
        pd.DataFrame({"page_content": [PAGE]}),
        np.array([PAGE]),
        [None],
        [{"page_content": None}],
        [Document("")],
        [Tone.KIND],
        "not a list",
        PAGE,
        5,
    ],
    ids=str,
)
def test_documents_of_every_kind(documents: Any) -> None:
    """Documents without a text, or things that are none, are no reason to fail or to guess."""
    sent = Events(capture(raise_errors=False))
    sent.start()
    sent.retrieve(documents)
    sent.ask()
    sent.answer()
    captured = sent.end()
    assert len(captured.spans) == 3
    assert len(captured.samples) + len(captured.reasons) == 1
    assert all(contexts in {(), ("",), (PAGE,)} for _, contexts, _ in captured.truths)


def test_values_that_resist_cost_their_event() -> None:
    """A value that raises when it is looked at is counted; its run ends all the same."""
    sent = Events(capture(raise_errors=False))
    sent.start({"question": QUESTION, "odd": Spiteful()})
    sent.retrieve()
    sent.ask()
    sent.answer()
    captured = sent.end()
    assert len(captured.recorder) == 0
    assert set(captured.errors) == {"callback"}
