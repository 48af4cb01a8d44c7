"""`Segment`: what is known of a trace, or a part of one, until it is complete."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rag_eval_otel.capture.view import SdkSpan

OVERHEAD = 2048
"""Bytes of a span, about, without the texts on it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentLimits:
    """When a segment is complete, in seconds, and how much is kept until then.

    ``quiet`` passes after the last span has ended, ``root_quiet`` where that was a root's,
    ``slow_quiet`` where spans come late; or ``max_age`` since the first. Over ``max_segments`` or
    ``max_bytes`` the oldest go.
    """

    quiet: float = 0.5
    root_quiet: float = 0.05
    slow_quiet: float = 5.0
    max_age: float = 300.0
    max_segments: int = 1024
    max_spans: int = 10_000
    max_bytes: int = 64 * 1024 * 1024


@dataclass(slots=True, eq=False)
class Below:
    """What is below a span that has not ended: when it was searched first, and called last.

    Calls that have an anchor already are not counted.
    """

    searched: int | None = None
    called: int | None = None

    def add(self, other: Below) -> None:
        """Take in what is below another span that this one is above of."""
        starts = [t for t in (self.searched, other.searched) if t is not None]
        calls = [t for t in (self.called, other.called) if t is not None]
        self.searched, self.called = min(starts, default=None), max(calls, default=None)

    @property
    def is_turn(self) -> bool:
        """Whether a call follows a retrieval."""
        both = self.searched is not None and self.called is not None
        return both and self.called >= self.searched  # type: ignore[operator]  # just checked


@dataclass(slots=True, kw_only=True, eq=False)
class Segment:
    """The spans of a trace so far, and which of them are held."""

    trace_id: int
    first: float
    last: float
    spans: dict[int, SdkSpan] = field(default_factory=dict)
    """By id, in the order of their ends."""
    held: dict[int, SdkSpan] = field(default_factory=dict)
    below: dict[int, Below] = field(default_factory=dict)
    size: int = 0
    is_slow: bool = False
    root_ended: bool = False
    has_turn: bool = False
    lost: int = 0
    """Spans over the limit that were not kept."""
    began: int = 0
    """When the first of its spans began, in nanoseconds since the epoch."""

    def is_settled(self) -> bool:
        """Tell whether every LLM call that follows a retrieval has its anchor, ended."""
        return self.has_turn and not any(below.is_turn for below in self.below.values())


def is_late(attributes: Mapping[str, Any]) -> bool:
    """Tell whether a span with these attributes comes some time after its end."""
    return "langsmith.span.kind" in attributes


def size_of(attributes: Mapping[str, Any]) -> int:
    """Return about how many bytes a span with these attributes keeps alive."""
    return OVERHEAD + sum(len(v) for v in attributes.values() if isinstance(v, str))
