"""`Tally`: the counts that the doctor looks at."""

from __future__ import annotations

import os
import threading

import pytest

from rag_eval_otel.sinks.instruments import InstrumentSink, Tally


def test_counts_are_kept_by_kind_and_name() -> None:
    """Each kind has its own names, and what is returned is a copy."""
    tally = Tally()
    tally.add("turn", "scored")
    tally.add("turn", "scored", 2)
    tally.add("failure", "sink")
    seen = tally.of("turn")
    tally.add("turn", "scored")
    assert (seen, tally.of("failure"), tally.of("source")) == ({"scored": 3}, {"sink": 1}, {})


def test_threads_lose_no_count() -> None:
    """Every count of every thread is there."""
    tally = Tally()

    def count() -> None:
        for _ in range(2000):
            tally.add("turn", "scored")

    threads = [threading.Thread(target=count) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert tally.of("turn") == {"scored": 8000}


def test_the_instruments_count_beside_their_meter() -> None:
    """What the meter gets the tally has, with the reason."""
    sink = InstrumentSink()
    sink.turn("skipped", "redacted")
    sink.turn("scored")
    sink.internal_error("on_end")
    assert sink.tally.of("turn") == {"skipped redacted": 1, "scored": 1}
    assert sink.tally.of("failure") == {"on_end": 1}


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_a_forked_child_begins_at_zero() -> None:
    """What the parent has counted is the parent's."""
    tally = Tally()
    tally.add("turn", "scored")
    child = os.fork()
    if not child:
        os._exit(len(tally.of("turn")))
    assert os.waitpid(child, 0)[1] == 0
    assert tally.of("turn") == {"scored": 1}
