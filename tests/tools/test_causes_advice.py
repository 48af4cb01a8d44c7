"""The doctor's advice on refused turns: with it, the same turn is scored."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
from opentelemetry.trace import Span, use_span

import rag_eval_otel
from live import App, asked, attached, generated, retrieved, said, told
from rag_eval_otel import record_answer, record_question, record_retrieval
from rag_eval_otel.config import Config
from rag_eval_otel.tools.causes import cause_of, causes

Build = Callable[[App, Span | None], None]
Advice = Callable[[], None]


def outcome(build: Build, advice: Advice | None = None, **options: Any) -> dict[Any, int]:
    """Build a turn, follow the advice in a span around it, and return the counted turns."""
    with attached(**options) as app:
        around = app.plain("request") if advice else None
        with use_span(around, end_on_exit=True) if around else nullcontext():
            build(app, around)
            if advice:
                advice()
        app.handle.flush()
        return app.counted()


def call(app: App, chain: Span, prompt: str, answer: str) -> None:
    message = {"llm.input_messages.0.message.content": prompt}
    reply = {"llm.output_messages.0.message.content": answer, "output.value": answer}
    app.step("LLM", chain, **{**generated(1), **message, **reply}).end()


def two_answers(app: App, around: Span | None) -> None:
    chain = app.step("CHAIN", around, **{"input.value": asked(1)})
    app.retrieve(1, chain)
    app.generate(1, chain)
    call(app, chain, "\n\n".join([*told(1), asked(1)]), "Nobody knows who founded company 1.")
    chain.end()


def chosen_by_code(app: App, around: Span | None) -> None:
    chain = app.chain(1, around)
    app.retrieve(1, chain)
    call(app, chain, f"{told(1)[0]}\n\n{asked(1)}", said(1))
    chain.end()


def no_answer(app: App, around: Span | None) -> None:
    app.retrieve(1, around)


def no_texts(app: App, around: Span | None) -> None:
    chain = app.chain(1, around)
    app.step("RETRIEVER", chain, **{"input.value": asked(1)}).end()
    app.generate(1, chain)
    chain.end()


def no_question(app: App, around: Span | None) -> None:
    chain = app.step("CHAIN", around, **{"output.value": said(1)})
    app.step("RETRIEVER", chain, **{**retrieved(1), "input.value": ""}).end()
    app.generate(1, chain)
    chain.end()


def no_retrieval(app: App, around: Span | None) -> None:
    app.generate(1, around)


def all_three() -> None:
    record_question(asked(1))
    record_retrieval(asked(1), told(1))
    record_answer(said(1))


@pytest.mark.parametrize(
    ("build", "reason", "advice"),
    [
        (two_answers, "ambiguous", all_three),
        (chosen_by_code, "partial", lambda: record_retrieval(asked(1), told(1)[:1])),
        (no_answer, "no_answer", lambda: record_answer(said(1))),
        (no_texts, "no_contexts", lambda: record_retrieval(asked(1), told(1))),
        (no_question, "no_question", lambda: record_question(asked(1))),
        (no_retrieval, "no_retrieval", lambda: record_retrieval(asked(1), told(1))),
    ],
)
def test_recording_in_a_span_around_the_turn(build: Build, reason: str, advice: Advice) -> None:
    """The turn is refused for its reason; with the advised call it is scored."""
    assert outcome(build) == {("skipped", reason): 1}
    assert outcome(build, advice) == {("scored", None): 1}
    assert "record_" in causes()[cause_of("skipped", reason)].fix


def test_every_advice_names_existing_functions() -> None:
    """Every function and option that the advice names exists."""
    for cause in causes().values():
        for name in re.findall(r"\b(record_\w+|instrument)\(", cause.fix):
            assert hasattr(rag_eval_otel, name)
        for name in re.findall(r"\b([a-z]+_[a-z_]+)=", cause.fix):
            assert name in {*Config.__dataclass_fields__, "tracer_provider"}, name
