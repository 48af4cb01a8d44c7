"""The holdback: each item is released exactly once, by the first caller."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rag_eval_otel.live.hold import CHUNK, Holdback, Key
from rag_eval_otel.types import Ending

KEY: Key = (1, 1)


class Record:
    """Notes the released items, in order."""

    def __init__(self, before: Callable[[int], None] = lambda _: None) -> None:
        """Call ``before`` with the number of the item before noting."""
        self.seen: list[tuple[int, str | None]] = []
        self.before = before
        self._made = 0

    def item(self) -> Item:
        """Return an item, numbered in the order in which they are made."""
        self._made += 1
        return Item(self._made - 1, self)

    def note(self, number: int, status: str | None) -> None:
        """Note that an item was released."""
        self.before(number)
        self.seen.append((number, status))


class Item:
    """An item to hold."""

    def __init__(self, number: int, record: Record) -> None:
        """Tell ``record``."""
        self._number = number
        self._record = record

    def release(self, ending: Ending) -> None:
        """Be released."""
        self._record.note(self._number, ending.status)


def holdback(**options: Any) -> Holdback:
    """Return a holdback with room for ten items."""
    return Holdback(**{"seconds": 60.0, "max_spans": 10, "max_bytes": 1000, **options})


SCORED, TIMEOUT = Ending("scored"), Ending("timeout")


def test_first_claim_wins() -> None:
    """A second release of the same span does nothing and says so."""
    record = Record()
    hold = holdback()
    assert hold.hold(KEY, record.item(), size=1)
    assert hold.release(KEY, SCORED)
    assert not hold.release(KEY, TIMEOUT)
    assert record.seen == [(0, "scored")]


def test_states_of_a_held_item() -> None:
    """An item is collecting until a turn was found for it, then scoring until it is released."""
    hold, record = holdback(), Record()
    hold.hold(KEY, record.item(), size=1)
    assert (hold.count("collecting"), hold.count("scoring")) == (1, 0)
    held = hold.start_scoring(KEY)
    assert (hold.count("collecting"), hold.count("scoring")) == (0, 1)
    held.release(SCORED)
    held.release(TIMEOUT)
    assert (hold.count("collecting"), hold.count("scoring")) == (0, 0)
    assert record.seen == [(0, "scored")]


def test_scoring_of_an_item_that_has_been_released() -> None:
    """A deadline may pass before the turn is found: the scores release nothing then."""
    hold, record = holdback(), Record()
    hold.hold(KEY, record.item(), size=1)
    hold.release(KEY, TIMEOUT)
    hold.start_scoring(KEY).release(SCORED)
    assert record.seen == [(0, "timeout")]


def test_same_key_is_not_held_twice() -> None:
    """A span that claims the identity of a held one is refused, not swallowed."""
    hold, record = holdback(), Record()
    assert hold.hold(KEY, record.item(), size=1)
    assert not hold.hold(KEY, record.item(), size=1)


@pytest.mark.parametrize("limit", [{"max_spans": 2}, {"max_bytes": 20}])
def test_limits_refuse(limit: dict[str, int]) -> None:
    """Over the limit in spans or bytes nothing is held; a release makes room again."""
    hold, record = holdback(**limit), Record()
    assert [hold.hold((1, i), record.item(), size=10) for i in range(3)] == [True, True, False]
    hold.release((1, 0), SCORED)
    assert hold.hold((1, 9), record.item(), size=10)


def test_deadline_releases_in_order() -> None:
    """The reaper releases at the deadline, oldest first."""
    record, done = Record(), threading.Event()
    record.before = lambda number: done.set() if number == 2 else None
    hold = holdback(seconds=0.01)
    for i in range(3):
        hold.hold((1, i), record.item(), size=1)
    assert done.wait(10)
    assert hold.wait_empty(10)
    hold.close()
    assert hold.release_all("shutdown", deadline=1e9, flush=lambda _: None) is True
    assert record.seen == [(0, "timeout"), (1, "timeout"), (2, "timeout")]


def test_release_all_waits_for_spans_in_transit() -> None:
    """A span that was claimed but not handed over yet holds a shutdown up."""
    entered, go_on = threading.Event(), threading.Event()

    def slow(_: int) -> None:
        entered.set()
        go_on.wait(10)

    record = Record(slow)
    hold = holdback()
    hold.hold(KEY, record.item(), size=1)
    releasing = threading.Thread(target=hold.release, args=(KEY, SCORED))
    releasing.start()
    entered.wait(10)
    assert not hold.release_all("shutdown", deadline=0.0, flush=lambda _: None)
    go_on.set()
    assert hold.release_all("shutdown", deadline=1e9, flush=lambda _: None)
    releasing.join()
    assert record.seen == [(0, "scored")]


def test_flush_between_chunks() -> None:
    """A mass release empties the next queue after every chunk, while there is time."""
    record, flushed = Record(), []
    hold = holdback(max_spans=10_000, max_bytes=10_000, clock=lambda: 0.0)
    for i in range(2 * CHUNK + 1):
        hold.hold((1, i), record.item(), size=1)
    hold.release_all(
        "shutdown", deadline=1.0, flush=lambda left: flushed.append((len(record.seen), left))
    )
    assert flushed == [(CHUNK, 1.0), (2 * CHUNK, 1.0)]
    assert len(record.seen) == 2 * CHUNK + 1


def test_closed_holds_nothing() -> None:
    """After closing nothing is held any more."""
    hold = holdback()
    hold.close()
    assert not hold.is_open
    assert not hold.hold(KEY, Record().item(), size=1)


def test_a_span_may_end_while_the_lock_is_held() -> None:
    """A finalizer that ends a span inside the critical section does not deadlock."""
    hold = holdback()
    with hold._changed:  # noqa: SLF001  # where a garbage collection may strike
        assert hold.hold(KEY, Record().item(), size=1)
        assert hold.release(KEY, SCORED)


def test_wait_empty_looks_at_older_spans_only() -> None:
    """A flush does not wait for spans that come after it."""
    hold = holdback()
    assert hold.wait_empty(0)
    hold.hold(KEY, Record().item(), size=1)
    assert not hold.wait_empty(0)


@given(
    st.lists(
        st.tuples(st.integers(0, 5), st.sampled_from(["hold", "scored", "timeout", "all"])),
        max_size=60,
    )
)
def test_any_order_of_events_releases_each_span_once(events: list[tuple[int, str]]) -> None:
    """In any order of holds and releases, each held item is released exactly once."""
    record = Record()
    hold = holdback(max_spans=4)
    accepted = 0
    for key, event in events:
        if event == "hold":
            accepted += hold.hold((1, key), record.item(), size=1)
        elif event == "all":
            hold.release_all("flushed", deadline=1e9, flush=lambda _: None)
        else:
            hold.release((1, key), Ending(event))  # type: ignore[arg-type]
    hold.close()
    hold.release_all("shutdown", deadline=1e9, flush=lambda _: None)
    counted = Counter(number for number, _ in record.seen)
    assert len(counted) == accepted
    assert set(counted.values()) <= {1}
    assert len(hold) == 0


def test_threads_race_for_each_span() -> None:
    """Eight threads that all try to release the same spans release each once."""
    record = Record()
    hold = holdback(max_spans=500)
    for i in range(500):
        hold.hold((1, i), record.item(), size=1)
    wins: list[bool] = []

    def race() -> None:
        wins.extend(hold.release((1, i), SCORED) for i in range(500))

    threads = [threading.Thread(target=race) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(wins) == 500
    assert len({number for number, _ in record.seen}) == 500


def test_a_forked_child_holds_no_more_than_its_parent() -> None:
    """A closed holdback stays closed when it forgets its spans."""
    hold = holdback()
    hold.close()
    hold.reset()
    assert not hold.is_open


def test_a_processor_that_flushes_does_not_wait_for_itself() -> None:
    """Who is being handed a span may flush: it waits for the others in transit only."""
    outcomes = []

    def flush(_: int) -> None:
        outcomes.append(hold.release_all("flushed", deadline=1e9, flush=lambda _: None))

    hold = holdback()
    hold.hold(KEY, Record(flush).item(), size=1)
    assert hold.release(KEY, SCORED)
    assert outcomes == [True]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("error", [RuntimeError, SystemExit])
def test_the_reaper_outlives_an_exporter_that_exits(error: type[BaseException]) -> None:
    """An exception in the release of one span holds no other span past its deadline."""
    released = threading.Event()
    broken: list[threading.Thread] = []

    def leave(number: int) -> None:
        if number == 0:
            broken.append(threading.current_thread())
            raise error
        released.set()

    hold, record = holdback(seconds=0.01), Record(leave)
    with hold._changed:  # noqa: SLF001  # both are there before the reaper looks
        assert hold.hold(KEY, record.item(), size=1)
        assert hold.hold((1, 2), record.item(), size=1)
    assert released.wait(10)
    broken[0].join(10)  # its exception is this test's, and no later one's
    assert hold.wait_empty(10)
    hold.close()
