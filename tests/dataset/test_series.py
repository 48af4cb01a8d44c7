"""`FileScores`: sums of counters."""

from __future__ import annotations

from rag_eval_otel.dataset.series import CounterTotals
from rag_eval_otel.results import CounterPoint


def point(value: float, *, at: float, key: str = "k", cumulative: bool = True) -> CounterPoint:
    """Return a point of the counter ``c``."""
    return CounterPoint(
        name="c", attributes={"a": key}, value=value, time=at, key=key, cumulative=cumulative
    )


def test_counters_add_up_over_processes() -> None:
    """The latest point of each cumulative counter, and all points of others."""
    counters = CounterTotals()
    for one in (point(5, at=1), point(9, at=3), point(7, at=2), point(4, at=1, key="other")):
        counters.add(one)
    for value in (1, 2):
        counters.add(point(value, at=1, key="delta", cumulative=False))
    assert counters.total("c", {}) == 9 + 4 + 3
    assert counters.total("c", {"a": "other"}) == 4
    assert counters.total("d", {}) is None
