"""LangChain applications: samples, refusals and spans of each, alone, at once and unended."""

from __future__ import annotations

import warnings
from collections import Counter
from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.callbacks import BaseCallbackHandler
from opentelemetry.sdk.trace import ReadableSpan

from apps import company
from apps.fakes import ScriptedChat
from apps.parts import PROMPT, handbook, join
from corpus.kit import App, all_apps, call
from corpus.orders import interleaved
from corpus.retold import Retold, runs_of, tell_runs
from corpus.run import as_truth, match, quietly
from e2e.corpus_checks import check_corpus
from properties import examples
from rag_eval_otel.capture.vectorstores import record_searches
from rag_eval_otel.config import ExportContent, Spans
from recording import Capture, capture

EVERY = 4  # application of the corpus
RUNNABLE = [one for one in all_apps("langchain", "langgraph") if not one.missing()][::EVERY]
VARIANTS = (("essential", "foreign"), ("all", "foreign"))
RARE = [
    pytest.param(*one, marks=pytest.mark.slow)
    for one in (("essential", "all"), ("none", "foreign"))
]
each_app = pytest.mark.parametrize("app", RUNNABLE, ids=[app.name for app in RUNNABLE])
each_variant = pytest.mark.parametrize(("spans", "content"), [*VARIANTS, *RARE])


@cache
def ran(app: App, spans: Spans = "essential", content: ExportContent = "foreign") -> Capture:
    captured = capture(spans=spans, content=content)
    record_searches(captured.handler.edge)
    with quietly():
        warnings.simplefilter("ignore")  # pytest makes those of the frameworks errors
        call(app, {"callbacks": [captured.handler]})
    captured.flush()
    return captured


def texts_on(spans: tuple[ReadableSpan, ...]) -> str:
    return "\n".join(
        f"{span.name} {dict(span.attributes or {})} {span.status.description} {span.events}"
        for span in spans
    )


@each_variant
@each_app
def test_the_samples_are_those_stated(app: App, spans: Spans, content: ExportContent) -> None:
    """Question, contexts and answer of every turn are what a careful reader would say."""
    captured = ran(app, spans, content)
    assert match(app, [as_truth(sample) for sample in captured.samples]) == ([], [])


@each_app
def test_no_text_is_exported_unasked(app: App) -> None:
    """With content capture off no question, page or answer is on any span."""
    captured = ran(app)
    written = texts_on(captured.spans)
    texts = [text for one in app.truths for text in (one.question, *one.contexts, one.answer)]
    assert captured.spans
    assert not [text for text in texts if text in written]


# --- plain functions ------------------------------------------------------------------------------


def ask(handler: BaseCallbackHandler) -> None:
    documents = handbook().invoke(company.FOUNDED, {"callbacks": [handler]})
    prompt = PROMPT.invoke({"context": join(documents), "question": company.FOUNDED})
    ScriptedChat().invoke(prompt, {"callbacks": [handler]})


def test_a_span_that_has_ended_joins_nothing() -> None:
    """Neither does a span that another instrumentation has started; the documents do."""
    captured = capture()
    with captured.within("ask") as span:
        span.end()
        ask(captured.handler)
    attributes = {"openinference.span.kind": "CHAIN"}
    with captured.within("theirs", attributes=attributes):
        ask(captured.handler)
    assert len(captured.turns) == 2


def test_published_shapes() -> None:
    """Calls without a chain around them are joined where the prompt shows it, and else refused."""
    assert all_apps("published")
    check_corpus("callback", "published", exact=1.0)


# --- the corpus under our callback ----------------------------------------------------------------


@cache
def recorded(every: int) -> tuple[Retold, ...]:
    with quietly():
        warnings.simplefilter("ignore")  # pytest makes those of the frameworks errors
        apps = [one for one in all_apps("langchain", "langgraph") if not one.missing()]
        return tuple(runs_of(one) for one in apps[::every])


@pytest.mark.slow
def test_a_run_that_never_ends() -> None:
    """Whichever run has no end, there is no sample that the whole does not give."""
    apps = recorded(3 * EVERY)
    assert sum(bool(one.whole) for one in apps) > len(apps) / 2
    for one in apps:
        for key in one.keys:
            assert not one.wrong(one.unended({key})), (one.app.name, one.name_of(key))


@pytest.mark.slow
@examples(20)
@given(st.data())
def test_applications_at_once(data: st.DataObject) -> None:
    """However the events of applications mix, each gives the samples it gives by itself."""
    apps = st.sampled_from(recorded(3 * EVERY))
    several = data.draw(st.lists(apps, max_size=3, unique_by=lambda one: one.app.name))
    apart = sum((one.whole for one in several), Counter())
    assert Counter(tell_runs(data.draw(interleaved(several)))) == apart


@pytest.mark.slow
def test_the_corpus() -> None:
    """Nearly all applications are scored exactly, and none wrongly."""
    check_corpus("callback", "langchain", "langgraph", exact=0.98)
