"""Shapes of LangChain applications that are seen less often, or give less to see."""

from __future__ import annotations

from typing import Any

from apps import company
from apps.fakes import ScriptedChat
from apps.parts import PROMPT, handbook, join
from pipeline import running, turns_counted
from recording import Capture, capture

FOUNDED = (company.FOUNDED, (company.HISTORY, company.FOUNDER))


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
