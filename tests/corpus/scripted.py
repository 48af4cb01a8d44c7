"""What a scripted model replies: the first rule whose text is in the prompt."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, TypeAlias

PROMPTS: list[str] = []
"""Every prompt that a scripted model was given, in order, for those who check truths."""


@dataclass(frozen=True)
class Call:
    """A reply that calls a tool."""

    tool: str
    arguments: dict[str, Any] = field(default_factory=dict)


Reply: TypeAlias = "str | Call | list[Call]"
Script: TypeAlias = "Iterable[tuple[str, Reply]] | Callable[[str], Reply]"


def scripted(script: Script) -> Callable[[str], Reply]:
    """Return a function that notes a prompt and gives the reply to it.

    A rule is a text to look for, or several that are joined by ` & `, and the reply.
    """
    rules = [] if callable(script) else [(marks.split(" & "), reply) for marks, reply in script]

    def answer(prompt: str) -> Reply:
        PROMPTS.append(prompt)
        if callable(script):
            return script(prompt)
        for marks, reply in rules:
            if all(mark in prompt for mark in marks):
                return reply
        message = f"the script has no reply to {prompt!r}"
        raise LookupError(message)

    return answer
