"""Shapes of LangChain applications that are seen less often, or give less to see."""

from __future__ import annotations

from typing import Any

import pytest
from langchain_core.vectorstores import InMemoryVectorStore

from apps import company
from apps.fakes import ScriptedChat, WordEmbeddings
from apps.parts import PROMPT, handbook, join, lookup
from pipeline import good_judge, running, turns_counted
from rag_eval_otel import record_answer, record_question
from recording import Capture, capture

FOUNDED = (company.FOUNDED, (company.HISTORY, company.FOUNDER))


def store() -> InMemoryVectorStore:
    return InMemoryVectorStore.from_documents(company.documents(), WordEmbeddings())


def with_handler(captured: Capture) -> Any:
    return {"callbacks": [captured.handler]}


def ask(captured: Capture) -> None:
    documents = handbook().invoke(company.FOUNDED, with_handler(captured))
    prompt = PROMPT.invoke({"context": join(documents), "question": company.FOUNDED})
    ScriptedChat().invoke(prompt, with_handler(captured))


def test_a_plain_function_without_a_span() -> None:
    """Nothing joins the two runs, and that is said."""
    captured = capture()
    ask(captured)
    assert captured.reasons == ["no_answer", "no_retrieval"]


def prompt(page: str, question: str) -> Any:
    return PROMPT.invoke({"context": page, "question": question})


def test_turns_of_one_span_are_told_apart() -> None:
    """Questions asked one after the other below a span are separate turns."""
    captured = capture()
    with captured.within("batch"):
        for question in (company.FOUNDED, company.SPARS):
            documents = handbook().invoke(question, with_handler(captured))
            ScriptedChat().invoke(prompt(join(documents), question), with_handler(captured))
    spars = (company.SPARS, (company.WARRANTY, company.WORKSHOP))
    assert [truth[:2] for truth in captured.truths] == [spars, FOUNDED]
    assert captured.reasons == []


def test_a_span_that_has_ended_joins_nothing() -> None:
    """Neither does a span that another instrumentation has started by itself."""
    captured = capture()
    with captured.within("ask") as span:
        span.end()
        ask(captured)
    attributes = {"openinference.span.kind": "CHAIN"}
    with captured.within("theirs", attributes=attributes):
        ask(captured)
    assert captured.reasons == ["no_answer", "no_retrieval"] * 2


def test_a_plain_function_is_scored_on_its_span() -> None:
    """The scores are on the application's own span."""
    with running() as app:
        call: Any = {"callbacks": [app.handle.callback]}
        with app.tracer.start_as_current_span("ask"):
            documents = handbook().invoke(company.FOUNDED, call)
            ScriptedChat().invoke(prompt(join(documents), company.FOUNDED), call)
        app.stop()
        spans = {span.name: span for span in app.receiver.spans()}
        counted = turns_counted(app.receiver)
    assert spans["ask"].attributes["rag.evaluation.status"] == "scored"
    assert counted == {("scored", None): 1}


@pytest.mark.parametrize("chain", [True, False], ids=["chain", "function"])
def test_what_is_said_wins_until_the_span_ends(*, chain: bool) -> None:
    """The span of the application stands for the turn, and what it says last counts."""
    judge = good_judge()
    with running(spans="none", judge=judge) as app:
        call: Any = {"callbacks": [app.handle.callback]}
        with app.tracer.start_as_current_span("ask"):
            if chain:
                (lookup() | PROMPT | ScriptedChat()).invoke(company.FOUNDED, call)
            else:
                documents = handbook().invoke(company.FOUNDED, call)
                ScriptedChat().invoke(prompt(join(documents), company.FOUNDED), call)
            record_question("What was asked?")
            record_answer("What was shown.")
        app.stop()
        (span,) = app.receiver.spans()
    assert span.attributes["rag.evaluation.status"] == "scored"
    asked = str(judge.requests)
    assert "What was asked?" in asked
    assert "What was shown." in asked
    assert company.HISTORY in asked
    assert "It was founded in 1987." not in asked
