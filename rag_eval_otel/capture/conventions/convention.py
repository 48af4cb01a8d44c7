"""Define `Convention`, the reader of the spans of one instrumentation."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from rag_eval_otel.capture.span import Span
from rag_eval_otel.capture.step import Kind, Step
from rag_eval_otel.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class Convention:
    """A reader of one tracing convention: its attribute names, and functions that read its spans.

    It is asked to read a span if the scope of the span is in ``scopes``, or ``scopes`` is empty,
    and if the span has one of the attributes ``marks``, or ``marks`` is empty, or it has a
    name_prefix.
    """

    name: str
    kind: Callable[[Span], Kind | None]
    """Returns the kind of call, or None to leave the span to others; it parses nothing."""
    to_step: Callable[[Span, Kind], Step]
    """Reads a span of the given kind into a `Step`, on the background thread."""
    marks: frozenset[str] = frozenset()
    scopes: frozenset[str] = frozenset()
    name_prefix: str = ""
    """A prefix of span names. Spans with this prefix need none of the attributes ``marks``."""
    content: tuple[str, ...] = ()
    """Regular expressions for the names of attributes with texts of users and models."""
    content_events: tuple[tuple[str, str], ...] = ()
    """Pairs of regular expressions: for names of span events, and their attributes with texts."""
    log_events: tuple[str, ...] = ()
    """The beginnings of the event names of log records that this convention reads."""
    holds_documents: Callable[[Span], bool] | None = None
    """Returns True if a span has documents although it is no retrieval; it parses nothing."""
    flat: frozenset[Kind] = frozenset()
    """The kinds of spans that may contain several unrelated questions; see `Step.flat`."""
    output: str = ""
    """The name of the attribute with the output of a call, which may contain documents."""
    tool_names: tuple[str, ...] = ()
    """Names of attributes that may contain the name of a tool, before the name of the span."""
    instrumentations: str = ""
    """A regular expression for scopes whose spans may get the attributes ``marks`` at their end."""
    exports_late: bool = False
    """Whether child spans may be exported long after the end of their parent."""
    metadata_prefixes: tuple[str, ...] = ()
    """The beginnings of names of attributes with metadata of the application."""

    def __post_init__(self) -> None:
        """Raise `ConfigError` for a regular expression that is not valid."""
        pairs = (pattern for pair in self.content_events for pattern in pair)
        try:
            for pattern in (*self.content, *pairs, self.instrumentations):
                re.compile(pattern)
        except re.error as error:
            raise ConfigError(
                f"the convention {self.name!r} has an invalid pattern {error.pattern!r}: {error}"
            ) from error
