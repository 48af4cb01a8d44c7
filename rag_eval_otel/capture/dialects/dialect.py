"""`Dialect`: everything that is specific to one convention of describing RAG on spans."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from rag_eval_otel.capture.span import PlainSpan, SpanView
from rag_eval_otel.capture.step import Kind, Step

KindOf: TypeAlias = "Callable[[SpanView], Kind | None]"
ToStep: TypeAlias = "Callable[[PlainSpan, Kind], Step]"
HoldsDocuments: TypeAlias = "Callable[[SpanView], bool]"


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """One convention of describing RAG on spans, and the functions that read it.

    A span is offered to a dialect by its scope and attributes alone: its scope must be one of
    ``scopes`` (empty: any scope), and it must have one of the attributes ``marks``. A dialect of
    named ``scopes`` without ``marks`` is offered every span of these scopes.
    """

    name: str
    kind: KindOf
    """Returns the kind of step of a span, or None if the span is not of this dialect.

    It runs on the application's thread and parses nothing.
    """
    to_step: ToStep
    """Reads a span of this kind into a `Step`, on the background thread."""
    marks: frozenset[str] = frozenset()
    scopes: frozenset[str] = frozenset()
    name_prefix: str = ""
    """A prefix of span names; spans with it are offered even if they have none of ``marks``."""
    content: tuple[str, ...] = ()
    """Patterns of the attributes that hold texts of users and models."""
    content_events: tuple[tuple[str, str], ...] = ()
    """Pairs of patterns, of span events and of their attributes that hold such texts."""
    log_events: tuple[str, ...] = ()
    """Prefixes of the names of log records that this dialect reads."""
    holds_documents: HoldsDocuments | None = None
    """Tells, without parsing, whether a span that is no retrieval holds documents."""
    output: str = ""
    """The attribute that holds a step's output, in which documents may stand."""
    function_output: str = ""
    """The attribute that holds the return value of a decorated function."""
    tool_names: tuple[str, ...] = ()
    """Attributes that hold a tool's name; the first one present counts, else the span's name."""
    instrumentations: str = ""
    """A pattern of scopes whose spans may be given their marks late, often at their end."""
    exports_late: bool = False
    """Whether its spans are exported long after the root has ended."""
    metadata_prefixes: tuple[str, ...] = ()
    """Prefixes of attributes that hold metadata of the application."""

    def may_read(self, scope: str, marks: frozenset[str]) -> bool:
        """Return True if a span of ``scope`` with these ``marks`` may be of this dialect."""
        if self.scopes and scope not in self.scopes:
            return False
        return bool(self.name_prefix) or not self.marks or not self.marks.isdisjoint(marks)
