"""A turn that is refused: its span says why, a counter counts it, and one line is logged."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest
from langchain_core.runnables import RunnableLambda

from apps import company
from apps.fakes import KeywordRetriever, ScriptedChat
from apps.parts import join, rag
from apps.replies import saying, unavailable
from live import App, attached, generated
from rag_eval_otel import record_question
from recording import ANSWER, Capture, begin_turn, capture, finish

FOUNDED = company.FOUNDED


def said_on(span: Any) -> tuple[Any, Any]:
    found = dict(span.attributes or {})
    return found.get("rag.evaluation.status"), found.get("rag.evaluation.reason")


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    lines = [record.getMessage() for record in caplog.records]
    return [line for line in lines if "is not scored" in line]


def only_retrieved(captured: Capture) -> None:
    chain = RunnableLambda(lambda question: join(KeywordRetriever().invoke(question)))
    chain.invoke(FOUNDED, {"callbacks": [captured.handler]})


def abandoned(captured: Capture) -> None:
    write, _, root = begin_turn(captured)
    captured.told[root.id] = ANSWER[:5]
    finish(captured, root, write)


def failed(captured: Capture) -> None:
    with pytest.raises(ConnectionError):
        rag(KeywordRetriever(), ScriptedChat(reply=unavailable)).invoke(
            FOUNDED, {"callbacks": [captured.handler]}
        )


def recorded_alone(captured: Capture) -> None:
    chain = RunnableLambda(record_question)
    chain.invoke(FOUNDED, {"callbacks": [captured.handler]})


REFUSED: dict[str, tuple[Callable[[Capture], None], str]] = {
    "only retrieved": (only_retrieved, "no_answer"),
    "abandoned": (abandoned, "abandoned"),
    "failed": (failed, "error"),
    "recorded alone": (recorded_alone, "no_retrieval"),
}


@pytest.mark.parametrize(("run", "reason"), REFUSED.values(), ids=REFUSED)
def test_the_root_of_runs_says_why(run: Callable[[Capture], None], reason: str) -> None:
    """The root carries status and reason, the counter has one, and no other span says anything."""
    captured = capture()
    run(captured)
    assert captured.reasons == [reason]
    found = {said_on(span) for span in captured.spans if span.parent is not None}
    assert found <= {(None, None)}
    (root,) = [span for span in captured.spans if span.parent is None]
    assert said_on(root) == ("skipped", reason)


def test_a_plain_chat_is_only_counted(caplog: pytest.LogCaptureFixture) -> None:
    """A model without any retrieval is no refused turn: neither span nor log speak of it."""
    captured = capture()
    with caplog.at_level(logging.WARNING, "rag_eval_otel"):
        ScriptedChat(reply=saying("Hello!")).invoke("Hi", {"callbacks": [captured.handler]})
    assert captured.reasons == ["no_retrieval"]
    assert {said_on(span) for span in captured.spans} == {(None, None)}
    assert not told(caplog)


def test_each_reason_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    """The reason is logged once a minute, however many turns, with the page that gives advice."""
    captured = capture()
    with caplog.at_level(logging.WARNING, "rag_eval_otel"):
        for _ in range(3):
            only_retrieved(captured)
            failed(captured)
    lines = told(caplog)
    assert [("no_answer" in line, "error" in line) for line in lines] == [
        (True, False),
        (False, True),
    ]
    assert all("docs/doctor.md" in line for line in lines)
    assert captured.reasons == ["no_answer", "error"] * 3


def without_an_answer(app: App) -> Any:
    chain = app.step("CHAIN", None, **{"input.value": "q"})
    app.retrieve(1, chain)
    shown = {k: v for k, v in generated(1).items() if "output" not in k}
    app.step("LLM", chain, **shown).end()
    chain.end()
    return chain


def of_hundreds_of_calls(app: App) -> Any:
    chain = app.chain()
    for number in range(200):
        app.retrieve(number, chain)
        app.generate(number, chain)
    chain.end()
    return chain


@pytest.mark.parametrize(
    ("made", "reason"), [(without_an_answer, "no_answer"), (of_hundreds_of_calls, "ambiguous")]
)
def test_a_held_span_says_why(made: Callable[[App], Any], reason: str) -> None:
    """The span that waited for scores leaves with the reason why there are none."""
    with attached() as app:
        chain = made(app)
        app.pipeline.submit_ended()
        assert app.pipeline.store.wait_left(100)  # a flush waits only five seconds
        assert app.handle.flush()
        own = chain.get_span_context().span_id
        (left,) = [one for one in app.exported() if one.context.span_id == own]
        assert said_on(left) == ("skipped", reason)
        assert app.counted() == {("skipped", reason): 1}
