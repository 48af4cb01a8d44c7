"""Texts, messages and data are read out of what applications pass around, and never guessed."""

from collections import OrderedDict
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.documents import Document
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage

from plain_views import Role
from rag_eval_otel.capture.langchain import note
from rag_eval_otel.capture.values import (
    CUT,
    HIDDEN,
    Messages,
    answer_in,
    bare,
    data_in,
    has_gaps,
    messages_in,
    numbered,
    plain,
    question_in,
    read,
    usable,
)
from recordings import misread

TEXTS: list[str | dict[str, object]] = [{"type": "text", "text": "a"}]
BLOCKS = [*TEXTS, "b", {"type": "image"}, {"text": None}, {"text": "c", "thought": True}, 7]
CHAT = [SystemMessage("s"), HumanMessage("q1"), AIMessage("a1"), HumanMessage("q2")]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("q", "q"),
        ("", ""),
        ({"question": "q", "input": "i"}, "q"),
        ({"input": "i", "question": None}, "i"),
        ({"other": "x"}, None),
        ({"input": {"other": "x"}, "query": "q"}, "q"),
        ({"input": CHAT}, "q2"),
        ({"messages": tuple(CHAT)}, "q2"),
        ({"messages": "x"}, None),
        ({"messages": [{"role": "user", "content": "q"}, {"role": "tool", "content": "t"}]}, "q"),
        ({"messages": [{"role": "user", "content": BLOCKS}]}, "ab"),
        ({"messages": [{"type": "human", "content": "q"}]}, "q"),
        (OrderedDict(query="q"), "q"),
        (CHAT, "q2"),
        (CHAT[:1], None),
        ([("human", "q")], "q"),
        (["x", "y"], None),
        (HumanMessage(content=[*TEXTS, "b"]), "ab"),
        (AIMessage("a"), None),
        (Document("x"), None),
        (7, None),
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
        ({"output": '{"answer": "a"}'}, "a"),
        ({"output": "{'answer': 'a'}"}, "a"),
        ({"question": "q"}, None),
        (AIMessage("a"), "a"),
        (AIMessage([{"type": "text", "text": "a"}, {"type": "tool_use"}]), "a"),
        (HumanMessage("q"), None),
        ({"messages": CHAT}, None),
        ({"messages": [*CHAT, AIMessage("a2")]}, "a2"),
        ({"messages": [*CHAT, AIMessage("a2"), ToolMessage("t", tool_call_id="1")]}, "a2"),
    ],
)
def test_answers(value: object, expected: str | None) -> None:
    """An answer is a string, the assistant's last message, or under one of the usual keys."""
    assert answer_in(plain(note(value))) == expected


def test_questions_below_other_questions() -> None:
    """Twenty levels of names are read."""
    data: list[Any] = ["q"]
    for _ in range(21):
        data.append({"input": data[-1]})
    assert [question_in(one) for one in data[-2:]] == ["q", None]


ODD = ["<b>", 'it\'s <a> "b"', "\\'", "<f at 0x1>", "x={'a': 1}"]
WORDS = st.text() | st.sampled_from([*ODD, "question", "answer", "messages", "role", "user"])
SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, width=16)
DATA = st.recursive(
    SCALARS.filter(lambda one: one not in {float("inf"), float("-inf")}) | WORDS,
    lambda inner: st.lists(inner) | st.dictionaries(WORDS, inner),
    max_leaves=20,
)


@given(DATA)
def test_any_data_is_read(data: Any) -> None:
    """From its repr it comes back as it was, whatever is in its texts; it has a text, or none."""
    assert data_in(repr(data)) == data
    assert isinstance(question_in(plain(data)), str | None)
    assert isinstance(answer_in(plain(data)), str | None)


@pytest.mark.parametrize("thing", [print, [].append, object(), lambda: None, Role])
def test_what_is_no_data_is_nothing(thing: object) -> None:
    """Functions, classes and objects leave a gap, and what is around them stays."""
    found = data_in(repr({"callback": thing, "text": "hello"}))
    assert found == {"callback": None, "text": "hello"}


@pytest.mark.parametrize("text", ["", "{'a': 'b", "{'a'", "1 + 1", "open", "(" * 999, "\0", "-'a'"])
def test_broken_reprs_are_nothing(text: str) -> None:
    """What was cut, or is no repr, is not guessed at."""
    assert data_in(text) is None


def test_long_reprs_are_nothing() -> None:
    """Ten thousand parts are read, such as commas and brackets."""
    assert data_in(f"[{'0,' * 9_999}]") == [0] * 9_999
    assert data_in(f"[{'0,' * 10_000}]") is None


@pytest.mark.parametrize(
    ("raw", "limit", "expected"),
    [
        ("[REDACTED]", None, HIDDEN),
        *((marker, None, HIDDEN) for marker in ("<masked>", "REDACTED", "***", "[ redacted ]")),
        *((text, None, text) for text in ("masked", "Nothing was hidden.", "<b>removed</b> it")),
        ("a" * 9, 10, "a" * 9),
        ("a" * 10, 10, CUT),
        ('{"a": [1.5], "b": "c"}', None, {"a": [], "b": "c"}),
        ('{"a": 1}', 8, {"a": 1}),
        ('{"a": 1', None, CUT),
        ('["a", "b', None, CUT),
        ("{not JSON}", None, "{not JSON}"),
        ("All of it ... [truncated]", None, CUT),
        ("All of it [truncated]", None, "All of it [truncated]"),
        ([("user", "q")], None, [{"role": "user", "content": "q", "tool_calls": False}]),
        (7, None, 7),
    ],
)
def test_values_of_attributes(raw: object, limit: int | None, expected: object) -> None:
    """JSON is parsed; what was redacted or cut has a mark of its own in place of a text."""
    assert read(raw, limit=limit) == expected


@pytest.mark.parametrize(
    ("text", "is_text"),
    [
        ("null", False),
        (" {} ", False),
        ("<generator object rag at 0x7f>", False),
        ("ChatMessage(_role='user')", False),
        ("StopEvent(result=AgentOutput(response=...", False),
        ("SerializationIterator(gen)", False),
        ("<openai.Stream object at 0x7f>", False),
        ("<generator object>\n is what it prints", True),
        ("He said (twice) no", True),
    ],
)
def test_reprs_and_empty_values_are_no_texts(text: str, *, is_text: bool) -> None:
    """What Python prints of an object is not what it says."""
    assert usable(text) == (text if is_text else None)


RESULT = {"id": "1", "name": None, "text": "found"}


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        (
            {"type": "AIMessageChunk", "content": "a", "tool_calls": [{"id": "1", "name": "s"}]},
            {"role": "assistant", "content": "a", "called": {"1": "s"}},
        ),
        (
            {"role": "model", "content": [{"toolUse": {"toolUseId": "1", "name": "s"}}]},
            {"role": "assistant", "content": "", "called": {"1": "s"}},
        ),
        (
            {"role": "assistant", "content": [{"tool_name": "s", "arguments": {}, "id": "1"}]},
            {"role": "assistant", "content": "", "called": {"1": "s"}},
        ),
        (
            {"role": "user", "content": [{"type": "tool_result", "id": "1", "content": "found"}]},
            {"role": "tool", "content": "found", "results": [RESULT]},
        ),
        (
            {
                "role": "user",
                "parts": [{"toolResult": {"toolUseId": "1", "content": [{"text": "found"}]}}],
            },
            {"role": "tool", "content": "found", "results": [RESULT]},
        ),
        (
            {"role": "function", "name": "s", "tool_call_id": "1", "content": "found"},
            {
                "role": "tool",
                "content": "found",
                "results": [{**RESULT, "name": "s", "artifact": None}],
            },
        ),
        (
            {"lc": 1, "id": ["x", "HumanMessage"], "kwargs": {"content": "q"}},
            {"role": "user", "content": "q"},
        ),
        ({"type": "human", "data": {"content": "q"}}, {"role": "user", "content": "q"}),
    ],
)
def test_messages_of_frameworks(fields: dict[str, Any], expected: dict[str, Any]) -> None:
    """Role, text, calls and results of tools are found, whatever they are called."""
    found = plain(fields)
    assert {key: found.get(key) for key in expected} == expected
    assert messages_in([found]) == messages_in({"messages": [[found]]}) == [found]


def test_numbered_attributes() -> None:
    """They are in the order of their numbers; what is no member is left out."""
    attributes = {"d.10.a": 1, "d.2.a": 2, "d.2.b.c": 3, "d.x.a": 4, "d.3": 5, "e.1.a": 6}
    found = list(numbered(attributes, "d"))
    assert found == [(2, {"a": 2, "b.c": 3}), (10, {"a": 1})]
    assert has_gaps(number for number, _ in found)
    assert not has_gaps(range(3))


PAGE = "Opening: 7 to 22, on Sundays 9 to 18; closed on holidays."


@pytest.mark.parametrize(
    ("text", "shown", "expected"),
    [
        ("b c", ["a", "a  b c"], (1, 3)),
        ("b  c", ["a", "a  b\nc"], (1, 2)),
        ('b "c"', ['a b \\"c\\"'], (0, 2)),
        ("é\n", ["a \\u00e9\\n"], (0, 2)),
        ("é\n", ["a é\\n"], (0, 2)),
        (" ", ["a  b"], None),
        ("c", ["a"], None),
    ],
)
def test_the_place_of_a_text(text: str, shown: list[str], expected: object) -> None:
    """A text is found as it is, escaped, or with other white space."""
    assert Messages(shown).find(text) == expected


def test_the_place_of_parts() -> None:
    """A text whose letters are in a message is found there, but not by what others share."""
    messages = Messages(["Hello", f"* {PAGE.upper()} *", PAGE])
    assert messages.size == 5 + 2 * len(bare(PAGE))
    assert messages.place("Sundays") == (2, len(bare("Opening: 7 to 22, on")))
    assert messages.places_of_parts([PAGE, "Short."], []) == {PAGE: (1, 0)}
    assert messages.places_of_parts([PAGE], [PAGE]) == {}
    letters = "abcdefghijklmnopqrstuvwxyz0123456789"
    of_last = Messages([letters[-24:]]).places_of_parts
    assert (of_last([letters], []), of_last([letters[:-1]], [])) == ({letters: (0, 0)}, {})


def test_texts_within_others() -> None:
    """A part of a longer text has lines of its own; one without words is found nowhere."""
    shown = Messages([f"Bees.\n{'-' * 100_000}x", "Bees. Wax.\n* Bees."], first=1)
    places = {"Bees. Wax.": (1, 0), "Bees.": (1, 11)}
    assert shown.places_apart(["Bees.", "Bees. Wax.", "."]) == places


def test_recordings() -> None:
    """The spans of recorded applications are read as they were."""
    assert misread() == []
