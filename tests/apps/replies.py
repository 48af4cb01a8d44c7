"""What the scripted models say: functions from messages to a message."""

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolCall, ToolMessage

from . import company

Reply: TypeAlias = Callable[[Sequence[BaseMessage]], AIMessage]


def saying(text: str) -> Reply:
    return lambda _messages: AIMessage(text)


def from_pages(messages: Sequence[BaseMessage]) -> AIMessage:
    """Answer the last question of the user from the pages in the other messages."""
    question = next(m for m in reversed(messages) if isinstance(m, HumanMessage))
    sight = "\n".join(_text(m) for m in messages if not isinstance(m, AIMessage))
    return AIMessage(company.answer(_text(question), sight))


def unavailable(_messages: Sequence[BaseMessage]) -> AIMessage:
    """Fail, as a model does whose provider is down."""
    message = "the model is down"
    raise ConnectionError(message)


def calling(tool: str, *calls: dict[str, Any]) -> Reply:
    """Call a tool with each of the arguments in turn, then answer from what it brought."""

    def reply(messages: Sequence[BaseMessage]) -> AIMessage:
        done = sum(isinstance(m, ToolMessage) for m in messages)
        return call(tool, calls[done], number=done) if done < len(calls) else from_pages(messages)

    return reply


def cited_answer(messages: Sequence[BaseMessage]) -> AIMessage:
    """Answer through a tool call, as models do when asked for a structured output."""
    text = str(from_pages(messages).content)
    return call("CitedAnswer", {"answer": text, "sources": list(company.cited(text))})


def call(tool: str, args: dict[str, Any], *, number: int = 0) -> AIMessage:
    return AIMessage("", tool_calls=[ToolCall(name=tool, args=args, id=f"call-{number}")])


def _text(message: BaseMessage) -> str:
    return str(message.content)
