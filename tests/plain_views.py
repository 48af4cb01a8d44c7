"""`View`: a span as somebody's exporter shows it, and values that nobody expects on one."""

from enum import Enum
from functools import partial
from typing import Any

from rag_eval_otel.capture.span import Span
from rag_eval_otel.capture.values import ANSWERS, QUESTIONS

View = partial(Span, name="span", scope="somebody", trace_id=1, span_id=2, start=1, end=2)


class Role(str, Enum):
    """What somebody else's library takes for a string."""

    USER = "user"
    ASSISTANT = "assistant"
    TOOL = "tool"


class Word(str):
    """A string of a class of its own, which says something else."""

    __slots__ = ()

    def __str__(self) -> str:
        return "<word>"


def circle() -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key in (*QUESTIONS, *ANSWERS, "messages", "content", "documents"):
        found[key] = found
    return found


def ring() -> list[Any]:
    found: list[Any] = []
    found.append(found)
    return found
