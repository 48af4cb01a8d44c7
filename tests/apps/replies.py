"""What the scripted models say: functions from messages to a message."""

from collections.abc import Callable, Sequence
from typing import TypeAlias

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage

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


def _text(message: BaseMessage) -> str:
    return str(message.content)
