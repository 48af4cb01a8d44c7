"""Ids and time that a test can write down beforehand."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from opentelemetry.sdk.trace import TracerProvider

import rag_eval_otel.testing
from rag_eval_otel.testing import ManualClock, SequentialIdGenerator


def test_ids_count_from_one() -> None:
    """Spans of a real provider get trace ids and span ids 1, 2, 3."""
    tracer = TracerProvider(id_generator=SequentialIdGenerator()).get_tracer("t")
    with tracer.start_as_current_span("a") as a, tracer.start_as_current_span("b") as b:
        pass
    contexts = [
        a.get_span_context(),
        b.get_span_context(),
        tracer.start_span("c").get_span_context(),
    ]
    assert [(c.trace_id, c.span_id) for c in contexts] == [(1, 1), (1, 2), (2, 3)]


def test_clock_moves_only_when_told() -> None:
    """Reading the clock does not move it; advancing does, by exactly that much."""
    clock = ManualClock(5.0)
    assert [clock(), clock()] == [5.0, 5.0]
    clock.advance(2.5)
    assert clock() == 7.5


def test_clock_advances_across_threads() -> None:
    """No advance is lost when many threads make them."""
    clock = ManualClock()
    with ThreadPoolExecutor(16) as pool:
        list(pool.map(clock.advance, [0.5] * 2000))
    assert clock() == 1000.0


def test_clock_refuses_to_go_back() -> None:
    """A negative advance is an error that names it, and changes nothing."""
    clock = ManualClock(1.0)
    with pytest.raises(ValueError, match=r"advance\(-1\)"):
        clock.advance(-1)
    assert clock() == 1.0


def test_public_names_are_sorted_and_exist() -> None:
    """The public list is sorted and each name in it can be had."""
    names = rag_eval_otel.testing.__all__
    assert names == sorted(names) == dir(rag_eval_otel.testing)
    assert all(getattr(rag_eval_otel.testing, name).__name__ == name for name in names)


def test_unknown_name_is_an_attribute_error() -> None:
    """A misspelt name fails like that of any module."""
    with pytest.raises(AttributeError, match="has no attribute 'Nothing'"):
        _ = rag_eval_otel.testing.Nothing  # type: ignore[attr-defined]
