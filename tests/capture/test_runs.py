"""The recorder: every tree is handed on once, in time, whatever happens to its runs."""

import asyncio
import gc
from uuid import UUID
from weakref import ref

import pytest
from opentelemetry.context import Context

from rag_eval_otel.capture.runs import MAX_RUNS, Run, RunTree
from rag_eval_otel.capture.step import Kind
from rag_eval_otel.types import Passage
from recording import ANSWER, QUESTION, Capture, begin, begin_turn, capture, fail, finish, run_turn
from support import ManualClock

GRACE = 5.0
"""Seconds that no test waits."""


def ids(captured: Capture) -> list[int]:
    return [int(span.name.rpartition("chain")[2]) for span in captured.spans]


def test_what_was_recorded_within_a_run() -> None:
    """Question and answer are also those of the runs above without their own; the last counts."""
    captured = capture()
    root = begin(captured, "chain", 1)
    below = begin(captured, "chain", 2, under=1)
    tool = begin(captured, "tool", 3, under=2)
    pages = (Passage(text="a  b"), Passage(text="a b"), Passage(text="c"))
    tool.said = {"input": QUESTION, "output": ANSWER, "documents": pages}
    tool.query, below.said = "kites " * 4, {"output": "Another."}
    top, middle, inner = root.tree.steps(most=20)
    both = {"input", "output"}
    assert (top.recorded, middle.recorded, inner.recorded) == (both, both, {*both, "documents"})
    assert (top.input, middle.input, middle.output) == (QUESTION, QUESTION, "Another.")
    assert top.cut == {"output"}  # as ANSWER is longer than 20 characters
    assert (inner.query, middle.query) == (("kites " * 4)[:20], None)
    assert (inner.output, inner.cut, inner.documents) == (None, {"output"}, (pages[0], pages[2]))
    finish(captured, tool, below, root)


def test_a_search_is_below_the_retriever_that_made_it() -> None:
    """LangChain gives both the same parent, so their times tell, if the retriever has ended."""
    tree = RunTree(Context(), 0.0)
    rows: list[tuple[int | None, Kind, int, int | None]] = [
        *((None, "chain", 0, 20), (1, "retriever", 2, 8), (1, "retriever", 10, None)),
        *((1, "chain", 0, 20), (4, "retriever", 0, 20)),
    ]
    searches = [(1, 2, 8, 2), (1, 1, 8, 1), (1, 2, 9, 1), (1, 10, None, 3), (4, 2, 8, 5)]
    rows += [(parent, "retriever", start, end) for parent, start, end, _ in searches]
    for number, (parent, kind, start, end) in enumerate(rows, start=1):
        run = Run(number, parent, tree, kind, kind, {})
        run.start, run.end, run.is_search = start, end, number > len(rows) - len(searches)
        tree.runs.append(run)
    parents = [step.parent for step in tree.steps(parent=99)]
    assert parents == [99, 1, 1, 1, 4, *(parent for *_, parent in searches)]


@pytest.mark.slow
def test_a_tree_with_too_many_runs_is_no_turn() -> None:
    """What is over the limit is not kept; what was written down has its span."""
    captured = capture()
    write, search, root = begin_turn(captured)
    for number in range(10, MAX_RUNS + 7):
        finish(captured, begin(captured, "chain", number, under=1))
    for number in (1, 2):
        assert captured.recorder.start("chain", number << 64, root.id, "lost", {}) is None
    finish(captured, write, search, root)
    assert captured.reasons == ["evicted"]
    assert not captured.turns
    assert len(captured.spans) == 3
    (span,) = [span for span in captured.spans if span.parent is None]
    assert (span.attributes or {})["rag.evaluation.reason"] == "evicted"
    assert len(captured.recorder.trees) == 0


def test_a_tree_waits_for_what_is_still_open() -> None:
    """An abandoned stream ends its root first, and its model soon after."""
    captured = capture(grace=GRACE)
    write, _, root = begin_turn(captured)
    captured.told[root.id] = ANSWER[:5]
    finish(captured, root)
    captured.recorder.flush(GRACE)
    assert len(captured.recorder.trees) == 1
    assert not captured.spans
    finish(captured, write)
    assert len(captured.recorder.trees) == 0
    captured.recorder.flush()
    assert len(captured.spans) == 3
    assert captured.reasons == ["abandoned"]


def test_after_the_grace_a_tree_is_finished_as_it_is() -> None:
    """A cancelled call never ends; its span ends with the root."""
    clock, woken = ManualClock(), list[str]()
    captured = capture(grace=GRACE, clock=clock, on_intake=woken.append)
    write, _, root = begin_turn(captured)
    finish(captured, root)
    assert woken == ["waiting"], "somebody has to sweep"
    clock.advance(GRACE / 2)
    captured.recorder.flush(GRACE)
    assert not captured.spans
    clock.advance(GRACE / 2)
    captured.recorder.flush(GRACE)
    assert captured.span("chat").end_time == root.end
    finish(captured, write)
    captured.recorder.flush(GRACE)
    assert captured.reasons == ["abandoned"]
    assert len(captured.spans) == 3


def test_a_tree_that_was_read_is_no_garbage() -> None:
    """Its runs are freed at once, without a garbage collection that stops the application."""
    gc.disable()
    try:
        freed = [ref(run) for run in run_turn(capture())]
        assert [run() for run in freed] == [None, None, None]
    finally:
        gc.enable()


def test_a_root_that_failed_waits_for_nothing() -> None:
    """After a cancellation what is below may never end; what ends later is not looked at."""
    captured = capture(grace=GRACE)
    write, _, root = begin_turn(captured)
    fail(captured, root, asyncio.CancelledError())
    assert len(captured.recorder.trees) == 0
    assert captured.reasons == ["error"]
    finish(captured, write)
    assert len(captured.spans) == 3


def test_what_is_too_old_is_given_up() -> None:
    """When a new root comes, those older than the limit go: their spans are written, no turns."""
    clock = ManualClock()
    captured = capture(clock=clock, max_age=60.0)
    old = begin_turn(captured)
    clock.advance(60.0)
    begin(captured, "chain", 10)
    assert len(captured.recorder.trees) == 2
    clock.advance(1.0)
    begin(captured, "chain", 20)
    assert len(captured.recorder.trees) == 2
    assert captured.reasons == ["evicted"]
    assert len(captured.spans) == 3
    finish(captured, *old)
    assert captured.reasons == ["evicted"]
    assert not captured.turns
    assert len(captured.spans) == 3


@pytest.mark.parametrize("limit", [1, 3])
def test_there_are_never_too_many(limit: int) -> None:
    """Over the limit the oldest go."""
    captured = capture(max_trees=limit)
    runs = [begin(captured, "chain", number) for number in range(1, 6)]
    assert len(captured.recorder.trees) == limit
    assert captured.reasons == ["evicted"] * (5 - limit)
    assert ids(captured) == list(range(1, 6 - limit))
    finish(captured, *runs)
    assert sorted(ids(captured)) == list(range(1, 6))
    assert len(captured.recorder.trees) == 0


def test_they_never_keep_too_much() -> None:
    """Roots that do not end are bounded by their texts; what was given up makes room again."""
    captured = capture(max_size=100)
    for number in range(1, 50, 10):
        root = begin(captured, "chain", number)
        finish(captured, begin(captured, "llm", number + 1, under=number, told="x" * 60))
    assert len(captured.recorder.trees) == 2, "the texts of the second were over the limit"
    assert captured.reasons == ["evicted"] * 3
    finish(captured, root)
    begin(captured, "chain", 90)
    assert len(captured.recorder.trees) == 2, "there is room for it"


@pytest.mark.parametrize("is_evicted", [False, True])
def test_an_intake_that_fails_is_counted(is_evicted: bool) -> None:  # noqa: FBT001
    """The error is counted and reaches nobody; the recorder forgets the tree all the same."""

    def fails(name: str) -> None:
        raise RuntimeError(name)

    captured = capture(on_intake=fails, raise_errors=False, max_trees=1)
    if is_evicted:
        begin(captured, "chain", 1)
        captured.handler.on_chain_start(None, QUESTION, run_id=UUID(int=2))
    else:
        run_turn(captured)
    assert captured.errors == ["callback"]
    assert 1 not in captured.recorder.runs


def test_runs_may_end_while_the_lock_is_held() -> None:
    """A garbage collection under the lock may close a stream, which ends its runs there."""
    captured = capture()
    write, _, root = begin_turn(captured)
    with captured.recorder._lock:  # noqa: SLF001
        finish(captured, write, root)
    assert len(captured.turns) == 1
