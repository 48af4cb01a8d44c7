"""Read the spans that OpenInference makes of DSPy modules into steps (calls in a trace).

A DSPy module takes named fields, and the reply of the model contains named fields. If a module gets
an argument such as ``context``, this argument is read as the contexts of the answer, because the
function that retrieved the contexts often has no span.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from rag_eval_otel.capture.dialects import build, openinference
from rag_eval_otel.capture.dialects.documents import passages_in, passages_in_text
from rag_eval_otel.capture.dialects.values import Lost, plain, value
from rag_eval_otel.capture.span import PlainSpan, SpanView, word
from rag_eval_otel.capture.step import Kind, Step
from rag_eval_otel.capture.text import json_in
from rag_eval_otel.types import Passage

_SCOPE: Final = "openinference.instrumentation.dspy"
_INNERMOST = re.compile(r"\w+\(.*\)\.forward", re.DOTALL)  # of a module's nested spans
_CONTEXT = ("context", "contexts", "passages", "documents", "docs", "retrieved")
_FIELD = re.compile(
    r"^\[\[ ## (\w+) ## \]\][ \t]*\n?(.*?)(?=^\[\[ ## \w+ ## \]\]|\Z)", re.MULTILINE | re.DOTALL
)
_SAID, _MARK = "llm.output_messages.0.message.content", "[[ ## "
_CALLS_TOOLS = "next_tool_name"


def kind(view: SpanView) -> Kind | None:
    reply = word(view, _SAID) or ""  # this may be a span of the model client's instrumentation
    return openinference.kind(view) if view.scope == _SCOPE or reply.startswith(_MARK) else None


def holds_documents(view: SpanView) -> bool:
    """Return True if ``view`` is the span of a DSPy module with an argument such as ``context``.

    The argument must be a list.
    """
    if view.scope != _SCOPE or not _INNERMOST.fullmatch(view.name):
        return False
    inputs = word(view, "input.value") or ""
    return any(f'"{name}": [' in inputs for name in _CONTEXT)


def to_step(view: PlainSpan, of: Kind) -> Step:
    inputs = value(view, "input.value")
    if of == "llm":
        return _llm(view)
    if isinstance(inputs, Mapping):
        inputs = inputs.get("input_args", inputs.get("kwargs", inputs))
        inputs = inputs if isinstance(inputs, Mapping) else {}
    step = replace(
        openinference.to_step(view, of),
        input=None if isinstance(inputs, Lost) else build.question_in(inputs, view.keys),
    )
    found = _context(inputs) if _INNERMOST.fullmatch(view.name) and step.input else None
    if found is None:
        return step
    return replace(step, documents=found, recorded=step.recorded | {"documents"})


def _context(inputs: Any) -> tuple[Passage, ...] | None:
    context = next((inputs[name] for name in _CONTEXT if inputs.get(name)), None)
    return passages_in_text(context) if isinstance(context, str) else passages_in(context)


def _llm(view: PlainSpan) -> Step:
    """Read the span of a model call into a `Step`. The reply contains several named fields.

    The answer is the field with a usual name of an answer, or else the last field. If a field says
    that a tool is called next, there is no answer.
    """
    step = openinference.to_step(view, "llm")
    fields = _fields(step.output or "")
    if not fields:
        return step
    if _CALLS_TOOLS in fields:
        return replace(step, output=None, calls_tools=True)
    reply = build.answer_in(fields, view.keys) or [*fields.values()][-1]
    return replace(step, output=reply)


def _fields(reply: str) -> dict[str, str]:
    """Return the named fields in the ``reply`` of a model.

    The fields are separated by DSPy's headings, or are the values of a JSON object.
    """
    found = {name: text.strip() for name, text in _FIELD.findall(reply) if name != "completed"}
    data = {} if found else plain(json_in(reply, opening="{") or {})
    return found or {name: text for name, text in data.items() if isinstance(text, str)}


DIALECT: Final = replace(
    openinference.DIALECT,
    name="dspy",
    kind=kind,
    to_step=to_step,
    holds_documents=holds_documents,
)
