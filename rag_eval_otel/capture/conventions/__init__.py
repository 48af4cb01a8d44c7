"""Find the tracing convention of a span, and read the span into a `Step`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from typing import Final, Literal, TypeAlias

from rag_eval_otel import semconv
from rag_eval_otel.capture.conventions import (
    agents,
    genai,
    haystack,
    llamaindex,
    native,
    openinference,
    platforms,
    traceloop,
    vectordb,
)
from rag_eval_otel.capture.conventions.convention import Convention
from rag_eval_otel.capture.documents import DOCUMENTS_IN_JSON
from rag_eval_otel.capture.span import Span, metadata_in
from rag_eval_otel.capture.step import CONTEXT_TOOLS, Kind, Part, Step, has_longer_text, new_step
from rag_eval_otel.config import MAX_TEXT_CHARS
from rag_eval_otel.errors import ConfigError
from rag_eval_otel.log import log
from rag_eval_otel.registry import Registry


def load(registry: Registry) -> Iterator[Convention]:
    for name in registry.names():
        try:
            convention = registry.find(name)
        except ConfigError as error:
            log.warning("%s; its spans are not read", error)
            continue
        if isinstance(convention, Convention):
            yield convention
        else:
            log.warning("the convention %r is no Convention; it is not used", name)


CONVENTIONS: Final[tuple[Convention, ...]] = (  # tried in this order: spans may follow several
    *agents.OF_OPENINFERENCE,
    haystack.OPENINFERENCE,
    llamaindex.OPENINFERENCE,
    openinference.CONVENTION,
    *platforms.CONVENTIONS,
    haystack.CONVENTION,
    llamaindex.CONVENTION,
    vectordb.CONVENTION,
    traceloop.CONVENTION,
    agents.STRANDS,
    genai.CONVENTION,
    *load(Registry(kind="convention", built_in={})),
)
MARKS: Final = frozenset(native.PARTS).union(*(convention.marks for convention in CONVENTIONS))
UNMARKED_SCOPES: Final = frozenset[str]().union(
    *(convention.scopes for convention in CONVENTIONS if not convention.marks)
)
LOG_EVENTS: Final = tuple(prefix for convention in CONVENTIONS for prefix in convention.log_events)
_NAME_PREFIXES: Final = tuple(c.name_prefix for c in CONVENTIONS if c.name_prefix)
_METADATA_PREFIXES: Final = tuple(prefix for c in CONVENTIONS for prefix in c.metadata_prefixes)
_IS_INSTRUMENTATION: Final = re.compile(
    "|".join(f"(?:{c.instrumentations})" for c in CONVENTIONS if c.instrumentations)
).match


def _convention(view: Span) -> tuple[Convention | None, Kind | None]:
    for convention in _candidates(view):
        kind = convention.kind(view)
        if kind is not None:
            return convention, kind
    return None, None


def _candidates(view: Span) -> tuple[Convention, ...]:
    """Return the conventions that may read the span ``view``. Most spans have none."""
    marks = MARKS.intersection(view.attributes)
    is_named = view.scope in UNMARKED_SCOPES or view.name.startswith(_NAME_PREFIXES)
    may_be = (marks or is_named) and view.scope != semconv.JUDGE_SCOPE
    return _readers(view.scope, marks) if may_be else ()


@lru_cache(maxsize=512)
def _readers(scope: str, marks: frozenset[str]) -> tuple[Convention, ...]:
    return tuple(
        c
        for c in CONVENTIONS
        if (not c.scopes or scope in c.scopes)
        and (c.name_prefix or not c.marks or not c.marks.isdisjoint(marks))
    )


def kind_of(view: Span) -> Kind:
    _, kind = _convention(view)
    return kind or ("chain" if recorded_on(view) else "other")


def recorded_on(view: Span) -> frozenset[Part]:
    return frozenset([native.PARTS[name] for name in native.PARTS.keys() & view.attributes])


def is_instrumentation(scope: str) -> bool:
    """Return True if ``scope`` is of a RAG instrumentation, whose spans may get ``marks`` late."""
    return _IS_INSTRUMENTATION(scope) is not None


def is_exported_late(view: Span) -> bool:
    """Return True if child spans of ``view`` may be exported long after the end of ``view``."""
    return "langsmith.span.kind" in view.attributes


def shows_documents(view: Span) -> bool:
    """Return True if an attribute seems to be JSON with documents, or a search's list of texts."""
    texts = (value for value in view.attributes.values() if isinstance(value, str))
    lists = CONTEXT_TOOLS.search(view.name) is not None  # plain texts, by a function that searches
    return any(DOCUMENTS_IN_JSON.search(one) or (lists and one[:1] == "[") for one in texts)


def is_flat(view: Span) -> bool:
    """Return True if the span ``view`` may contain several unrelated questions; see `Step.flat`."""
    convention, kind = _convention(view)
    if convention is None:
        return not (recorded_on(view) or is_instrumentation(view.scope))
    return kind == "other" or kind in convention.flat


def holds_documents(view: Span) -> bool:
    """Return True if ``view``, not a retrieval, has documents or tool results in its input."""
    return any(c.holds_documents(view) for c in _candidates(view) if c.holds_documents is not None)


def convention_of(view: Span) -> str | None:
    """Return the name of the convention of ``view``; ``native`` if it only has recorded parts."""
    convention, _ = _convention(view)
    if convention is not None:
        return convention.name
    return "native" if recorded_on(view) else None


def read(view: Span, *, most: int = MAX_TEXT_CHARS) -> Step:
    """Read the span ``view`` into a `Step` with texts of at most ``most`` characters."""
    span = view.plain(most)
    convention, kind = _convention(span)
    if convention is None or kind in {None, "aside"}:
        step = new_step(span, kind or "other", flat=True)
    else:
        step = agents.without_written_calls(convention.to_step(span, kind))
    if recorded_on(span):
        step = native.with_recorded(span, step)
    metadata = metadata_in(span.attributes, _METADATA_PREFIXES)
    is_cut = (span.is_cut and bool(step.cut)) or has_longer_text(step, most)
    return replace(step, metadata=metadata, is_cut=is_cut)


Owner: TypeAlias = Literal["own", "foreign"]

_IS_FOREIGN: Final = re.compile(
    "|".join({f"(?:{pattern})": None for c in CONVENTIONS for pattern in c.content})
).fullmatch
_EVENTS: Final = tuple(
    (re.compile(event), re.compile(attribute))
    for convention in CONVENTIONS
    for event, attribute in convention.content_events
)


@lru_cache(4096)
def owner_of(attribute: str, event: str | None = None) -> Owner | None:
    """Return who writes texts into ``attribute``: "own" (this library), "foreign", or None."""
    if attribute in native.CONTENT:
        return "own"
    if _IS_FOREIGN(attribute) or (
        event is not None
        and any(name.fullmatch(event) and key.fullmatch(attribute) for name, key in _EVENTS)
    ):
        return "foreign"
    return None
