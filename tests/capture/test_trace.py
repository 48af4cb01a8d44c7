"""The assembler: which span stands for which turn, within limits."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from pipeline import turn
from rag_eval_otel.live.assembler import TraceAssembler

TURN, OTHER = turn(), turn("Another question?")


def opened(**options: Any) -> TraceAssembler:
    """Return an assembler that somebody takes turns from."""
    assembler = TraceAssembler(**options)
    assembler.is_open = True
    return assembler


def test_nothing_is_expected_where_nobody_takes_turns() -> None:
    """Without a processor that sees spans end, no span can stand for a turn."""
    assembler = TraceAssembler()
    assert not assembler.expect((1, 1), TURN)
    assert len(assembler) == 0


def test_a_turn_is_taken_once() -> None:
    """Whoever comes second, or asks for another span, gets none."""
    assembler = opened()
    assert assembler.take((1, 1)) is None
    assert assembler.expect((1, 1), TURN)
    assert assembler.take((1, 2)) is None
    assert assembler.take((1, 1)) is TURN
    assert assembler.take((1, 1)) is None


def test_a_span_stands_for_one_turn() -> None:
    """A second turn for the same span is refused, and the first stays; afterwards it is free."""
    assembler = opened()
    assert assembler.expect((1, 1), TURN)
    assert not assembler.expect((1, 1), OTHER)
    assert assembler.take((1, 1)) is TURN
    assert assembler.expect((1, 1), OTHER)


@pytest.mark.parametrize("limit", [1, 3])
def test_the_oldest_goes_over_the_limit(limit: int) -> None:
    """There are never more than the limit; each that goes is counted."""
    evicted: list[None] = []
    assembler = opened(max_turns=limit, on_evicted=lambda: evicted.append(None))
    for span in range(limit + 2):
        assert assembler.expect((1, span), TURN)
    assert len(assembler) == limit
    assert len(evicted) == 2
    assert [assembler.take((1, span)) for span in range(2)] == [None, None]
    assert [assembler.take((1, span)) for span in range(2, limit + 2)] == [TURN] * limit
    assert len(assembler) == 0


def test_evictions_go_unheard_by_default() -> None:
    """Nobody has to listen."""
    assembler = opened(max_turns=1)
    assert all(assembler.expect((1, span), TURN) for span in range(2))


def test_threads_stay_within_the_limit() -> None:
    """However many come at once, each over the limit is dropped and counted once."""
    evicted: list[None] = []
    assembler = opened(max_turns=10, on_evicted=lambda: evicted.append(None))
    start = threading.Barrier(8)

    def work(trace: int) -> None:
        start.wait()
        for span in range(200):
            assembler.expect((trace, span), turn())

    threads = [threading.Thread(target=work, args=(trace,)) for trace in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(assembler) == 10
    assert len(evicted) == 8 * 200 - 10


def test_clear_forgets_all() -> None:
    """After a fork the child has none of the parent's turns, and can go on."""
    assembler = opened()
    assembler.expect((1, 1), TURN)
    assembler.clear()
    assert len(assembler) == 0
    assert assembler.expect((1, 1), OTHER)


def test_threads_share_one() -> None:
    """Of many threads that expect and take the same spans, one each wins."""
    assembler, start = opened(), threading.Barrier(8)
    expected: list[int] = []
    taken: list[int] = []

    def work() -> None:
        mine = turn()
        start.wait()
        expected.extend(n for n in range(200) if assembler.expect((1, n), mine))
        start.wait()
        taken.extend(n for n in range(200) if assembler.take((1, n)))

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(expected) == sorted(taken) == list(range(200))


def test_what_is_closed_forgets_its_turns_and_takes_no_more() -> None:
    """It says how many it had, so that each is counted."""
    assembler = opened()
    for span in range(3):
        assert assembler.expect((1, span), TURN)
    assert assembler.close() == 3
    assert not assembler.expect((1, 9), TURN)
    assert assembler.close() == len(assembler) == 0


def test_closing_and_taking_at_once_count_each_turn_once() -> None:
    """While one thread closes others take: no turn has two takers."""
    for _ in range(50):
        assembler, taken = opened(), list[bool]()
        for span in range(200):
            assert assembler.expect((1, span), TURN)
        start = threading.Barrier(2)

        def take(
            assembler: TraceAssembler = assembler,
            taken: list[bool] = taken,
            start: threading.Barrier = start,
        ) -> None:
            start.wait(10)
            taken.extend(assembler.take((1, span)) is TURN for span in range(200))

        thread = threading.Thread(target=take)
        thread.start()
        start.wait(10)
        closed = assembler.close()
        thread.join()
        assert closed + sum(taken) == 200
