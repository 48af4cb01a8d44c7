"""LangChain applications: samples, refusals and spans of each, alone, at once and unended."""

from __future__ import annotations

import warnings
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cache
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.callbacks import BaseCallbackHandler
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import SpanKind

from apps import APPS, App, company
from apps.fakes import ScriptedChat
from apps.parts import PROMPT, handbook, join
from corpus.kit import all_apps
from corpus.orders import interleaved
from corpus.retold import Retold, runs_of, tell_runs
from corpus.run import quietly, verdicts
from e2e.corpus_checks import check_corpus
from live import SCORED, attached
from properties import examples
from rag_eval_otel import semconv
from rag_eval_otel.config import ExportContent, Spans
from recording import Capture, capture

RUNNABLE = [app for app in APPS if not app.skip]
AGENTS = {"agent_non_rag", "agent_retriever_tools", "rag_as_tool"}
CLIENTS = {"chat", "text_completion", "retrieval"}
VARIANTS = (("essential", "foreign"), ("all", "foreign"))
RARE = [
    pytest.param(*one, marks=pytest.mark.slow)
    for one in (("essential", "all"), ("none", "foreign"))
]
VOCABULARY = {*company.PAGES, *company.ANSWERS, *company.ANSWERS.values()}
each_app = pytest.mark.parametrize("app", RUNNABLE, ids=[app.name for app in RUNNABLE])
each_variant = pytest.mark.parametrize(("spans", "content"), [*VARIANTS, *RARE])


@dataclass(eq=False)
class RunIds(BaseCallbackHandler):
    """Notes the ids of runs, and of those among them that have no parent."""

    runs: set[UUID] = field(default_factory=set)
    roots: set[UUID] = field(default_factory=set)

    def on_chain_start(self, *_: Any, run_id: UUID, **event: Any) -> None:
        self.runs.add(run_id)
        if event.get("parent_run_id") is None:
            self.roots.add(run_id)

    on_chat_model_start = on_llm_start = on_retriever_start = on_tool_start = on_chain_start


def ran(
    app: App, spans: Spans = "essential", content: ExportContent = "foreign"
) -> tuple[Capture, RunIds]:
    return _ran(app, spans, content)


@cache
def _ran(app: App, spans: Spans, content: ExportContent) -> tuple[Capture, RunIds]:
    captured, ids = capture(spans=spans, content=content), RunIds()
    app.run([captured.handler, ids])
    captured.flush()
    return captured, ids


def texts_on(spans: tuple[ReadableSpan, ...]) -> str:
    return "\n".join(
        f"{span.name} {dict(span.attributes or {})} {span.status.description} {span.events}"
        for span in spans
    )


def roots(spans: Iterable[ReadableSpan]) -> list[ReadableSpan]:
    return [span for span in spans if span.parent is None]


def attribute(span: ReadableSpan, name: str) -> Any:
    return (span.attributes or {}).get(name)


def operation(span: ReadableSpan) -> Any:
    return attribute(span, semconv.GEN_AI_OPERATION_NAME)


@each_variant
@each_app
def test_the_samples_are_those_stated(app: App, spans: Spans, content: ExportContent) -> None:
    """Question, contexts and answer of every turn are what a careful reader would say."""
    captured, _ = ran(app, spans, content)
    assert captured.truths == sorted((t.question, t.contexts, t.answer) for t in app.truths)


@pytest.mark.slow
@each_variant
@each_app
def test_nothing_is_left_behind(app: App, spans: Spans, content: ExportContent) -> None:
    """Once the app is done the recorder knows none of its runs."""
    captured, ids = ran(app, spans, content)
    assert len(captured.recorder) == 0
    assert ids.runs
    assert not [run for run in ids.runs if run.int in captured.recorder.runs]


@pytest.mark.slow
@pytest.mark.parametrize("spans", ["essential", "all"])
@each_app
def test_the_spans_form_trees(app: App, spans: Spans) -> None:
    """Every root run has a trace of its own, with one root and no missing parents."""
    captured, ids = ran(app, spans)
    traces: dict[int, dict[int, ReadableSpan]] = defaultdict(dict)
    for span in captured.spans:
        traces[span.context.trace_id][span.context.span_id] = span
    assert len(traces) == len(ids.roots)
    for trace in traces.values():
        assert len(roots(trace.values())) == 1
        assert all(s.parent is None or s.parent.span_id in trace for s in trace.values())
        assert all((s.start_time or 0) <= (s.end_time or 0) for s in trace.values())


@pytest.mark.slow
@each_app
def test_the_spans_follow_the_conventions(app: App) -> None:
    """Each span names its GenAI operation, and is of the kind the conventions ask for."""
    captured, _ = ran(app)
    standing = {context.span_id for context, _ in captured.turns}
    for span in captured.spans:
        if operation(span) is None:  # an inner chain: only there to stand for its turn
            assert span.context.span_id in standing
        assert span.kind is (SpanKind.CLIENT if operation(span) in CLIENTS else SpanKind.INTERNAL)
        if operation(span) == "chat" and app.truths and span.status.is_unset:
            assert attribute(span, semconv.GEN_AI_USAGE_INPUT_TOKENS)
            assert attribute(span, semconv.GEN_AI_USAGE_OUTPUT_TOKENS)

    expected = "invoke_agent" if app.name in AGENTS else "invoke_workflow"
    expected = "retrieval" if app.name == "retriever_only" else expected
    assert {operation(span) for span in roots(captured.spans)} == {expected}


@pytest.mark.parametrize("spans", ["essential", "all"])
@each_app
def test_a_span_stands_for_each_turn(app: App, spans: Spans) -> None:
    """Each turn has a span of its own, which is exported afterwards."""
    captured, _ = ran(app, spans)
    standing = Counter(context.span_id for context, _ in captured.turns)
    assert not [span for span, times in standing.items() if times > 1]
    assert set(standing) <= {span.context.span_id for span in captured.spans}


@each_app
def test_no_text_is_exported_unasked(app: App) -> None:
    """With content capture off no question, page or answer is on any span."""
    captured, _ = ran(app)
    written = texts_on(captured.spans)
    assert captured.spans
    assert not [text for text in VOCABULARY if text in written]


# --- plain functions ------------------------------------------------------------------------------


def ask(handler: BaseCallbackHandler) -> None:
    documents = handbook().invoke(company.FOUNDED, {"callbacks": [handler]})
    prompt = PROMPT.invoke({"context": join(documents), "question": company.FOUNDED})
    ScriptedChat().invoke(prompt, {"callbacks": [handler]})


def test_a_plain_function_without_a_span() -> None:
    """The documents in the prompt join the two runs, and the later one gets the scores."""
    captured = capture()
    ask(captured.handler)
    captured.flush()
    [(context, _)] = captured.turns
    assert [operation(span) for span in captured.spans if span.context == context] == ["chat"]


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


def test_a_plain_function_is_scored_on_its_span() -> None:
    """The scores are on the application's own span."""
    with attached() as app:
        with app.within() as span:
            ask(app.handle.callback)
        assert app.handle.flush()
        assert app.status_of(span) == "scored"
        assert app.counted() == {SCORED: 1}


def test_published_shapes() -> None:
    """Calls without a chain around them are joined where the prompt shows it, and else refused."""
    with quietly():
        found = verdicts(all_apps("published"), "callback")
    assert {one.app.name: one.kind for one in found if one.kind != "exact"} == {}


# --- the corpus under our callback ----------------------------------------------------------------

EVERY = 12  # application, in the quick tests


@cache
def recorded(every: int) -> tuple[Retold, ...]:
    with quietly():
        warnings.simplefilter("ignore")  # pytest makes those of the frameworks errors
        apps = [one for one in all_apps("langchain", "langgraph") if not one.missing()]
        return tuple(runs_of(one) for one in apps[::every])


@pytest.mark.slow
def test_a_run_that_never_ends() -> None:
    """Whichever run has no end, there is no sample that the whole does not give."""
    apps = recorded(EVERY)
    assert sum(bool(one.whole) for one in apps) > len(apps) / 2
    for one in apps:
        for key in one.keys:
            assert not one.wrong(one.unended({key})), (one.app.name, one.name_of(key))


@pytest.mark.slow
@examples(20)
@given(st.data())
def test_applications_at_once(data: st.DataObject) -> None:
    """However the events of applications mix, each gives the samples it gives by itself."""
    apps = st.sampled_from(recorded(EVERY))
    several = data.draw(st.lists(apps, max_size=3, unique_by=lambda one: one.app.name))
    apart = sum((one.whole for one in several), Counter())
    assert Counter(tell_runs(data.draw(interleaved(several)))) == apart


@pytest.mark.slow
def test_the_corpus() -> None:
    """Nearly all applications are scored exactly, and none wrongly."""
    check_corpus("callback", "langchain", "langgraph", exact=0.98, wrong=0.0)
