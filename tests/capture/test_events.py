"""Events in asynchronous LangChain: ours run in the loop, and nobody else loses any."""

import asyncio
import inspect
import threading
from collections import Counter
from typing import Any

import pytest
from langchain_core.callbacks import AsyncCallbackHandler, BaseCallbackHandler
from langchain_core.prompts import PromptTemplate

from apps import company
from apps.fakes import KeywordRetriever, ScriptedChat, ScriptedLLM
from apps.parts import PROMPT, lookup, rag
from rag_eval_otel.capture.langchain import LangChainCapture
from recording import Capture, capture

EVENTS = [
    name
    for name in vars(LangChainCapture)
    if name.startswith("on_") and getattr(BaseCallbackHandler, name, None) is not None
]
FOUNDED = (company.FOUNDED, (company.HISTORY, company.FOUNDER))


def threads_of(captured: Capture, monkeypatch: pytest.MonkeyPatch) -> Counter[int]:
    threads: Counter[int] = Counter()
    recorder = captured.recorder
    for name in ("start", "end"):
        method = getattr(recorder, name)

        def noted(*args: Any, method: Any = method) -> Any:
            threads[threading.get_ident()] += 1
            return method(*args)

        monkeypatch.setattr(recorder, name, noted)
    return threads


@pytest.mark.parametrize("name", EVENTS)
def test_an_event_is_taken_for_a_coroutine_function(name: str) -> None:
    """Asynchronous LangChain asks `inspect` and `asyncio`."""
    event = getattr(capture().handler, name)
    assert inspect.iscoroutinefunction(event)
    assert asyncio.iscoroutinefunction(event)


def test_asynchronous_events_run_in_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """No event of ours is handed to another thread."""
    captured = capture()
    threads = threads_of(captured, monkeypatch)
    asyncio.run(rag(KeywordRetriever()).ainvoke(company.FOUNDED, {"callbacks": [captured.handler]}))
    assert threads.keys() == {threading.get_ident()}
    assert [truth[:2] for truth in captured.truths] == [FOUNDED]


@pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])
def test_a_subclass_may_override_events(*, asynchronous: bool) -> None:
    """An event of its own that calls `super` is noted, once, in either kind of LangChain."""

    class Own(LangChainCapture):
        def __init__(self, captured: Capture) -> None:
            super().__init__(lambda: captured.recorder, edge=captured.pipeline.edge("callback"))
            self.seen: list[str] = []

        def on_chain_start(self, *args: Any, **event: Any) -> None:
            self.seen.append("start")
            super().on_chain_start(*args, **event)

        def on_retriever_end(self, *args: Any, **event: Any) -> None:
            self.seen.append("documents")
            super().on_retriever_end(*args, **event)

    captured = capture()
    handler = Own(captured)
    run(rag(KeywordRetriever()), handler, asynchronous=asynchronous)
    assert handler.seen.count("documents") == 1
    assert handler.seen.count("start") > 1
    assert [truth[:2] for truth in captured.truths] == [FOUNDED]


def run(chain: Any, *handlers: Any, asynchronous: bool) -> Any:
    config: Any = {"callbacks": list(handlers)}
    if asynchronous:
        return asyncio.run(chain.ainvoke(company.FOUNDED, config))
    return chain.invoke(company.FOUNDED, config)


class Plain(BaseCallbackHandler):
    """A handler of others: not inline, with ordinary methods."""

    def __init__(self) -> None:
        self.seen: Counter[str] = Counter()

    def on_chain_start(self, *_: Any, **__: Any) -> None:
        self.seen["chain start"] += 1

    def on_chain_end(self, *_: Any, **__: Any) -> None:
        self.seen["chain end"] += 1

    def on_chat_model_start(self, *_: Any, **__: Any) -> None:
        self.seen["model start"] += 1

    def on_llm_start(self, *_: Any, **__: Any) -> None:
        self.seen["model start"] += 1

    def on_llm_end(self, *_: Any, **__: Any) -> None:
        self.seen["model end"] += 1

    def on_retriever_start(self, *_: Any, **__: Any) -> None:
        self.seen["retriever start"] += 1

    def on_retriever_end(self, *_: Any, **__: Any) -> None:
        self.seen["retriever end"] += 1


class Async(AsyncCallbackHandler):
    """A handler of others with coroutines."""

    def __init__(self) -> None:
        self.seen: Counter[str] = Counter()

    async def on_chain_start(self, *_: Any, **__: Any) -> None:
        self.seen["chain start"] += 1

    async def on_llm_end(self, *_: Any, **__: Any) -> None:
        self.seen["model end"] += 1


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
