"""Finished run trees: every span is ended once, by the first caller, in the right context."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.documents import Document
from langchain_core.messages import HumanMessage, SystemMessage
from opentelemetry import context as otel_context
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor
from opentelemetry.sdk.trace.sampling import ALWAYS_ON, Sampler, SamplingResult

from rag_eval_otel.config import Config
from rag_eval_otel.runtime.threads import BackgroundEvaluator, Job
from rag_eval_otel.types import Ending
from recording import ANSWER, PAGE, QUESTION, Capture, begin, begin_turn, capture, finish, run_turn


class PatientEvaluator(BackgroundEvaluator):
    """Keeps the jobs until a test does them, step by step."""

    def __init__(self) -> None:
        super().__init__()
        self.jobs: list[Job] = []
        self.room = 1000

    def submit(self, job: Job) -> bool:
        has_room, self.room = self.room > 0, self.room - 1
        if has_room:
            self.jobs.append(job)
        return has_room

    def do(self, job: Job) -> None:
        running = job.run()
        with pytest.raises(StopIteration):
            running.send(None)

    def advance(self, job: Job) -> None:
        if job.begin():
            self.do(job)

    def do_all(self) -> None:
        while self.jobs:
            self.advance(self.jobs.pop(0))


@contextmanager
def patient(**options: Any) -> Iterator[tuple[Capture, PatientEvaluator]]:
    evaluator = PatientEvaluator()
    yield capture(evaluator=evaluator, **options), evaluator


def said_on(span: ReadableSpan) -> Any:
    return (span.attributes or {}).get("rag.evaluation.status")


def run_two(captured: Capture, number: int = 1) -> None:
    root = begin(captured, "chain", number)
    for inner in (number + 10, number + 20):
        above = begin(captured, "chain", inner, under=number, asked=QUESTION, told=ANSWER)
        search = begin(captured, "retriever", inner + 1, under=inner, asked=QUESTION)
        captured.told[search.id] = [Document(PAGE)]
        finish(captured, search)
        shown = [SystemMessage(PAGE), HumanMessage(QUESTION)]
        finish(captured, begin(captured, "llm", inner + 2, under=inner, asked=shown, told=ANSWER))
        finish(captured, above)
    finish(captured, root)


def release_all(captured: Capture, status: Any) -> None:
    for held in list(captured.pipeline.store.held.values()):
        captured.pipeline.clock.release(held, Ending(status))


def test_nothing_is_written_on_the_application_s_thread() -> None:
    """When the root ends there is a job, an item that is held, and no span."""
    with patient() as (captured, evaluator):
        run_turn(captured)
        assert captured.spans == ()
        assert len(captured.pipeline.store) == len(evaluator.jobs) == 1
        evaluator.do_all()
        assert len(captured.spans) == 3
        assert len(captured.pipeline.store) == 0


def test_a_tree_that_is_released_before_it_was_read_is_read_then() -> None:
    """The deadline may pass before the job begins: the spans are written, and scored later."""
    with patient() as (captured, evaluator):
        run_turn(captured)
        release_all(captured, "timeout")
        assert Counter(map(said_on, captured.spans)) == {None: 2, "timeout": 1}
        evaluator.do_all()
        assert len(captured.spans) == 3
        (span, _), *_others = captured.turns
        assert span == captured.span("invoke_workflow chain1").context


def test_a_tree_that_found_no_room_is_not_scored(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its spans say ``overload``, so its turns are counted so, even if there is room by then."""
    with patient() as (captured, evaluator):
        answers = iter([False])
        submit = evaluator.submit
        monkeypatch.setattr(evaluator, "submit", lambda job: next(answers, True) and submit(job))
        run_two(captured)
        assert evaluator.jobs == []
        assert Counter(map(said_on, captured.spans)) == {None: 5, "overload": 2}
        assert captured.outcomes == {("dropped", "overload"): 2}


def test_a_queue_that_gets_full_between_two_turns() -> None:
    """The turn that is no job any more leaves at once; the other is scored."""
    with patient() as (captured, evaluator):
        run_two(captured)
        evaluator.room = 1
        evaluator.jobs.pop(0).begin()
        evaluator.do_all()
        assert Counter(map(said_on, captured.spans)) == {None: 5, "overload": 1, "scored": 1}
        assert captured.outcomes["dropped", "overload"] == 1


@pytest.mark.parametrize("begun", [False, True])
def test_a_job_that_is_given_up(*, begun: bool) -> None:
    """Its spans leave marked, its turns are counted, and nothing is held."""
    with patient() as (captured, evaluator):
        run_two(captured)
        if begun:
            evaluator.jobs.pop().begin()
        for _ in range(2):  # first the tree, then its turns
            for job in list(evaluator.jobs):
                job.give_up("shutdown")
        assert Counter(map(said_on, captured.spans)) == {None: 5, "shutdown": 2}
        assert captured.outcomes == {("dropped", "shutdown"): 2}
        assert len(captured.pipeline.store) == 0


@pytest.mark.parametrize("spans", ["essential", "none"])
def test_bytes_are_bounded(spans: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Held trees count with their texts; those over the limit leave at once."""
    monkeypatch.setattr("rag_eval_otel.config._HELD_BYTES", 200)
    config = Config(judge="lexical", max_held=100, spans=spans)
    with patient(config=config) as (captured, evaluator):
        for number in range(10, 100, 10):
            root = begin(captured, "chain", number, asked=QUESTION, told=ANSWER)
            search = begin(captured, "retriever", number + 1, under=number)
            captured.told[search.id] = [Document("x" * 4000)]
            finish(captured, search)
            shown = [SystemMessage("x" * 4000), HumanMessage(QUESTION)]
            call = begin(captured, "llm", number + 2, under=number, asked=shown, told=ANSWER)
            finish(captured, call, root)
        held = len(captured.pipeline.store)
        assert 0 < held < 9
        assert captured.outcomes == {("dropped", "overload"): 9 - held}
        evaluator.do_all()
        assert len(captured.pipeline.store) == 0
        assert len(captured.spans) == (27 if spans == "essential" else 0)


STEPS = ("begin", "run", "timeout", "flushed", "shutdown", "give up")


@pytest.mark.slow
@given(st.lists(st.tuples(st.sampled_from(STEPS), st.integers(0, 5)), max_size=30))
def test_any_order_ends_each_span_once(steps: list[tuple[str, int]]) -> None:
    """Jobs, deadlines, flushes and shutdowns may come in any order: nothing lost or doubled."""
    with patient() as (captured, evaluator):
        for number in range(3):
            run_two(captured, 1 + 100 * number)
        begun = set[int]()
        for step, which in steps:
            if step in {"timeout", "flushed", "shutdown"}:
                release_all(captured, step)
            elif which < len(evaluator.jobs):
                job = evaluator.jobs[which]
                if step == "begin" and id(job) not in begun:
                    begun.add(id(job))
                    if not job.begin():
                        evaluator.jobs.remove(job)
                elif step == "run" and id(job) in begun:
                    evaluator.do(job)
                    evaluator.jobs.remove(job)
                elif step == "give up":
                    job.give_up("shutdown")
                    evaluator.jobs.remove(job)
        release_all(captured, "shutdown")
        ids = Counter(span.context.span_id for span in captured.spans)
        assert len(ids) == 3 * 7
        assert set(ids.values()) == {1}
        assert sum(said_on(span) is not None for span in captured.spans) == 6
        for job in evaluator.jobs[:]:
            job.give_up("shutdown")
        assert len(captured.turns) + captured.outcomes["dropped", "shutdown"] == 6


class Contexts(SpanProcessor):
    """Notes a value of the context in which spans start and end."""

    def __init__(self) -> None:
        self.seen: list[Any] = []

    def on_start(self, span: Any, parent_context: Any = None) -> None:
        self.seen.append(otel_context.get_value("tenant"))

    def on_end(self, span: ReadableSpan) -> None:
        self.seen.append(otel_context.get_value("tenant"))


@pytest.mark.parametrize("ending", ["scores", "deadline"])
def test_spans_are_written_in_the_context_of_the_root(ending: str) -> None:
    """Processors that read baggage, or a tenant, get the values of the application's context."""
    with patient() as (captured, evaluator):
        contexts = Contexts()
        captured.provider.add_span_processor(contexts)
        token = otel_context.attach(otel_context.set_value("tenant", "a"))
        try:
            runs = begin_turn(captured)
        finally:
            otel_context.detach(token)
        finish(captured, runs[0], runs[2])
        if ending == "scores":
            evaluator.do_all()
        else:
            release_all(captured, "timeout")
        assert contexts.seen == ["a"] * 6
        assert otel_context.get_value("tenant") is None


class Hanging(Sampler):
    """Blocks the thread that starts the first span."""

    def __init__(self) -> None:
        self.entered, self.go_on = threading.Event(), threading.Event()

    def should_sample(self, *given: Any, **more: Any) -> SamplingResult:
        if not self.entered.is_set():
            self.entered.set()
            assert self.go_on.wait(120)
        return ALWAYS_ON.should_sample(*given, **more)

    def get_description(self) -> str:
        return "hanging"


def test_a_thread_that_is_blocked_while_it_writes_keeps_no_other_thread() -> None:
    """The deadline passes meanwhile; each turn is counted once, each span ends once."""
    hanging = Hanging()
    with patient(sampler=hanging) as (captured, evaluator):
        run_two(captured)
        job = evaluator.jobs.pop()
        writer = threading.Thread(target=job.begin, daemon=True)
        writer.start()
        assert hanging.entered.wait(60)
        ending = threading.Thread(target=release_all, args=(captured, "timeout"), daemon=True)
        ending.start()
        ending.join(60)
        assert not ending.is_alive(), "it waits for the blocked thread"
        job.give_up("shutdown")
        assert captured.spans == ()
        hanging.go_on.set()
        writer.join(60)
        evaluator.do_all()
        assert Counter(map(said_on, captured.spans)) == {None: 5, "timeout": 2}
        assert set(Counter(span.context.span_id for span in captured.spans).values()) == {1}
        assert len(captured.turns) == 2
        assert len(captured.pipeline.store) == 0
