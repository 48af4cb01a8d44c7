"""Texts that an application records within LangChain runs, on spans, or outside of both."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest
from langchain_core.runnables import RunnableLambda

from apps import company
from apps.fakes import ScriptedChat
from apps.parts import PROMPT
from apps.replies import saying
from rag_eval_otel import record_answer, record_question, record_retrieval
from rag_eval_otel.live import recorded
from recording import Capture, capture

QUESTION, PAGES = company.FOUNDED, (company.HISTORY, company.FOUNDER)
ANSWER = "It was founded in 1987."
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


def test_runs_side_by_side_say_each_their_own() -> None:
    """A batch and parallel branches are told apart."""
    captured = capture()

    def ask(number: int) -> str:
        record_question(f"Question {number}?")
        record_retrieval("q", [f"Page {number}."])
        return generate(f"Question {number}?", [f"Page {number}."])

    RunnableLambda(ask).batch(list(range(4)), {"callbacks": [captured.handler]})
    expected = [(f"Question {n}?", (f"Page {n}.",), ANSWER) for n in range(4)]
    assert captured.truths == expected


def test_a_run_that_nobody_notes() -> None:
    """Where our handler is not attached the current span takes it."""
    captured = capture()

    def ask(question: str) -> str:
        record_question(question)
        record_answer(ANSWER)
        search(question)
        return ANSWER

    with captured.within("request"):
        RunnableLambda(ask).invoke(QUESTION)
    assert captured.truths == TURN
    assert (captured.span("request").attributes or {})["rag.evaluation.status"] == "scored"


CALLS: dict[str, Callable[[], None]] = {
    "record_question": lambda: record_question(QUESTION),
    "record_retrieval": lambda: record_retrieval(QUESTION, list(PAGES)),
    "record_answer": lambda: record_answer(ANSWER),
}


@pytest.mark.parametrize("name", CALLS)
def test_nowhere(name: str, caplog: pytest.LogCaptureFixture) -> None:
    """Without a run and a span there is one warning, which names the call."""
    recorded._warnings._kinds.clear()  # noqa: SLF001  # another test may have warned
    with caplog.at_level(logging.WARNING, "rag_eval_otel"):
        for _ in range(3):
            CALLS[name]()
    (told,) = caplog.records
    assert f"{name}() has no effect" in told.getMessage()
