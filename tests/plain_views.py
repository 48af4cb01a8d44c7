"""`View`: a span as somebody's exporter shows it, for tests of what conventions read."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rag_eval_otel.capture.span import LogView


@dataclass(frozen=True, kw_only=True)
class View:
    """A span as somebody's exporter shows it."""

    attributes: Mapping[str, Any] = field(default_factory=dict)
    events: list[tuple[str, Mapping[str, Any]]] = field(default_factory=list)
    logs: list[LogView] = field(default_factory=list)
    name: str = "span"
    scope: str = "somebody"
    trace_id: int = 1
    span_id: int = 2
    parent_id: int | None = None
    parent_is_remote: bool = False
    start: int = 1
    end: int | None = 2
    error: str | None = None
    dropped: int = 0
    dropped_events: int = 0
    value_limit: int | None = None
