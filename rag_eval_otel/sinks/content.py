"""`ContentFilter`: which texts of an application's spans are exported once they have been read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from opentelemetry.sdk.trace import Event

from rag_eval_otel import semconv
from rag_eval_otel.capture.dialects import native
from rag_eval_otel.capture.dialects.content import Owner, owner_of
from rag_eval_otel.capture.span import attribute_names
from rag_eval_otel.config import Content, ContentCapture
from rag_eval_otel.redaction import Redactor
from rag_eval_otel.sinks.attributes import bounded, copied

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan

Fate: TypeAlias = Literal["keep", "drop", "redact"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ContentFilter:
    """Decides for every attribute of a span, and of its events, by its name.

    ``foreign``: what other instrumentations wrote. ``own``: what the application said itself, in
    our own names; of it ``redactor`` takes what matches. Spans of our own are left as they are:
    they were written as the user wants them.
    """

    foreign: Content = "keep"
    own: ContentCapture = "off"
    redactor: Redactor = Redactor()  # noqa: RUF009  # frozen

    def shown(self, span: ReadableSpan) -> ReadableSpan:
        """Return ``span`` as it may be exported: itself, or a copy without some of its texts."""
        scope = span.instrumentation_scope
        if scope is not None and scope.name == semconv.SCOPE:
            return span
        names = attribute_names(span)
        # What says that there are texts of ours in events may be what a limit has dropped.
        may_have_own = span.dropped_attributes or not native.NAMES.isdisjoint(names)
        if self.foreign == "keep" and not may_have_own:
            return span
        events = [self._event(event) for event in span.events]
        attributes = self._left(span.attributes or {}) if any(map(owner_of, names)) else None
        if attributes is None and not any(events):
            return span
        return copied(
            span,
            attributes=dict(span.attributes or {}) if attributes is None else attributes,
            events=[new or old for new, old in zip(events, span.events, strict=True)],
        )

    def bare(self, span: ReadableSpan) -> ReadableSpan:
        """Return ``span`` without attributes and events: where `shown` fails, nothing gets out."""
        return copied(span, attributes={}, events=())

    def _event(self, event: Event) -> Event | None:
        left = self._left(event.attributes or {}, event.name)
        if left is None:
            return None
        dropped = getattr(event.attributes, "dropped", 0)
        return Event(event.name, bounded(left, dropped), event.timestamp)

    def _left(
        self, attributes: Mapping[str, Any], event: str | None = None
    ) -> dict[str, Any] | None:
        """Return what is left of ``attributes``; None where that is all."""
        fates = {name: self._fate(owner_of(name, event)) for name in attributes}
        if all(fate == "keep" for fate in fates.values()):
            return None
        return {
            name: value if fates[name] == "keep" else self._redacted(name, value)
            for name, value in attributes.items()
            if fates[name] != "drop"
        }

    def _redacted(self, name: str, value: Any) -> Any:
        """Read JSON only where it is ours: a question may look like it, and is a text as it is."""
        if isinstance(value, str) and name not in native.LISTS:
            return self.redactor.text(value)
        return self.redactor.value(value)

    def _fate(self, owner: Owner | None) -> Fate:
        if owner == "own":
            kept: Fate = "redact" if self.redactor else "keep"
            return "drop" if self.own == "off" else kept
        return "drop" if owner == "foreign" and self.foreign == "strip" else "keep"
