"""In an application that retrieves, searches are counted, and their absence is said."""

from collections.abc import Callable
from typing import Any

import pytest
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.language_models import FakeListChatModel
from langchain_core.runnables import RunnableLambda

from live import KIND, App, answered, attached, generated, remote, retrieved
from runs import run_chain

STATUS, REASON, OUTCOME = (f"rag.evaluation.{name}" for name in ("status", "reason", "outcome"))


def chat(app: App, said: str) -> None:
    """Answer in a chain as that of `App.turn`, without a search."""
    chain = app.chain()
    model = app.step("LLM", chain, **generated(1))
    model.end()
    chain.set_attribute("output.value", said)
    chain.end()


def chat_by_runs(app: App, said: str, name: str = "chain") -> None:
    model = FakeListChatModel(responses=[said])
    callbacks: list[BaseCallbackHandler] = [app.handle.callback]
    RunnableLambda(lambda question: model.invoke(question).content).with_config(
        run_name=name
    ).invoke("Hello?", {"callbacks": callbacks})


def by_spans(app: App) -> None:
    app.turn()


def by_runs(app: App) -> None:
    run_chain(app.handle.callback, "chain")


@pytest.mark.parametrize(("turn", "talk"), [(by_spans, chat), (by_runs, chat_by_runs)])
def test_no_retrieval_says_so(
    turn: Callable[[App], None], talk: Callable[[App, str], None]
) -> None:
    """Only where the same step has retrieved before, the span has status, reason and outcome."""
    with attached() as app:
        talk(app, "Nothing is known here.")
        assert app.handle.flush(60)
        turn(app)
        assert app.handle.flush(60)
        talk(app, "It opens at nine.")
        talk(app, "I don't know, the documents do not say.")
        assert app.handle.flush(60)
        told = [dict(span.attributes or {}) for span in app.exported()]
        found = [(t[STATUS], t.get(REASON), t[OUTCOME]) for t in told if STATUS in t]
        assert found == [
            ("scored", None, "answered"),
            ("skipped", "no_retrieval", "answered"),
            ("skipped", "no_retrieval", "declined"),
        ]
        assert app.counted() == {("scored", None): 1, ("skipped", "no_retrieval"): 3}
        assert app.each_left_once()


def test_each_answer_has_its_own_outcome() -> None:
    """Two answers without a search are two; none is told in a trace that has a turn."""
    with attached() as app:
        by_spans(app)
        assert app.handle.flush(60)
        with app.within("web") as web:
            for said in ("It opens at nine.", "I don't know, the documents do not say."):
                chain = app.chain(parent=web)
                app.generate(1, chain)
                chain.set_attribute("output.value", said)
                chain.end()
        around = remote(1)
        for search in (True, False):
            chain = app.tracer.start_span(
                "chain", context=around, attributes={KIND: "CHAIN", **answered(1)}
            )
            if search:
                app.retrieve(1, chain)
            app.generate(1, chain)
            chain.end()
            assert app.handle.flush(60)
        told = [dict(span.attributes or {}) for span in app.exported()]
        found = [(t[STATUS], t.get(OUTCOME)) for t in told if STATUS in t]
        assert sorted(found) == [
            ("scored", "answered"),
            ("scored", "answered"),
            ("skipped", "answered"),
            ("skipped", "declined"),
        ]
        assert app.counted() == {("scored", None): 2, ("skipped", "no_retrieval"): 3}


def test_a_search_in_a_trace_of_its_own() -> None:
    """The trace of a chain that gave its retriever no parent says where the documents came from."""
    with attached() as app:
        chain = app.chain()
        app.step("LLM", chain, **generated(2)).end()
        app.retrieve(1, None)
        app.generate(1, chain)
        chain.end()
        assert app.handle.flush(60)
        assert app.counted() == {("skipped", "split"): 1}


def test_names_are_bounded() -> None:
    """Of chains that retrieve, at most a thousand names are remembered, and the newest is one."""
    with attached() as app:
        scorer = app.pipeline.scorer
        scorer.retrieving.update(f"old {number}" for number in range(1000))
        by_runs(app)
        assert app.handle.flush(60)
        assert scorer.retrieving == {"chain"}


def test_another_step_stays_silent() -> None:
    """A model call of another chain has no attribute, although this one has retrieved."""
    with attached() as app:
        by_runs(app)
        assert app.handle.flush(60)
        chat_by_runs(app, "A title.", name="title")
        assert app.handle.flush(60)
        (titled,) = [span for span in app.exported() if span.name.endswith("title")]
        assert not [name for name in titled.attributes or {} if name.startswith("rag.evaluation")]


@pytest.mark.parametrize(
    ("queries", "counts"),
    [(["a b"], (1, 0, 0)), (["a b", "A  B", "c"], (3, 1, 0)), (["a b", ""], (2, 0, 1))],
)
def test_searches_are_counted(queries: list[str], counts: tuple[int, int, int]) -> None:
    """The span has how many searches there were, how many repeat one, and how many were empty."""
    with attached() as app:
        chain = app.step("CHAIN", None, **answered(1))
        for query in queries:
            documents: dict[str, Any] = retrieved(1) if query else {"output.value": "[]"}
            app.step("RETRIEVER", chain, **{**documents, "input.value": query or "none"}).end()
        app.generate(1, chain)
        chain.end()
        assert app.handle.flush(60)
        (told,) = app.judged()
        names = [f"rag.evaluation.retrieval.{name}" for name in ("searches", "repeated", "empty")]
        assert tuple(told[name] for name in names) == counts
