"""Read the spans that OpenInference makes of Google ADK agents into steps (calls in a trace).

The attributes of model calls are on the spans of agents.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from rag_eval_otel.capture.dialects import openinference
from rag_eval_otel.capture.dialects.values import Lost, value
from rag_eval_otel.capture.span import PlainSpan
from rag_eval_otel.capture.step import Kind, Step

_SCOPES: Final = ("openinference.instrumentation.google_adk", "gcp.vertex.agent")
_SEVERAL = "invoke_agent"  # on this span, each model call overwrites the attributes of the last one


def to_step(view: PlainSpan, of: Kind) -> Step:
    """Read the span ``view`` of Google ADK into a `Step`, which describes one call in a trace.

    If several model calls wrote their attributes on this span, only the last of these calls is
    known.
    """
    if of == "tool":
        outputs = value(view, "output.value")
        response = outputs.get("response") if isinstance(outputs, Mapping) else None
        if isinstance(response, Mapping):
            view = replace(view, attributes={**view.attributes, "output.value": response})
    step = openinference.to_step(view, of)
    if of == "llm" and view.name.startswith(_SEVERAL) and view.end is not None:
        return replace(step, start=view.end)
    if of in {"agent", "chain"}:
        inputs = _said(value(view, "input.value"), "new_message", step.input)
        return replace(step, input=inputs, output=_said(value(view, "output.value"), "content"))
    return step


def _said(data: Any, key: str, instead: str | None = None) -> str | None:
    """Return the text of the message in ``data`` under the dict key ``key``.

    If there is no such message, return ``instead``.
    """
    message = data.get(key) if isinstance(data, Mapping) and not isinstance(data, Lost) else None
    content = message.get("content") if isinstance(message, Mapping) else None
    return content if isinstance(content, str) and content else instead


DIALECT: Final = replace(
    openinference.DIALECT,
    name="adk",
    to_step=to_step,
    scopes=frozenset(_SCOPES),
    content=(r"gcp\.vertex\.agent\.(llm_request|llm_response|tool_call_args|tool_response)",),
    instrumentations=r"gcp\.vertex",
)
