"""DSPy beside OpenInference: modules called with fields by name, and models that answer in fields.

A module that is called with a context and a question was handed what the application had found,
by a function that no span may tell of: its context is that of the turn.
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
    """Return the kind of ``view``, or None if it is not of this dialect."""
    said = word(view, _SAID) or ""  # by the client below it, which somebody else traces
    return openinference.kind(view) if view.scope == _SCOPE or said.startswith(_MARK) else None


def holds_documents(view: SpanView) -> bool:
    """Tell whether a module was called with a context, by the name of its argument."""
    if view.scope != _SCOPE or not _INNERMOST.fullmatch(view.name):
        return False
    asked = word(view, "input.value") or ""
    return any(f'"{name}": [' in asked for name in _CONTEXT)


def to_step(view: PlainSpan, of: Kind) -> Step:
    """Return what ``view`` tells."""
    asked = value(view, "input.value")
    if of == "llm":
        return _llm(view)
    if isinstance(asked, Mapping):
        asked = asked.get("input_args", asked.get("kwargs", asked))
        asked = asked if isinstance(asked, Mapping) else {}
    step = replace(
        openinference.to_step(view, of),
        input=None if isinstance(asked, Lost) else build.question_in(asked, view.keys),
    )
    found = _context(asked) if _INNERMOST.fullmatch(view.name) and step.input else None
    if found is None:
        return step
    return replace(step, documents=found, recorded=step.recorded | {"documents"})


def _context(asked: Any) -> tuple[Passage, ...] | None:
    context = next((asked[name] for name in _CONTEXT if asked.get(name)), None)
    return passages_in_text(context) if isinstance(context, str) else passages_in(context)


def _llm(view: PlainSpan) -> Step:
    """Return the call of a model, which says the answer in one of several fields."""
    step = openinference.to_step(view, "llm")
    fields = _fields(step.output or "")
    if not fields:
        return step
    if _CALLS_TOOLS in fields:
        return replace(step, output=None, calls_tools=True)
    said = build.answer_in(fields, view.keys) or [*fields.values()][-1]
    return replace(step, output=said)


def _fields(said: str) -> dict[str, str]:
    """Return the fields in what a model said, by DSPy's marks or as JSON."""
    found = {name: text.strip() for name, text in _FIELD.findall(said) if name != "completed"}
    data = {} if found else plain(json_in(said, opening="{") or {})
    return found or {name: text for name, text in data.items() if isinstance(text, str)}


DIALECT: Final = replace(
    openinference.DIALECT,
    name="dspy",
    kind=kind,
    to_step=to_step,
    holds_documents=holds_documents,
)
