"""Read questions and answers out of plain data, and find a text again in a prompt.

*Plain data* are strings, numbers, lists and dicts. A chat message in plain data is a dict with a
role and a content.
"""

from __future__ import annotations

import html
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, TypeAlias

from rag_eval_otel.untrusted import normal_form


def place(text: str, messages: Sequence[str]) -> tuple[int, int] | None:
    """Return the index of the first message with ``text`` in it, and the offset of ``text`` there.

    See `Messages.find`.
    """
    return Messages(messages).find(text)


def normalised(text: str) -> str:
    """Return ``text`` without white space at its ends, and with single spaces between its words."""
    return " ".join(text.split())


def is_same(one: str | None, other: str | None) -> bool:
    """Return True if two texts are equal, regardless of case and white space, and not empty."""
    return bool(one and other) and (
        normalised(one or "").casefold() == normalised(other or "").casefold()
    )


def is_in(part: str, whole: str) -> bool:
    """Return True if ``part`` is in the text ``whole``, regardless of case and white space.

    Return False if ``part`` is empty.
    """
    return bool(part.strip()) and normalised(part).casefold() in normalised(whole).casefold()


@dataclass(frozen=True, slots=True)
class Keys:
    """The dict keys under which applications keep questions and answers.

    If a dict has several of these keys, the key that comes first in the tuple counts.
    """

    question: tuple[str, ...] = (
        "question",
        "input",
        "query",
        "user_input",
        "user_question",
        "prompt",
        "text",
        "str_or_query_bundle",
        "query_bundle",
        "query_str",
        "user_msg",
        "message",
        "user_prompt",
        "q",
    )
    answer: tuple[str, ...] = (
        "structured_response",
        "answer",
        "result",
        "output",
        "output_text",
        "response",
        "generation",
        "final_answer",
        "text",
        "message",
        "final_result",
        "completion",
        "reply",
        "value",
    )


USUAL: Final = Keys()
_USER_ROLES = frozenset({"human", "user"})
_ASSISTANT_ROLES = frozenset({"ai", "assistant", "AIMessageChunk"})
_MAX_MAPPINGS = 100  # the most nested mappings that are searched for a text


def question_of(data: object, keys: Keys = USUAL) -> str | None:
    """Return the question in plain ``data``, or None if there is none.

    If ``data`` is a string, the string is the question. If ``data`` is a dict, the question is the
    value of the first of the question keys in ``keys`` that the dict has. Otherwise the question is
    the last message of the user.
    """
    return _text_of(data, keys=keys.question, roles=_USER_ROLES, seen=set())


def answer_of(data: object, keys: Keys = USUAL) -> str | None:
    """Return the answer in plain ``data``, or None if there is none.

    If ``data`` is a string, the string is the answer. If ``data`` is a dict, the answer is the
    value of the first of the answer keys in ``keys`` that the dict has. Otherwise the answer is the
    last message of the model.
    """
    return _text_of(data, keys=keys.answer, roles=_ASSISTANT_ROLES, seen=set())


def _text_of(
    data: object, *, keys: Sequence[str], roles: frozenset[str], seen: set[int]
) -> str | None:
    if isinstance(data, str):
        return data
    if isinstance(data, list):
        return last_message(data, roles=roles)
    if isinstance(data, Mapping) and role_of(data) and "content" in data:
        return text_of_message(data) if role_of(data) in roles else None
    if not isinstance(data, Mapping) or id(data) in seen or len(seen) > _MAX_MAPPINGS:
        return None
    seen.add(id(data))
    found = (_text_of(data.get(key), keys=keys, roles=roles, seen=seen) for key in keys)
    text = next((one for one in found if one is not None), None)
    messages = data.get("messages")
    if text is None and isinstance(messages, list):
        return last_message(messages, roles=roles)
    return text


def last_message(messages: Sequence[object], *, roles: frozenset[str] = _USER_ROLES) -> str | None:
    """Return the text of the last message that was written by one of ``roles``, or None.

    If the user wrote a later message, return None, because the text belongs to an earlier question.
    """
    for message in reversed(messages):
        role = role_of(message)
        if role in roles:
            return text_of_message(message)
        if role in _USER_ROLES:
            return None
    return None


def role_of(message: object) -> str | None:
    """Return the role that wrote the chat message ``message``, or None if it is not a message."""
    role = message.get("role", message.get("type")) if isinstance(message, Mapping) else None
    return role if isinstance(role, str) else None


def text_of_message(message: object) -> str:
    """Return the text of a chat message. If its content is a list of blocks, join their texts."""
    content = message.get("content", "") if isinstance(message, Mapping) else ""
    if isinstance(content, str):
        return content
    blocks = content if isinstance(content, list) else []
    texts = (
        b if isinstance(b, str) else b.get("text")
        for b in blocks
        if isinstance(b, str) or (isinstance(b, Mapping) and not is_reasoning(b))
    )
    return "".join(str(text or "") for text in texts)


def is_reasoning(block: Mapping[Any, Any]) -> bool:
    """Return True if ``block``, a part of a chat message, has the model's thoughts as its text.

    An application does not show them to the user. Providers call them reasoning, thinking or
    thoughts.
    """
    kinds = (block.get(key) for key in ("type", "block_type", "part_kind"))
    named = any(
        mark in kind.lower()
        for kind in kinds
        if isinstance(kind, str)
        for mark in ("reason", "think", "thought")
    )
    return named or block.get("thought") is True  # Gemini marks a part that has another type


def json_in(text: object, *, opening: str = "") -> Any:
    """Parse ``text`` as JSON and return the value, or None if ``text`` is not JSON.

    ``opening`` is a string of characters. If it is not empty, ``text`` is only parsed if it begins
    with one of these characters.
    """
    if not isinstance(text, str) or not text.lstrip().startswith(tuple(opening) or ""):
        return None
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def exact(text: str) -> str:
    """Return ``text`` as an instance of `str` itself, not of a subclass such as a string Enum."""
    return text if type(text) is str else str.__str__(text)


def exportable(text: str) -> str:
    """Replace lone surrogates in ``text``, which would make the export of a batch of spans fail."""
    return text.encode("utf-8", "replace").decode("utf-8")


Place: TypeAlias = "tuple[int, int]"
"""A position in messages: the index of the message, and a number of letters and digits.

The number counts the letters and digits of the message before the position.
"""

_FEW = 16  # a text with fewer letters and digits must be there verbatim
_CHUNK = 24  # letters and digits in a row that two texts do not share by chance
_LAYERS = 3  # layers of escapes that are removed, as in JSON within JSON within a repr
_MOST = 0.6  # the fraction of its distinctive words that a reworded text keeps
_SEVERAL = 3  # the least number of distinctive words that a reworded text keeps

_UNESCAPED = re.compile(r"\\(?:u([0-9a-fA-F]{4})|[nrt]|(.))", re.DOTALL)
_NUMBER = re.compile(r"^(?:_|[^\w\n])*\d{1,3}[.):\]]\s", re.MULTILINE)  # the number of a list item
_NEITHER = re.compile(r"[\W_]+")
_WORD = re.compile(r"[^\W_]+")


def bare(text: str) -> str:
    """Return only the letters and digits of ``text``, in lower case.

    HTML entities and backslash escapes (as in JSON) are decoded first.
    """
    return _NEITHER.sub("", _plain(text))


def _unnumbered(text: str) -> str:
    """Return only the letters and digits of ``text``, without the numbers of list items."""
    return _NEITHER.sub("", _NUMBER.sub("", _plain(text)))


def words(text: str) -> frozenset[str]:
    """Return the words of ``text`` that have at least four letters, and the numbers in ``text``."""
    found = _WORD.findall(_plain(text))
    return frozenset(word for word in found if len(word) > 3 or not word.isalpha())  # noqa: PLR2004


def _plain(text: str) -> str:
    once = html.unescape(text)
    text = once if once == text else html.unescape(once)
    for _ in range(_LAYERS if "\\" in text else 0):
        text = _UNESCAPED.sub(_character, text)
    return normal_form(text).casefold()


def _character(found: re.Match[str]) -> str:
    if found[1] is not None:
        return chr(int(found[1], 16))
    return found[2] if found[2] is not None else "\n"


class Messages:
    """The texts of the messages that an LLM was shown, with methods to find a text in them."""

    def __init__(self, texts: Iterable[str]) -> None:
        self.texts = tuple(texts)

    @cached_property
    def _normal(self) -> tuple[str, ...]:
        return tuple(map(normalised, self.texts))

    @cached_property
    def _bare(self) -> tuple[str, ...]:
        return tuple(map(bare, self.texts))

    @cached_property
    def _unnumbered(self) -> tuple[str, ...]:
        return tuple(map(_unnumbered, self.texts))

    @cached_property
    def _words(self) -> frozenset[str]:
        return frozenset().union(*map(words, self.texts))

    @property
    def size(self) -> int:
        """The number of letters and digits in all messages."""
        return sum(map(len, self._bare))

    def find(self, text: str) -> tuple[int, int] | None:
        """Return the index of the first message with ``text`` in it, and the offset of ``text``.

        A message may contain ``text`` verbatim, escaped as in JSON, or with other white space. In
        the last case, the offset is that in the message with normalised white space. Return None if
        ``text`` is empty or in no message.
        """
        if not text.strip():  # an empty text is in every message
            return None
        forms = (text, json.dumps(text)[1:-1], json.dumps(text, ensure_ascii=False)[1:-1])
        for number, message in enumerate(self.texts):
            for form in forms:
                at = message.find(form)
                if at >= 0:
                    return number, at
        normal = normalised(text)
        for number, message in enumerate(self._normal):
            at = message.find(normal)
            if at >= 0:
                return number, at
        return None

    def place(self, text: str) -> Place | None:
        """Return the position of ``text`` in the messages, or None if no message contains ``text``.

        See `find`.
        """
        found = self.find(text)
        return found and (found[0], len(bare(self.texts[found[0]][: found[1]])))

    def count(self, text: str) -> int:
        """Return how often ``text`` occurs in the messages, comparing letters and digits only."""
        own = bare(text)
        return sum(one.count(own) for one in self._bare) if own else 0

    def place_changed(self, text: str) -> Place | None:
        """Return the position of ``text`` in the messages, or None if no message contains ``text``.

        Only letters and digits are compared. A ``text`` with fewer than 16 letters and digits is
        not searched for, because it may be found by chance.
        """
        own = bare(text)
        if len(own) < _FEW:
            return None
        return _find(own, self._bare) or _find(_unnumbered(text), self._unnumbered)

    def places_of_parts(self, texts: Sequence[str], others: Sequence[str]) -> dict[str, Place]:
        """Return those of ``texts`` of which the messages contain a part, with its position.

        A part is 24 letters and digits in a row. A part that also occurs in one of the texts
        ``others`` does not count. Each message is read once, however many ``texts`` there are.
        """
        parts = {text: _parts_of(bare(text)) for text in texts}
        known = {part for several in parts.values() for part in several}
        for other in others if known else ():
            known -= _parts_in(bare(other), known).keys()
        places: dict[str, Place] = {}
        for number, message in enumerate(self._bare if known else ()):
            for part, at in _parts_in(message, known).items():
                places.setdefault(part, (number, at))
        first = {
            text: next((places[part] for part in several if part in places), None)
            for text, several in parts.items()
        }
        return {text: place for text, place in first.items() if place is not None}

    def resembles(self, text: str, common: AbstractSet[str]) -> bool:
        """Return True if most words of ``text`` occur in the messages.

        The words ``common`` do not count.
        """
        own = words(text) - common
        return len(own & self._words) >= max(_MOST * len(own), _SEVERAL)


def _parts_of(text: str) -> list[str]:
    starts = range(0, len(text) - _CHUNK + 1, _CHUNK // 2)
    return [text[start : start + _CHUNK] for start in starts]


def _parts_in(text: str, parts: AbstractSet[str]) -> dict[str, int]:
    """Return those of ``parts`` that are in ``text``, each with its first position.

    One pass over the text finds them all: to search each one would take the square of the time.
    """
    places: dict[str, int] = {}
    for at in range(len(text) - _CHUNK + 1):
        part = text[at : at + _CHUNK]
        if part in parts:
            places.setdefault(part, at)
    return places


def _find(part: str, messages: Sequence[str]) -> Place | None:
    for number, message in enumerate(messages):
        at = message.find(part) if part else -1
        if at >= 0:
            return number, at
    return None
