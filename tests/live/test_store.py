"""The store and its clock: traces are complete and bounded; each held span leaves once."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any
from weakref import ref

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry import context as otel_context
from opentelemetry.context import Context
from opentelemetry.sdk.trace import ReadableSpan, Span, SpanProcessor, TracerProvider

from live import KIND, App, answered, collecting_size, generated, retrieved
from parallel import refuse_threads
from plain_views import View
from rag_eval_otel.capture.runs import RunTree
from rag_eval_otel.capture.span import LogView
from rag_eval_otel.capture.trace import Held, Trace, TraceLimits
from rag_eval_otel.config import Config
from rag_eval_otel.live.store import Clock, Store, Taken
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


def test_a_span_that_is_not_likely_leaves_as_it_is() -> None:
    """It gets no status, but the scores of a turn that is found later come too late for it."""
    kept, span = store(), held(is_likely=False)
    kept.hold(span)
    kept.decide(span, TIMEOUT)
    kept.start_scoring(span)
    assert not kept.decide(span, SCORED)
    assert (span.ending, span.is_late, span.state) == (UNTOUCHED, True, "leaving")


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
    assert kept.awaited == 0


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
    refuse_threads(monkeypatch)
    kept, exits, span = store(), Exits(), held()
    clock = Clock(kept, sweep=lambda: None, leave=exits.leave)
    assert not clock.start()
    kept.hold(span)
    assert clock.release(span, SCORED)
    assert exits.left == [(1, "scored")]


def test_the_clock_begins_late_and_ends_when_the_store_is_empty() -> None:
    """No thread runs before it is needed; after a fork, the child needs one of its own."""
    kept, swept, seen = store(), threading.Event(), list[bool]()

    def sweep() -> None:
        seen.append(clock.is_current())
        swept.set()

    clock = Clock(kept, sweep=sweep, leave=Exits().leave)
    assert (clock.is_awake, clock.is_current()) == (False, False)
    clock.wake()
    assert swept.wait(PATIENCE)
    assert seen[0]
    thread = clock._thread  # noqa: SLF001
    assert thread is not None
    assert thread.daemon
    assert clock.start()
    clock.reset()
    assert not clock.is_awake
    clock.wake()
    second = clock._thread  # noqa: SLF001
    assert second not in {thread, None}
    clock.stop()
    second.join(PATIENCE)
    assert not clock.start()  # a span after the end starts no thread
    thread.join(PATIENCE)


@pytest.mark.parametrize(
    ("is_held", "awaited", "is_woken"), [(False, 0, True), (True, 0, False), (True, 1, True)]
)
def test_the_clock_is_woken_if_it_is_idle_or_a_flush_waits(
    is_held: bool,  # noqa: FBT001
    awaited: int,
    is_woken: bool,  # noqa: FBT001
) -> None:
    """Otherwise it looks soon anyway, and a wake would only take the application's time."""
    kept = store()
    clock = Clock(kept, sweep=lambda: None, leave=Exits().leave)
    clock._thread = threading.current_thread()  # noqa: SLF001  # in place of a thread of its own
    clock.wake()
    if is_held:
        kept.hold(held())
    clock._wait()  # noqa: SLF001
    kept.awaited = awaited
    clock.wake()
    assert clock._wakes.empty() is not is_woken  # noqa: SLF001


class Watched(SpanProcessor):
    """Shows the spans of a provider to a watch, with a clock that is told the time."""

    def __init__(self, *, max_held: int = 10**6, **limits: Any) -> None:
        self.clock = ManualClock(1000.0)
        self.ready: list[Trace] = []
        self.held: dict[str, int] = {}
        self.fates: list[tuple[str, str]] = []
        self.evicted: list[Trace] = []
        self.store = Store(
            Config(max_held=max_held), limits=TraceLimits(**limits), clock=self.clock
        )
        self.store.is_fed = True
        provider = TracerProvider()
        provider.add_span_processor(self)
        self.tracer = provider.get_tracer("openinference.instrumentation.fake")
        self.plain = provider.get_tracer("app")

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:
        self.store.open_spans.starts.append(ref(span))

    def on_end(self, span: ReadableSpan) -> None:
        if self.store.concerns(span):
            taken = self.store.take(span)
            self.fates.append((span.name, taken.fate))
            lost = list(self.store._lost.values())  # noqa: SLF001
            self.evicted += lost[len(lost) - len(taken.evicted) :]
            if taken.fate == "held":
                self.held[span.name] = next(reversed(self.store.held.values())).size

    def sweep(self) -> None:
        self.ready += self.store.sweep()

    def step(self, kind: str, parent: Any = None, **attributes: Any) -> Any:
        context = App.below(parent)
        attributes = {KIND: kind, **attributes}
        return self.tracer.start_span(kind.lower(), context=context, attributes=attributes)

    def turn(self, number: int = 1, parent: Any = None) -> Any:
        chain = self.step("CHAIN", parent, **answered(number))
        self.step("RETRIEVER", chain, **retrieved(number)).end()
        self.step("LLM", chain, **generated(number)).end()
        return chain

    def after(self, seconds: float) -> int:
        """Let time pass and sweep; return how many traces have been handed on so far.

        Twice: what has only just ended counts as open for one sweep.
        """
        self.clock.advance(seconds)
        self.sweep()
        self.sweep()
        return len(self.ready)


def test_a_trace_is_complete_soon_after_its_root() -> None:
    """Once the root has ended and nothing is open, a moment is enough."""
    seen = Watched()
    seen.turn().end()
    assert [seen.after(s) for s in (0.0, 0.04, 0.02)] == [0, 0, 1]
    assert [one.size > 0 for one in seen.ready] == [True]
    assert (len(seen.store.traces), collecting_size(seen.store)) == (0, 0)


def test_a_trace_that_never_ends_is_read_when_it_is_old() -> None:
    """After five minutes what there is is read, and the memory is free again."""
    seen = Watched()
    chain = seen.turn()
    assert [seen.after(299.0), seen.after(2.0)] == [0, 1]
    assert (len(seen.store.traces), collecting_size(seen.store)) == (0, 0)
    assert chain.is_recording()


def test_spans_that_come_late_are_waited_for() -> None:
    """LangSmith hands its spans over some time after they ended."""
    seen = Watched()
    span = seen.tracer.start_span("run", attributes={"langsmith.span.kind": "chain"})
    span.end()
    assert [seen.after(4.0), seen.after(2.0)] == [0, 1]


def test_a_turn_is_taken_out_of_a_trace_that_goes_on() -> None:
    """Below a session a turn is over when it has been quiet for a moment; the rest stays."""
    seen = Watched()
    session = seen.plain.start_span("session")
    seen.turn(1, session).end()
    other = seen.turn(2, session)
    assert [seen.after(0.4), seen.after(0.2)] == [0, 1]
    assert names_in(seen.ready) == [["chain", "llm", "retriever", "session"]]
    other.end()
    assert seen.after(0.6) == 2
    assert (len(seen.store.traces), collecting_size(seen.store)) == (0, 0)
    session.end()
    assert seen.after(600.0) == 2


def test_a_span_is_waited_for_between_its_end_and_the_news_of_it() -> None:
    """The SDK sets the end time first; the thread may be held up before it tells processors."""
    seen = Watched()
    chain = seen.step("CHAIN", None, **answered(1))
    found = seen.step("RETRIEVER", chain, **retrieved(1))
    found.end()
    model = seen.step("LLM", chain, **generated(1))
    seen.sweep()
    for span in (chain, model):
        span._end_time = 10**18  # type: ignore[attr-defined]  # noqa: SLF001
    seen.clock.advance(6.0)
    seen.sweep()
    assert seen.ready == []
    for span in (model, chain):
        span._end_time = None  # type: ignore[attr-defined]  # noqa: SLF001
        span.end()
    assert seen.after(1.0) == 1
    assert len(seen.ready[0].spans) == 3


def test_what_comes_of_an_evicted_trace_is_passed_over() -> None:
    """Half of a turn might look like another one: nothing of the trace is read any more."""
    seen = Watched(max_traces=1)
    first = seen.turn(1)
    second = seen.turn(2)
    seen.step("LLM", first, **generated(1)).end()
    first.end()
    second.end()
    assert seen.after(1.0) == 1
    assert [one.trace_id for one in seen.evicted] == [first.get_span_context().trace_id]
    assert seen.held.keys() == {"chain"}
    seen.after(5.0)  # nothing of it has been open for long: what comes now begins anew
    seen.step("CHAIN", first).end()
    assert seen.after(6.0) == 2


@pytest.mark.parametrize(("number", "evicted"), [(3, 0), (4, 1)])
def test_a_trace_of_too_many_spans_is_evicted(number: int, evicted: int) -> None:
    """It makes no other trace go."""
    seen = Watched(max_spans=3)
    seen.step("CHAIN").end()
    root = seen.step("CHAIN")
    for _ in range(number):
        seen.step("LLM", root).end()
    assert [each.trace_id for each in seen.evicted] == [root.get_span_context().trace_id] * evicted
    assert len(seen.store.traces) == 2 - evicted


def test_spans_that_ended_before_the_first_of_a_turn_are_parts_of_its_trace() -> None:
    """Nothing said then that the trace has RAG in it; other traces have none of them."""
    seen = Watched()
    request, other = seen.plain.start_span("request"), seen.plain.start_span("other")
    context = App.below(request)
    for parent in (context, App.below(other)):
        seen.plain.start_span("query", context=parent).end()
    seen.turn(1, request).end()
    assert not seen.store.is_empty
    request.end()
    assert seen.after(1.0) == 1
    names = sorted(view.name for view in seen.ready[0].spans.values())
    assert names == ["chain", "llm", "query", "request", "retriever"]


def test_bytes_are_bounded_too() -> None:
    """Large texts push out older traces, and a single trace that is too large goes itself."""
    seen = Watched(max_bytes=200_000)
    small = [seen.step("CHAIN", **{"input.value": "x" * 20_000}) for _ in range(20)]
    for span in small:
        span.end()
        assert collecting_size(seen.store) <= 200_000
    assert 10 < len(seen.evicted) < 15
    before = len(seen.store.traces)
    huge = seen.step("CHAIN", **{"input.value": "x" * 60_000})
    huge.end()
    assert seen.evicted[-1].trace_id == huge.get_span_context().trace_id
    assert len(seen.store.traces) == before
    for number in range(3):
        seen.store.add_log(1, number, LogView(event="gen_ai.choice", body="x" * 20_000))
    assert 40_000 < seen.store._logs.size < 50_000  # noqa: SLF001


def names_in(traces: list[Trace]) -> list[list[str]]:
    return [sorted(view.name for view in trace.spans.values()) for trace in traces]


def test_a_flush_reads_what_is_over() -> None:
    """A trace without open spans, and the turns that are over in one that goes on."""
    seen = Watched()
    seen.turn(1).end()
    session = seen.plain.start_span("session")
    seen.turn(2, session).end()
    going_on = seen.turn(3, session)
    ready = seen.store.flush()
    assert names_in(ready) == [
        ["chain", "llm", "retriever"],
        ["chain", "llm", "retriever", "session"],
    ]
    assert [sorted(map(str, trace.held)) for trace in seen.store.traces.values()] == [[]]
    going_on.end()
    session.end()
    assert names_in(seen.store.flush()) == [["chain", "llm", "retriever", "session"]]
    assert (seen.store.flush(), collecting_size(seen.store)) == ([], 0)


def test_the_end_reads_all_and_takes_nothing_more() -> None:
    """Of a turn that ends later, the last span is late; other spans are none of its business."""
    seen = Watched()
    chain = seen.turn(1)
    seen.store.add_log(1, 2, LogView(event="gen_ai.choice", body="text"))
    assert seen.store._logs.size > 0  # noqa: SLF001
    assert names_in(seen.store.close()) == [["llm", "retriever"]]
    seen.store.add_log(1, 2, LogView(event="gen_ai.choice", body="text"))
    assert (collecting_size(seen.store), seen.store.hold(held())) == (0, False)
    seen.fates.clear()
    seen.turn(2).end()
    chain.end()
    assert seen.fates == [
        *(("retriever", "passes"), ("llm", "passes"), ("chain", "late"), ("chain", "passes"))
    ]
    assert seen.store.is_empty


def test_a_turn_without_room_says_so() -> None:
    """Its span leaves at once; the trace knows that it has left without scores."""
    seen = Watched(max_held=1)
    spans = [seen.turn(number) for number in (1, 2)]
    for span in spans:
        span.end()
    assert [fate for name, fate in seen.fates if name == "chain"] == ["held", "no room"]
    context = spans[1].get_span_context()
    (left,) = seen.store.traces[context.trace_id].held.values()
    assert left.key == (context.trace_id, context.span_id)
    assert (left.state, left.ending, left.item) == ("left", Ending("overload"), None)
    assert (left.is_likely, left.is_late) == (False, True)
    assert (len(seen.store), seen.store.count("collecting"), seen.store.count("left")) == (1, 1, 0)


def test_runs_below_a_span_join_its_trace() -> None:
    """They count with their bytes, as a turn of the span, and not after the end."""
    seen = Watched()
    tree = RunTree(otel_context.get_current(), 0.0, size=1000, searched=1, called=2)
    around = View(span_id=5, trace_id=7)
    assert seen.store.join(tree, around) == Taken(is_added=True, is_new=True, evicted=[])
    assert seen.store.join(tree, around) == Taken(is_added=True, is_new=False, evicted=[])
    trace = seen.store.traces[7]
    assert trace.trees == [(5, tree)] * 2
    assert (trace.size, trace.unheld, trace.subtrees[5].is_turn) == (7200, 7200, True)
    assert collecting_size(seen.store) == 7200
    seen.store.limits = TraceLimits(max_traces=0)
    assert seen.store.join(tree, around).evicted == [1]
    assert seen.store.join(tree, around) == Taken()
    seen.store.close()
    assert seen.store.join(tree, replace(around, trace_id=8)) == Taken()


def test_spans_of_a_tree_take_its_place() -> None:
    """They have its deadline and its ending; those of no turn leave at once, as they are."""
    kept, tree = store(), held(1)
    kept.hold(tree)
    assert [kept.claim(tree), kept.claim(tree)] == [True, False]
    kept.decide(tree, TIMEOUT)
    turn, other = held(2), held(3, is_likely=False)
    kept.replace(tree, [turn], [other])
    assert [(each.ending, each.state) for each in (other, turn)] == [
        (UNTOUCHED, "leaving"),
        (TIMEOUT, "leaving"),
    ]
    assert [each.key for each in kept.exit] == [(1, 1), (1, 3), (1, 2)]
    assert {each.number for each in kept.held.values()} == {tree.number}
    assert turn.deadline == other.deadline == tree.deadline
    assert (kept.waiting, kept.size, kept.count("leaving"), len(kept)) == (1, 2, 2, 0)


@pytest.mark.parametrize(("late", "stopped"), [(3.0, 0.0), (3.1, 3.1)])
def test_time_in_which_the_process_was_stopped_is_no_waiting_time(
    late: float, stopped: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More than two seconds after its wake, the clock assumes a suspended machine."""
    kept = store()
    clock = Clock(kept, sweep=lambda: None, leave=Exits().leave)
    times = iter([100.0, 100.0 + late])
    monkeypatch.setattr("rag_eval_otel.live.store.time.monotonic", lambda: next(times, 200.0))
    clock._wakes.put(None)  # noqa: SLF001
    clock._wait()  # noqa: SLF001
    assert kept.stopped == pytest.approx(stopped)
