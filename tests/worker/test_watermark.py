"""The offset that a worker commits for a partition: everything below it is complete."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rag_eval_otel.worker.watermark import Partition, Watermark
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
    assert (partition.to_commit, partition.uncommitted) == (1, 2)
    partition.committed = 1
    assert (partition.to_commit, partition.uncommitted) == (None, 1)
    assert list(partition.receipts) == [1]
