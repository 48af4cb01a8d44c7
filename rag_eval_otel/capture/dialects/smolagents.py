"""Read the spans that OpenInference makes of smolagents into steps (calls in a trace).

An agent of smolagents answers by a call of the tool ``final_answer``, or by Python code.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final

from rag_eval_otel.capture.dialects import openinference
from rag_eval_otel.capture.dialects.documents import passages_in_text
from rag_eval_otel.capture.dialects.values import value
from rag_eval_otel.capture.span import PlainSpan
from rag_eval_otel.capture.step import Kind, Step
from rag_eval_otel.capture.text import json_in

_SCOPE: Final = "openinference.instrumentation.smolagents"
_ANSWERS = "final_answer"
_CODE = re.compile(r"(?:<code>|```(?:py(?:thon)?)?)(.*?)(?:</code>|```|<end_code>)", re.DOTALL)
_CALL = re.compile(
    r"llm\.output_messages\.(\d+)\.message\.tool_calls\.(\d+)\.tool_call\.function\.name"
)


def to_step(view: PlainSpan, of: Kind) -> Step:
    step = openinference.to_step(view, of)
    if of == "llm":
        return _llm(view, step)
    if of == "tool" and step.documents is None and step.output is not None:
        return replace(step, documents=passages_in_text(step.output))
    inputs = value(view, "input.value")
    if of in {"agent", "chain"} and isinstance(inputs, Mapping):
        task = inputs.get("task")
        return replace(step, input=task if isinstance(task, str) else None)
    return step


def _llm(view: PlainSpan, step: Step) -> Step:
    """Read the span of a model call, which answers by a tool or in Python code, into a `Step`."""
    answer = _by_tool(view.attributes)
    if answer is not None:
        return replace(step, output=answer, calls_tools=False)
    code = _CODE.search(step.output or "")
    if code is None:
        return step
    return replace(step, output=_by_code(code[1]), calls_tools=True)


def _by_tool(attributes: Mapping[str, Any]) -> str | None:
    for key, name in attributes.items():
        if name == _ANSWERS and _CALL.fullmatch(key):
            given = attributes.get(key.removesuffix("name") + "arguments")
            data = json_in(given) if isinstance(given, str) else given
            answer = data.get("answer") if isinstance(data, Mapping) else None
            return answer if isinstance(answer, str) else None
    return None


def _by_code(code: str) -> str | None:
    """Return the text that ``code`` passes to ``final_answer``, or None if the text is computed."""
    with suppress(SyntaxError, ValueError, MemoryError, RecursionError):
        for node in ast.walk(ast.parse(code.strip())):
            if isinstance(node, ast.Call) and getattr(node.func, "id", None) == _ANSWERS:
                given = [*node.args, *(word.value for word in node.keywords)]
                texts = [one.value for one in given if isinstance(one, ast.Constant)]
                return texts[0] if len(texts) == 1 and isinstance(texts[0], str) else None
    return None


DIALECT: Final = replace(
    openinference.DIALECT,
    name="smolagents",
    to_step=to_step,
    scopes=frozenset({_SCOPE}),
    content=(r"smolagents\.task",),
)
