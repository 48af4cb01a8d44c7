"""Scripts for models, and an OpenAI-compatible server that replies by script."""

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from openai_server import HttpReply, ScriptedOpenAI

from .kit import embed, pieces

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
    """Return a function that records a prompt and returns its reply.

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


ID, CREATED = "chatcmpl-1", 1_760_000_000


def openai_server(script: Script) -> ScriptedOpenAI:
    """Return a server for chats, with tool calls and streams, and for embeddings."""
    reply = scripted(script)

    def answer(body: dict[str, Any]) -> HttpReply:
        said = reply(_as_text(body["messages"]))
        return _stream(body, said) if body.get("stream") else _completion(body, said)

    return ScriptedOpenAI(answer, embed)


def _as_text(messages: list[dict[str, Any]]) -> str:
    return "\n".join(f"{message['role']}: {_content(message)}" for message in messages)


def _content(message: dict[str, Any]) -> str:
    content = message.get("content") or ""
    if isinstance(content, list):
        content = "".join(part.get("text", "") for part in content)
    calls = [call["function"] for call in message.get("tool_calls") or ()]
    return " ".join([content, *(f"[{call['name']}({call['arguments']})]" for call in calls)])


def _calls(reply: Reply) -> list[dict[str, Any]]:
    wanted = [] if isinstance(reply, str) else [reply] if isinstance(reply, Call) else reply
    return [
        {
            "id": f"call_{place}",
            "type": "function",
            "function": {"name": call.tool, "arguments": json.dumps(call.arguments)},
        }
        for place, call in enumerate(wanted)
    ]


def _completion(body: dict[str, Any], reply: Reply) -> HttpReply:
    message: dict[str, Any] = {"role": "assistant", "content": None, "refusal": None}
    if calls := _calls(reply):
        message["tool_calls"] = calls
    else:
        message["content"] = reply
    finish = "tool_calls" if calls else "stop"
    choice = {"index": 0, "message": message, "finish_reason": finish, "logprobs": None}
    head = {"id": ID, "object": "chat.completion", "created": CREATED, "model": body["model"]}
    usage = {"prompt_tokens": 50, "completion_tokens": 10, "total_tokens": 60}
    return HttpReply(body={**head, "choices": [choice], "usage": usage})


def _stream(body: dict[str, Any], reply: Reply) -> HttpReply:
    head = {"id": ID, "object": "chat.completion.chunk", "created": CREATED, "model": body["model"]}
    calls = [{"index": place, **call} for place, call in enumerate(_calls(reply))]
    deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}]
    deltas += [{"tool_calls": [call]} for call in calls]
    deltas += [] if calls else [{"content": part} for part in pieces(str(reply))]
    finish = "tool_calls" if calls else "stop"
    choices = [{"index": 0, "delta": delta, "finish_reason": None} for delta in deltas]
    choices.append({"index": 0, "delta": {}, "finish_reason": finish})
    lines = [f"data: {json.dumps({**head, 'choices': [choice]})}\n\n" for choice in choices]
    return HttpReply(
        body="".join([*lines, "data: [DONE]\n\n"]), headers={"Content-Type": "text/event-stream"}
    )
