"""`SpanView`: the one shape in which dialects see a span, whoever made it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from opentelemetry.trace import INVALID_SPAN_CONTEXT

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.trace import SpanContext


_NOTHING: Mapping[str, Any] = {}


class SpanView(Protocol):
    """A span as dialects read it. Times are nanoseconds since the epoch, None where unknown."""

    @property
    def name(self) -> str:
        """What the span is called."""

    @property
    def scope(self) -> str:
        """The name of the instrumentation scope: who recorded it."""

    @property
    def attributes(self) -> Mapping[str, Any]:
        """Its attributes."""

    @property
    def events(self) -> Sequence[tuple[str, Mapping[str, Any]]]:
        """The names and attributes of its events, in order."""

    @property
    def logs(self) -> Sequence[LogView]:
        """The log records written within it, in order."""

    @property
    def trace_id(self) -> int:
        """Its trace."""

    @property
    def span_id(self) -> int:
        """Its id within the trace."""

    @property
    def parent_id(self) -> int | None:
        """The id of its parent."""

    @property
    def parent_is_remote(self) -> bool:
        """Whether the parent is in another process."""

    @property
    def start(self) -> int:
        """When it started."""

    @property
    def end(self) -> int | None:
        """When it ended."""

    @property
    def error(self) -> str | None:
        """How it failed, or None."""

    @property
    def dropped(self) -> int:
        """How many attributes were dropped over the limit."""

    @property
    def dropped_events(self) -> int:
        """How many events were dropped over the limit."""

    @property
    def value_limit(self) -> int | None:
        """The length at which its values are cut, where that is known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogView:
    """One log record."""

    event: str
    body: Any = None
    attributes: Mapping[str, Any] = field(default_factory=dict)


def attribute_names(span: ReadableSpan) -> Iterable[str]:
    """Return the names of the attributes of ``span``, which has ended.

    Every span of an application is asked: where the SDK keeps them as it does today, this does
    without the two wrappers around them, which cost more than all else that is done here.
    """
    try:
        return span._attributes._dict  # type: ignore[no-any-return,union-attr]  # noqa: SLF001
    except AttributeError:
        return span.attributes or ()


def has_dropped(span: ReadableSpan) -> bool:
    """Tell whether attributes of ``span`` were dropped over the limit; asked as often."""
    try:
        return span._attributes.dropped > 0  # type: ignore[no-any-return,union-attr]  # noqa: SLF001
    except AttributeError:
        return span.dropped_attributes > 0


class SdkSpan:
    """A span of the SDK as a `SpanView`. Nothing is read before it is asked for."""

    __slots__ = ("_logs", "_span")

    def __init__(self, span: ReadableSpan, logs: Sequence[LogView] = ()) -> None:
        """View ``span``, within which ``logs`` were written."""
        self._span = span
        self._logs = logs

    def is_of(self, other: SdkSpan) -> bool:
        """Tell whether both are views of one span, which the SDK hands out in copies."""
        return (self.name, self.start, self.end) == (other.name, other.start, other.end)

    @property
    def context(self) -> SpanContext:
        """Its identity."""
        return self._span.context or INVALID_SPAN_CONTEXT

    @property
    def name(self) -> str:
        """What the span is called."""
        return self._span.name

    @property
    def scope(self) -> str:
        """Who recorded it."""
        scope = self._span.instrumentation_scope
        return scope.name if scope is not None else ""

    @property
    def attributes(self) -> Mapping[str, Any]:
        """Its attributes."""
        return self._span.attributes or _NOTHING

    @property
    def events(self) -> Sequence[tuple[str, Mapping[str, Any]]]:
        """The names and attributes of its events."""
        return [(event.name, event.attributes or _NOTHING) for event in self._span.events]

    @property
    def logs(self) -> Sequence[LogView]:
        """The log records written within it."""
        return self._logs

    @property
    def trace_id(self) -> int:
        """Its trace."""
        context = self._span.context
        return context.trace_id if context is not None else 0

    @property
    def span_id(self) -> int:
        """Its id."""
        context = self._span.context
        return context.span_id if context is not None else 0

    @property
    def parent_id(self) -> int | None:
        """The id of its parent."""
        parent = self._span.parent
        return parent.span_id if parent is not None else None

    @property
    def parent_is_remote(self) -> bool:
        """Whether the parent is in another process."""
        parent = self._span.parent
        return parent is not None and parent.is_remote

    @property
    def start(self) -> int:
        """When it started."""
        return self._span.start_time or 0

    @property
    def end(self) -> int | None:
        """When it ended."""
        return self._span.end_time

    @property
    def error(self) -> str | None:
        """How it failed."""
        if self._span.status.is_ok or self._span.status.is_unset:
            return None
        kind = self.attributes.get("error.type")
        return str(kind or self._span.status.description or "error")

    @property
    def dropped(self) -> int:
        """How many attributes were dropped."""
        return self._span.dropped_attributes

    @property
    def dropped_events(self) -> int:
        """How many events were dropped."""
        return self._span.dropped_events

    @property
    def value_limit(self) -> int | None:
        """The length at which values are cut: the provider's, where the SDK tells."""
        found = getattr(getattr(self._span, "_attributes", None), "max_value_len", None)
        return found if isinstance(found, int) else None
