"""Texts that an application records itself are read and scored, and never break it."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from langchain_core.documents import Document
from opentelemetry.sdk.trace import ReadableSpan, SpanLimits, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import Tracer

from pipeline import ANSWER, CONTEXT, QUESTION, running, turns_counted
from rag_eval_otel import Passage, Sample, record_answer, record_question, record_retrieval, semconv
from rag_eval_otel.capture.conventions import read
from rag_eval_otel.capture.span import Span
from steps import outcomes_of

OTHER = "Products: Borealis makes lamps."


class App:
    """An application with its own provider and nothing of ours attached."""

    def __init__(self, **options: Any) -> None:
        self._exporter = InMemorySpanExporter()
        provider = TracerProvider(**options)
        provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.tracer: Tracer = provider.get_tracer("app")

    @property
    def spans(self) -> tuple[ReadableSpan, ...]:
        return self._exporter.get_finished_spans()

    @property
    def results(self) -> list[object]:
        return [outcome.result for outcome in outcomes_of(map(Span.from_sdk, self.spans))]


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
    app = App()
    with app.tracer.start_as_current_span("search"):
        record_retrieval(QUESTION, [document])
    found = read(Span.from_sdk(app.spans[0]))
    assert (found.documents, found.query) == ((passage,), QUESTION)


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (lambda: record_question(None), "record_question.. takes the text as a str, not NoneType"),
        (lambda: record_answer(b"bytes"), "record_answer.. takes the text as a str, not bytes"),
        (lambda: record_retrieval(5, []), "record_retrieval.. takes the text as a str, not int"),
        (
            lambda: record_retrieval("q", CONTEXT),
            r"a list of documents, not str; pass \[document\]",
        ),
        (lambda: record_retrieval("q", {"text": "a"}), "a list of documents, not dict"),
        (lambda: record_retrieval("q", iter(["a"])), "a list of documents, not list_iterator"),
        (lambda: record_retrieval("q", Document(page_content="a")), "list of documents, not Docu"),
        (lambda: record_retrieval("q", [5]), "a document is a str, a Passage, .* not int"),
        (lambda: record_retrieval("q", [{"title": "a"}]), "a document is .* not dict"),
        (lambda: record_retrieval("q", [SimpleNamespace(content=5)]), "not SimpleNamespace"),
        (lambda: record_retrieval("q", [SimpleNamespace(get_content=list)]), "not SimpleNamesp"),
    ],
)
def test_what_cannot_be_recorded(
    call: Callable[[], None], told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A wrong call raises in tests and says the way out; in production it does nothing."""
    app = App()
    with app.tracer.start_as_current_span("ask"):
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
    app = App()
    with app.tracer.start_as_current_span("ask") as span:
        record_question(QUESTION)
        for found in ([OTHER, CONTEXT], [], [CONTEXT + " "], ["Third."]):
            if own_spans:
                with app.tracer.start_as_current_span("search"):
                    record_retrieval(QUESTION, found)
            else:
                record_retrieval(QUESTION, found)
        record_answer(ANSWER)
        assert span.is_recording()
    assert app.results == [
        Sample(question=QUESTION, contexts=[OTHER, CONTEXT, "Third."], answer=ANSWER)
    ]


@pytest.mark.parametrize(
    ("say", "reason"),
    [
        (lambda: record_question(QUESTION), "no_retrieval"),
        (lambda: record_answer(ANSWER), "no_retrieval"),
        (lambda: record_retrieval(QUESTION, [CONTEXT]), "no_answer"),
    ],
)
def test_what_is_missing_is_said(say: Callable[[], None], reason: str) -> None:
    """Half a turn is refused with the half that is missing."""
    app = App()
    with app.tracer.start_as_current_span("ask"):
        say()
    assert app.results == [reason]


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
    app = App(span_limits=limits)
    with app.tracer.start_as_current_span("ask"):
        record_retrieval(QUESTION, [OTHER])
        say_all()
    assert app.results == ["truncated"]


def test_a_turn_is_scored_on_the_span_it_was_said_on() -> None:
    """The outermost span of the turn carries the scores; no text is exported unasked."""
    with running() as app:
        with app.tracer.start_as_current_span("alone"):
            say_all()
        with app.tracer.start_as_current_span("GET /"), app.tracer.start_as_current_span("ask"):
            record_question(QUESTION)
            with app.tracer.start_as_current_span("search"):
                record_retrieval(QUESTION, [CONTEXT])
            with app.tracer.start_as_current_span("write"):
                record_answer(ANSWER)
        app.stop()
        spans = {span.name: span for span in app.receiver.spans()}
        counted = turns_counted(app.receiver)
    scored = {name for name, s in spans.items() if semconv.EVALUATION_STATUS in s.attributes}
    assert scored == {"alone", "ask"}
    assert set(spans) == {"alone", "GET /", "ask", "search", "write"}
    assert counted == {("scored", None): 2}
    for span in spans.values():
        assert not any(text in str(span) for text in (QUESTION, CONTEXT, ANSWER))
