"""`OpenSpans`: which spans are under way, found out in the background.

`Bystander`: a span around a turn that is no step of one, as a server's request or a session.
"""

from __future__ import annotations

import re
import threading
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import TYPE_CHECKING, Any

from opentelemetry.sdk.trace import Span
from opentelemetry.trace import SpanContext, get_current_span

from rag_eval_otel import semconv
from rag_eval_otel.capture.dialects import kind_of
from rag_eval_otel.capture.span import LogView, SdkSpan, SpanView

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan

_OPEN = 4096  # spans under way that are known; some never end
_GONE = 1024  # spans remembered that had ended when they were looked at
_STARTED = 1024  # starts remembered until the background has looked at them; each is kept alive
_NEWEST = 64  # spans that are looked at on the application's thread
_DEPTH = 100  # of parents that are looked at

_RECORDS_STEPS = re.compile(
    r"openinference\.|langfuse|langsmith|llamaindex|mlflow|haystack|pydantic|traceloop"
    r"|opentelemetry\.(util\.genai|instrumentation\.(genai|langchain|llamaindex|haystack|openai"
    r"|agno|anthropic|bedrock|chromadb|cohere|crewai|google|groq|mcp|mistralai|ollama|vertexai))"
)
"""Scopes of instrumentations whose spans say late, often at their end, what step they are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bystander:
    """A span that is no step of RAG, as a `SpanView`: its place in the trace, and no content."""

    context: SpanContext
    name: str
    scope: str
    parent_id: int | None
    parent_is_remote: bool
    start: int
    end: int | None
    error: str | None
    attributes: Mapping[str, Any] = field(default_factory=dict)
    events: Sequence[tuple[str, Mapping[str, Any]]] = ()
    logs: Sequence[LogView] = ()
    dropped: int = 0
    dropped_events: int = 0
    value_limit: int | None = None

    @classmethod
    def of(cls, view: SdkSpan) -> Bystander:
        """Return ``view`` as it is now."""
        return cls(
            context=view.context,
            name=view.name,
            scope=view.scope,
            parent_id=view.parent_id,
            parent_is_remote=view.parent_is_remote,
            start=view.start,
            end=view.end,
            error=view.error,
        )

    @property
    def trace_id(self) -> int:
        """Its trace."""
        return self.context.trace_id

    @property
    def span_id(self) -> int:
        """Its id."""
        return self.context.span_id


class OpenSpans:
    """The spans that have started and not ended; bounded, the newest count."""

    def __init__(self) -> None:
        """Know of none."""
        self._starts: deque[ReadableSpan] = deque(maxlen=_STARTED)
        self._open: dict[int, list[ReadableSpan]] = {}
        self._ending: frozenset[int] = frozenset()  # which of them had ended at the last look
        self._looking = threading.Lock()
        self.gone: deque[Bystander] = deque(maxlen=_GONE)
        """Spans that ended without being a step of RAG; their trace may become one of RAG yet."""
        self.note_start = self._starts.append
        """Note that a span has started."""

    def __iter__(self) -> Iterator[ReadableSpan]:
        """Yield the spans that were open at the last look, or had only just ended."""
        return chain.from_iterable(self._open.values())

    def note_current(self, trace_id: int) -> None:
        """Note the current span, if it is of this trace: its start may be long forgotten."""
        span: Any = get_current_span()
        while hasattr(span, "__wrapped__"):  # a proxy, as OpenInference's, is another span later on
            span = span.__wrapped__
        if isinstance(span, Span) and trace_of(span) == trace_id:
            self.note_start(span)

    def look(self) -> None:
        """Sort what has started since the last look, and forget what had ended by then.

        What has ended since is kept until the next look: a span has its end time a moment before
        its end is told, and if its thread is held up in between, it would be in neither place.
        """
        with self._looking:  # not the watch's lock, for which the application's threads wait
            begun = [self._starts.popleft() for _ in range(len(self._starts))]
            known = {id(span): span for span in (*self, *begun)}
            ended = {key: span for key, span in known.items() if span.end_time is not None}
            ending = {key: span for key, span in ended.items() if key not in self._ending}
            opened = [span for key, span in known.items() if key not in ended][-_OPEN:]
            found: dict[int, list[ReadableSpan]] = {}
            for span in (*ending.values(), *opened):
                found.setdefault(trace_of(span), []).append(span)
            self._open, self._ending = found, frozenset(ending)
            self.gone.extend(list(_gone(ending.values())))

    def just_gone(self, trace_id: int) -> Iterator[Bystander]:
        """Yield what has started lately in a trace and has ended, without a look."""
        lately = islice(reversed(self._starts.copy()), _NEWEST)
        return _gone(span for span in lately if trace_of(span) == trace_id)

    def lately(self, trace_id: int) -> list[ReadableSpan]:
        """Return those of a trace that were open at the last look, or had only just ended."""
        return self._open.get(trace_id, [])

    def of(self, trace_id: int) -> list[ReadableSpan]:
        """Return those of a trace that were open at the last look, and still are."""
        return [span for span in self._open.get(trace_id, ()) if span.end_time is None]

    def newest(self, trace_id: int) -> list[ReadableSpan]:
        """Return the newest of a trace that are open, without a look; there may be more."""
        begun = islice(reversed(self._starts.copy()), _NEWEST)
        newest = [span for span in begun if trace_of(span) == trace_id and span.end_time is None]
        return [*newest, *self._open.get(trace_id, ())[-_NEWEST:]][:_NEWEST]


def _gone(spans: Iterable[ReadableSpan]) -> Iterator[Bystander]:
    for view in map(SdkSpan, spans):
        if view.end is not None and view.scope != semconv.SCOPE and kind_of(view) == "other":
            yield Bystander.of(view)


def is_bystander(view: SdkSpan) -> bool:
    """Tell whether an open span is no step of RAG and, by who records it, won't become one."""
    return kind_of(view) == "other" and not _RECORDS_STEPS.match(view.scope)


def line_of(
    start: int | None, ended: Mapping[int, SpanView], opened: Mapping[int, int | None]
) -> Iterator[int]:
    """Yield ``start`` and the ids above it, among ``ended`` spans and the parents of ``opened``."""
    seen: set[int] = set()
    while start is not None and start not in seen and len(seen) < _DEPTH:
        seen.add(start)
        yield start
        above = ended.get(start)
        start = opened.get(start) if above is None else above.parent_id


def trace_of(span: ReadableSpan) -> int:
    """Return the trace of ``span``; 0 if it has none."""
    context = span.context
    return context.trace_id if context is not None else 0
