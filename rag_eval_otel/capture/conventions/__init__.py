"""Read the spans of all instrumentations into steps.

A *step* is one call in a trace: a retrieval, a chat model, a tool or a chain. A `Convention` reads
the attribute names of one instrumentation. Those of this library are registered below. Another
package registers one by an entry point in the group ``rag_eval_otel.conventions``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import lru_cache
from typing import Final, Literal, TypeAlias

from rag_eval_otel.capture.conventions import native
from rag_eval_otel.capture.conventions.convention import Convention
from rag_eval_otel.capture.span import PlainSpan, SpanView, metadata_in, word
from rag_eval_otel.capture.step import Kind, Part, Step, bare, has_longer_text
from rag_eval_otel.capture.values import USUAL, Keys
from rag_eval_otel.config import MAX_TEXT_CHARS
from rag_eval_otel.errors import ConfigError
from rag_eval_otel.log import log
from rag_eval_otel.registry import Registry

_HERE: Final = "rag_eval_otel.capture.conventions"

_BUILT_IN: Final = (  # tried in this order, because many spans follow several conventions
    ("adk", "agents:ADK"),
    ("autogen", "agents:AUTOGEN"),
    ("crewai", "agents:CREWAI"),
    ("dspy", "agents:DSPY"),
    ("openinference_haystack", "haystack:OPENINFERENCE"),
    ("openinference_llamaindex", "llamaindex:OPENINFERENCE"),
    ("smolagents", "agents:SMOLAGENTS"),
    ("openinference", "openinference:CONVENTION"),
    ("langfuse", "platforms:LANGFUSE"),
    ("langsmith", "platforms:LANGSMITH"),
    ("mlflow", "platforms:MLFLOW"),
    ("haystack", "haystack:CONVENTION"),
    ("llamaindex", "llamaindex:CONVENTION"),
    ("vectordb", "vectordb:CONVENTION"),
    ("traceloop", "traceloop:CONVENTION"),
    ("strands", "agents:STRANDS"),
    ("genai", "genai:CONVENTION"),
)
REGISTRY: Final = Registry(
    kind="convention",
    built_in={name: f"{_HERE}.{place}" for name, place in _BUILT_IN},
)


def load(registry: Registry) -> Iterator[Convention]:
    """Yield the conventions in ``registry``. If a convention cannot be imported, log a warning."""
    for name in registry.names():
        try:
            found = registry.find(name)
        except ConfigError as error:
            log.warning("%s; its spans are not read", error)
            continue
        if isinstance(found, Convention):
            yield found
        else:
            log.warning("the convention %r is no Convention, but %r; it is not used", name, found)


CONVENTIONS: Final[tuple[Convention, ...]] = tuple(load(REGISTRY))
"""The conventions in the order in which they are tried. Each reads the spans of one convention."""

MARKS: Final = frozenset(native.PARTS).union(*(convention.marks for convention in CONVENTIONS))
"""Attribute names by which this library recognises the spans that it reads.

A span that a convention reads has at least one of these attributes. There are two exceptions:
spans of the scopes in `UNMARKED_SCOPES`, and spans whose name begins with a ``name_prefix``.
"""
UNMARKED_SCOPES: Final = frozenset[str]().union(
    *(convention.scopes for convention in CONVENTIONS if not convention.marks)
)
"""Names of instrumentation scopes whose spans are all read, whatever their attributes are."""
LOG_EVENTS: Final = tuple(prefix for convention in CONVENTIONS for prefix in convention.log_events)
"""The beginnings of the event names of log records that are read together with their span."""

_NAME_PREFIXES: Final = tuple(d.name_prefix for d in CONVENTIONS if d.name_prefix)
_METADATA_PREFIXES: Final = tuple(
    p for convention in CONVENTIONS for p in convention.metadata_prefixes
)
_LATE_MARKS: Final = frozenset[str]().union(*(d.marks for d in CONVENTIONS if d.exports_late))
_OUTPUTS: Final = tuple(dict.fromkeys(d.output for d in CONVENTIONS if d.output))
_FUNCTION_OUTPUTS: Final = tuple(d.function_output for d in CONVENTIONS if d.function_output)
_DOCUMENT: Final = '"page_content"'
_RECORDED: Final = frozenset(native.PARTS)
_IS_INSTRUMENTATION: Final = re.compile(
    "|".join(f"(?:{d.instrumentations})" for d in CONVENTIONS if d.instrumentations)
).match


def kind_of(view: SpanView) -> Kind:
    """Return the kind of call that the span ``view`` describes, such as ``llm`` or ``retriever``.

    Only the names of attributes, scope and span, and short values, are read. No text is parsed.
    """
    _, kind = _convention(view)
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
    convention, _ = _convention(view)
    names = (word(view, key) for key in convention.tool_names) if convention is not None else ()
    return next((name for name in names if name is not None), view.name)


def returns_list(view: SpanView) -> bool:
    """Return True if ``view`` is the span of a decorated function that returned a list.

    Only the first character of the recorded return value is read.
    """
    return any(output[:1] == "[" for output in _texts(view, _FUNCTION_OUTPUTS))


def returns_documents(view: SpanView) -> bool:
    """Return True if the recorded output of the span ``view`` has LangChain documents.

    The output is not parsed. See `shows_documents`.
    """
    return any(_DOCUMENT in output for output in _texts(view, _OUTPUTS))


def shows_documents(view: SpanView) -> bool:
    """Return True if a text on the span ``view`` has LangChain documents, as input or output.

    No text is parsed. It is only searched for the JSON key ``page_content``. A prompt in which a
    document was formatted by Python has no such key.
    """
    texts = (value for value in view.attributes.values() if isinstance(value, str))
    return any(_DOCUMENT in text for text in texts)


def is_flat(view: SpanView) -> bool:
    """Return True if the span ``view`` may contain several unrelated questions; see `Step.flat`."""
    convention, kind = _convention(view)
    if convention is None:
        return not (is_recorded(view) or is_instrumentation(view.scope))
    return kind == "other" or kind in convention.flat


def _texts(view: SpanView, names: Iterable[str]) -> Iterator[str]:
    values = (view.attributes.get(name) for name in names)
    return (value for value in values if isinstance(value, str))


def holds_documents(view: SpanView) -> bool:
    """Return True if the span ``view`` contains documents, although it is no retrieval.

    An example is a model call with tool results in its prompt. Nothing is parsed.
    """
    return any(
        convention.holds_documents(view)
        for convention in _candidates(view)
        if convention.holds_documents is not None
    )


def awaits_logs(view: SpanView) -> bool:
    """Return True if the texts of the span ``view`` may still come in log records.

    Nothing is parsed.
    """
    convention, kind = _convention(view)
    return (
        convention is not None
        and kind is not None
        and convention.awaits_logs is not None
        and convention.awaits_logs(view, kind)
    )


def convention_of(view: SpanView) -> str | None:
    """Return the name of the convention that reads the span ``view``, or None if none does.

    If none does, but the application itself recorded texts on the span, return ``"native"``.
    """
    convention, _ = _convention(view)
    if convention is not None:
        return convention.name
    return "native" if is_recorded(view) else None


def read(view: SpanView, keys: Keys = USUAL, *, most: int = MAX_TEXT_CHARS) -> Step:
    """Read the span ``view`` into a `Step`, which describes one call in a trace.

    This parses texts, so it runs on the background thread. ``keys`` are the dict keys under which
    the application keeps questions and answers. ``most`` is the limit of texts: see `Copier`.
    """
    span = PlainSpan.of(view, keys, most=most)
    convention, kind = _convention(span)
    if convention is None or kind is None:
        step = bare(span, "other", flat=True)
    else:
        step = convention.to_step(span, kind)
    metadata = metadata_in(span.attributes, _METADATA_PREFIXES)
    if is_recorded(span):
        step = native.with_recorded(span, step)
    is_cut = (span.is_cut and bool(step.cut)) or has_longer_text(step, most)
    return replace(step, metadata=metadata, is_cut=is_cut)


def _convention(view: SpanView) -> tuple[Convention | None, Kind | None]:
    for convention in _candidates(view):
        kind = convention.kind(view)
        if kind is not None:
            return convention, kind
    return None, None


def _candidates(view: SpanView) -> tuple[Convention, ...]:
    """Return the conventions that may be able to read the span ``view``. Most spans have none."""
    marks = MARKS.intersection(view.attributes)
    if marks or view.scope in UNMARKED_SCOPES or view.name.startswith(_NAME_PREFIXES):
        return _readers(view.scope, marks)
    return ()


@lru_cache(maxsize=512)
def _readers(scope: str, marks: frozenset[str]) -> tuple[Convention, ...]:
    return tuple(convention for convention in CONVENTIONS if convention.may_read(scope, marks))


Owner: TypeAlias = Literal["own", "foreign"]

_CACHED_NAMES: Final = 4096  # attribute names; more than most applications have, if not numbered
_FOREIGN: Final = dict.fromkeys(
    pattern for convention in CONVENTIONS for pattern in convention.content
)
_IS_FOREIGN: Final = re.compile("|".join(f"(?:{pattern})" for pattern in _FOREIGN)).fullmatch
_IS_OWN: Final = re.compile("|".join(native.CONTENT)).fullmatch
_EVENTS: Final = tuple(
    (re.compile(event), re.compile(attribute))
    for convention in CONVENTIONS
    for event, attribute in convention.content_events
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
