"""Define `Convention`, the reader of the spans of one instrumentation."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from rag_eval_otel.capture.span import PlainSpan, SpanView
from rag_eval_otel.capture.step import Kind, Step
from rag_eval_otel.errors import ConfigError

KindOf: TypeAlias = "Callable[[SpanView], Kind | None]"
ToStep: TypeAlias = "Callable[[PlainSpan, Kind], Step]"
AwaitsLogs: TypeAlias = "Callable[[SpanView, Kind], bool]"
HoldsDocuments: TypeAlias = "Callable[[SpanView], bool]"


@dataclass(frozen=True, slots=True, kw_only=True)
class Convention:
    """A reader of one tracing convention: its attribute names, and functions that read its spans.

    A convention is asked to read a span if two conditions hold. First, the span's scope is in
    ``scopes``, or ``scopes`` is empty. Second, the span has at least one of the attributes
    ``marks``, or ``marks`` is empty, or the convention has a ``name_prefix``.
    """

    name: str
    kind: KindOf
    """A function that returns the kind of call that a span describes, such as ``llm``.

    The function returns None if another convention must read the span. It runs on the application's
    thread and parses nothing.
    """
    to_step: ToStep
    """A function that reads a span of the given kind into a `Step`, on the background thread."""
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
    awaits_logs: AwaitsLogs | None = None
    """A function that returns True if a span of the given kind has no texts, and log records may.

    The function parses nothing.
    """
    holds_documents: HoldsDocuments | None = None
    """A function that returns True if a span has documents although it is no retrieval.

    The function parses nothing.
    """
    flat: frozenset[Kind] = frozenset()
    """The kinds of spans that may contain several unrelated questions; see `Step.flat`."""
    output: str = ""
    """The name of the attribute with the output of a call, which may contain documents."""
    function_output: str = ""
    """The name of the attribute with the return value of a decorated function."""
    tool_names: tuple[str, ...] = ()
    """Names of attributes that may contain the name of a tool. The first one on the span counts.

    If a span has none of these attributes, the name of the span is the name of the tool.
    """
    instrumentations: str = ""
    """A regular expression for scopes whose spans may get the attributes ``marks`` at their end."""
    exports_late: bool = False
    """Whether spans of this convention are exported long after the root span has ended."""
    metadata_prefixes: tuple[str, ...] = ()
    """The beginnings of the names of attributes with metadata of the application."""

    def __post_init__(self) -> None:
        """Check the regular expressions, and raise `ConfigError` if one is invalid.

        Also raise `ConfigError` if ``content`` is a text instead of a tuple of regular expressions.
        """
        given: object = self.content
        if isinstance(given, str):
            msg = f"the content of the convention {self.name!r} must be a tuple of patterns"
            raise ConfigError(msg)
        pairs = (pattern for pair in self.content_events for pattern in pair)
        try:
            for pattern in (*self.content, *pairs, self.instrumentations):
                re.fullmatch(pattern, "")
        except re.error as error:
            msg = f"the convention {self.name!r} has an invalid pattern {error.pattern!r}: {error}"
            raise ConfigError(msg) from error

    def may_read(self, scope: str, marks: frozenset[str]) -> bool:
        """Return True if this convention may be able to read a span.

        ``scope`` is the scope of the span. ``marks`` are the attribute names of the span that at
        least one convention looks for.
        """
        if self.scopes and scope not in self.scopes:
            return False
        return bool(self.name_prefix) or not self.marks or not self.marks.isdisjoint(marks)
