"""Every app is captured as it is: its samples, its refusals, its spans, and nothing left behind."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from typing import Any
from uuid import UUID

import pytest
from langchain_core.callbacks import BaseCallbackHandler
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import SpanKind

from apps import APPS, App, company
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


def by_trace(spans: tuple[ReadableSpan, ...]) -> Iterator[dict[int, ReadableSpan]]:
    for trace in {span.context.trace_id for span in spans}:
        yield {s.context.span_id: s for s in spans if s.context.trace_id == trace}


def roots(spans: tuple[ReadableSpan, ...]) -> list[ReadableSpan]:
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
    traces = list(by_trace(captured.spans))
    assert len(traces) == len(ids.roots)
    for trace in traces:
        assert len(roots(tuple(trace.values()))) == 1
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


@pytest.mark.slow
@each_app
def test_all_texts_are_exported_where_asked(app: App) -> None:
    """With content capture on the spans hold question, contexts and answer."""
    captured, _ = ran(app, "essential", "all")
    values = [str(v) for s in captured.spans for v in (s.attributes or {}).values()]
    texts = {text for t in app.truths for text in (t.question, *t.contexts, t.answer)}
    assert not [text for text in texts if not any(text in value for value in values)]
