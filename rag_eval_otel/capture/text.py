"""Texts: read questions and answers out of values, and find a text again in another one."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any


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


QUESTION_KEYS = ("question", "input", "query", "user_input", "user_question", "prompt", "text")
ANSWER_KEYS = (
    "answer",
    "result",
    "output",
    "output_text",
    "response",
    "generation",
    "final_answer",
    "text",
)
_USER_ROLES = frozenset({"human", "user"})
_ASSISTANT_ROLES = frozenset({"ai", "assistant", "AIMessageChunk"})
_MODEL_MARKS = ("model_fields", "__dataclass_fields__", "__attrs_attrs__")


def question_of(value: object, keys: Iterable[str] = QUESTION_KEYS) -> str | None:
    """Return the question ``value`` holds, or None."""
    return _text_of(value, keys=keys, roles=_USER_ROLES)


def answer_of(value: object, keys: Iterable[str] = ANSWER_KEYS) -> str | None:
    """Return the answer ``value`` holds, or None."""
    return _text_of(value, keys=keys, roles=_ASSISTANT_ROLES)


def _text_of(value: object, *, keys: Iterable[str], roles: frozenset[str]) -> str | None:
    if isinstance(value, str):
        return value
    if isinstance(value, Mapping) and not ("content" in value and role_of(value)):
        return _of_mapping(value, keys=keys, roles=roles)
    if isinstance(value, list | tuple):
        return last_message(value, roles=roles)
    if role_of(value) is not None:
        return text_of_message(value) if role_of(value) in roles else None
    members = getattr(value, "__dict__", None)
    if members and any(hasattr(type(value), mark) for mark in _MODEL_MARKS):
        return _of_mapping(members, keys=keys, roles=roles)
    return None


def _of_mapping(
    value: Mapping[Any, Any], *, keys: Iterable[str], roles: frozenset[str]
) -> str | None:
    for key in keys:
        found = value.get(key)
        if isinstance(found, str):
            return found
        if found is not None and (text := _text_of(found, keys=keys, roles=roles)) is not None:
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
    if isinstance(message, tuple) and message and isinstance(message[0], str):
        return message[0]
    if isinstance(message, Mapping):
        role = message.get("role", message.get("type"))
        return role if isinstance(role, str) else None
    role = getattr(message, "type", None)
    return role if isinstance(role, str) and hasattr(message, "content") else None


def text_of_message(message: object) -> str:
    """Return what a message says; of content blocks, the text ones joined."""
    if isinstance(message, tuple):
        content: object = message[-1] if message else ""
    elif isinstance(message, Mapping):
        content = message.get("content", "")
    else:
        content = getattr(message, "content", "")
    return content if isinstance(content, str) else _text_of_blocks(content)


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
