"""`Handle.explain`: the reason, what is missing and on which span, and what would help."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from langchain_core.runnables import RunnableLambda

from apps.fakes import KeywordRetriever
from live import QUESTION, SOURCES, App, Source, answered, asked, attached, generated, retrieved
from rag_eval_otel.live.explain import Explanations


def trace_of(app: App, attributes: dict[str, Any], search: dict[str, Any] | None = None) -> int:
    chain = app.step("CHAIN", None, **attributes)
    app.step("RETRIEVER", chain, **(retrieved(1) if search is None else search)).end()
    app.step("LLM", chain, **generated(1)).end()
    chain.end()
    assert app.handle.flush(60)
    return chain.get_span_context().trace_id


@pytest.mark.parametrize(
    ("attributes", "search", "parts"),
    [
        (
            answered(1),
            {"input.value": asked(1), "retrieval.documents.0.document.id": "a"},
            ["'chain' is skipped, no_contexts: ", "Missing: texts of documents of the retriever '"],
        ),
        (
            {**answered(1), "input.value": "__REDACTED__"},
            None,
            ["redacted: ", "Missing: input (redacted) of the chain 'chain' ("],
        ),
    ],
)
def test_a_refused_turn_names_its_span_and_what_is_missing(
    attributes: dict[str, Any], search: dict[str, Any] | None, parts: list[str]
) -> None:
    """The text has the remedy of the doctor and the rule in the code, and no text of a user."""
    with attached() as app:
        trace_id = trace_of(app, attributes, search)
        text = app.handle.explain(trace_id)
        assert text == app.handle.explain(f"{trace_id:032x}") is not None
        assert app.handle.explain(trace_id + 1) is None
    assert text is not None
    for part in parts:
        assert part in text
    assert " Do: " in text
    assert "sample.py:" in text
    assert asked(1) not in text


@SOURCES
def test_a_trace_without_a_turn_is_explained_by_the_id_of_its_spans(source: Source) -> None:
    """That holds for LangChain runs, too, whose spans are started after they were read."""
    with attached() as app:
        if source == "spans":
            chain = app.step("CHAIN", None)
            app.retrieve(1, chain)
            chain.end()
        else:
            searching = RunnableLambda(lambda query: KeywordRetriever().invoke(query) and None)
            searching.invoke(QUESTION, {"callbacks": [app.handle.callback]})
        assert app.handle.flush(60)
        text = app.handle.explain(app.exported()[0].context.trace_id)
    assert text is not None
    assert "is skipped, no_answer: A retrieval was recorded, but no answer text" in text


def test_turns_that_are_not_sampled_are_explained(caplog: pytest.LogCaptureFixture) -> None:
    """The same line is in the debug log."""
    caplog.set_level(logging.DEBUG, "rag_eval_otel")
    with attached(sample_rate=0) as app:
        span = app.record()
        assert app.handle.flush(60)
        text = app.handle.explain(span.get_span_context().trace_id)
    assert text is not None
    assert text.startswith("'turn' is skipped, sample_rate: ")
    assert text in caplog.text


def test_only_the_last_traces_are_kept() -> None:
    """Memory is bounded, by traces, by turns of each, and by the length of names."""
    explanations = Explanations()
    for trace in [*range(1001), *[1000] * 30]:
        explanations.add(trace, "no_question", f"turn {trace}" + " " * 1000, ())
    explanations.keep(1000, explanations[1000])
    assert 0 not in explanations
    assert explanations[1][0].startswith("'turn 1  ")
    assert len(explanations[1][0]) < 1000
    assert len(explanations[1000]) == 20
