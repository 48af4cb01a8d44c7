"""The bare bones of a fragment: its place in the trace, and which parts of it are lost."""

from __future__ import annotations

from typing import Any

from rag_eval_otel.capture.dialects.values import CUT, HIDDEN, Lost, is_marker, usable
from rag_eval_otel.capture.fragment import Fragment, Kind, Part
from rag_eval_otel.capture.identities import metadata_in
from rag_eval_otel.capture.view import SpanView


class Losses:
    """Which parts of a span were hidden or cut."""

    def __init__(self) -> None:
        """Note none yet."""
        self.hidden: set[Part] = set()
        self.cut: set[Part] = set()

    def lost(self, part: Part, found: Any) -> bool:
        """Note ``part`` if ``found`` can't be read; tell whether that is so."""
        if found is HIDDEN:
            self.hidden.add(part)
        if found is CUT:
            self.cut.add(part)
        return isinstance(found, Lost)

    def text(self, part: Part, found: Any, text: str | None) -> str | None:
        """Return the text of ``part``, if it is one that can be used."""
        if self.lost(part, found):
            return None
        if text is not None and is_marker(text):
            self.hidden.add(part)
            return None
        return usable(text)


def fragment(view: SpanView, kind: Kind, *, losses: Losses, **parts: Any) -> Fragment:
    """Build a fragment of ``parts`` and of what every span has."""
    return Fragment(
        id=view.span_id,
        parent=view.parent_id,
        is_remote=bool(parts.pop("is_remote", False)) or view.parent_is_remote,
        kind=kind,
        name=str(parts.pop("name", None) or view.name),
        start=view.start,
        end=view.end,
        error=view.error,
        source=view.scope,
        metadata=metadata_in(view.attributes),
        hidden=frozenset(losses.hidden),
        cut=frozenset(losses.cut),
        **parts,
    )


def bare(view: SpanView, kind: Kind, **parts: Any) -> Fragment:
    """Build a fragment of which nothing but its place is known."""
    return fragment(view, kind, losses=Losses(), **parts)
