"""CrewAI beside OpenInference: a crew's inputs, a task's description, an agent's messages."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from rag_eval_otel.capture.dialects import build, openinference
from rag_eval_otel.capture.dialects.values import Lost, value
from rag_eval_otel.capture.span import PlainSpan
from rag_eval_otel.capture.step import Kind, Step

_SCOPE: Final = "openinference.instrumentation.crewai"


def to_step(view: PlainSpan, of: Kind) -> Step:
    """Return what ``view`` tells: a task is asked by its description, and answered as ``raw``.

    The model is asked more than that: what is expected of the answer is no part of the question.
    """
    step = openinference.to_step(view, of)
    if of not in {"agent", "chain"}:
        return step
    asked, told = value(view, "input.value"), value(view, "output.value")
    question = None if isinstance(asked, Lost) else _question(view, asked, told)
    raw = told.get("raw") if isinstance(told, Mapping) else None
    return replace(
        step,
        input=step.input if question is None else question,
        output=raw if isinstance(raw, str) else step.output,
    )


def _question(view: PlainSpan, asked: Any, told: Any) -> str | None:
    """Return what an agent was asked, a crew was given, or the only task of either says."""
    if isinstance(asked, Mapping) and "agent" not in asked:
        messages = asked.get("messages")
        found = messages if isinstance(messages, str) else build.question_in(asked, view.keys)
        if found is not None:
            return found
    tasks = told.get("tasks_output", [told]) if isinstance(told, Mapping) else []
    described = [task.get("description") for task in tasks if isinstance(task, Mapping)]
    return described[0] if len(described) == 1 and isinstance(described[0], str) else None


DIALECT: Final = replace(
    openinference.DIALECT,
    name="crewai",
    to_step=to_step,
    scopes=frozenset({_SCOPE}),
    content=(r"crew_(inputs|tasks)", r"task_(description|expected_output)"),
)
