"""Scripts for models, and an OpenAI-compatible server that replies by script."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from openai_server import HttpReply, ScriptedOpenAI, chat_reply

from .kit import embed


@dataclass(frozen=True)
class Call:
    """A reply that calls a tool."""

    tool: str
    arguments: dict[str, Any] = field(default_factory=dict)


Reply: TypeAlias = "str | Call | list[Call]"
Rule: TypeAlias = "tuple[str, Reply] | Callable[[str], Reply]"


def scripted(*rules: Rule) -> Callable[[str], Reply]:
    """Return a function from a prompt to its reply.

    A rule is a text to look for, or several that are joined by ` & `, and the reply; or there is
    one function of the prompt.
    """

    def answer(prompt: str) -> Reply:
        for rule in rules:
            if callable(rule):
                return rule(prompt)
            if all(mark in prompt for mark in rule[0].split(" & ")):
                return rule[1]
        message = f"the script has no reply to {prompt!r}"
        raise LookupError(message)

    return answer


def openai_server(*rules: Rule) -> ScriptedOpenAI:
    reply = scripted(*rules)

    def answer(body: dict[str, Any]) -> HttpReply:
        said = reply("\n".join(f"{m['role']}: {_content(m)}" for m in body["messages"]))
        if isinstance(said, str):
            return chat_reply(body, said)
        calls = [said] if isinstance(said, Call) else said
        return chat_reply(body, "", [(call.tool, call.arguments) for call in calls])

    return ScriptedOpenAI(answer, embed)


def _content(message: dict[str, Any]) -> str:
    content = message.get("content") or ""
    if isinstance(content, list):
        content = "".join(part.get("text", "") for part in content)
    calls = [call["function"] for call in message.get("tool_calls") or ()]
    return " ".join([content, *(f"[{call['name']}({call['arguments']})]" for call in calls)])
