"""`Dialect`: describe how one tracing convention writes RAG calls on spans."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from rag_eval_otel.capture.span import PlainSpan, SpanView
from rag_eval_otel.capture.step import Kind, Step
from rag_eval_otel.errors import ConfigError

KindOf: TypeAlias = "Callable[[SpanView], Kind | None]"
ToStep: TypeAlias = "Callable[[PlainSpan, Kind], Step]"
HoldsDocuments: TypeAlias = "Callable[[SpanView], bool]"


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """A reader of one tracing convention: its attribute names, and functions that read its spans.

    A dialect is asked to read a span if the span's scope is in ``scopes`` (or ``scopes`` is empty)
    and the span has one of the attributes ``marks``. If a dialect has ``scopes`` but no ``marks``,
    it is asked to read every span of these scopes.
    """

    name: str
    kind: KindOf
    """Returns the kind of call that a span describes, or None if another dialect must read it.

    The function runs on the application's thread and parses nothing.
    """
    to_step: ToStep
    """Reads a span of the given kind into a `Step`. It runs on the background thread."""
    marks: frozenset[str] = frozenset()
    scopes: frozenset[str] = frozenset()
    name_prefix: str = ""
    """A prefix of span names. Spans with this prefix need none of the attributes ``marks``."""
    content: tuple[str, ...] = ()
    """Regular expressions for the names of attributes with texts of users and models."""
    content_events: tuple[tuple[str, str], ...] = ()
    """Regular expressions in pairs: names of span events, and their attributes with texts."""
    log_events: tuple[str, ...] = ()
    """Prefixes of the names of log records that this dialect reads."""
    holds_documents: HoldsDocuments | None = None
    """Returns True, without parsing, if a span has documents although it is no retrieval."""
    output: str = ""
    """The attribute with the output of a call, which may contain documents."""
    function_output: str = ""
    """The attribute with the return value of a decorated function."""
    tool_names: tuple[str, ...] = ()
    """Attributes with the name of a tool. The first one on the span counts, else its name."""
    instrumentations: str = ""
    """A regular expression for scopes whose spans may get the attributes ``marks`` at their end."""
    exports_late: bool = False
    """Whether spans of this dialect are exported long after the root span has ended."""
    metadata_prefixes: tuple[str, ...] = ()
    """Prefixes of attributes with metadata of the application."""

    def __post_init__(self) -> None:
        """Compile the patterns. Raise `ConfigError` for a text in place of a tuple of patterns."""
        given: object = self.content
        if isinstance(given, str):
            msg = f"the content of the dialect {self.name!r} must be a tuple of patterns"
            raise ConfigError(msg)
        pairs = (pattern for pair in self.content_events for pattern in pair)
        try:
            deque(map(re.compile, (*self.content, *pairs, self.instrumentations)), maxlen=0)
        except re.error as error:
            msg = f"the dialect {self.name!r} has an invalid pattern {error.pattern!r}: {error}"
            raise ConfigError(msg) from error

    def may_read(self, scope: str, marks: frozenset[str]) -> bool:
        """Return True if this dialect may be able to read a span.

        ``scope`` is the scope of the span. ``marks`` are those attribute names of the span that any
        dialect looks for.
        """
        if self.scopes and scope not in self.scopes:
            return False
        return bool(self.name_prefix) or not self.marks or not self.marks.isdisjoint(marks)
