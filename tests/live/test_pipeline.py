"""Turns from their first span to an exported span, whatever flushes, forks, fails or is full."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from langchain_core.documents import Document
from langchain_core.messages import HumanMessage, SystemMessage
from langchain_core.runnables import RunnableLambda
from opentelemetry import context as otel_context
from opentelemetry._logs import NoOpLoggerProvider
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor
from opentelemetry.sdk.trace.sampling import ALWAYS_ON, Sampler, SamplingResult
from opentelemetry.trace import Span, use_span

from apps import company
from apps.fakes import KeywordRetriever
from apps.parts import join
from live import (
    SCORED,
    STATUS,
    App,
    GatedExporter,
    GatedJudge,
    asked,
    attached,
    generated,
    good_judge,
    retrieved,
    told,
)
from parallel import forking, in_child
from rag_eval_otel import Evaluation, record_feedback, semconv
from rag_eval_otel.capture.trace import TraceLimits
from rag_eval_otel.config import Config
from rag_eval_otel.runtime.guard import JUDGING
from rag_eval_otel.runtime.threads import BackgroundEvaluator, Job
from rag_eval_otel.types import Ending
from recording import ANSWER, PAGE, QUESTION, Capture, begin, begin_turn, capture, finish, run_turn
from runs import run_chain

PATIENCE = 60


def id_of(span: Span) -> int:
    return span.get_span_context().span_id


def open_turn(app: App, number: int = 1) -> tuple[Span, Span]:
    """Make a turn whose chain has ended before its model."""
    chain = app.chain(number)
    app.retrieve(number, chain)
    call = app.step("LLM", chain, **generated(number))
    chain.end()
    return chain, call


# --- the span that gets the scores ----------------------------------------------------------------


def request(app: App, *numbers: int) -> tuple[Span, list[Span]]:
    """Record a request with a call that rewrites the question, then retrievals and answers."""
    span = app.plain("POST /ask")
    rewrite = {
        "llm.input_messages.0.message.role": "user",
        "llm.input_messages.0.message.content": f"Rewrite for a search: {asked(numbers[0])}",
        "output.value": asked(numbers[0]),
    }
    for number in numbers:
        app.retrieve(number, span)
    app.step("LLM", span, **rewrite).end()
    calls = [app.generate(number, span) for number in numbers]
    span.end()
    return span, calls


def bare_call(app: App) -> Span:
    """A call of a client without a parent, whose prompt has the result of a search tool."""
    messages: dict[str, Any] = {
        "llm.input_messages.0.message.role": "user",
        "llm.input_messages.0.message.content": asked(1),
        "llm.input_messages.1.message.role": "tool",
        "llm.input_messages.1.message.name": "search_companies",
        "llm.input_messages.1.message.content": "\n\n".join(told(1)),
    }
    call = app.step("LLM", **{**generated(1), **messages})
    call.end()
    return call


@pytest.mark.parametrize(
    "make", [lambda app: request(app, 1)[0], bare_call], ids=["request", "bare call"]
)
def test_the_outermost_span_of_a_turn_is_scored(make: Callable[[App], Span]) -> None:
    """It stands for the turn, and no other span has scores."""
    with attached() as app:
        span = make(app)
        assert app.handle.flush()
        assert app.counted() == {SCORED: 1}
        assert app.scored_spans() == {id_of(span): 1}
        assert app.status_of(span) == "scored"


def test_each_of_several_answers_below_a_request_is_scored_on_its_call() -> None:
    """The spans of the calls wait, because the request has only one status."""
    with attached() as app:
        _, calls = request(app, 1, 2)
        assert app.handle.flush()
        assert app.counted() == {SCORED: 2}
        assert [app.status_of(call) for call in calls] == ["scored", "scored"]


@pytest.mark.parametrize("explanations", [False, True])
def test_without_a_logger_provider_the_event_is_on_the_span(explanations: Any) -> None:
    """The exported copy and our own span have an event for each score, with its attributes."""
    with attached(metrics=["faithfulness"], explanations=explanations) as app:
        app.pipeline.logs = NoOpLoggerProvider()
        app.turns(1, "spans")
        app.turns(1, "runs")
        assert app.handle.flush(60)
        events = [event for span in app.exported() for event in span.events]
    assert [event.name for event in events] == ["gen_ai.evaluation.result"] * 2
    for attributes in (event.attributes or {} for event in events):
        assert attributes["gen_ai.evaluation.name"] == "faithfulness"
        assert attributes["gen_ai.evaluation.score.value"] == 1.0
        assert ("gen_ai.evaluation.explanation" in attributes) == explanations


@pytest.mark.parametrize(
    ("events", "logs"), [("log", ["LoggerProvider"]), ("both", ["LoggerProvider"]), ("span", [])]
)
def test_missing_providers(events: str, logs: list[str]) -> None:
    """A provider that is given is not missing, and none is needed for events on the span."""
    with attached(score_events=events) as app:
        assert app.pipeline.missing_providers() == []
        app.pipeline.logs = app.pipeline.meters = None
        assert app.pipeline.missing_providers() == ["MeterProvider", *logs]


# --- flushes, drains, and full queues -------------------------------------------------------------


@pytest.mark.parametrize("method", ["flush", "force_flush", "shutdown"])
def test_flush_or_shutdown_from_a_sink(method: str) -> None:
    """A sink may flush or shut down: no thread waits for it, and no span is lost."""
    calls, done, emitted = list[Any](), list[Any](), threading.Event()

    def sink(_: Evaluation) -> None:
        if calls:
            done.append(calls.pop()())
        emitted.set()

    with attached(sinks=[sink]) as app:
        calls.append(getattr(app.processor if method == "force_flush" else app.handle, method))
        app.turns(3)
        assert emitted.wait(30)
        app.handle.flush()
        app.handle.shutdown()
        assert app.each_left_once()
        assert len(app.exported()) == 9
        assert sum(app.counted().values()) == 3
    assert done == [None if method == "shutdown" else False]  # it cannot wait for its own scores


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
        assert len(app.store) == 10 - counted["skipped", "evicted"]
        for _, call in streams:
            call.end()
        assert app.handle.flush()
        evicted = app.counted()["skipped", "evicted"]
        assert 0 < evicted < 10
        assert app.counted() == {("skipped", "evicted"): evicted, SCORED: 10 - evicted}
        assert app.each_left_once()
        assert len(app.exported()) == 30


# --- turns that are refused -----------------------------------------------------------------------


def status_on(span: ReadableSpan) -> Any:
    return (span.attributes or {}).get(STATUS)


def status_and_reason(span: ReadableSpan) -> tuple[Any, Any]:
    return status_on(span), (span.attributes or {}).get("rag.evaluation.reason")


def only_retrieved(captured: Capture) -> None:
    chain = RunnableLambda(lambda question: join(KeywordRetriever().invoke(question)))
    chain.invoke(company.FOUNDED, {"callbacks": [captured.handler]})


def abandoned(captured: Capture) -> None:
    write, _, root = begin_turn(captured)
    captured.told[root.id] = ANSWER[:5]
    finish(captured, root, write)


@pytest.mark.parametrize(
    ("run", "reason"), [(only_retrieved, "no_answer"), (abandoned, "abandoned")]
)
def test_the_root_of_runs_says_why(run: Callable[[Capture], None], reason: str) -> None:
    """The root carries status and reason, the counter has one, and no other span says anything."""
    captured = capture()
    run(captured)
    assert captured.reasons == [reason]
    found = {status_and_reason(span) for span in captured.spans if span.parent is not None}
    assert found <= {(None, None)}
    (root,) = [span for span in captured.spans if span.parent is None]
    assert status_and_reason(root) == ("skipped", reason)


def without_an_answer(app: App) -> Span:
    chain = app.step("CHAIN", None, **{"input.value": "q"})
    app.retrieve(1, chain)
    shown = {k: v for k, v in generated(1).items() if "output" not in k}
    app.step("LLM", chain, **shown).end()
    chain.end()
    return chain


def of_hundreds_of_calls(app: App) -> Span:
    chain = app.chain()
    for number in range(200):
        app.retrieve(number, chain)
        app.generate(number, chain)
    chain.end()
    return chain


@pytest.mark.parametrize(
    ("made", "reason"), [(without_an_answer, "no_answer"), (of_hundreds_of_calls, "ambiguous")]
)
def test_a_held_span_says_why(made: Callable[[App], Span], reason: str) -> None:
    """The span that waited for scores leaves with the reason why there are none."""
    with attached() as app:
        chain = made(app)
        app.pipeline.submit_ended()
        assert app.store.wait_left(100)  # a flush waits only five seconds
        assert app.handle.flush()
        found = app.attributes_of(chain)
        assert (found[STATUS], found["rag.evaluation.reason"]) == ("skipped", reason)
        assert app.counted() == {("skipped", reason): 1}


# --- trees of LangChain runs ----------------------------------------------------------------------


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

    def do_all(self) -> None:
        while self.jobs:
            job = self.jobs.pop(0)
            if job.begin():
                self.do(job)


@contextmanager
def patient(**options: Any) -> Iterator[tuple[Capture, PatientEvaluator]]:
    evaluator = PatientEvaluator()
    yield capture(evaluator=evaluator, **options), evaluator


def statuses(captured: Capture) -> Counter[Any]:
    return Counter(map(status_on, captured.spans))


def run_two(captured: Capture, number: int = 1) -> None:
    root = begin(captured, "chain", number)
    for inner in (number + 10, number + 20):
        above = begin(captured, "chain", inner, under=number, asked=QUESTION, told=ANSWER)
        found = [Document(PAGE)]
        finish(
            captured,
            begin(captured, "retriever", inner + 1, under=inner, asked=QUESTION, told=found),
        )
        shown = [SystemMessage(PAGE), HumanMessage(QUESTION)]
        finish(captured, begin(captured, "llm", inner + 2, under=inner, asked=shown, told=ANSWER))
        finish(captured, above)
    finish(captured, root)


def release_all(captured: Capture, status: Any) -> None:
    for held in list(captured.pipeline.store.held.values()):
        captured.pipeline.clock.release(held, Ending(status))


def test_nothing_is_written_on_the_application_s_thread() -> None:
    """When the root ends there is a job, an item that is held, and no span.

    Its bytes are shared by the spans of its turns.
    """
    with patient() as (captured, evaluator):
        run_two(captured)
        assert captured.spans == ()
        assert len(captured.pipeline.store) == len(evaluator.jobs) == 1
        (held,) = captured.pipeline.store.held.values()
        assert held.size == 4096 + held.item.size
        evaluator.jobs.pop().begin()
        assert [each.size for each in captured.pipeline.store.held.values()] == [held.size // 2] * 2
        evaluator.do_all()
        assert len(captured.spans) == 7
        assert len(captured.pipeline.store) == 0


def test_a_tree_that_found_no_room_is_not_scored(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its spans say ``overload``, so its turns are counted so, even if there is room by then."""
    with patient() as (captured, evaluator):
        answers = iter([False])
        submit = evaluator.submit
        monkeypatch.setattr(evaluator, "submit", lambda job: next(answers, True) and submit(job))
        run_two(captured)
        assert evaluator.jobs == []
        assert statuses(captured) == {None: 5, "overload": 2}
        assert captured.outcomes == {("dropped", "overload"): 2}


@pytest.mark.parametrize("spans", ["essential", "none"])
def test_bytes_are_bounded(spans: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Held trees count with their texts; those over the limit leave at once."""
    monkeypatch.setattr("rag_eval_otel.config._HELD_BYTES", 200)
    config = Config(judge="lexical", max_held=100, spans=spans)
    with patient(config=config) as (captured, evaluator):
        for number in range(10, 100, 10):
            root = begin(captured, "chain", number, asked=QUESTION, told=ANSWER)
            found = [Document("x" * 4000)]
            finish(captured, begin(captured, "retriever", number + 1, under=number, told=found))
            shown = [SystemMessage("x" * 4000), HumanMessage(QUESTION)]
            call = begin(captured, "llm", number + 2, under=number, asked=shown, told=ANSWER)
            finish(captured, call, root)
        held = len(captured.pipeline.store)
        assert 0 < held < 9
        assert captured.outcomes == {("dropped", "overload"): 9 - held}
        evaluator.do_all()
        assert len(captured.pipeline.store) == 0
        assert len(captured.spans) == (27 if spans == "essential" else 0)


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
        assert statuses(captured) == {None: 5, "timeout": 2}
        assert set(Counter(span.context.span_id for span in captured.spans).values()) == {1}
        assert len(captured.turns) == 2
        assert len(captured.pipeline.store) == 0


# --- situations in which traces, held spans, the clock and the judge meet ------------------------


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


def test_nothing_that_raises_gets_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """A convention that fails costs a turn, never a span, and the application hears nothing."""

    def fail(*_: Any) -> None:
        raise RuntimeError

    with attached(raise_errors=False) as app:
        monkeypatch.setattr("rag_eval_otel.live.store.kind_of", fail)
        app.turn(1)
        monkeypatch.undo()
        monkeypatch.setattr("rag_eval_otel.live.pipeline.read", fail)
        chain = app.turn(2)
        assert app.handle.flush()
        assert app.attributes_of(chain)["rag.evaluation.reason"] == "internal"
        monkeypatch.setattr("rag_eval_otel.live.pipeline.find_turns", fail)
        app.turns(1, "runs")
        assert app.handle.flush()
        monkeypatch.undo()
        with monkeypatch.context() as patch:
            patch.setattr(app.pipeline.scorer, "score", fail)
            app.turns(1, "runs")
            assert app.handle.flush()
        app.turn(3)
        assert app.handle.flush()
        assert app.statuses() == {"scored": 1, "error": 3, None: 11}
        assert app.counted() == {SCORED: 1, ("error", "internal"): 3}


def test_spans_of_the_judge_s_client(monkeypatch: pytest.MonkeyPatch) -> None:
    """On the thread of the evaluator, foreign spans are dropped, and ours leave as they are."""
    with attached() as app:
        own = app.provider.get_tracer(semconv.JUDGE_SCOPE).start_span("chat")
        monkeypatch.setattr(threading.current_thread(), "name", "rag-eval-otel")
        token = JUDGING.set(app.pipeline.evaluator)
        app.turn()
        own.end()
        JUDGING.reset(token)
        assert (app.names(), app.counted(), app.store.is_empty) == (["chat"], {}, True)


def test_spans_after_the_end_leave_at_once() -> None:
    """The span of a turn says ``shutdown``, and is counted; runs of LangChain say so, too."""
    with attached() as app:
        app.pipeline.close()
        app.turns(1)
        app.turns(1, "runs")
        assert app.counted() == {("dropped", "shutdown"): 2}
        assert app.statuses() == {"shutdown": 2, None: 4}


def test_two_spans_with_one_id_make_their_trace_ambiguous() -> None:
    """Nothing of it is scored, and its span says why."""
    with attached() as app:
        chain = app.chain()
        spans = [app.step("RETRIEVER", chain, **retrieved(number)) for number in (1, 2)]
        spans[1]._context = spans[0].get_span_context()  # type: ignore[attr-defined]  # noqa: SLF001
        app.generate(1, chain)
        for span in (*spans, chain):
            span.end()
        assert app.handle.flush(PATIENCE)
        assert app.status_of(chain) == "skipped"
        assert app.attributes_of(chain)["rag.evaluation.reason"] == "ambiguous"
        assert app.counted() == {("skipped", "ambiguous"): 1}


def test_without_spans_of_our_own_the_applications_stands_for_the_turn() -> None:
    """It is still open when the runs have ended; its trace is read when it has."""
    captured = capture(spans="none")
    with captured.tracer.start_as_current_span("request") as request:
        run_turn(captured)
        assert not captured.turns
    assert len(captured.pipeline.store) == 1
    captured.flush()
    assert [span for span, _ in captured.turns] == [request.get_span_context()]
    assert (captured.span("request").attributes or {})["rag.evaluation.status"] == "scored"


class Flushed(SpanProcessor):
    """Notes how many spans had ended at each flush, and the milliseconds that it may take."""

    def __init__(self, *, is_broken: bool = False) -> None:
        self.is_broken = is_broken
        self.ended, self.flushes = 0, list[tuple[int, int]]()

    def on_end(self, span: ReadableSpan) -> None:
        self.ended += 1

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        self.flushes.append((self.ended, timeout_millis))
        if self.is_broken:
            raise RuntimeError
        return True


@pytest.mark.parametrize("is_broken", [False, True])
def test_many_spans_leave_in_chunks_between_flushes(
    monkeypatch: pytest.MonkeyPatch, *, is_broken: bool
) -> None:
    """So the queue of the next processor does not overflow, whatever a flush raises."""
    monkeypatch.setattr("rag_eval_otel.live.pipeline.CHUNK", 2)
    with gated(hold_seconds=3600, raise_errors=False) as (app, _, judge):
        seen = Flushed(is_broken=is_broken)
        app.pipeline.attach(seen)
        app.pipeline.now = lambda: 0.0
        for number in range(5):
            app.record(number)
        judge.asked.result(PATIENCE)
        assert app.pipeline.force_flush(0.2) is not is_broken
        assert seen.flushes == [(2, 200), (4, 200), (5, 200)]


class Waits(threading.Condition):
    """Waits for nothing, and notes how many seconds it might have waited."""

    def wait_for(self, predicate: Callable[[], Any], timeout: float | None = None) -> bool:
        self.seconds = [*getattr(self, "seconds", ()), timeout]
        return bool(predicate())

    def shutdown(self) -> None: ...


@pytest.mark.parametrize(
    ("method", "time", "waits"),
    [
        ("force_flush", 2, [1.0, 2.0, 2.0]),
        ("flush", 20, [5.0, 20.0, 20.0, 20.0, 20.0]),
        ("drain", 10, [9.0, 9.5, 10.25, 5.0, 10.0, 10.0]),
        ("drain", 0.1, [0.08, 0.5, 0.625, 0.125, 0.125, 0.25]),
        ("drain_and_flush", 10, [9.0, 9.5, 9.5, 10.25, 5.0, 10.0, 10.0, 10.0, 10.0]),
        ("drain_and_flush", 0.1, [0.08, 0.5, 0.5, 0.625, 0.125, 0.125, 0.25, 0.5, 0.5]),
    ],
)
def test_the_time_for_scores_and_for_spans(method: str, time: float, waits: list[float]) -> None:
    """A flush waits half of its time for scores, five seconds at most; the end all but a second.

    Then the next processor is flushed, and late scores and sinks as far as there is time.
    """

    def sink(_: Evaluation) -> None: ...

    sink.flush = lambda _: None  # type: ignore[attr-defined]
    with attached(sinks=[sink]) as app:
        waiting: Any = Waits(app.store.lock)
        app.store._changed = app.pipeline.flushes = waiting  # noqa: SLF001
        app.pipeline._has_late = True  # noqa: SLF001
        app.pipeline.now = lambda: 100.0
        getattr(app.pipeline, method)(time)
        assert waiting.seconds == pytest.approx(waits)


@pytest.mark.parametrize("is_forked", [False, True])
def test_providers_of_logs_and_metrics_are_flushed(*, is_forked: bool) -> None:
    """In a forked child that has taken something, metrics are their parent's."""
    with attached() as app:
        seen, logs, meters = Flushed(), Flushed(), Flushed()
        app.pipeline.logs, app.pipeline.meters = logs, meters  # type: ignore[assignment]
        app.pipeline.is_forked = is_forked
        app.pipeline.attach(seen)
        app.record()
        for flush in (app.pipeline.flush_all, app.pipeline.drain_and_flush):
            flush(PATIENCE)
            assert seen.flushes[-1][0] == 1
            assert seen.flushes[1:] == [(1, 5000)] * (len(logs.flushes) - 1)
        assert logs.flushes == [(0, 5000)] * 2
        assert meters.flushes == logs.flushes * (not is_forked)


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
