"""``RAG_EVAL_DOCTOR=1``: what a program says at its end, and advice that is right."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any, get_args

import pytest
from opentelemetry.trace import Span, use_span

import rag_eval_otel
from live import App, asked, attached, generated, retrieved, said, told
from processes import ran
from rag_eval_otel import record_answer, record_question, record_retrieval
from rag_eval_otel.config import Config
from rag_eval_otel.export.metrics import DropReason
from rag_eval_otel.tools.doctor import cause_of, causes, causes_text, findings_on_turns
from rag_eval_otel.types import ErrorReason, Reason, SkipReason

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "rag_eval_otel" / "tools" / "doctor.py"

PROVIDER = """
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(InMemorySpanExporter()))
trace.set_tracer_provider(provider)
"""
ATTACHED = PROVIDER + "from rag_eval_otel import instrument; handle = instrument()\n"
RAG = "from apps.parts import rag\n"
ASK = "rag().invoke('When was Borealis Kites founded?'"
BY_CALLBACK = ATTACHED + RAG + ASK + ", config={'callbacks': [handle.callback]})"
ONE_SPAN = ATTACHED + "trace.get_tracer('{scope}').start_span('x').end()"
NOOP = """
from opentelemetry.trace import NoOpTracerProvider
from rag_eval_otel import instrument
instrument(tracer_provider=NoOpTracerProvider())
"""


def report_of(program: str) -> str:
    """Return the report of a program that exports nothing."""
    script = f"import sys; sys.argv = ['app.py']\n{program}"
    exporters = {f"OTEL_{name}_EXPORTER": "none" for name in ("TRACES", "METRICS", "LOGS")}
    done = ran(script, RAG_EVAL_DOCTOR="1", **exporters)
    assert done.returncode == 0, done.stderr
    return done.stderr


@pytest.mark.slow
def test_a_healthy_program() -> None:
    """The report has the counts, what is not exported, and no text of the application."""
    report = report_of(BY_CALLBACK)
    assert re.search(r"rag-eval-otel \S+, app.py, process \d+\njudge     lexical", report)
    assert "\nturns     scored 1\n" in report
    assert re.findall("PROBLEM.*|WARNING.*", report) == [
        "WARNING provider-missing: no MeterProvider is set, no LoggerProvider is set"
    ]
    assert "Borealis" not in report


@pytest.mark.slow
@pytest.mark.parametrize(
    ("program", "cause"),
    [
        (ATTACHED, "no-spans"),
        (ATTACHED + RAG + ASK + ")", "callback-missing"),
        (ONE_SPAN.format(scope="of.no.instrumentation"), "no-convention"),
        (NOOP, "provider-noop"),
    ],
)
def test_a_program_without_turns(program: str, cause: str) -> None:
    """The report says why nothing was found, and what to do."""
    report = report_of(program)
    assert f"PROBLEM {cause}: " in report
    assert f"  do:  {causes()[cause].fix}\n" in report


@pytest.mark.slow
def test_a_forked_process_reports_for_itself() -> None:
    """The child prints a report of its own, without the counts of its parent."""
    fork = "\nimport multiprocessing as m\n"
    fork += "c = m.get_context('fork').Process(target=len, args=('',)); c.start(); c.join()"
    report = report_of(BY_CALLBACK + fork)
    assert len(set(re.findall(r"app.py, process (\d+)", report))) == 2
    assert report.count("turns     scored 1") == 1
    assert report.count("turns     none") == 1


def test_a_refusal_is_a_problem_where_nothing_is_scored() -> None:
    """Beside scored turns it has the level of its cause."""
    refused = {"skipped no_answer": 2, "skipped duplicate": 1}
    assert [(one.cause, one.level) for one in findings_on_turns(refused)] == [
        ("turns-duplicate", "info"),
        ("turns-no-answer", "problem"),
    ]
    (_, one) = findings_on_turns({**refused, "scored": 1})
    assert (one.level, one.seen) == ("warning", "2 turns skipped: no_answer")
    (late,) = findings_on_turns({"scored": 5, "scored span_missed": 1})
    assert (late.cause, late.seen) == ("turns-span-missed", "1 turns lack a score: span_missed")


def test_every_reason_has_a_cause() -> None:
    """Every reason of a turn leads to a described cause; no failure is an undefined score."""
    for status, reasons in (("skipped", SkipReason), ("dropped", DropReason), ("error", Reason)):
        assert {cause_of(status, reason) for reason in get_args(reasons)} <= set(causes())
    assert "scores-undefined" not in {cause_of("error", one) for one in get_args(ErrorReason)}


def test_every_cause_is_used() -> None:
    """Every described cause is used: the code names it, or a reason leads to it."""
    named = set(re.findall(r'"([a-z]+(?:-[a-z]+)*)"', SOURCE.read_text()))
    for status, reasons in (("skipped", SkipReason), ("dropped", DropReason)):
        named |= {cause_of(status, reason) for reason in get_args(reasons)}
    assert set(causes()) <= named


def test_every_cause_is_read_from_the_text() -> None:
    """Each entry of ``causes.md`` is a cause with a reason and a fix."""
    assert len(causes()) == causes_text().count("\n- `")
    assert all(cause.why and cause.fix for cause in causes().values())


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
    chain = app.chain(1, around)
    app.retrieve(1, chain)
    chain.end()


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
