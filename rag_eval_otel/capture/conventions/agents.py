"""Read the spans of agent frameworks into steps (calls in a trace)."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import partial
from typing import Any, Final

from rag_eval_otel.capture.conventions import genai, openinference
from rag_eval_otel.capture.conventions.convention import Convention
from rag_eval_otel.capture.documents import passages_in, passages_in_text
from rag_eval_otel.capture.span import Span, value, word
from rag_eval_otel.capture.step import Kind, Step
from rag_eval_otel.capture.values import Lost, at, question_in


def _adk_step(view: Span, of: Kind) -> Step:
    if of == "tool":
        response = at(value(view, "output.value"), "response")
        if isinstance(response, dict):
            view = replace(view, attributes={**view.attributes, "output.value": response})
    step = openinference.to_step(view, of)
    if of == "llm" and view.name.startswith("invoke_agent") and view.end is not None:
        return replace(step, start=view.end)  # the attributes are those of the last model call
    # The output of an agent is its last event, which may be that of a tool.
    return replace(step, output=None) if of in {"agent", "chain"} else step


_AUTOGEN_CORE = "autogen-core"  # spans of this scope have no texts, and repeat calls of other spans


def _crewai_step(view: Span, of: Kind) -> Step:
    """Take the question from the agent's message or task: the prompt has more than the question."""
    step = openinference.to_step(view, of)
    if of not in {"agent", "chain"}:
        return step
    inputs, outputs = value(view, "input.value"), value(view, "output.value")
    question = None if isinstance(inputs, Lost) else _question(inputs, outputs)
    raw = at(outputs, "raw")
    return replace(
        step,
        input=step.input if question is None else question,
        output=raw if isinstance(raw, str) else step.output,
    )


def _question(inputs: Any, outputs: Any) -> str | None:
    """Return the message to an agent, the input of a crew, or the description of the only task."""
    if isinstance(inputs, dict) and "agent" not in inputs:
        messages = inputs.get("messages")
        question = messages if isinstance(messages, str) else question_in(inputs)
        if question is not None:
            return question
    tasks = outputs.get("tasks_output", [outputs]) if isinstance(outputs, dict) else []
    described = [task.get("description") for task in tasks if isinstance(task, dict)]
    return described[0] if len(described) == 1 and isinstance(described[0], str) else None


_INNERMOST = re.compile(r"\w+\(.*\)\.forward", re.DOTALL)  # of a module's nested spans
_CONTEXT = ("context", "contexts", "passages", "documents", "docs", "retrieved")


def _takes_context(view: Span) -> bool:
    """Return True for a DSPy module with a list as its argument ``context`` or ``documents``."""
    inputs = word(view, "input.value") or ""
    has_context = any(f'"{name}": [' in inputs for name in _CONTEXT)
    return has_context and _INNERMOST.fullmatch(view.name) is not None


def _dspy_step(view: Span, of: Kind) -> Step:
    step = openinference.to_step(view, of)
    if of == "llm":
        return step
    inputs = value(view, "input.value")
    if isinstance(inputs, dict):
        inputs = inputs.get("input_args", inputs.get("kwargs", inputs))
        inputs = inputs if isinstance(inputs, dict) else {}
    step = replace(step, input=question_in(inputs))
    if not (step.input and isinstance(inputs, dict) and _INNERMOST.fullmatch(view.name)):
        return step
    context = next((inputs[name] for name in _CONTEXT if inputs.get(name)), None)
    documents = passages_in_text(context) if isinstance(context, str) else passages_in(context)
    if documents is None:
        return step
    return replace(step, documents=documents, recorded=step.recorded | {"documents"})


def _smolagents_step(view: Span, of: Kind) -> Step:
    step = openinference.to_step(view, of)
    inputs = value(view, "input.value")
    if of in {"agent", "chain"} and isinstance(inputs, dict):
        task = inputs.get("task")
        return replace(step, input=task if isinstance(task, str) else None)
    return step


def without_written_calls(step: Step) -> Step:
    """Return ``step``, without the history if that is of smolagents: it has tool calls as texts."""
    is_of_agent = any(message.text.startswith("New task:\n") for message in step.history)
    return replace(step, history=()) if is_of_agent else step


def _strands_step(view: Span, of: Kind) -> Step:
    """Read a span of Strands. The text blocks of a tool result are one text, not documents."""
    view = genai.with_events(view)
    blocks = value(view, "gen_ai.tool.call.result")
    if of == "tool" and isinstance(blocks, list):
        typed = [
            {"type": "text", **b} if isinstance(b, dict) and set(b) == {"text"} else b
            for b in blocks
        ]
        view = replace(view, attributes={**view.attributes, "gen_ai.tool.call.result": typed})
    return genai.to_step(view, of)


_of_openinference = partial(replace, openinference.CONVENTION)

OF_OPENINFERENCE: Final[tuple[Convention, ...]] = (
    _of_openinference(
        name="adk",
        to_step=_adk_step,
        scopes=frozenset({"openinference.instrumentation.google_adk", "gcp.vertex.agent"}),
        content=(r"gcp\.vertex\.agent\.(llm_request|llm_response|tool_call_args|tool_response)",),
        instrumentations=r"gcp\.vertex",
    ),
    _of_openinference(
        name="autogen",
        kind=lambda span: "other" if span.scope == _AUTOGEN_CORE else openinference.kind(span),
        marks=openinference.CONVENTION.marks | {"gen_ai.operation.name"},
        scopes=frozenset({"openinference.instrumentation.autogen_agentchat", _AUTOGEN_CORE}),
        content=(r"llm\.input_messages\.\d+\.function\.\d+",),
    ),
    _of_openinference(
        name="crewai",
        to_step=_crewai_step,
        scopes=frozenset({"openinference.instrumentation.crewai"}),
        content=(r"crew_(inputs|tasks)", r"task_(description|expected_output)"),
    ),
    _of_openinference(
        name="dspy",
        to_step=_dspy_step,
        scopes=frozenset({openinference.DSPY}),
        holds_documents=_takes_context,
    ),
    _of_openinference(
        name="smolagents",
        to_step=_smolagents_step,
        scopes=frozenset({"openinference.instrumentation.smolagents"}),
        content=(r"smolagents\.task",),
    ),
)

STRANDS: Final = replace(
    genai.CONVENTION,
    name="strands",
    to_step=_strands_step,
    scopes=frozenset({"strands.telemetry.tracer"}),
    content=(r"system_prompt|gen_ai\.agent\.(input|output)",),
    instrumentations=r"strands\.",
)
