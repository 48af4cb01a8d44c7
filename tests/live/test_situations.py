"""Situations in which traces, held spans, the clock and the judge meet."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from opentelemetry.trace import use_span

from live import SCORED, App, GatedExporter, GatedJudge, attached, good_judge
from parallel import forking, in_child
from rag_eval_otel import record_feedback
from rag_eval_otel.capture.trace import TraceLimits
from rag_eval_otel.types import Ending, Evaluation
from runs import run_chain

PATIENCE = 60


@contextmanager
def gated(**options: Any) -> Iterator[tuple[App, GatedExporter, GatedJudge]]:
    """Attach a pipeline whose judge and exporter can be blocked; both are opened at the end."""
    exporter, judge = GatedExporter(), GatedJudge()
    with attached(exporter=exporter, judge=judge, **options) as app:
        try:
            yield app, exporter, judge
        finally:
            exporter.open()
            judge.open()


def on_thread(call: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    return thread


def test_1_a_late_retriever_span() -> None:
    """An open retrieval below holds the root; one after the end is no turn."""
    with attached() as app:
        chain = app.chain()
        search = app.step("RETRIEVER", chain, **{"input.value": "late"})
        app.generate(1, chain)
        chain.end()
        app.pipeline.submit_ended()
        assert app.exported()[-1].name == "llm"  # the root waits
        search.set_attribute("retrieval.documents.0.document.content", "Ada founded it.")
        search.end()
        assert app.handle.flush(PATIENCE)
        assert app.status_of(chain) == "scored"
        app.retrieve(2, chain)
        assert app.handle.flush(PATIENCE)
        assert app.counted() == {SCORED: 1}
        assert app.each_left_once()


def test_2_an_open_span_of_ours_does_not_delay_the_trace_around_it() -> None:
    """The span of a LangChain turn waits for its scores; the rest of the request is read."""
    with gated(hold_seconds=3600) as (app, _, judge):
        server = app.plain("POST /ask")
        with use_span(server):
            run_chain(app.handle.callback, "rag")
        judge.asked.result(PATIENCE)
        app.turn(1, server)
        server.end()
        app.pipeline.submit_ended()
        assert not app.store.traces
        judge.open()
        assert app.store.wait_left(PATIENCE)
        assert app.statuses()["scored"] == 2


def test_3_one_turn_is_scored_while_another_of_its_trace_is_evicted() -> None:
    """What is paid for is never evicted: only what collects is."""
    with gated(hold_seconds=3600) as (app, _, judge):
        session = app.plain("session")
        first = app.turn(1, session)
        app.pipeline.submit_ended()
        judge.asked.result(PATIENCE)
        app.store.limits = TraceLimits(max_traces=1)
        second = app.chain(2, session)
        app.retrieve(2, second)
        app.chain(3)  # another trace, so the oldest must go
        app.retrieve(3, app.chain(3))
        judge.open()
        assert app.store.wait_left(PATIENCE)
        assert app.status_of(first) == "scored"
        second.end()
        session.end()
        assert app.handle.flush(PATIENCE)
        assert app.status_of(second) is None
        assert app.counted()[SCORED] == 1
        assert app.counted()["skipped", "evicted"] >= 1


@pytest.mark.parametrize("call", ["flush", "shutdown"])
def test_4_flush_and_shutdown_while_judge_and_exporter_hang(call: str) -> None:
    """The caller gets control back in time; when the exporter goes on, each span leaves once."""
    with gated(hold_seconds=3600) as (app, exporter, judge):
        app.turn(1)
        app.pipeline.submit_ended()
        judge.asked.result(PATIENCE)
        exporter.close()
        caller = on_thread(lambda: getattr(app.handle, call)(0.3))
        assert exporter.entered.wait(PATIENCE)
        caller.join(PATIENCE)
        assert not caller.is_alive()
        exporter.open()
        app.let_leave()
        status = {"flush": "flushed", "shutdown": "shutdown"}[call]
        assert app.statuses() == {status: 1, None: 2}


@forking
def test_5_a_fork_while_spans_are_held() -> None:
    """The parent exports what it held; the child begins with nothing, and its turns are scored."""
    with gated(hold_seconds=3600) as (app, _, judge):
        app.turn(1)
        app.pipeline.submit_ended()
        judge.asked.result(PATIENCE)

        def child() -> bool:
            # Another thread may hold its lock as the child begins.
            judge.asked = type(judge.asked)()
            app.exporter.clear()
            held = len(app.pipeline.store)
            judge.open()
            app.turn(2)
            app.pipeline.submit_ended()
            has_left = app.store.wait_left(PATIENCE)  # a flush waits five seconds
            return not held and has_left and app.statuses() == {"scored": 1, None: 2}

        assert in_child(child)
        judge.open()
        assert app.store.wait_left(PATIENCE)
        assert app.statuses() == {"scored": 1, None: 2}


def test_6_a_slow_exporter() -> None:
    """Scores come in although spans do not leave; when there is no room, spans leave unscored."""
    with gated(max_held=3) as (app, exporter, judge):
        chains = [app.turn(number) for number in range(3)]
        exporter.close()
        judge.open()
        app.pipeline.submit_ended()
        assert exporter.entered.wait(PATIENCE)
        assert app.pipeline.evaluator.flush(PATIENCE)  # the judge is not delayed
        late = app.chain(9)
        search = app.step("RETRIEVER", late, **{"input.value": "?"})
        exporter.open()
        search.end()
        late.end()
        assert app.handle.flush(PATIENCE)
        assert [app.status_of(chain) for chain in chains] == ["scored"] * 3
        assert app.counted()[SCORED] == 3
        assert app.each_left_once()


def test_7_user_code_that_blocks_delays_scores_and_no_span() -> None:
    """Every span leaves at its deadline while the thread of the judge stands still."""
    gate, entered = threading.Event(), threading.Event()

    def block(_: Evaluation) -> None:
        entered.set()
        gate.wait(PATIENCE)

    with attached(sinks=[block], hold_seconds=0.3) as app:
        app.turn(1)
        app.pipeline.submit_ended()
        assert entered.wait(PATIENCE)
        app.turn(2)
        assert app.store.wait_left(PATIENCE)
        assert app.statuses() == {"timeout": 2, None: 4}
        assert not [key for span in app.judged() for key in span if key.endswith(".score")]
        gate.set()
        assert app.handle.flush(PATIENCE)
        assert app.counted() == {SCORED: 2}
        assert sum(app.scored_spans().values()) == 2  # late scores still reach the events


def test_8_a_cascade_and_late_feedback() -> None:
    """Bad feedback on a turn that only the offline judge scored asks the judge, once."""
    with attached(cascade="lexical", sample_rate=0.0001, judge=good_judge()) as app:
        chain = app.turn(1)
        assert app.handle.flush(PATIENCE)
        assert app.status_of(chain) == "scored"
        context = chain.get_span_context()
        record_feedback(0.0, trace_id=context.trace_id, span_id=context.span_id)
        assert app.handle.flush(PATIENCE)
        assert app.counted() == {SCORED: 1}
        assert app.statuses() == {"scored": 1, None: 2}


def test_11_two_pipelines_of_one_process() -> None:
    """An exporter that hangs in one of them delays nothing in the other."""
    with gated(hold_seconds=3600) as (first, exporter, judge), attached() as second:
        first.turn(1)
        first.pipeline.submit_ended()
        judge.asked.result(PATIENCE)
        exporter.close()
        judge.open()
        assert exporter.entered.wait(PATIENCE)
        second.turn(1)
        assert second.handle.flush(PATIENCE)
        assert second.statuses() == {"scored": 1, None: 2}
        exporter.open()


def test_12_deadline_and_scores_at_once() -> None:
    """Whichever is first decides, the other changes nothing; the turn is counted once."""
    for number in range(10):
        with attached(hold_seconds=60) as app:
            chain = app.turn(number)
            start = threading.Barrier(2)

            def expire(app: App = app, start: threading.Barrier = start) -> None:
                start.wait(PATIENCE)
                for held in list(app.store.held.values()):
                    app.pipeline.clock.release(held, Ending("timeout"))

            thread = on_thread(expire)
            start.wait(PATIENCE)
            app.pipeline.submit_ended()
            thread.join(PATIENCE)
            assert app.handle.flush(PATIENCE)
            assert app.status_of(chain) in {"scored", "timeout"}
            assert app.counted() == {SCORED: 1}
            assert app.each_left_once()
