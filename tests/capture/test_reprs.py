"""What can be read of a repr is what it is the repr of."""

from dataclasses import dataclass
from enum import Enum
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rag_eval_otel.capture.values import data_in

TEXTS = st.text() | st.sampled_from(["<b>", 'it\'s <a> "b"', "\\'", "<f at 0x1>", "x={'a': 1}"])
DATA = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXTS,
    lambda inner: st.lists(inner) | st.dictionaries(TEXTS, inner),
    max_leaves=20,
)


class Role(Enum):
    """Who speaks."""

    USER = "user"


@dataclass
class Message:
    """What was said."""

    _role: Role
    _content: list[Any]


@given(DATA)
def test_data_is_read_back(data: Any) -> None:
    """Plain data comes back as it was, whatever is in its texts."""
    assert data_in(repr(data)) == data


def test_records_are_dicts_and_members_their_values() -> None:
    """A dataclass is read by its fields, a member of an enum by its value."""
    said = Message(_role=Role.USER, _content=["<hello>"])
    assert data_in(repr([said])) == [{"_role": "user", "_content": ["<hello>"]}]


@pytest.mark.parametrize("thing", [print, [].append, object(), lambda: None, Role, dataclass])
def test_what_is_no_data_is_nothing(thing: object) -> None:
    """Functions, classes and objects leave a gap, and what is around them stays."""
    assert data_in(repr({"callback": thing, "text": "hello"})) == {
        "callback": None,
        "text": "hello",
    }


@pytest.mark.parametrize("text", ["", "{'a': 'b", "{'a'", "1 + 1", "open", "(" * 999, "\0", "-'a'"])
def test_broken_reprs_are_nothing(text: str) -> None:
    """What was cut, or is no repr, is not guessed at."""
    assert data_in(text) is None
