"""Read the spans that OpenInference makes of CrewAI into steps (calls in a trace).

The question is in the inputs of a crew, in the description of a task, or in a message to an agent.
"""

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
    """Read the span ``view`` of CrewAI into a `Step`, which describes one call in a trace.

    The question of a task is the description of the task. The answer is the field ``raw`` of the
    output. The prompt of the model is not used as the question, because it also contains the
    expected form of the answer.
    """
    step = openinference.to_step(view, of)
    if of not in {"agent", "chain"}:
        return step
    inputs, outputs = value(view, "input.value"), value(view, "output.value")
    question = None if isinstance(inputs, Lost) else _question(view, inputs, outputs)
    raw = outputs.get("raw") if isinstance(outputs, Mapping) else None
    return replace(
        step,
        input=step.input if question is None else question,
        output=raw if isinstance(raw, str) else step.output,
    )


def _question(view: PlainSpan, inputs: Any, outputs: Any) -> str | None:
    """Return the question of a crew, an agent or a task from the input and output on its span.

    The question is the message to an agent, the input of a crew, or the description of the only
    task. Return None if there is no such text.
    """
    if isinstance(inputs, Mapping) and "agent" not in inputs:
        messages = inputs.get("messages")
        found = messages if isinstance(messages, str) else build.question_in(inputs, view.keys)
        if found is not None:
            return found
    tasks = outputs.get("tasks_output", [outputs]) if isinstance(outputs, Mapping) else []
    described = [task.get("description") for task in tasks if isinstance(task, Mapping)]
    return described[0] if len(described) == 1 and isinstance(described[0], str) else None


DIALECT: Final = replace(
    openinference.DIALECT,
    name="crewai",
    to_step=to_step,
    scopes=frozenset({_SCOPE}),
    content=(r"crew_(inputs|tasks)", r"task_(description|expected_output)"),
)
