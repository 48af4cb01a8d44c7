"""The handler: what LangChain really sends, early, late, twice, from any thread, or not at all."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from types import SimpleNamespace
from uuid import uuid4

import pytest
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.messages import ToolMessage
from langchain_core.outputs import Generation, LLMResult
from opentelemetry import context as otel_context
from opentelemetry.instrumentation.utils import suppress_instrumentation

from apps import company
from apps.parts import rag
from rag_eval_otel.capture.langchain import LangChainCapture, LangChainHook
from rag_eval_otel.capture.runs import Run
from rag_eval_otel.capture.step import Step
from recording import ANSWER, PAGE, QUESTION, Capture, Events, Spiteful, capture, said


def step_of(run: Run) -> Step:
    return next(step for step in run.tree.steps() if step.id == run.id)


TURN = [(QUESTION, (PAGE,), ANSWER)]


def test_it_is_a_modest_handler() -> None:
    """It raises nothing, keeps no one else from events, and is not called for every token."""
    handler = capture().handler
    assert handler.raise_error is False
    assert handler.run_inline is False
    assert LangChainCapture.on_llm_new_token is BaseCallbackHandler.on_llm_new_token


@pytest.mark.parametrize("method", ["chain", "llm", "retriever", "tool"])
def test_ends_and_errors_of_unknown_runs(method: str) -> None:
    """A handler that was added late sees ends without a start; they are nothing to it."""
    handler = (captured := capture()).handler
    getattr(handler, f"on_{method}_end")("x", run_id=uuid4())
    getattr(handler, f"on_{method}_error")(ValueError(), run_id=uuid4())
    assert len(captured.recorder) == 0
    assert not captured.spans


def test_events_of_a_tool() -> None:
    """Its arguments are text, and its result is text, or a message with some."""
    outputs = ("two", ToolMessage("two", tool_call_id="1"), {"content": "two"})
    for output in (*outputs, (), ("x", "two"), 2, None, object()):
        events = Events(capture(content="all"))
        events.handler.on_tool_start(None, "{'a': 1}", run_id=events.call)
        run = events.run(events.call)
        events.handler.on_tool_end(output, run_id=events.call)
        assert run.asked == "{'a': 1}"
        assert (step_of(run).output == "two") == (output in outputs)
        assert bool(step_of(run).documents) == (output == ("x", "two"))
        assert len(events.captured.spans) == 1


@pytest.mark.parametrize(
    ("response", "output", "model"),
    [
        (LLMResult(generations=[]), None, None),
        (LLMResult(generations=[[]]), None, None),
        (LLMResult(generations=[[], [Generation(text="t")]]), "t", None),
        (LLMResult(generations=[[Generation(text="t")]], llm_output={"model_name": "m"}), "t", "m"),
        (said("t", response_metadata={"model_name": "m"}), "t", "m"),
    ],
)
def test_what_a_model_said(response: LLMResult, output: str | None, model: str | None) -> None:
    """The first text there is, and which model gave it."""
    events = Events(capture())
    events.start()
    events.ask()
    events.answer(response)
    run = events.run(events.call)
    assert (step_of(run).output, run.model) == (output, model)


@pytest.mark.parametrize(
    ("name", "send"),
    [
        ("call", lambda events: events.answer(SimpleNamespace())),
        ("search", lambda events: events.find([Spiteful()])),
        ("root", lambda events: events.end(Spiteful())),
    ],
    ids=["no generations", "no documents", "an output that resists"],
)
def test_a_run_ends_though_its_end_cannot_be_read(
    name: str, send: Callable[[Events], None]
) -> None:
    """What resists is counted; the tree has not to wait for an end that has been."""
    events = Events(capture(raise_errors=False, grace=5.0))
    events.start()
    events.look_up()
    events.ask()
    runs = {name: events.run(getattr(events, name)) for name in ("root", "search", "call")}
    send(events)
    assert [name for name, run in runs.items() if run.end is not None] == [name]
    assert events.captured.errors == ["callback"]
    events.captured.recorder.flush()


def test_a_call_of_which_only_the_end_is_told() -> None:
    """Inline handlers of others keep the start of completions from us: the end does for both."""
    events = Events(capture())
    events.start()
    events.retrieve()
    events.answer()
    events.end()
    assert events.captured.truths == TURN


def test_a_stream_tells_its_input_at_the_end() -> None:
    """At the start there is only an empty one; where the end tells none, the start's stays."""
    for event, question in (
        ({"inputs": QUESTION}, QUESTION),
        ({"inputs": {"other": 1}}, None),
        ({"inputs": None}, "start"),
        ({}, "start"),
    ):
        events = Events(capture())
        events.start("start")
        run = events.run(events.root)
        events.end(**event)
        assert step_of(run).input == question


@pytest.mark.parametrize("kind", ["chain", "llm", "retriever", "tool"])
def test_errors_of_each_kind(kind: str) -> None:
    """What failed is on the run's span, as the name of the error."""
    events = Events(capture())
    start = "on_chat_model_start" if kind == "llm" else f"on_{kind}_start"
    getattr(events.handler, start)(None, [], run_id=events.root)
    error = asyncio.CancelledError("secret")
    getattr(events.handler, f"on_{kind}_error")(error, run_id=events.root)
    (span,) = events.captured.spans
    assert (span.attributes or {})["error.type"] == "CancelledError"
    assert "secret" not in span.to_json()


@contextmanager
def suppressed_in_plain_words() -> Iterator[None]:
    context = otel_context.set_value("suppress_instrumentation", value=True)
    token = otel_context.attach(context)
    try:
        yield
    finally:
        otel_context.detach(token)


@pytest.mark.parametrize("silence", [suppress_instrumentation, suppressed_in_plain_words])
def test_a_suppressed_context_is_not_looked_at(
    silence: Callable[[], AbstractContextManager[None]],
) -> None:
    """Our own judge may be a LangChain model: it is never captured."""
    captured = capture()
    with silence():
        rag().invoke(company.FOUNDED, {"callbacks": [captured.handler]})
    assert not captured.spans
    assert not captured.turns
    assert len(captured.recorder) == 0


def test_a_disabled_handler_is_silent() -> None:
    """It starts nothing, and ends what it had started."""
    events = Events(capture())
    events.start()
    events.handler.enabled = False
    events.retrieve()
    Events(events.captured).turn()
    events.end()
    assert [span.name for span in events.captured.spans] == ["invoke_workflow chain"]


@contextmanager
def hooked(captured: Capture) -> Iterator[Capture]:
    """Install the handler for all runs, twice, and remove it at the end."""
    hook = LangChainHook()
    hook.install(captured.handler)
    hook.install(captured.handler)
    try:
        yield captured
    finally:
        hook.remove()


def test_the_hook_sees_chains_in_every_thread() -> None:
    """Nothing is passed to the chains."""
    with hooked(capture()) as captured:
        rag().invoke(company.FOUNDED)
        thread = threading.Thread(target=rag().invoke, args=(company.SPARS,))
        thread.start()
        thread.join()
        asyncio.run(rag().ainvoke(company.FOUNDED))
    questions = [question for question, _, _ in captured.truths]
    assert questions == sorted([company.FOUNDED, company.FOUNDED, company.SPARS])
