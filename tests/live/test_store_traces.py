"""The buffer of traces: when a trace is complete, and bounded, whatever is left open."""

from __future__ import annotations

import sys
from typing import Any
from weakref import ref

import pytest
from opentelemetry.context import Context
from opentelemetry.sdk.trace import ReadableSpan, Span, SpanProcessor, TracerProvider

from live import KIND, App, answered, asked, attached, collecting_size, generated, retrieved
from rag_eval_otel.capture.trace import Trace, TraceLimits
from rag_eval_otel.config import Config
from rag_eval_otel.live.store import Store
from support import ManualClock

KEPT_OPEN, MANY = 4096, 100_000


class Watched(SpanProcessor):
    """Shows the spans of a provider to a watch, with a clock that is told the time."""

    def __init__(self, **limits: Any) -> None:
        self.clock = ManualClock()
        self.ready: list[Trace] = []
        self.held: dict[str, int] = {}
        self.evicted: list[Trace] = []
        self.store = Store(Config(max_held=10**6), limits=TraceLimits(**limits), clock=self.clock)
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


def test_a_trace_waits_for_whatever_is_open() -> None:
    """A root that has ended does not complete a trace of which something is open."""
    seen = Watched()
    chain = seen.turn()
    stream = seen.step("LLM", chain)
    chain.end()
    assert seen.after(60.0) == 0
    stream.end()
    assert seen.after(0.06) == 1
    assert len(seen.ready[0].spans) == 4


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
    assert {view.name for view in seen.ready[0].spans.values()} == {
        "chain",
        "llm",
        "retriever",
        "session",
    }
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


@pytest.mark.slow
def test_spans_that_never_end_are_not_kept_for_ever() -> None:
    """Streams that nobody closes leave spans open: only the newest are remembered."""
    with attached() as app:
        alive: list[Any] = []
        for _ in range(100):
            alive += [app.plain("open for ever") for _ in range(100)]
            app.pipeline.sweep()
        kept = [span for spans in app.store.open_spans._open.values() for span in spans]  # noqa: SLF001
        assert len(kept) == KEPT_OPEN
        assert kept[-1] is alive[-1]


@pytest.mark.slow
@pytest.mark.parametrize("shape", ["wide", "deep"])
def test_the_work_for_a_span_does_not_grow_with_its_trace(shape: str) -> None:
    """The thousandth span of a trace costs as many steps of the interpreter as the tenth."""
    few, many = steps_for(50, shape), steps_for(800, shape)
    assert many < 16 * few * 1.5


def steps_for(count: int, shape: str) -> int:
    """Count the lines that are run to watch a trace of ``count`` spans."""
    seen = Watched(max_spans=10_000)
    root = above = seen.step("CHAIN")
    spans = []
    for number in range(count):
        kind = ("RETRIEVER", "LLM", "CHAIN")[number % 3]
        span = seen.step(kind, above, **{"input.value": asked(number)})
        spans.append(span)
        above = span if shape == "deep" else root
    lines = 0

    def count_lines(_frame: Any, event: str, _argument: Any) -> Any:
        nonlocal lines
        lines += event == "line"
        return count_lines

    before = sys.gettrace()
    sys.settrace(count_lines)
    try:
        for span in reversed(spans):
            span.end()
        seen.sweep()
    finally:
        sys.settrace(before)
    return lines


def test_what_has_no_room_any_more_is_evicted_oldest_first() -> None:
    """Over the limit in traces the oldest go, each counted, with what they held."""
    seen = Watched(max_traces=3)
    traces = []
    for number in range(5):
        chain = seen.turn(number)
        traces.append(chain.get_span_context().trace_id)
    assert [one.trace_id for one in seen.evicted] == traces[:2]
    assert len(seen.store.traces) == 3


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
