"""What several tests share: a sample, and scripts for judges."""

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from rag_eval_otel.judge.tasks import Task
from rag_eval_otel.types import Sample

SAMPLE = Sample(
    question="When was Einstein born?",
    contexts=["Albert Einstein was born March 14, 1879.", "He was born at Ulm."],
    answer="Einstein was born in 1879.",
)

GOOD: Mapping[str, object] = {
    "reverse_question": {"question": "In which year was Einstein born?", "noncommittal": 0},
    "statements": {"statements": ["Einstein was born in 1879.", "Einstein was a person."]},
    "verdicts": {"verdicts": [{"index": 1, "verdict": 1}, {"index": 2, "verdict": 0}]},
    "judged_statements": {"statements": [{"statement": "Born in 1879.", "verdict": 1}]},
    "context_relevance_1": {"rating": 2},
    "context_relevance_2": {"rating": 1},
    "groundedness_1": {"rating": 2},
    "groundedness_2": {"rating": 2},
}
"""A usable reply to every prompt of the metrics."""


def answers(**by_prompt: object) -> Callable[[Task[Any]], object]:
    """Answer each task by its prompt: `GOOD`, except for those named here."""
    replies = {**GOOD, **by_prompt}
    return lambda task: replies[task.prompt]


def in_turn(replies: Iterable[object]) -> Callable[..., object]:
    """Return the replies one after the other, whatever is asked; the last one for ever."""
    waiting = list(replies)
    return lambda *_: waiting.pop(0) if len(waiting) > 1 else waiting[0]


# --- what a server was asked ----------------------------------------------------------------------


def names_asked(body: Mapping[str, Any]) -> list[str]:
    """Return the names of the parts that a chat request asks for, by its schema or its headings."""
    schema = (body.get("response_format") or {}).get("json_schema")
    if schema:
        return list(schema["schema"]["required"])
    headings = re.findall(r"^# ([a-z0-9_, ]+)$", text_asked(body), flags=re.MULTILINE)
    return ", ".join(headings).split(", ")


def text_asked(body: Mapping[str, Any]) -> str:
    """Return the text of the user's message of a chat request."""
    return str(body["messages"][-1]["content"])


def prompt_of(name: str) -> str:
    """Return the prompt of a part: its name without the number of the drawing."""
    return "reverse_question" if name.startswith("reverse_question") else name


def good_parts(body: Mapping[str, Any]) -> dict[str, object]:
    """Answer a chat request from `GOOD`."""
    return {name: GOOD[prompt_of(name)] for name in names_asked(body)}
