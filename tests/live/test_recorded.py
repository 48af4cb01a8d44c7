"""The ``record_...()`` functions: texts and feedback of an application, in runs and on spans."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from langchain_core.documents import Document
from langchain_core.runnables import RunnableLambda
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.trace import SpanLimits, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import Span, SpanContext, format_span_id, format_trace_id

from apps import company
from apps.fakes import KeywordRetriever, ScriptedChat
from apps.parts import PROMPT, rag
from apps.replies import saying
from live import ANSWER, CONTEXT, QUESTION, SCORED, STATUS, App, attached
from rag_eval_otel import (
    Passage,
    Sample,
    record_answer,
    record_feedback,
    record_question,
    record_retrieval,
)
from rag_eval_otel.capture.conventions import read
from rag_eval_otel.capture.span import Span as SpanRecord
from rag_eval_otel.export.metrics import InstrumentSink
from rag_eval_otel.live import recorded
from rag_eval_otel.live.recorded import FeedbackIntake
from rag_eval_otel.runtime.threads import BackgroundEvaluator
from rag_eval_otel.types import Evaluation, Feedback, Score, SpanRef
from recording import Capture, capture
from steps import outcomes_of
from support import hide

OTHER = "Products: Borealis makes lamps."


class Bare:
    """An application with its own provider and nothing of ours attached."""

    def __init__(self, **options: Any) -> None:
        self._exporter = InMemorySpanExporter()
        provider = TracerProvider(**options)
        provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.tracer = provider.get_tracer("app")

    def within(self, name: str = "ask") -> AbstractContextManager[Span]:
        return self.tracer.start_as_current_span(name)

    @property
    def spans(self) -> list[SpanRecord]:
        return list(map(SpanRecord.from_sdk, self._exporter.get_finished_spans()))

    @property
    def results(self) -> list[object]:
        return [outcome.result for outcome in outcomes_of(self.spans)]


class Node:
    """A node of LlamaIndex, with a score."""

    node_id = "n1"
    score = np.float64(0.5)

    def get_content(self) -> str:
        return CONTEXT


@pytest.mark.parametrize(
    ("document", "passage"),
    [
        (CONTEXT, Passage(text=CONTEXT)),
        ('{"not": "json of ours"}', Passage(text='{"not": "json of ours"}')),
        ("", Passage(text="")),
        (Passage(text=CONTEXT, id="p", score=2.0), Passage(text=CONTEXT, id="p", score=2.0)),
        (Document(page_content=CONTEXT), Passage(text=CONTEXT)),
        (Document(page_content=CONTEXT, id="d"), Passage(text=CONTEXT, id="d")),
        ((Document(page_content=CONTEXT, id="d"), 0.25), Passage(text=CONTEXT, id="d", score=0.25)),
        ((CONTEXT, np.float32(0.5)), Passage(text=CONTEXT, score=0.5)),
        ({"text": CONTEXT}, Passage(text=CONTEXT)),
        ({"content": CONTEXT, "id": 7, "score": 1}, Passage(text=CONTEXT, id="7", score=1.0)),
        ({"page_content": CONTEXT, "metadata": {"a": 1}}, Passage(text=CONTEXT)),
        (Node(), Passage(text=CONTEXT, id="n1", score=0.5)),
        (SimpleNamespace(content=CONTEXT, id="h", score=None), Passage(text=CONTEXT, id="h")),
        (Passage(text=CONTEXT, score=float("nan")), Passage(text=CONTEXT)),
        (
            Passage(text=CONTEXT, score=np.float32(0.5)),  # type: ignore[arg-type]  # as stores do
            Passage(text=CONTEXT, score=0.5),
        ),
        ("broken \ud800 letter", Passage(text="broken ? letter")),
    ],
)
def test_documents_of_every_kind(document: object, passage: Passage) -> None:
    """A document of any framework is read back as text, id and score."""
    app = Bare()
    with app.within("search"):
        record_retrieval(QUESTION, [document])
    found = read(app.spans[0])
    assert (found.documents, found.query) == ((passage,), QUESTION)


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (lambda: record_question(None), "record_question.. takes the text as a str, not NoneType"),
        (lambda: record_retrieval(5, []), "record_retrieval.. takes the text as a str, not int"),
        (
            lambda: record_retrieval("q", CONTEXT),
            r"a list of documents, not str; pass \[document\]",
        ),
        (lambda: record_retrieval("q", {"text": "a"}), "a list of documents, not dict"),
        (lambda: record_retrieval("q", iter(["a"])), "a list of documents, not list_iterator"),
        (lambda: record_retrieval("q", Document(page_content="a")), "list of documents, not Docu"),
        (lambda: record_retrieval("q", [5]), "a document is a str, a Passage, .* not int"),
        (lambda: record_retrieval("q", [SimpleNamespace(content=5)]), "not SimpleNamespace"),
    ],
)
def test_what_cannot_be_recorded(
    call: Callable[[], None], told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A wrong call raises in tests and says the way out; in production it does nothing."""
    app = Bare()
    with app.within():
        with pytest.raises(TypeError, match=told):
            call()
        monkeypatch.setenv("RAG_EVAL_RAISE_ERRORS", "off")
        call()
    assert not app.spans[0].attributes
    assert not app.spans[0].events


def say_all() -> None:
    record_question(QUESTION)
    record_retrieval(QUESTION, [CONTEXT])
    record_answer(ANSWER)


@pytest.mark.parametrize("own_spans", [True, False])
def test_several_retrievals(*, own_spans: bool) -> None:
    """All retrievals of a turn count, in order, each text once."""
    app = Bare()
    with app.within() as span:
        record_question(QUESTION)
        for found in ([OTHER, CONTEXT], [], [CONTEXT + " "], ["Third."]):
            if own_spans:
                with app.within("search"):
                    record_retrieval(QUESTION, found)
            else:
                record_retrieval(QUESTION, found)
        record_answer(ANSWER)
        assert span.is_recording()
    assert app.results == [
        Sample(question=QUESTION, contexts=[OTHER, CONTEXT, "Third."], answer=ANSWER)
    ]


@pytest.mark.parametrize(
    "limits",
    [
        SpanLimits(max_events=1),
        SpanLimits(max_span_attribute_length=10),
        SpanLimits(max_event_attributes=1),
        SpanLimits(max_attribute_length=len(CONTEXT) + 5),
    ],
)
def test_what_a_limit_has_cut_is_refused(limits: SpanLimits) -> None:
    """A text that was cut, or a retrieval that was dropped, is no sample."""
    app = Bare(span_limits=limits)
    with app.within():
        record_retrieval(QUESTION, [OTHER])
        say_all()
    assert app.results == ["truncated"]


def test_a_turn_is_scored_on_the_span_it_was_said_on() -> None:
    """The outermost span of the turn carries the scores; no text is exported unasked."""
    with attached() as app:
        with app.within("alone"):
            say_all()
        with app.within("GET /"), app.within():
            record_question(QUESTION)
            with app.within("search"):
                record_retrieval(QUESTION, [CONTEXT])
            with app.within("write"):
                record_answer(ANSWER)
        assert app.handle.flush()
        scored = {span.name for span in app.exported() if STATUS in (span.attributes or {})}
        assert scored == {"alone", "ask"}
        assert set(app.names()) == {"alone", "GET /", "ask", "search", "write"}
        assert app.counted() == {SCORED: 2}
        assert not any(text in app.exported_texts() for text in (QUESTION, CONTEXT, ANSWER))


# --- within LangChain runs ------------------------------------------------------------------------

PAGES = (company.HISTORY, company.FOUNDER)
TURN = [(QUESTION, PAGES, ANSWER)]


def search(query: str) -> list[str]:
    record_retrieval(query, list(PAGES))
    return list(PAGES)


def generate(question: str, pages: list[str]) -> str:
    prompt = PROMPT.invoke({"context": "\n".join(pages), "question": question})
    return str(ScriptedChat(reply=saying(ANSWER)).invoke(prompt).content)


def invoke(captured: Capture, chain: Any, question: Any = QUESTION) -> Any:
    return chain.invoke(question, {"callbacks": [captured.handler]})


def test_in_a_function_of_a_chain() -> None:
    """A retrieval without a span of its own is one of the run that is active."""
    captured = capture()
    invoke(captured, RunnableLambda(lambda question: generate(question, search(question))))
    assert captured.truths == TURN
    assert captured.errors == []


def test_question_and_answer_win() -> None:
    """Question and answer recorded within a run are those of the turn around it."""
    captured = capture()

    def ask(question: str) -> str:
        record_question("What was asked?")
        said = generate(question, search(question))
        record_answer("What was shown.")
        return said

    invoke(captured, RunnableLambda(ask) | (lambda text: text.upper()))
    assert captured.truths == [("What was asked?", PAGES, "What was shown.")]


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("record_question", [QUESTION]),
        ("record_retrieval", [QUESTION, list(PAGES)]),
        ("record_answer", [ANSWER]),
        ("record_feedback", [1]),
    ],
)
def test_nowhere(name: str, arguments: list[Any], caplog: pytest.LogCaptureFixture) -> None:
    """Without a run and a span there is one warning, which names the call."""
    with attached() as app, caplog.at_level(logging.WARNING, "rag_eval_otel"):
        for _ in range(3):
            getattr(recorded, name)(*arguments)
        assert app.handle.stats.feedback == {}
    (line,) = caplog.messages
    assert f"{name}() has no effect" in line


# --- feedback -------------------------------------------------------------------------------------

FAITHFUL: dict[str, Any] = {"metrics": ["faithfulness"], "thresholds": {"faithfulness": 0.5}}
LABEL = "gen_ai.evaluation.score.label"
TRACE = "ab" * 16


class KeepingSink:
    """A sink that keeps the feedback that it gets."""

    def __init__(self) -> None:
        self.feedback: list[Feedback] = []

    def __call__(self, evaluation: Evaluation) -> None: ...

    def emit_feedback(self, feedback: Feedback) -> None:
        self.feedback.append(feedback)


@pytest.fixture(autouse=True)
def alone() -> None:
    """Forget the pipelines and the warnings of other tests."""
    recorded._intakes.clear()  # noqa: SLF001
    recorded._warnings._kinds.clear()  # noqa: SLF001
    recorded._edge.cache_clear()  # noqa: SLF001


def ids(span: Span) -> dict[str, str]:
    context = span.get_span_context()
    return {
        "trace_id": format_trace_id(context.trace_id),
        "span_id": format_span_id(context.span_id),
    }


def events(app: App) -> list[Any]:
    return [e for e in app.score_events() if e.attributes["gen_ai.evaluation.name"] == "user"]


def scored_turn(app: App) -> Span:
    span = app.turn()
    assert app.handle.flush()
    return span


def test_feedback_on_a_scored_turn() -> None:
    """The event has the context of the turn's span."""
    sink = KeepingSink()
    with attached(**FAITHFUL, sinks=[sink]) as app:
        span = scored_turn(app)
        record_feedback(0, trace_id=ids(span)["trace_id"], comment="Wrong year.")
        assert app.handle.flush()
        (event,) = events(app)
        context = span.get_span_context()
        assert (event.trace_id, event.span_id) == (context.trace_id, context.span_id)
        assert event.attributes["gen_ai.evaluation.score.value"] == 0.0
        assert event.attributes[LABEL] == "fail"
        assert event.attributes["gen_ai.evaluation.explanation"] == "Wrong year."
        assert event.attributes["rag.evaluation.annotator"] == "human"
        assert app.handle.stats.feedback == {"joined": 1}
        assert app.counted_by("rag.evaluation.feedback.received", "outcome") == {"joined": 1}
        (found,) = sink.feedback
        assert (found.trace_id, found.span_id) == (context.trace_id, context.span_id)
        assert (found.score, found.comment) == (0, "Wrong year.")


def test_feedback_within_the_current_span() -> None:
    """Without ids, feedback is on the current span."""
    with attached(**FAITHFUL) as app:
        with app.within() as span:
            say_all()
            record_feedback(1)
        assert app.handle.flush()
        (event,) = events(app)
        assert event.span_id == span.get_span_context().span_id
        found = app.attributes_of(span)
        assert (found["rag.feedback.user.score"], found["rag.feedback.user.label"]) == (1.0, "pass")
        assert app.handle.stats.feedback == {"joined": 1}


def test_the_id_of_a_langchain_run_names_the_turn() -> None:
    """Applications choose the id of the root run, and do not know the ids of spans."""
    chain = rag(KeywordRetriever(), ScriptedChat(reply=saying("In 1987.")))
    run_ids = [uuid.uuid4() for _ in range(3)]
    sink = KeepingSink()
    with attached(**FAITHFUL, sinks=[sink]) as app:
        record_feedback(1, trace_id=run_ids[0])  # before the run: it is passed on when it is known
        for run_id in (*run_ids[:2], str(run_ids[2])):  # LangServe chooses a text
            chain.invoke("When?", {"callbacks": [app.handle.callback], "run_id": run_id})
        assert app.handle.flush()
        record_feedback(0, trace_id=str(run_ids[1]))
        record_feedback(0, trace_id=run_ids[2].hex)
        assert app.handle.flush()
        scored = [one.context for one in app.exported() if STATUS in (one.attributes or {})]
    found = {(one.trace_id, one.span_id) for one in sink.feedback}
    assert found == {(one.trace_id, one.span_id) for one in scored}
    assert len(found) == len(sink.feedback) == 3


def test_feedback_within_a_run_without_a_span() -> None:
    """It is about the turn of the root run."""
    sink = KeepingSink()
    with attached(**FAITHFUL, sinks=[sink]) as app:

        def ask(question: str) -> str:
            answer = rag().invoke(question)
            record_feedback(1)
            return answer

        RunnableLambda(ask).invoke(company.FOUNDED, {"callbacks": [app.handle.callback]})
        assert app.handle.flush()
        (turn,) = [one.context for one in app.exported() if STATUS in (one.attributes or {})]
    assert [(one.trace_id, one.span_id) for one in sink.feedback] == [(turn.trace_id, turn.span_id)]


def test_feedback_on_an_unknown_trace_is_passed_on(caplog: pytest.LogCaptureFixture) -> None:
    """The turn may have been scored by another process: its ids are enough for an event."""
    trace, span = int("ab" * 16, 16), int("cd" * 8, 16)
    with attached() as app, caplog.at_level(logging.WARNING):
        with app.within("another") as current:
            record_feedback(1, trace_id=TRACE, span_id="cd" * 8)
            record_feedback(1, trace_id=trace)
        assert app.handle.flush()
        assert app.attributes_of(current) == {}
        assert [(e.trace_id, e.span_id) for e in events(app)] == [(trace, span), (trace, 0)]
        (carrier,) = app.carriers()  # without the id of a span, there is nothing to link to
        assert [link.context.span_id for link in carrier.links] == [span]
        assert app.handle.stats.feedback == {"unmatched": 2}
    (line,) = [one for one in caplog.messages if "feedback" in one]
    assert f"feedback 'user' on trace {TRACE}: no turn of it is known here" in line


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"score": 4}, r"from 0 \(bad\) to 1 \(good\), not 4; bring stars to this scale"),
        ({"score": -1}, r"not -1; .*thumbs of -1 and 1 with \(thumb \+ 1\) / 2"),
        ({"score": float("nan")}, r"not nan"),
        ({"score": "up"}, r"a score from 0 to 1 or a bool, not str"),
        ({"name": "two words"}, r"1 to 64 ASCII letters, digits, _ and -"),
        ({"comment": 7}, r"comment of feedback is a str, not int"),
        ({"trace_id": "run-17"}, r"32 hexadecimal digits, .*not from a backend"),
        ({"trace_id": 2**128}, r"32 hexadecimal digits"),
        ({"trace_id": True}, r"32 hexadecimal digits"),
        ({"trace_id": TRACE, "span_id": "12"}, r"span_id must be 16 hexadecimal digits"),
        ({"trace_id": None, "span_id": "cd" * 8}, r"needs trace_id"),
    ],
)
def test_wrong_arguments_are_refused(arguments: dict[str, Any], expected: str) -> None:
    """The message says what is accepted, and what an id looks like."""
    with pytest.raises((TypeError, ValueError), match=expected):
        record_feedback(**{"score": 1, "trace_id": TRACE, **arguments})


def test_wrong_arguments_do_not_stop_an_application(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """In production they are logged and counted."""
    monkeypatch.setenv("RAG_EVAL_RAISE_ERRORS", "off")
    with attached() as app:
        record_feedback(5, trace_id=TRACE)
        assert app.handle.stats.feedback == {"refused": 1}
        assert app.handle.stats.failures == {"feedback": 1}
        assert app.counted_by("rag.evaluation.feedback.received", "outcome") == {"refused": 1}
    assert "not 5; bring stars" in caplog.text


def failing(text: str) -> str:
    raise ValueError(text)


@pytest.mark.parametrize(
    ("redact", "shown"), [(hide("ada@example.com"), "Write to [redacted]"), (failing, None)]
)
def test_comments_are_redacted(redact: Any, shown: str | None) -> None:
    """The rules for private texts hold for comments; one that cannot be redacted is left out."""
    with attached(redact=redact, raise_errors=False) as app:
        record_feedback(0, trace_id=TRACE, comment="Write to ada@example.com")
        assert app.handle.flush()
        (event,) = events(app)
        assert event.attributes.get("gen_ai.evaluation.explanation") == shown


def test_feedback_after_the_end_is_dropped() -> None:
    """A pipeline that was shut down has no thread for it."""
    with attached() as app:
        app.handle.shutdown()
        record_feedback(1, trace_id=TRACE)
        assert app.handle.stats.feedback == {"dropped": 1}


def test_feedback_in_a_process_without_a_pipeline(caplog: pytest.LogCaptureFixture) -> None:
    """A service that only takes feedback emits it as an event and a metric, with its ids."""
    record_feedback(1, trace_id=TRACE)
    assert not caplog.messages


def intake(passed: list[Any] | None = None) -> FeedbackIntake:
    return FeedbackIntake(
        instruments=InstrumentSink(MeterProvider()),
        evaluator=BackgroundEvaluator(),
        pass_on=(passed if passed is not None else []).append,
    )


def evaluated(span_id: int, trace_id: int = 1) -> Evaluation:
    scores = (Score(name="m", value=1.0, label="pass"),)
    return Evaluation(scores=scores, span=SpanRef(trace_id=trace_id, span_id=span_id))


def test_early_feedback_waits_for_its_turn() -> None:
    """Without the id of a span, it is about the only turn of the trace."""
    found = intake()
    early = [
        Feedback(trace_id=1, span_id=8, score=1),
        *(Feedback(trace_id=n, score=0) for n in (1, 2)),
    ]
    for each in early:
        found.take(each, "ids", is_expected=True)
    for number in (7, 8):
        found.note(SpanContext(1, number, is_remote=False))
    said = [found.of(SpanRef(trace_id=1 + n // 9, span_id=n)) for n in (7, 8, 9)]
    assert said == [(), (early[0],), (replace(early[2], span_id=9),)]


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tables of turns, runs and early feedback have limits, whatever comes."""
    monkeypatch.setattr(recorded, "_MAX_TURNS", 64)
    found = intake()
    for number in range(1, 1200):
        found(evaluated(number, number // 3 + 1))
        found.note(SpanContext(number, number, is_remote=False), runs=[number])
        found.take(Feedback(trace_id=10_000 + number, score=1), "ids")
        found.take(Feedback(trace_id=1_000_000, score=1), "run")
    assert len(found._turns) == len(found._runs) == 64  # noqa: SLF001
    assert len(found._early) == 1024  # noqa: SLF001
    assert max(map(len, found._early.values())) == 16  # noqa: SLF001
