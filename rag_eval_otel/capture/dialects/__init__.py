"""Read the spans of all instrumentations into steps.

A *step* is one call in a trace: a retrieval, a chat model, a tool or a chain. A *dialect* is a
module that reads the attribute names of one tracing convention. Its `Dialect` object is called
``DIALECT``. The dialects of this library are registered below. Another package registers a dialect
by an entry point in the group ``rag_eval_otel.dialects``.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import lru_cache
from typing import Final, Literal, TypeAlias

from rag_eval_otel.capture.dialects import native
from rag_eval_otel.capture.dialects.build import bare
from rag_eval_otel.capture.dialects.dialect import Dialect
from rag_eval_otel.capture.span import PlainSpan, SpanView, metadata_in, word
from rag_eval_otel.capture.step import Kind, Part, Step
from rag_eval_otel.capture.text import USUAL, Keys
from rag_eval_otel.errors import ConfigError
from rag_eval_otel.registry import Registry

_logger = logging.getLogger(__name__)
_HERE: Final = "rag_eval_otel.capture.dialects"

REGISTRY: Final = Registry(
    kind="dialect",
    built_in={
        name: f"{_HERE}.{name}:DIALECT"
        for name in (  # tried in this order, because many spans follow several conventions
            "adk",
            "autogen",
            "crewai",
            "dspy",
            "openinference_haystack",
            "openinference_llamaindex",
            "smolagents",
            "openinference",
            "langfuse",
            "langsmith",
            "mlflow",
            "haystack",
            "llamaindex",
            "vectordb",
            "traceloop",
            "strands",
            "genai",
        )
    },
)


def load(registry: Registry) -> Iterator[Dialect]:
    """Yield the dialects in ``registry``. If a dialect cannot be imported, log a warning."""
    for name in registry.names():
        try:
            found = registry.find(name)
        except ConfigError as error:
            _logger.warning("%s; its spans are not read", error)
            continue
        if isinstance(found, Dialect):
            yield found
        else:
            _logger.warning("the dialect %r is no Dialect, but %r; it is not used", name, found)


DIALECTS: Final[tuple[Dialect, ...]] = tuple(load(REGISTRY))
"""The dialects in the order in which they are tried. Each reads the spans of one convention."""

MARKS: Final = frozenset(native.PARTS).union(*(dialect.marks for dialect in DIALECTS))
"""Attribute names by which this library recognises the spans that it reads.

If a dialect reads a span, the span has at least one of these attributes. There are two exceptions:
spans of the scopes in `UNMARKED_SCOPES`, and spans whose name begins with the ``name_prefix`` of a
dialect.
"""
UNMARKED_SCOPES: Final = frozenset[str]().union(
    *(dialect.scopes for dialect in DIALECTS if not dialect.marks)
)
"""Names of instrumentation scopes whose spans are all read, whatever their attributes are."""
LOG_EVENTS: Final = tuple(prefix for dialect in DIALECTS for prefix in dialect.log_events)
"""The beginnings of the event names of log records that are read together with their span."""

_NAME_PREFIXES: Final = tuple(d.name_prefix for d in DIALECTS if d.name_prefix)
_METADATA_PREFIXES: Final = tuple(p for dialect in DIALECTS for p in dialect.metadata_prefixes)
_LATE_MARKS: Final = frozenset[str]().union(*(d.marks for d in DIALECTS if d.exports_late))
_OUTPUTS: Final = tuple(dict.fromkeys(d.output for d in DIALECTS if d.output))
_FUNCTION_OUTPUTS: Final = tuple(d.function_output for d in DIALECTS if d.function_output)
_RECORDED: Final = frozenset(native.PARTS)
_IS_INSTRUMENTATION: Final = re.compile(
    "|".join(f"(?:{d.instrumentations})" for d in DIALECTS if d.instrumentations)
).match


def kind_of(view: SpanView) -> Kind:
    """Return the kind of call that the span ``view`` describes, such as ``llm`` or ``retriever``.

    Only the names of attributes, scope and span, and short values, are read. No text is parsed.
    """
    _, kind = _dialect(view)
    return kind or ("chain" if is_recorded(view) else "other")


def is_recorded(view: SpanView) -> bool:
    """Return True if the application recorded a question, contexts or an answer on a span.

    Only the attribute names of the span ``view`` are read.
    """
    return not _RECORDED.isdisjoint(view.attributes)


def recorded_on(view: SpanView) -> frozenset[Part]:
    """Return which parts of a RAG turn the application itself recorded on the span ``view``.

    A turn is a question and its answer. Its parts are ``input``, ``output`` and ``documents``. Only
    attribute names are read.
    """
    return frozenset(native.PARTS[name] for name in _RECORDED.intersection(view.attributes))


def is_instrumentation(scope: str) -> bool:
    """Return True if an open span of ``scope`` may later become a call in a RAG turn.

    ``scope`` is the name of an instrumentation scope. Such a span may get the attributes that
    describe the call only at its end.
    """
    return _IS_INSTRUMENTATION(scope) is not None


def is_exported_late(view: SpanView) -> bool:
    """Return True if child spans of ``view`` may be exported long after the end of ``view``."""
    return any(mark in view.attributes for mark in _LATE_MARKS)


def tool_name(view: SpanView) -> str:
    """Return the name of the tool that the span ``view`` called, or else the name of the span."""
    dialect, _ = _dialect(view)
    names = (word(view, key) for key in dialect.tool_names) if dialect is not None else ()
    return next((name for name in names if name is not None), view.name)


def returns_list(view: SpanView) -> bool:
    """Return True if ``view`` is the span of a decorated function that returned a list.

    Only the first character of the recorded return value is read.
    """
    return any(output[:1] == "[" for output in _texts(view, _FUNCTION_OUTPUTS))


def returns_documents(view: SpanView) -> bool:
    """Return True if the recorded output of the span ``view`` mentions LangChain documents.

    The output is not parsed. It is only searched for the word ``page_content``.
    """
    return any("page_content" in output for output in _texts(view, _OUTPUTS))


def _texts(view: SpanView, names: Iterable[str]) -> Iterator[str]:
    values = (view.attributes.get(name) for name in names)
    return (value for value in values if isinstance(value, str))


def holds_documents(view: SpanView) -> bool:
    """Return True if the span ``view`` contains documents, although it is no retrieval.

    An example is a model call with tool results in its prompt. Nothing is parsed.
    """
    return any(
        dialect.holds_documents(view)
        for dialect in _candidates(view)
        if dialect.holds_documents is not None
    )


def awaits_logs(view: SpanView) -> bool:
    """Return True if the texts of the span ``view`` may still come in log records.

    Nothing is parsed.
    """
    dialect, kind = _dialect(view)
    return (
        dialect is not None
        and kind is not None
        and dialect.awaits_logs is not None
        and dialect.awaits_logs(view, kind)
    )


def dialect_of(view: SpanView) -> str | None:
    """Return the name of the dialect that reads the span ``view``, or None if no dialect does.

    A dialect reads the attributes of one tracing convention. If no dialect reads the span, but the
    application itself recorded texts on it, return ``"native"``.
    """
    dialect, _ = _dialect(view)
    if dialect is not None:
        return dialect.name
    return "native" if is_recorded(view) else None


def read(view: SpanView, keys: Keys = USUAL) -> Step:
    """Read the span ``view`` into a `Step`, which describes one call in a trace.

    This parses texts, so it runs on the background thread. ``keys`` are the dict keys under which
    the application keeps questions and answers.
    """
    span = PlainSpan.of(view, keys)
    dialect, kind = _dialect(span)
    if dialect is None or kind is None:
        step = bare(span, "other", flat=True)
    else:
        step = dialect.to_step(span, kind)
    metadata = metadata_in(span.attributes, _METADATA_PREFIXES)
    if is_recorded(span):
        step = native.with_recorded(span, step)
    return replace(step, metadata=metadata)


def _dialect(view: SpanView) -> tuple[Dialect | None, Kind | None]:
    for dialect in _candidates(view):
        kind = dialect.kind(view)
        if kind is not None:
            return dialect, kind
    return None, None


def _candidates(view: SpanView) -> tuple[Dialect, ...]:
    """Return the dialects that may be able to read the span ``view``. Most spans have none."""
    marks = MARKS.intersection(view.attributes)
    if marks or view.scope in UNMARKED_SCOPES or view.name.startswith(_NAME_PREFIXES):
        return _readers(view.scope, marks)
    return ()


@lru_cache(maxsize=512)
def _readers(scope: str, marks: frozenset[str]) -> tuple[Dialect, ...]:
    return tuple(dialect for dialect in DIALECTS if dialect.may_read(scope, marks))


Owner: TypeAlias = Literal["own", "foreign"]

_CACHED_NAMES: Final = 4096  # attribute names; more than most applications have, if not numbered
_FOREIGN: Final = dict.fromkeys(pattern for dialect in DIALECTS for pattern in dialect.content)
_IS_FOREIGN: Final = re.compile("|".join(f"(?:{pattern})" for pattern in _FOREIGN)).fullmatch
_IS_OWN: Final = re.compile("|".join(native.CONTENT)).fullmatch
_EVENTS: Final = tuple(
    (re.compile(event), re.compile(attribute))
    for dialect in DIALECTS
    for event, attribute in dialect.content_events
)


@lru_cache(_CACHED_NAMES)
def owner_of(attribute: str, event: str | None = None) -> Owner | None:
    """Return who wrote the text in ``attribute``, the name of an attribute of a span or an event.

    If ``event`` is given, ``attribute`` is an attribute of the span event with this name.

    - ``own``: the application wrote the text with a ``record_*`` function of this library.
    - ``foreign``: an instrumentation wrote the text.
    - None: the attribute contains no text of users or models.
    """
    if _IS_OWN(attribute):
        return "own"
    if _IS_FOREIGN(attribute) or (event is not None and _is_event_content(attribute, event)):
        return "foreign"
    return None


def _is_event_content(attribute: str, event: str) -> bool:
    return any(name.fullmatch(event) and what.fullmatch(attribute) for name, what in _EVENTS)
