"""Dialects: how each instrumentation writes RAG on its spans, and reading any of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from rag_eval_otel import semconv
from rag_eval_otel.capture.dialects import (
    adk,
    autogen,
    crewai,
    dspy,
    genai,
    haystack,
    langfuse,
    langsmith,
    llamaindex,
    mlflow,
    native,
    openinference,
    openinference_haystack,
    openinference_llamaindex,
    smolagents,
    strands,
    traceloop,
    vectordb,
)
from rag_eval_otel.capture.dialects.build import bare
from rag_eval_otel.capture.span import PlainSpan, SpanView, word
from rag_eval_otel.capture.step import Kind, Step
from rag_eval_otel.capture.text import USUAL, Keys


class Dialect(NamedTuple):
    """One convention: ``kind`` tells from names, None for spans of others; ``read`` parses.

    ``content`` are patterns of the attributes that hold texts of users and models, and
    ``content_events`` pairs of patterns, of events and their attributes.
    """

    name: str
    kind: Callable[[SpanView], Kind | None]
    read: Callable[[PlainSpan, Kind], Step]
    content: tuple[str, ...]
    content_events: tuple[tuple[str, str], ...] = ()


DIALECTS: Final = (
    Dialect("adk", adk.kind, adk.to_step, adk.CONTENT),
    Dialect("autogen", autogen.kind, autogen.to_step, autogen.CONTENT),
    Dialect("crewai", crewai.kind, crewai.to_step, crewai.CONTENT),
    Dialect("dspy", dspy.kind, dspy.to_step, dspy.CONTENT),
    Dialect(
        "openinference_haystack",
        openinference_haystack.kind,
        openinference_haystack.to_step,
        openinference_haystack.CONTENT,
    ),
    Dialect(
        "openinference_llamaindex",
        openinference_llamaindex.kind,
        openinference_llamaindex.to_step,
        openinference_llamaindex.CONTENT,
    ),
    Dialect("smolagents", smolagents.kind, smolagents.to_step, smolagents.CONTENT),
    Dialect("openinference", openinference.kind, openinference.to_step, openinference.CONTENT),
    Dialect("langfuse", langfuse.kind, langfuse.to_step, langfuse.CONTENT),
    Dialect("langsmith", langsmith.kind, langsmith.to_step, langsmith.CONTENT),
    Dialect("mlflow", mlflow.kind, mlflow.to_step, mlflow.CONTENT, mlflow.CONTENT_EVENTS),
    Dialect("haystack", haystack.kind, haystack.to_step, haystack.CONTENT),
    Dialect(
        "llamaindex",
        llamaindex.kind,
        llamaindex.to_step,
        llamaindex.CONTENT,
        llamaindex.CONTENT_EVENTS,
    ),
    Dialect("vectordb", vectordb.kind, vectordb.to_step, vectordb.CONTENT, vectordb.CONTENT_EVENTS),
    Dialect("traceloop", traceloop.kind, traceloop.to_step, traceloop.CONTENT),
    Dialect("strands", strands.kind, strands.to_step, strands.CONTENT),
    Dialect("genai", genai.kind, genai.to_step, genai.CONTENT, genai.CONTENT_EVENTS),
)
"""In the order in which they are tried: many write what others read, too."""

MARKS: Final = frozenset(
    {
        "db.system",
        "db.system.name",
        "gen_ai.operation.name",
        "haystack.agent.max_steps",
        "haystack.agent.step.llm.input",
        "haystack.component.type",
        "haystack.pipeline.input_data",
        "haystack.tool.name",
        "langfuse.observation.type",
        "langsmith.span.kind",
        "llm.request.type",
        "mlflow.spanType",
        "openinference.span.kind",
        "traceloop.span.kind",
        semconv.ANSWER,
        semconv.CONTEXTS,
        semconv.QUESTION,
        semconv.RETRIEVAL_RECORDED,
    }
)
"""Attributes of which every span has one that any dialect reads, but for two known by name."""


_OUTPUTS: Final = ("langfuse.observation.output", "traceloop.entity.output")
_TOOL_NAMES: Final = (
    "tool.name",
    "gen_ai.tool.name",
    "haystack.tool.name",
    "traceloop.entity.name",
)


def kind_of(view: SpanView) -> Kind:
    """Return what kind of step ``view`` is, from names alone: this parses nothing."""
    if _is_foreign(view):
        return "other"
    _, found = _dialect(view)
    return found or ("chain" if native.speaks(view) else "other")


def tool_name(view: SpanView) -> str:
    """Return what the tool is called that ``view`` is a call of, without parsing anything."""
    names = (word(view, key) for key in _TOOL_NAMES)
    return next((name for name in names if name is not None), view.name)


def lists(view: SpanView) -> bool:
    """Tell whether a decorated function, by its output's first character, returned a list."""
    outputs = (view.attributes.get(key) for key in _OUTPUTS)
    return any(isinstance(output, str) and output[:1] == "[" for output in outputs)


def dialect_of(view: SpanView) -> str | None:
    """Return the name of the dialect ``view`` is written in, or None."""
    dialect, _ = _dialect(view)
    if dialect is not None:
        return dialect.name
    return "native" if native.speaks(view) else None


def read(view: SpanView, keys: Keys = USUAL) -> Step:
    """Return what ``view`` tells about a turn. This parses, so not on the application's thread."""
    span = PlainSpan.of(view, keys)
    dialect, kind = (None, None) if _is_foreign(view) else _dialect(span)
    if dialect is None or kind is None:
        found = bare(span, "other", flat=True)
    else:
        found = dialect.read(span, kind)
    return native.with_explicit(span, found) if native.speaks(span) else found


def may_speak(attributes: Iterable[str], *, name: str, scope: str) -> bool:
    """Tell whether a span may be of any dialect; most spans are not, so this is quick."""
    return (
        not MARKS.isdisjoint(attributes)
        or scope == llamaindex.SCOPE
        or name.startswith(haystack.PREFIX)
    )


def _is_foreign(view: SpanView) -> bool:
    return not may_speak(view.attributes, name=view.name, scope=view.scope)


def _dialect(view: SpanView) -> tuple[Dialect | None, Kind | None]:
    for dialect in DIALECTS:
        kind = dialect.kind(view)
        if kind is not None:
            return dialect, kind
    return None, None
