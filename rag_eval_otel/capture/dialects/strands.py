"""Read spans of Strands Agents' own tracing into steps (calls in a trace).

Strands follows the GenAI conventions, but writes tool results as blocks of Amazon Bedrock.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from rag_eval_otel.capture.dialects import genai
from rag_eval_otel.capture.dialects.values import read
from rag_eval_otel.capture.span import PlainSpan
from rag_eval_otel.capture.step import Kind, Step

_SCOPE: Final = "strands.telemetry.tracer"
_RESULT = "gen_ai.tool.call.result"


def to_step(view: PlainSpan, of: Kind) -> Step:
    """Read the span ``view`` of Strands Agents into a `Step`, which describes one call in a trace.

    The text blocks of a tool result are read as one text, not as separate documents.
    """
    view = genai.with_events(view)
    blocks = read(view.attributes.get(_RESULT), limit=view.value_limit)
    if of == "tool" and isinstance(blocks, list):
        typed = [_typed(block) for block in blocks]
        view = replace(view, attributes={**view.attributes, _RESULT: typed})
    return genai.to_step(view, of)


def _typed(block: Any) -> Any:
    is_text = isinstance(block, Mapping) and set(block) == {"text"}
    return {"type": "text", **block} if is_text else block


DIALECT: Final = replace(
    genai.DIALECT,
    name="strands",
    to_step=to_step,
    scopes=frozenset({_SCOPE}),
    content=(r"system_prompt|gen_ai\.agent\.(input|output)",),
    instrumentations=r"strands\.",
)
