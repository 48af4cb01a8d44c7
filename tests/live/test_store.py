"""The store and its clock: each held span leaves exactly once, as the first decision says."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry import context as otel_context

from parallel import at_once
from rag_eval_otel.capture.trace import Held
from rag_eval_otel.config import Config
from rag_eval_otel.live.store import Clock, Store
from rag_eval_otel.types import UNTOUCHED, Ending
from support import ManualClock

SCORED, TIMEOUT = Ending("scored"), Ending("timeout")
PATIENCE = 30


def held(number: int = 1, *, size: int = 1, is_likely: bool = True) -> Held:
    return Held((1, number), number, otel_context.get_current(), size, is_likely)


def store(clock: Any = None, **limits: Any) -> Store:
    config = Config(**{"hold_seconds": 60.0, "max_held": 10, **limits})
    kept = Store(config, **({} if clock is None else {"clock": clock}))
    kept.max_bytes = 1000
    return kept


@dataclass
class Exits:
    """Records what leaves a store, in order, and calls ``before`` with the number first."""

    before: Callable[[int], None] = lambda _: None
    left: list[tuple[int, str | None]] = field(default_factory=list)

    def leave(self, held: Held) -> bool:
        number, ending = held.item, held.ending or UNTOUCHED
        self.before(number)
        self.left.append((number, ending.status))
        return True


@contextmanager
def ticking(kept: Store, exits: Exits) -> Iterator[Clock]:
    clock = Clock(kept, sweep=lambda: None, leave=exits.leave)
    yield clock
    clock.stop()


def test_the_first_decision_counts() -> None:
    """A second decision changes nothing and says so."""
    kept, span, exits = store(), held(), Exits()
    assert kept.hold(span)
    assert kept.decide(span, SCORED)
    assert not kept.decide(span, TIMEOUT)
    with ticking(kept, exits) as clock:
        clock.export()
        assert kept.wait_left(PATIENCE)
    assert not kept.decide(span, TIMEOUT)
    assert exits.left == [(1, "scored")]


def test_a_span_that_is_not_likely_leaves_as_it_is() -> None:
    """It gets no status, but the scores of a turn that is found later come too late for it."""
    kept, span = store(), held(is_likely=False)
    kept.hold(span)
    kept.decide(span, TIMEOUT)
    kept.start_scoring(span)
    assert (span.ending, span.is_late, span.state) == (UNTOUCHED, True, "leaving")
    assert kept.seconds_left(span) < 61


@pytest.mark.parametrize("size", [1, 500])
def test_limits_refuse(size: int) -> None:
    """Over the limit in spans or bytes nothing is held; a span that has left makes room."""
    kept = store(max_held=2 if size == 1 else 10)
    spans = [held(number, size=size) for number in range(4)]
    assert [kept.hold(span) for span in spans[:3]] == [True, True, False]
    kept.decide(spans[0], SCORED)
    assert not kept.hold(spans[3])  # a slow exporter does not empty the memory
    kept.left(spans[0])
    assert kept.hold(spans[3])


def test_spans_that_get_no_scores_are_bounded_in_number() -> None:
    """They take no place of those that wait for scores, up to eight times their number."""
    kept = store()
    stored = [kept.hold(held(number, size=0, is_likely=False)) for number in range(81)]
    assert stored == [True] * 80 + [False]


def test_deadlines_in_order() -> None:
    """At its deadline a span leaves, oldest first; a span without a deadline waits."""
    time = ManualClock()
    kept, spans = store(time, hold_seconds=5.0), [held(number) for number in range(3)]
    for span in spans:
        kept.hold(span)
        time.advance(1.0)
    due = []
    for _ in range(4):
        kept.decide_due()
        due.append([span.item for span in kept.exit])
        time.advance(1.0)
    assert due == [[], [], [0], [0, 1]]
    assert [kept.seconds_left(span) for span in spans] == [0.0, 0.0, 0.0]


def test_time_in_which_the_process_was_stopped_is_no_waiting_time() -> None:
    """A span that waited while nothing ran does not leave when the process goes on."""
    time = ManualClock()
    kept, span = store(time, hold_seconds=5.0), held()
    kept.hold(span)
    time.advance(100.0)
    kept.stopped += 98.0
    kept.decide_due()
    assert (span.state, kept.seconds_left(span)) == ("collecting", 3.0)


def test_a_span_may_end_while_the_lock_is_held() -> None:
    """A finalizer that ends a span inside the critical section does not deadlock."""
    kept, span = store(), held()
    with kept.lock:  # where a garbage collection may strike
        assert kept.hold(span)
        assert kept.decide(span, SCORED)


def test_a_flush_waits_for_older_spans_only() -> None:
    """What comes after the flush began is not waited for; the spans of an older run tree are."""
    kept, tree = store(), held(1)
    assert kept.wait_left(0)
    kept.hold(tree)
    assert not kept.wait_left(0)
    kept.hold(held(2))
    kept.replace(tree, [held(3)], [])
    assert not kept.wait_left(0, number=1)
    kept.left(kept.held[1, 3])
    assert kept.wait_left(0, number=1)
    assert not kept.wait_left(0)


EVENTS = ("hold", "scored", "timeout", "all", "export")


@given(st.lists(st.tuples(st.integers(0, 5), st.sampled_from(EVENTS)), max_size=60))
def test_in_any_order_each_span_leaves_once(events: list[tuple[int, str]]) -> None:
    """In any order of holds, decisions and exports, each held span leaves exactly once."""
    kept, exits, accepted = store(max_held=4), Exits(), 0
    clock = Clock(kept, sweep=lambda: None, leave=exits.leave)
    clock.is_inline = True
    for number, event in events:
        span = kept.held.get((1, number))
        if event == "hold":
            accepted += kept.hold(held(number))
        elif event == "all":
            for each in list(kept.held.values()):
                kept.decide(each, Ending("flushed"))
        elif event == "export":
            clock.export()
        elif span is not None:
            kept.decide(span, Ending(event))  # type: ignore[arg-type]
    for span in list(kept.held.values()):
        kept.decide(span, Ending("shutdown"))
    clock.export()
    assert len(exits.left) == accepted
    assert (len(kept), kept.size, kept.waiting, list(kept.exit)) == (0, 0, 0, [])


def test_threads_race_for_each_span() -> None:
    """Eight threads that all decide about the same spans: one wins for each."""
    kept, exits = store(max_held=500), Exits()
    spans = [held(number) for number in range(500)]
    for span in spans:
        kept.hold(span)
    wins: list[bool] = []
    with ticking(kept, exits) as clock:

        def race() -> None:
            wins.extend(clock.release(span, SCORED) for span in spans)

        at_once(*[race] * 8)
        assert kept.wait_left(PATIENCE)
    assert sum(wins) == 500
    assert Counter(number for number, _ in exits.left) == dict.fromkeys(range(500), 1)


def test_a_deadline_is_kept_between_two_exports() -> None:
    """While many spans leave slowly, those that are due leave next."""
    time, kept = ManualClock(), None
    exits = Exits(before=lambda number: time.advance(61.0) if number == 1 else None)
    kept = store(time)
    first, second, third = held(1), held(2), held(3)
    for span in (first, second, third):
        kept.hold(span)
    with ticking(kept, exits) as clock:
        kept.decide(first, SCORED)
        kept.decide(third, SCORED)
        clock.export()
        assert kept.wait_left(PATIENCE)
    assert exits.left == [(1, "scored"), (3, "scored"), (2, "timeout")]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("error", [RuntimeError, SystemExit])
def test_the_clock_outlives_an_exporter_that_exits(error: type[BaseException]) -> None:
    """An exception in the export of one span holds no other span past its deadline."""
    broken: list[threading.Thread] = []

    def fail(number: int) -> None:
        if number == 1:
            broken.append(threading.current_thread())
            raise error

    kept, exits = store(hold_seconds=0.01), Exits(before=fail)
    with ticking(kept, exits) as clock:
        with kept.lock:  # both are there before the clock looks
            kept.hold(held(1))
            kept.hold(held(2))
        clock.wake()
        assert kept.wait_left(PATIENCE)
        broken[0].join(PATIENCE)  # its exception is this test's, and no later one's
    assert exits.left == [(2, "timeout")]


def test_without_a_thread_spans_leave_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """At exit no thread can be started: what is decided is exported by who decides it."""

    def refuse(_: threading.Thread) -> None:
        msg = "can't create new thread at interpreter shutdown"
        raise RuntimeError(msg)

    monkeypatch.setattr(threading.Thread, "start", refuse)
    kept, exits, span = store(), Exits(), held()
    clock = Clock(kept, sweep=lambda: None, leave=exits.leave)
    assert not clock.start()
    kept.hold(span)
    assert clock.release(span, SCORED)
    assert exits.left == [(1, "scored")]


def test_the_clock_begins_late_and_ends_when_the_store_is_empty() -> None:
    """No thread runs before it is needed; after a fork, the child needs one of its own."""
    kept, swept = store(), threading.Event()
    clock = Clock(kept, sweep=swept.set, leave=Exits().leave)
    assert not clock.is_awake
    clock.wake()
    assert swept.wait(PATIENCE)
    thread = clock._thread  # noqa: SLF001
    assert thread is not None
    clock.reset()
    assert not clock.is_awake
    clock.wake()
    second = clock._thread  # noqa: SLF001
    assert second not in {thread, None}
    clock.stop()
    second.join(PATIENCE)
    assert not clock.start()  # a span after the end starts no thread
    thread.join(PATIENCE)
