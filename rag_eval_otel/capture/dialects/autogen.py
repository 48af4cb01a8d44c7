"""Read the spans that OpenInference makes of AutoGen AgentChat into steps (calls in a trace).

AutoGen writes all tool results as members of one message.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from rag_eval_otel.capture.dialects import build, openinference
from rag_eval_otel.capture.dialects.values import read
from rag_eval_otel.capture.span import PlainSpan, SpanView
from rag_eval_otel.capture.step import Kind, Step

_OWN_SCOPE = "autogen-core"  # spans of this scope have no texts, and repeat calls of other spans
_SCOPE: Final = "openinference.instrumentation.autogen_agentchat"
_SCOPES: Final = (_SCOPE, _OWN_SCOPE)
_RESULT = re.compile(r"(llm\.input_messages\.\d+)\.function\.\d+")


def kind(view: SpanView) -> Kind | None:
    return "other" if view.scope == _OWN_SCOPE else openinference.kind(view)


def to_step(view: PlainSpan, of: Kind) -> Step:
    if of == "other":
        return build.bare(view, of)
    texts: dict[str, str] = {}
    for key, item in view.attributes.items():
        found = _RESULT.fullmatch(key)
        if found is not None:
            name = f"{found[1]}.message.content"
            texts[name] = "\n".join(filter(None, (texts.get(name), _content(item))))
    return openinference.to_step(replace(view, attributes={**view.attributes, **texts}), of)


def _content(item: Any) -> str:
    data = read(item)
    content = data.get("content") if isinstance(data, Mapping) else None
    return content if isinstance(content, str) else ""


DIALECT: Final = replace(
    openinference.DIALECT,
    name="autogen",
    kind=kind,
    to_step=to_step,
    marks=openinference.DIALECT.marks | {"gen_ai.operation.name"},
    scopes=frozenset(_SCOPES),
    content=(r"llm\.input_messages\.\d+\.function\.\d+",),
)
