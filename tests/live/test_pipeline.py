"""From segments to scores while the application flushes, forks, shuts down or overloads us."""

from __future__ import annotations

import threading
from collections import Counter
from concurrent.futures import Future
from typing import Any

import pytest

from live import App, attached, generated
from rag_eval_otel import Evaluation
from rag_eval_otel.capture.sample import turns_in
from rag_eval_otel.capture.trace import TraceLimits

SCORED = ("scored", None)


def open_turn(app: App, number: int = 1, parent: Any = None) -> tuple[Any, Any]:
    chain = app.chain(number, parent)
    app.retrieve(number, chain)
    call = app.step("LLM", chain, **generated(number))
    chain.end()
    return chain, call


def left(app: App) -> Counter[Any]:
    return Counter(span.context.span_id for span in app.exported())


class Emitted:
    """A sink that tells of its first evaluation."""

    def __init__(self, then: Any = lambda: None) -> None:
        self.first: Future[Evaluation] = Future()
        self._then = then

    def __call__(self, evaluation: Evaluation) -> None:
        self._then()
        if not self.first.done():
            self.first.set_result(evaluation)


def test_a_flush_does_not_end_a_turn_that_is_not_over() -> None:
    """Its span leaves, flushed; its scores come when it is over, as events."""
    with attached() as app:
        chain, call = open_turn(app)
        app.handle.flush(0.1)
        app.let_leave()
        assert app.status_of(chain) == "flushed"
        assert app.counted() == {}
        call.end()
        assert app.handle.flush()
        assert app.counted() == {SCORED: 1}
        assert app.scored_spans() == {chain.get_span_context().span_id: 1}
        assert set(left(app).values()) == {1}


@pytest.mark.parametrize("method", ["flush", "shutdown"])
def test_flush_or_shutdown_from_a_sink(method: str) -> None:
    """A sink may flush or shut down: no thread waits for it, and no span is lost."""
    calls, done = list[Any](), list[Any]()
    emitted = Emitted(lambda: done.append(calls.pop()()) if calls else None)
    with attached(sinks=[emitted]) as app:
        calls.append(getattr(app.handle, method))
        chains = [app.turn(number) for number in range(3)]
        emitted.first.result(30)
        app.handle.flush()
        app.handle.shutdown()
        assert set(left(app).values()) == {1}
        assert len(app.exported()) == 9
        assert sum(app.counted().values()) == len(chains)
    assert done == [False if method == "flush" else None]  # it cannot wait for its own scores


def test_a_queue_that_is_full() -> None:
    """A trace for which there is no room is dropped and counted, and its span has the status."""
    with attached() as app:
        chain = app.turn()
        app.pipeline.evaluator.capacity = 0
        app.pipeline.submit_ended()
        app.let_leave()
        assert app.status_of(chain) == "overload"
        assert app.counted() == {("dropped", "overload"): 1}


@pytest.mark.parametrize("limits", [{"max_traces": 2}, {"max_bytes": 60_000}])
def test_evicted_turns_are_counted_and_their_spans_leave(limits: dict[str, int]) -> None:
    """Traces that are too many, or too much, leave unscored, each with its reason."""
    with attached() as app:
        app.store.limits = TraceLimits(**limits)
        streams = [open_turn(app, number) for number in range(10)]
        counted = app.counted()
        assert counted.keys() == {("skipped", "evicted")}
        app.let_leave()
        assert len(app.pipeline.store) == 10 - counted["skipped", "evicted"]
        for _, call in streams:
            call.end()
        assert app.handle.flush()
        evicted = app.counted()["skipped", "evicted"]
        assert 0 < evicted < 10
        assert app.counted() == {("skipped", "evicted"): evicted, SCORED: 10 - evicted}
        assert set(left(app).values()) == {1}
        assert len(app.exported()) == 30


def test_a_trace_that_is_given_up_while_it_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread that gives it up counts its turn, and the one that reads it does not."""
    entered, go_on = Future[threading.Thread](), threading.Event()

    def find_late(*given: Any, **more: Any) -> Any:
        entered.set_result(threading.current_thread())
        assert go_on.wait(60)
        return turns_in(*given, **more)

    monkeypatch.setattr("rag_eval_otel.live.pipeline.turns_in", find_late)
    with attached(shutdown_seconds=0.1) as app:
        chain = app.turn()
        app.handle.shutdown()
        reader = entered.result(60)
        go_on.set()
        reader.join(60)
        assert app.status_of(chain) == "shutdown"
        assert app.counted() == {("dropped", "shutdown"): 1}
        assert app.handle.stats.captured == 1


def test_a_turn_that_cannot_be_submitted(monkeypatch: pytest.MonkeyPatch) -> None:
    """A failure with one turn of a trace costs that turn; the span leaves at its deadline."""
    with attached(raise_errors=False) as app:
        session = app.plain("session")
        chains = [app.turn(number, session) for number in range(2)]
        submit, left_to_fail = app.pipeline.scorer.submit, [RuntimeError("once")]

        def fail_once(*given: Any, **more: Any) -> bool:
            if left_to_fail:
                raise left_to_fail.pop()
            return submit(*given, **more)

        monkeypatch.setattr(app.pipeline.scorer, "submit", fail_once)
        app.handle.flush(0.5)
        assert app.counted() == {SCORED: 1, ("error", "internal"): 1}
        assert Counter(map(app.status_of, chains)) == {"scored": 1, "flushed": 1}
