"""Texts: read questions and answers out of values, and find a text again in a prompt."""

from __future__ import annotations

import html
import json
import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, TypeAlias


def place(text: str, messages: Sequence[str]) -> tuple[int, int] | None:
    """Return message and offset at which ``text`` stands, as it is, escaped or re-spaced."""
    if not text.strip():  # would be found everywhere
        return None
    forms = (text, json.dumps(text)[1:-1], json.dumps(text, ensure_ascii=False)[1:-1])
    for number, message in enumerate(messages):
        for form in forms:
            at = message.find(form)
            if at >= 0:
                return number, at
    normal = normalised(text)
    for number, message in enumerate(messages):
        at = normalised(message).find(normal)
        if at >= 0:
            return number, at
    return None


def normalised(text: str) -> str:
    """Return ``text`` with single spaces only."""
    return " ".join(text.split())


def is_same(one: str | None, other: str | None) -> bool:
    """Tell whether both are there and the same, but for case and white space."""
    return bool(one and other) and (
        normalised(one or "").casefold() == normalised(other or "").casefold()
    )


def is_in(part: str, whole: str) -> bool:
    """Tell whether ``part`` is in ``whole``, whatever the case and white space."""
    return bool(part.strip()) and normalised(part).casefold() in normalised(whole).casefold()


@dataclass(frozen=True, slots=True)
class Keys:
    """The keys under which applications keep questions and answers; the first that is there counts.

    Both ways of capture have this one list.
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

    def after(self, *, question: Iterable[str] = (), answer: Iterable[str] = ()) -> Keys:
        """Return the list with keys of an application's own before the usual ones."""
        return Keys((*question, *self.question), (*answer, *self.answer))


USUAL: Final = Keys()
_USER_ROLES = frozenset({"human", "user"})
_ASSISTANT_ROLES = frozenset({"ai", "assistant", "AIMessageChunk"})
_MODEL_MARKS = ("model_fields", "__dataclass_fields__", "__attrs_attrs__")
_WITHIN = 100  # mappings that are looked into, each once: there may be circles


def exact(text: str) -> str:
    """Return ``text`` as a plain string: of a member of a string Enum, its value."""
    return text if type(text) is str else str.__str__(text)


def question_of(value: object, keys: Keys = USUAL) -> str | None:
    """Return the question ``value`` holds, or None."""
    return _text_of(value, keys=keys.question, roles=_USER_ROLES)


def answer_of(value: object, keys: Keys = USUAL) -> str | None:
    """Return the answer ``value`` holds, or None."""
    return _text_of(value, keys=keys.answer, roles=_ASSISTANT_ROLES)


def _text_of(
    value: object,
    *,
    keys: Sequence[str],
    roles: frozenset[str],
    seen: set[int] | None = None,
) -> str | None:
    if isinstance(value, str):
        return exact(value)
    if isinstance(value, Mapping) and not ("content" in value and role_of(value)):
        return _of_mapping(value, keys=keys, roles=roles, seen=seen)
    if isinstance(value, list | tuple):
        return last_message(value, roles=roles)
    if role_of(value) is not None:
        return text_of_message(value) if role_of(value) in roles else None
    members = getattr(value, "__dict__", None)
    if members and any(hasattr(type(value), mark) for mark in _MODEL_MARKS):
        return _of_mapping(members, keys=keys, roles=roles, seen=seen)
    return None


def _of_mapping(
    value: Mapping[Any, Any],
    *,
    keys: Sequence[str],
    roles: frozenset[str],
    seen: set[int] | None,
) -> str | None:
    seen = set() if seen is None else seen
    if id(value) in seen or len(seen) > _WITHIN:
        return None
    seen.add(id(value))
    for key in keys:
        found = value.get(key)
        if found is not None:
            text = _text_of(found, keys=keys, roles=roles, seen=seen)
            if text is not None:
                return text
    messages = value.get("messages")
    return last_message(messages, roles=roles) if isinstance(messages, list | tuple) else None


def last_message(messages: Sequence[object], *, roles: frozenset[str] = _USER_ROLES) -> str | None:
    """Return the text of the last message by one of ``roles``; not of one before the user's last.

    What was said before the user's last message answers an earlier one.
    """
    for message in reversed(messages):
        role = role_of(message)
        if role in roles:
            return text_of_message(message)
        if role in _USER_ROLES:
            return None
    return None


def role_of(message: object) -> str | None:
    """Return who speaks: LangChain's ``type``, a dict's ``role``, a pair's first member."""
    if isinstance(message, tuple):
        role: object = message[0] if message else None
    elif isinstance(message, Mapping):
        role = message.get("role", message.get("type"))
    else:
        role = getattr(message, "type", None) if hasattr(message, "content") else None
    return exact(role) if isinstance(role, str) else None


def text_of_message(message: object) -> str:
    """Return what a message says; of content blocks, the text ones joined."""
    if isinstance(message, tuple):
        content: object = message[-1] if message else ""
    elif isinstance(message, Mapping):
        content = message.get("content", "")
    else:
        content = getattr(message, "content", "")
    return exact(content) if isinstance(content, str) else _text_of_blocks(content)


def _text_of_blocks(content: object) -> str:
    if not isinstance(content, list | tuple):
        return ""
    return "".join(
        block if isinstance(block, str) else str(block.get("text") or "")
        for block in content
        if isinstance(block, str | Mapping)
    )


def exportable(text: str) -> str:
    """Return ``text`` as it can be encoded: one lone surrogate would cost a batch of spans."""
    return text.encode("utf-8", "replace").decode("utf-8")


Place: TypeAlias = "tuple[int, int]"
"""The number of a message, and the letters and digits in front of the text."""

_FEW = 16  # letters and digits, of which fewer may be anywhere: such a text must be there as it is
_CHUNK = 24  # letters and digits in a row that two texts do not have in common by chance
_LAYERS = 3  # of escapes that are taken off: JSON within JSON within a repr
_MOST = 0.6  # the share of a text's own words from which it is there in other words
_SEVERAL = 3  # such words, at least

_UNESCAPED = re.compile(r"\\(?:u([0-9a-fA-F]{4})|[nrt]|(.))", re.DOTALL)
_NUMBER = re.compile(r"^[\W_]*\d{1,3}[.):\]]\s+", re.MULTILINE)  # of a line in a list
_NEITHER = re.compile(r"[\W_]+")
_WORD = re.compile(r"[^\W_]+")


def bare(text: str) -> str:
    """Return the letters and digits of ``text``, without what escapes them."""
    return _NEITHER.sub("", _plain(text))


def _unnumbered(text: str) -> str:
    """Return the same, without the numbers of the lines of a list."""
    return _NEITHER.sub("", _NUMBER.sub("", _plain(text)))


def words(text: str) -> frozenset[str]:
    """Return the words of ``text`` that say something: from four letters on, and numbers."""
    found = _WORD.findall(_plain(text))
    return frozenset(word for word in found if len(word) > 3 or not word.isalpha())  # noqa: PLR2004


def _plain(text: str) -> str:
    text = html.unescape(html.unescape(text))
    for _ in range(_LAYERS if "\\" in text else 0):
        text = _UNESCAPED.sub(_character, text)
    return unicodedata.normalize("NFKC", text).casefold()


def _character(found: re.Match[str]) -> str:
    if found[1] is not None:
        return chr(int(found[1], 16))
    return found[2] if found[2] is not None else "\n"


class Messages:
    """What an LLM was shown, and where texts stand in it."""

    def __init__(self, texts: Iterable[str]) -> None:
        """Look into ``texts``, oldest first."""
        self.texts = tuple(texts)

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
        """How many letters and digits there are."""
        return sum(map(len, self._bare))

    def place(self, text: str) -> Place | None:
        """Return where ``text`` stands as it is, escaped or re-spaced."""
        found = place(text, self.texts)
        return found and (found[0], len(bare(self.texts[found[0]][: found[1]])))

    def place_changed(self, text: str) -> Place | None:
        """Return where ``text`` stands in any form that leaves its letters and digits."""
        own = bare(text)
        if len(own) < _FEW:
            return None
        return _find(own, self._bare) or _find(_unnumbered(text), self._unnumbered)

    def trace(self, text: str, others: Sequence[str]) -> Place | None:
        """Return where a part of ``text`` begins that none of ``others`` has, too."""
        own, beside = bare(text), [bare(other) for other in others]
        for start in range(0, len(own) - _CHUNK + 1, _CHUNK // 2):
            part = own[start : start + _CHUNK]
            found = None if any(part in other for other in beside) else _find(part, self._bare)
            if found is not None:
                return found
        return None

    def resembles(self, text: str, others: Sequence[str]) -> bool:
        """Tell whether ``text`` is there in another form: most words that are its own are."""
        own = words(text).difference(*map(words, others))
        return len(own & self._words) >= max(_MOST * len(own), _SEVERAL)


def _find(part: str, messages: Sequence[str]) -> Place | None:
    for number, message in enumerate(messages):
        at = message.find(part) if part else -1
        if at >= 0:
            return number, at
    return None
