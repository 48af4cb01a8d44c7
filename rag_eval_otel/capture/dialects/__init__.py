"""Dialects: how each instrumentation writes RAG on its spans, and reading any of them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Any, Final, Literal, NamedTuple, TypeAlias

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
from rag_eval_otel.capture.step import Kind, Part, Step
from rag_eval_otel.capture.text import USUAL, Keys


class Dialect(NamedTuple):
    """One convention: ``kind`` tells from names, None for spans of others; ``read`` parses.

    It is asked for spans of its ``scopes``, else for those with one of its ``marks`` among their
    attributes; without either for all. ``content`` are patterns of the attributes that hold texts
    of users and models, and ``content_events`` pairs of patterns, of events and their attributes.
    ``holds`` tells, without parsing, of a step that is no retrieval whether it holds documents.
    """

    name: str
    kind: Callable[[SpanView], Kind | None]
    read: Callable[[PlainSpan, Kind], Step]
    content: tuple[str, ...]
    content_events: tuple[tuple[str, str], ...] = ()
    scopes: frozenset[str] = frozenset()
    marks: frozenset[str] = frozenset()
    holds: Callable[[SpanView], bool] | None = None

    def may_read(self, scope: str, marks: frozenset[str]) -> bool:
        """Tell whether a span of ``scope`` with these ``marks`` may be of this dialect."""
        if self.scopes:
            return scope in self.scopes
        return not self.marks or not self.marks.isdisjoint(marks)


def _dialect_of(name: str, module: Any, *marks: str, scopes: Iterable[str] = ()) -> Dialect:
    events = getattr(module, "CONTENT_EVENTS", ())
    return Dialect(
        name,
        module.kind,
        module.to_step,
        module.CONTENT,
        events,
        frozenset(scopes),
        frozenset(marks),
        getattr(module, "holds", None),
    )


DIALECTS: Final = (
    _dialect_of("adk", adk, scopes=adk.SCOPES),
    _dialect_of("autogen", autogen, scopes=autogen.SCOPES),
    _dialect_of("crewai", crewai, scopes=[crewai.SCOPE]),
    _dialect_of("dspy", dspy, "openinference.span.kind"),
    _dialect_of(
        "openinference_haystack", openinference_haystack, scopes=[openinference_haystack.SCOPE]
    ),
    _dialect_of(
        "openinference_llamaindex",
        openinference_llamaindex,
        scopes=[openinference_llamaindex.SCOPE],
    ),
    _dialect_of("smolagents", smolagents, scopes=[smolagents.SCOPE]),
    _dialect_of("openinference", openinference, "openinference.span.kind"),
    _dialect_of("langfuse", langfuse, "langfuse.observation.type"),
    _dialect_of("langsmith", langsmith, "langsmith.span.kind"),
    _dialect_of("mlflow", mlflow, "mlflow.spanType"),
    _dialect_of("haystack", haystack),
    _dialect_of("llamaindex", llamaindex, scopes=[llamaindex.SCOPE]),
    _dialect_of("vectordb", vectordb, "db.system", "db.system.name"),
    _dialect_of("traceloop", traceloop, "llm.request.type", "traceloop.span.kind"),
    _dialect_of("strands", strands, scopes=[strands.SCOPE]),
    _dialect_of("genai", genai, "gen_ai.operation.name"),
)
"""In the order in which they are tried: many write what others read, too."""

MARKS: Final = frozenset().union(
    *(dialect.marks for dialect in DIALECTS), haystack.MARKS, native.PARTS
)
"""Attributes of which every span has one that any dialect reads, but for two known by name."""
_SAID: Final = frozenset(native.PARTS)
_OUTPUTS: Final = ("langfuse.observation.output", "traceloop.entity.output")
_ALL_OUTPUTS: Final = (*_OUTPUTS, "gen_ai.completion", "mlflow.spanOutputs", "output.value")
_TOOL_NAMES: Final = (
    "tool.name",
    "gen_ai.tool.name",
    "haystack.tool.name",
    "traceloop.entity.name",
)


def kind_of(view: SpanView) -> Kind:
    """Return what kind of step ``view`` is, from names alone: this parses nothing."""
    _, found = _dialect(view)
    return found or ("chain" if speaks(view) else "other")


def speaks(view: SpanView) -> bool:
    """Tell whether the application itself has said anything on ``view``."""
    return not _SAID.isdisjoint(view.attributes)


def tool_name(view: SpanView) -> str:
    """Return what the tool is called that ``view`` is a call of, without parsing anything."""
    names = (word(view, key) for key in _TOOL_NAMES)
    return next((name for name in names if name is not None), view.name)


def lists(view: SpanView) -> bool:
    """Tell whether a decorated function, by its output's first character, returned a list."""
    outputs = (view.attributes.get(key) for key in _OUTPUTS)
    return any(isinstance(output, str) and output[:1] == "[" for output in outputs)


def lists_documents(view: SpanView) -> bool:
    """Tell whether LangChain documents are in the output of ``view``, without parsing it."""
    outputs = (view.attributes.get(key) for key in _ALL_OUTPUTS)
    return any(isinstance(output, str) and "page_content" in output for output in outputs)


def said_on(view: SpanView) -> frozenset[Part]:
    """Return what the application itself has said on ``view``, from names alone."""
    return frozenset(native.PARTS[name] for name in _SAID.intersection(view.attributes))


def holds_documents(view: SpanView) -> bool:
    """Tell whether ``view``, which is no retrieval, holds documents, without parsing it."""
    return any(one.holds(view) for one in _may_read(view) if one.holds is not None)


def dialect_of(view: SpanView) -> str | None:
    """Return the name of the dialect ``view`` is written in, or None."""
    dialect, _ = _dialect(view)
    if dialect is not None:
        return dialect.name
    return "native" if speaks(view) else None


def read(view: SpanView, keys: Keys = USUAL) -> Step:
    """Return what ``view`` tells about a turn. This parses, so not on the application's thread."""
    span = PlainSpan.of(view, keys)
    dialect, kind = _dialect(span)
    if dialect is None or kind is None:
        found = bare(span, "other", flat=True)
    else:
        found = dialect.read(span, kind)
    return native.with_explicit(span, found) if speaks(span) else found


def _dialect(view: SpanView) -> tuple[Dialect | None, Kind | None]:
    for dialect in _may_read(view):
        kind = dialect.kind(view)
        if kind is not None:
            return dialect, kind
    return None, None


def _may_read(view: SpanView) -> tuple[Dialect, ...]:
    """Return the dialects in which ``view`` may be written; most spans are of none."""
    marks = MARKS.intersection(view.attributes)
    if marks or view.scope == llamaindex.SCOPE or view.name.startswith(haystack.PREFIX):
        return _reading(view.scope, marks)
    return ()


@lru_cache(maxsize=512)
def _reading(scope: str, marks: frozenset[str]) -> tuple[Dialect, ...]:
    return tuple(dialect for dialect in DIALECTS if dialect.may_read(scope, marks))


Owner: TypeAlias = Literal["own", "foreign"]

_FOREIGN: Final = [pattern for dialect in DIALECTS for pattern in dialect.content]
_NAMES: Final = 4096  # remembered; there are fewer, but for those that are numbered

_IS_FOREIGN: Final = re.compile("|".join(f"(?:{pattern})" for pattern in _FOREIGN)).fullmatch
_IS_OWN: Final = re.compile("|".join(native.CONTENT)).fullmatch
_EVENTS: Final = tuple(
    (re.compile(name), re.compile(what))
    for dialect in DIALECTS
    for name, what in dialect.content_events
)


@lru_cache(_NAMES)
def owner_of(attribute: str, event: str | None = None) -> Owner | None:
    """Tell whose content ``attribute``, of a span or of its ``event``, holds; None if it is none.

    ``own`` is what the application said itself, in our own names, ``foreign`` that of a dialect.
    """
    if _IS_OWN(attribute):
        return "own"
    if _IS_FOREIGN(attribute) or (event is not None and _is_in_event(attribute, event)):
        return "foreign"
    return None


def _is_in_event(attribute: str, event: str) -> bool:
    return any(name.fullmatch(event) and what.fullmatch(attribute) for name, what in _EVENTS)
