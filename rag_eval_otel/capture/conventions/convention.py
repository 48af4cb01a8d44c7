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

    A convention is tried on a span of one of the ``scopes`` with one of the attributes ``marks``.
    An empty set matches every span, and a span whose name has the ``name_prefix`` needs no mark.
    """

    name: str
    kind: Callable[[Span], Kind | None]  # None leaves the span to others; it parses nothing
    to_step: Callable[[Span, Kind], Step]  # is called on the background thread
    marks: frozenset[str] = frozenset()
    scopes: frozenset[str] = frozenset()
    name_prefix: str = ""  # of spans that need none of the attributes ``marks``
    content: tuple[str, ...] = ()  # patterns of attributes with texts of users and models
    content_events: tuple[tuple[str, str], ...] = ()  # the same of events and their attributes
    log_events: tuple[str, ...] = ()  # how the names of log records begin that it reads
    holds_documents: Callable[[Span], bool] | None = None  # for other spans than retrievals
    flat: frozenset[Kind] = frozenset()  # kinds that may contain unrelated questions
    instrumentations: str = ""  # a pattern of scopes whose spans may get ``marks`` at their end
    metadata_prefixes: tuple[str, ...] = ()  # of attributes with the application's metadata

    def __post_init__(self) -> None:
        pairs = (pattern for pair in self.content_events for pattern in pair)
        try:
            for pattern in (*self.content, *pairs, self.instrumentations):
                re.compile(pattern)
        except re.error as error:
            raise ConfigError(
                f"the convention {self.name!r} has an invalid pattern {error.pattern!r}: {error}"
            ) from error
