"""The offset that a worker commits for a partition: everything below it is complete."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rag_eval_otel.worker.watermark import Finished, Partition, Watermark
from rag_eval_otel.worker.wire import Receipt


def test_the_offset_is_that_of_the_first_message_that_is_not_acknowledged() -> None:
    """Messages may be acknowledged in any order; the offset passes over those at the front."""
    mark = Watermark()
    assert mark.advance() is None
    for offset in (7, 8, 12):
        mark.begin(offset)
    assert mark.advance() == 7
    assert mark.acknowledge(8)
    assert mark.advance() == 7
    assert mark.acknowledge(7)
    assert mark.advance() == 12
    assert mark.acknowledge(12)
    assert mark.advance() == 13 == mark.end


def test_an_acknowledgement_counts_once() -> None:
    """A second acknowledgement, or one of an unknown message, changes nothing."""
    mark = Watermark()
    mark.begin(0, size=10)
    mark.begin(1, size=5)
    assert (mark.bytes, mark.open) == (15, 2)
    assert mark.acknowledge(0)
    assert not mark.acknowledge(0)
    assert not mark.acknowledge(9)
    assert (mark.bytes, mark.open) == (5, 1)


def test_offsets_go_up() -> None:
    """A message below another one is refused: the partition was rewound without being revoked."""
    mark = Watermark()
    mark.begin(5)
    with pytest.raises(ValueError, match="offset 5 is below 6"):
        mark.begin(5)


def test_a_message_waits_for_the_other_messages_of_its_trace() -> None:
    """If a worker fails, the next one gets all spans of a trace that was not finished."""
    mark = Watermark()
    mark.begin(0, [1])  # a retrieval, exported at once
    mark.begin(1, [2])
    mark.begin(2, [1])  # the turn, which waits for its scores
    mark.acknowledge(0)
    mark.acknowledge(1)
    assert mark.advance() == 0
    mark.acknowledge(2)
    assert mark.advance() == 3


def test_a_message_waits_while_spans_of_its_trace_are_expected() -> None:
    """The spans of a trace without its root are exported, and committed with the root."""
    mark = Watermark()
    mark.begin(0, [1])
    mark.acknowledge(0)
    assert mark.advance({1}.__contains__) == 0
    assert mark.advance() == 1


@pytest.mark.slow
@given(st.data())
def test_nothing_below_the_offset_is_incomplete(data: st.DataObject) -> None:
    """At each moment, all messages below the offset, and all others of their traces, are done."""
    mark, open_, traces = Watermark(), set[int](), dict[int, frozenset[int]]()
    end, last = 0, 0
    for _ in range(data.draw(st.integers(0, 40))):
        if open_ and data.draw(st.booleans()):
            done = data.draw(st.sampled_from(sorted(open_)))
            mark.acknowledge(done)
            open_.discard(done)
        else:
            end += data.draw(st.integers(0, 3))  # compacted topics have gaps
            traces[end] = data.draw(st.frozensets(st.integers(0, 4), max_size=2))
            mark.begin(end, traces[end])
            open_.add(end)
            end += 1
        collecting = data.draw(st.frozensets(st.integers(0, 4), max_size=1))
        offset = mark.advance(collecting.__contains__)
        if offset is not None:
            below = {one for one in traces if one < offset}
            assert not below & open_
            assert offset >= last, "the offset never goes back"
            last = offset
        assert mark.open == len(open_)
    for offset in sorted(open_):
        mark.acknowledge(offset)
    assert mark.advance() == (end if traces else None)


@given(st.lists(st.booleans(), max_size=20))
def test_all_messages_of_an_open_trace_are_at_or_above_the_offset(acknowledged: list[bool]) -> None:
    """What a new owner reads from the offset on has all messages of the unfinished trace.

    This holds for messages that came while another message of the trace was open.
    """
    mark = Watermark()
    mark.begin(0, [1])
    for offset, is_done in enumerate(acknowledged, 1):
        mark.begin(offset, [1])
        if is_done:
            mark.acknowledge(offset)
    assert mark.advance() == 0


def test_a_partition_knows_what_it_has_to_commit() -> None:
    """Nothing has to be committed before a message is done, or after its offset was committed."""
    partition = Partition(0)
    assert (partition.to_commit, partition.uncommitted) == (None, 0)
    for offset in (0, 1):
        partition.begin(offset)
        partition.receipts[offset] = Receipt(1, lambda: None)
    assert (partition.to_commit, partition.uncommitted) == (None, 2)
    partition.acknowledged.append(0)
    assert partition.settle(lambda _: False) == 1
    assert (partition.to_commit, partition.uncommitted) == ((1, ""), 2)
    partition.committed = 1
    assert (partition.to_commit, partition.uncommitted) == (None, 1)
    assert list(partition.receipts) == [1]


def offsets_of(found: Finished) -> set[int]:
    return {offset for offset in range(100) if found.has(offset, found.epoch)}


def test_complete_messages_above_the_offset_are_finished() -> None:
    """Those of other traces than the unfinished ones need not be read again."""
    mark = Watermark()
    for offset, trace in enumerate((1, 2, 1, 3, 2)):
        mark.begin(offset, [trace], epoch=7)
    for offset in (0, 2, 4):
        mark.acknowledge(offset)
    assert mark.advance() == 1
    assert offsets_of(mark.finished()) == {2}
    assert offsets_of(mark.finished({1}.__contains__)) == set()
    mark.acknowledge(3)
    assert offsets_of(mark.finished()) == {2, 3}


def test_a_trace_is_read_again_as_a_whole() -> None:
    """A message that shares a trace with one that is read again is read again, too."""
    mark = Watermark()
    for offset, traces in enumerate(([1, 2], [2, 3], [3], [4])):
        mark.begin(offset, traces, epoch=0)
        if offset:
            mark.acknowledge(offset)
    assert mark.advance() == 0
    assert offsets_of(mark.finished({1}.__contains__)) == {3}


@pytest.mark.slow
@given(st.data())
def test_what_is_read_again_has_each_trace_whole(data: st.DataObject) -> None:
    """Of no trace are some messages above the offset finished, and others not."""
    mark, traces, done = Watermark(), dict[int, frozenset[int]](), set[int]()
    for offset in range(data.draw(st.integers(0, 30))):
        traces[offset] = data.draw(st.frozensets(st.integers(0, 9), min_size=1, max_size=2))
        mark.begin(offset, traces[offset], epoch=0)
        if data.draw(st.booleans()):
            mark.acknowledge(offset)
            done.add(offset)
    offset = mark.advance() or 0
    finished = offsets_of(mark.finished())
    again = {one for one in traces if one >= offset} - finished
    assert finished <= done
    assert all(traces[one].isdisjoint(traces[other]) for one in finished for other in again)


def calls_of(call: Callable[[], object]) -> int:
    """Return how many functions are called, also those that are written in C."""
    events = Counter[str]()
    sys.setprofile(lambda _frame, event, _arg: events.update([event]))
    try:
        call()
    finally:
        sys.setprofile(None)
    return events["call"] + events["c_call"]


def test_messages_that_share_traces_in_a_chain_take_little_time() -> None:
    """In a topic that is not written by trace id, each message has traces of the one before it."""
    calls = []
    for number in (100, 400):
        mark = Watermark()
        for offset in range(number):
            mark.begin(offset, [offset, offset + 1], epoch=0)
            if offset:
                mark.acknowledge(offset)
        assert mark.advance() == 0
        calls.append(calls_of(mark.finished))
        assert mark.finished().bits == 0
    assert calls[1] < 5 * calls[0]


def next_owner(note: str, **received: int) -> Partition:
    found = Partition(0, known=Finished.of_note(0, note))
    for name, epoch in received.items():
        found.begin(int(name.removeprefix("offset_")), [9], epoch=epoch)
    found.settle(lambda _: False)
    found.mark(lambda _: False)
    return found


def test_what_was_finished_stays_so_until_it_is_received() -> None:
    """A worker may lose a partition before it has received all that the one before has finished."""
    note = Finished(0, 0b1010_0000, 3).note(0)
    for received in ({}, {"offset_0": 2}, {"offset_0": 0, "offset_4": 3}):
        assert offsets_of(next_owner(note, **received).finished) == {5, 7}
    found = next_owner(note, offset_0=2, offset_6=3)
    assert offsets_of(found.finished) == {7}
    assert found.finished.epoch == 3


@pytest.mark.parametrize("received", [{"offset_0": 4}, {"offset_0": 3, "offset_4": 5}])
def test_what_was_finished_before_a_later_epoch_is_forgotten(received: dict[str, int]) -> None:
    """If a message has a later epoch, all messages after it were written later, too."""
    found = next_owner(Finished(0, 0b1010_0000, 3).note(0), **received)
    assert offsets_of(found.finished) == set()
    assert not found.is_known(5, 3)


def test_what_was_finished_is_forgotten_if_the_log_begins_below_it() -> None:
    """A topic that was created again counts its epochs anew, too."""
    found = Partition(0, known=Finished(5, 0b10, 3))
    found.begin(0, epoch=0)
    assert not found.is_known(6, 0)


def test_a_message_without_an_epoch_is_not_finished() -> None:
    """Old brokers do not tell it, so that a message that was replaced could not be recognised."""
    mark = Watermark()
    mark.begin(0, [1])
    mark.begin(1, [2])
    mark.acknowledge(1)
    assert mark.finished() == Finished()


@given(st.sets(st.integers(0, 8000), max_size=40), st.integers(0, 2**62), st.integers(0, 50))
def test_what_is_finished_is_committed_as_a_short_text(
    marked: set[int], start: int, passed: int
) -> None:
    """The text says the same from a later offset on, and fits into what brokers allow."""
    found = Finished(start, sum(1 << one for one in marked), 5)
    note = found.note(start + passed)
    assert len(note) < 2000
    again = Finished.of_note(start + passed, note)
    for one in range(passed, 8000):
        assert again.has(start + one, 5) == (one in marked)
        assert not again.has(start + one, 6)
        assert not again.has(start + one, None)
    assert bool(note) == any(one >= passed for one in marked)


def test_a_text_that_was_committed_with_another_offset_says_nothing() -> None:
    """MirrorMaker copies the text to another cluster, with the offset that is right there."""
    note = Finished(5, 0b100, 0).note(5)
    assert Finished.of_note(5, note).has(7, 0)
    for offset in (0, 4, 6):
        assert Finished.of_note(offset, note) == Finished()


@pytest.mark.parametrize(
    "note", [None, "", "of another program", "finished:1:BA==", "finished:5:1:A", "finished:5:1:="]
)
def test_a_text_of_another_form_says_nothing(note: str | None) -> None:
    """Another program may commit texts of its own for the group."""
    assert Finished.of_note(5, note) == Finished()
