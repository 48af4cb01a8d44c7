"""Finding texts again: as they were, escaped as in JSON, or with other white space."""

from __future__ import annotations

import json
from collections.abc import Sequence


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
