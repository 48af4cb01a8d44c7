"""Read the spans that OpenInference makes of LlamaIndex into steps (calls in a trace).

Rerankers are recognised by the name of the span, evaluators by their prompt. The final answer of a
ReAct agent is separated from its thoughts.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from rag_eval_otel.capture.dialects import llamaindex, openinference
from rag_eval_otel.capture.dialects.values import value
from rag_eval_otel.capture.span import PlainSpan, SpanView, word
from rag_eval_otel.capture.step import Kind, Step

_SCOPE: Final = "openinference.instrumentation.llama_index"
_ANSWERS = re.compile(r"\._?a?(chat|get_response|query|synthesize)$")
_OF_RESPONSES = frozenset({"messages", "response", "response_gen", "source_nodes", "sources"})
_ROLE = re.compile(r"(llm\.input_messages\.\d+\.message\.)role")


def kind(view: SpanView) -> Kind | None:
    if view.scope != _SCOPE:
        return None
    found = openinference.kind(view)
    if found == "llm" and llamaindex.evaluates(word(view, "input.value")):
        return "other"
    return "reranker" if found == "chain" and llamaindex.RERANKS.search(view.name) else found


def to_step(view: PlainSpan, of: Kind) -> Step:
    if of == "llm":
        return llamaindex.thought(openinference.to_step(_with_observations(view), of))
    step = openinference.to_step(view, of)
    outputs = value(view, "output.value")
    is_structured = isinstance(outputs, Mapping) and _OF_RESPONSES.isdisjoint(outputs)
    if step.output is None and is_structured and _ANSWERS.search(view.name):
        return replace(step, output=word(view, "output.value"))
    return step


def _with_observations(view: PlainSpan) -> PlainSpan:
    """Return a copy of ``view`` in which the observations of a ReAct agent are tool messages."""
    found: dict[str, Any] = {}
    for key, role in view.attributes.items():
        place = _ROLE.fullmatch(key)
        if place is not None and role == "user":
            text = view.attributes.get(f"{place[1]}content")
            found |= {key: "tool"} if llamaindex.observes(text) else {}
    return replace(view, attributes={**view.attributes, **found}) if found else view


DIALECT: Final = replace(
    openinference.DIALECT,
    name="openinference_llamaindex",
    kind=kind,
    to_step=to_step,
    scopes=frozenset({_SCOPE}),
)
