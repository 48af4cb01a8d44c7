"""`Counters`: what the counters in a file come to, over processes and restarts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rag_eval_otel.results.rows import CounterPoint


@dataclass(slots=True)
class Counters:
    """Takes the points of counters, in any order, and adds up what they come to."""

    _latest: dict[str, CounterPoint] = field(default_factory=dict)
    _added: dict[str, float] = field(default_factory=dict)

    def add(self, point: CounterPoint) -> None:
        """Take a point: a cumulative one replaces those before it, another is added to them."""
        known = self._latest.get(point.key)
        if known is None or point.time >= known.time:
            self._latest[point.key] = point
        before = 0.0 if point.cumulative else self._added.get(point.key, 0.0)
        latest = self._latest[point.key]
        self._added[point.key] = latest.value if point.cumulative else before + point.value

    def total(self, name: str, attributes: Mapping[str, Any]) -> float | None:
        """Return the count of ``name`` with at least these attributes; None without any point."""
        found = [
            self._added[key]
            for key, point in self._latest.items()
            if point.name == name and attributes.items() <= point.attributes.items()
        ]
        return sum(found) if found else None
