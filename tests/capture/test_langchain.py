"""The handler: what LangChain really sends, early, late, twice, from any thread, or not at all.

What is noted of an event is data that nobody changes any more, whatever the application does.
"""

import asyncio
import threading
from collections import Counter, UserDict
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from enum import Enum
from functools import reduce
from types import MappingProxyType, SimpleNamespace
from typing import Any
from uuid import uuid4

import numpy as np
import pandas as pd
import pytest
from langchain_core.callbacks import AsyncCallbackHandler, BaseCallbackHandler
from langchain_core.documents import Document
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.outputs import Generation, LLMResult
from langchain_core.prompts import PromptTemplate
from langchain_core.runnables import RunnableLambda
from opentelemetry import context as otel_context
from opentelemetry.instrumentation.utils import suppress_instrumentation
from opentelemetry.trace import StatusCode
from pydantic import BaseModel

from apps import company
from apps.fakes import KeywordRetriever, ScriptedChat, ScriptedLLM
from apps.parts import PROMPT, lookup, rag
from corpus.kit import all_apps, call
from live import attached
from rag_eval_otel.capture.langchain import (
    _LEVELS,
    LangChainCapture,
    active_run,
    note,
    note_search,
)
from rag_eval_otel.capture.runs import Run, RunTree
from rag_eval_otel.capture.step import Step
from recording import ANSWER, PAGE, QUESTION, Events, Spiteful, capture, generated, said


def step_of(run: Run) -> Step:
    return RunTree(otel_context.get_current(), 0.0, [run]).steps()[0]


TURN = [(QUESTION, (PAGE,), ANSWER)]


def test_it_is_a_modest_handler() -> None:
    """It raises nothing, keeps no one else from events, and is not called for every token."""
    handler = capture().handler
    assert handler.raise_error is False
    assert LangChainCapture.on_llm_new_token is BaseCallbackHandler.on_llm_new_token


@pytest.mark.parametrize("method", ["chain", "llm", "retriever", "tool"])
def test_ends_and_errors_of_unknown_runs(method: str) -> None:
    """A handler that was added late sees ends without a start; they are nothing to it."""
    handler = (captured := capture()).handler
    getattr(handler, f"on_{method}_end")("x", run_id=uuid4())
    getattr(handler, f"on_{method}_error")(ValueError(), run_id=uuid4())
    assert len(captured.recorder.trees) == 0
    assert not captured.spans


def test_events_of_a_tool() -> None:
    """Its arguments are text, and its result is text, or a message with some."""
    outputs = ("two", ToolMessage("two", tool_call_id="1"), {"content": "two"})
    for output in (*outputs, (), ("x", "two"), 2, None, object()):
        events = Events(capture(content="all"))
        events.handler.on_tool_start(None, "{'a': 1}", run_id=events.call, handler="an argument")
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
def test_a_run_ends_though_its_end_resists(name: str, send: Callable[[Events], None]) -> None:
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
    assert span.status.status_code is StatusCode.ERROR
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
def test_a_suppressed_context_is_silent(
    silence: Callable[[], AbstractContextManager[None]],
) -> None:
    """Our own judge may be a LangChain model: it is never captured."""
    captured = capture()
    with silence():
        rag().invoke(company.FOUNDED, {"callbacks": [captured.handler]})
    assert not captured.spans
    assert not captured.turns
    assert len(captured.recorder.trees) == 0


def test_a_disabled_handler_is_silent() -> None:
    """It starts nothing, and ends what it had started."""
    events = Events(capture())
    events.start()
    events.handler.enabled = False
    events.retrieve()
    Events(events.captured).turn()
    events.end()
    assert [span.name for span in events.captured.spans] == ["invoke_workflow chain"]


# --- events in asynchronous LangChain: ours run in the loop, and nobody else loses any ------------

FOUNDED = (company.FOUNDED, (company.HISTORY, company.FOUNDER))


def run(chain: Any, *handlers: Any, asynchronous: bool) -> Any:
    config: Any = {"callbacks": list(handlers)}
    if asynchronous:
        return asyncio.run(chain.ainvoke(company.FOUNDED, config))
    return chain.invoke(company.FOUNDED, config)


def counting(event: str, *, asynchronous: bool = False) -> Any:
    def plain(handler: Any, *_: Any, **__: Any) -> None:
        handler.seen[event] += 1

    async def awaited(handler: Any, *_: Any, **__: Any) -> None:
        handler.seen[event] += 1

    return awaited if asynchronous else plain


class Plain(BaseCallbackHandler):
    """A handler of others: not inline, with ordinary methods."""

    def __init__(self) -> None:
        self.seen: Counter[str] = Counter()

    on_chain_start, on_chain_end = counting("chain start"), counting("chain end")
    on_chat_model_start = on_llm_start = counting("model start")
    on_llm_end = counting("model end")
    on_retriever_start, on_retriever_end = counting("search"), counting("documents")


class Async(AsyncCallbackHandler):
    """A handler of others with coroutines."""

    def __init__(self) -> None:
        self.seen: Counter[str] = Counter()

    on_chain_start = counting("chain start", asynchronous=True)
    on_llm_end = counting("model end", asynchronous=True)


TEXT = PromptTemplate.from_template("{context}\n\nQuestion: {question}\nAnswer:")
MODELS: dict[str, Any] = {"chat": PROMPT | ScriptedChat(), "completion": TEXT | ScriptedLLM()}


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("others", [[Plain], [Plain, Async], [Async, Plain]])
def test_other_handlers_get_all_their_events(model: str, others: list[Any]) -> None:
    """Beside ours they are told what they are told without it: model starts, too."""
    chain = lookup(KeywordRetriever()) | MODELS[model]
    alone, beside = ([make() for make in others] for _ in range(2))
    captured = capture()
    run(chain, *alone, asynchronous=True)
    run(chain, beside[0], captured.handler, *beside[1:], asynchronous=True)
    assert [one.seen for one in beside] == [one.seen for one in alone]
    assert all(one.seen["model end"] == 1 for one in beside)
    assert [truth[:2] for truth in captured.truths] == [FOUNDED]


@pytest.mark.parametrize("model", MODELS)
def test_no_event_takes_a_thread(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Asynchronous LangChain calls the handler on the thread of its event loop."""
    threads, captured = set(), capture()
    recorder = captured.handler.recorder
    for method in (recorder.start, recorder.end):
        noted = lambda *event, to=method: (threads.add(threading.get_ident()), to(*event))[1]  # noqa: E731
        monkeypatch.setattr(recorder, method.__name__, noted)
    run(lookup(KeywordRetriever()) | MODELS[model], captured.handler, asynchronous=True)
    assert threads == {threading.get_ident()}


@pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("how", ["twice", "bound and passed", "two handlers"])
def test_a_handler_that_is_attached_twice(how: str, *, asynchronous: bool) -> None:
    """The turn is captured once, with each of its spans."""
    captured, chain = capture(), rag(KeywordRetriever())
    handlers = [captured.handler]
    if how == "twice":
        handlers *= 2
    elif how == "bound and passed":
        chain = chain.with_config(callbacks=[captured.handler])
    else:
        edge = captured.pipeline.edge("callback")
        handlers.append(LangChainCapture(lambda: captured.recorder, edge=edge))
    run(chain, *handlers, asynchronous=asynchronous)
    assert [truth[:2] for truth in captured.truths] == [FOUNDED]
    assert len(captured.spans) == 3
    assert captured.reasons == []


def test_the_hook_of_a_handle() -> None:
    """It is installed and removed at will; in graphs and in tasks each turn is scored once."""
    with attached() as app:
        app.handle.remove_langchain_hook()
        for _ in range(2):
            app.handle.install_langchain_hook()
        call(next(one for one in all_apps("langgraph") if one.name == "corrective_rag"), {})
        asyncio.run(rag().ainvoke(company.FOUNDED))
        rag().invoke(company.FOUNDED, {"callbacks": [app.handle.callback]})
        app.handle.remove_langchain_hook()
        rag().invoke(company.FOUNDED)
        app.handle.install_langchain_hook()
        app.handle.shutdown()
        rag().invoke(company.FOUNDED)
        assert app.statuses()["scored"] == 3


def test_the_run_in_which_the_caller_runs() -> None:
    """It is that of the first handler that has recorded it."""
    unaware, captured, found = capture().handler, capture(), list[Any]()
    unaware.enabled = False
    callbacks: list[BaseCallbackHandler] = [unaware, captured.handler]
    RunnableLambda(lambda _: found.append(active_run())).invoke("", {"callbacks": callbacks})
    assert active_run() is None
    ((handler, within),) = found
    assert (handler, within.name) == (captured.handler, "RunnableLambda")


# --- what is noted --------------------------------------------------------------------------------

BIG = "kites and sails " * 655_360  # 10 MB


def test_what_is_changed_after_its_event() -> None:
    """A state that a graph fills, documents as rerankers change them, messages and their parts."""
    sent = Events(capture())
    state: dict[str, Any] = {"question": QUESTION, "history": ["before"]}
    document = Document(PAGE, id="d1", metadata={"source": "a", "nested": {"score": 1}})
    documents, parts = [document], [{"type": "text", "text": PAGE}]
    messages: list[Any] = [SystemMessage(parts), HumanMessage(QUESTION)]
    said = AIMessage(ANSWER)
    sent.start(state)
    state["question"] = "Something else?"
    state["history"].append("later")
    sent.retrieve(documents)
    document.page_content, document.id = "changed", "changed"
    document.metadata.clear()
    documents.clear()
    sent.ask([messages])
    parts[0]["text"] = messages[1].content = "changed"
    messages.clear()
    sent.answer(generated(said))
    root = sent.captured.recorder.runs[sent.root.int]
    captured = sent.end({"messages": [HumanMessage(QUESTION), said]})
    said.content = "changed"
    assert captured.truths == TURN
    assert captured.samples[0].retrieved_ids == ("d1",)
    assert "changed" not in str(root.told)


class Tone(Enum):
    """How to answer."""

    KIND = "kind"


@dataclass
class State:
    """The state of a graph, as a dataclass."""

    question: str
    tone: Tone = Tone.KIND
    me: Any = None


class Record(BaseModel):
    """The state of a graph, as a pydantic model."""

    question: str
    tone: Tone = Tone.KIND
    me: Any = None


def circular() -> dict[str, Any]:
    found: dict[str, Any] = {"question": QUESTION, "list": []}
    found["me"] = found
    found["list"].append(found["list"])
    return found


DEEP = reduce(lambda inner, _: [inner], range(100_000), list[Any]())
INPUTS: dict[str, Any] = {
    "an enumeration": {"question": QUESTION, "tone": Tone.KIND, Tone.KIND: 1},
    "a dataclass": State(QUESTION),
    "a pydantic model": Record(question=QUESTION),
    "bytes": {"question": QUESTION, "image": b"\xff\x00" * 1000},
    "numpy": {"question": QUESTION, "vector": np.ones(1000), "score": np.float32(1)},
    "a numpy text": {"question": np.str_(QUESTION)},
    "pandas": {"question": QUESTION, "table": pd.DataFrame({"a": [1]}), "row": pd.Series([1])},
    "a circle": circular(),
    "a state in a circle": State(QUESTION, me=circular()),
    "depth": {"question": QUESTION, "nested": DEEP},
    "a mapping of another kind": MappingProxyType({"question": QUESTION}),
    "a user's dict": UserDict({"question": QUESTION}),
    "a long list": {"question": QUESTION, "numbers": list(range(1_000_000))},
    "10 MB beside": {"question": QUESTION, "file": BIG},
    "a lone surrogate": {"question": QUESTION, "half": "\ud800"},
    "not a number": {"question": QUESTION, "score": float("nan")},
}


@pytest.mark.parametrize("inputs", INPUTS.values(), ids=INPUTS)
def test_inputs_of_every_kind(inputs: Any) -> None:
    """The question is found beside whatever else there is; nothing fails."""
    captured = Events(capture()).turn(inputs=inputs)
    assert captured.truths == TURN
    assert captured.errors == []
    assert len(captured.spans) == 3


@pytest.mark.parametrize(
    "documents",
    [
        pd.DataFrame({"page_content": [PAGE]}),
        np.array([PAGE]),
        [None],
        [{"page_content": None}],
        [Document("")],
        [Tone.KIND],
        "not a list",
        PAGE,
        5,
    ],
    ids=str,
)
def test_documents_of_every_kind(documents: Any) -> None:
    """Documents without a text, or things that are none, are no reason to fail or to guess."""
    sent = Events(capture(raise_errors=False))
    sent.start()
    sent.retrieve(documents)
    sent.ask()
    sent.answer()
    captured = sent.end()
    assert len(captured.spans) == 3
    assert len(captured.samples) + len(captured.reasons) == 1
    assert all(contexts in {(), ("",), (PAGE,)} for _, contexts, _ in captured.truths)


def test_values_that_resist_cost_their_event() -> None:
    """A value that raises when it is looked at is counted; its run ends all the same."""
    sent = Events(capture(raise_errors=False))
    sent.start({"question": QUESTION, "odd": Spiteful()})
    sent.retrieve()
    sent.ask()
    sent.answer()
    captured = sent.end()
    assert len(captured.recorder.trees) == 0
    assert set(captured.errors) == {"callback"}


@pytest.mark.parametrize(
    "wrap",
    [
        lambda one: [one],
        lambda one: {"a": one},
        lambda one: UserDict(a=one),
        lambda one: State("", me=one),
        lambda one: Record(question="", me=one),
        lambda one: ToolMessage("", tool_call_id="1", artifact=one),
    ],
)
def test_notes_end_at_a_depth(wrap: Callable[[Any], Any]) -> None:
    """However deep the data of an application is."""
    value: Any = "text"
    for _ in range(_LEVELS):
        value = wrap(value)
    assert "text" in repr(note(value))
    assert "text" not in repr(note(wrap(wrap(value))))


def test_results_of_a_search_have_their_scores() -> None:
    """A store returns documents, or pairs with a score; what is none is noted as it is."""
    found = note_search([(Document("a", id="1"), np.float32(0.5)), Document("b"), ("c", 0.5)])
    first, second = ({"page_content": text, "metadata": {}} for text in "ab")
    assert found == [{**first, "id": "1", "score": 0.5}, {**second, "id": None}, "c"]
