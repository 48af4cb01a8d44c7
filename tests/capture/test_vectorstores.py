"""Vector stores that are searched directly, within LangChain runs that are noted."""

import asyncio
import gc
import inspect
from collections.abc import Callable
from typing import Any
from uuid import uuid4
from weakref import ref

import pytest
from langchain_core.documents import Document
from langchain_core.runnables import RunnableLambda
from langchain_core.vectorstores import InMemoryVectorStore
from opentelemetry.sdk.trace import TracerProvider

from apps import company
from apps.fakes import ScriptedChat, WordEmbeddings
from apps.parts import PROMPT, join, rag
from live import good_judge
from rag_eval_otel import RagEvalCallbackHandler, instrument
from rag_eval_otel.capture import vectorstores
from rag_eval_otel.capture.vectorstores import record_searches
from recording import Capture, capture

QUESTION, PAGES = company.FOUNDED, (company.HISTORY, company.FOUNDER)
VECTOR = WordEmbeddings().embed_query(QUESTION)


@pytest.fixture(autouse=True)
def _searches() -> None:
    record_searches(capture().handler.edge)


class Handbook(InMemoryVectorStore):
    """A vector store whose scores are those of [0, 1]."""

    def _select_relevance_score_fn(self) -> Callable[[float], float]:
        return lambda score: max(0.0, score)


def store() -> InMemoryVectorStore:
    return Handbook.from_documents(company.documents(), WordEmbeddings())


def answer(pages: list[Document]) -> str:
    prompt = PROMPT.invoke({"context": join(pages), "question": QUESTION})
    return str(ScriptedChat().invoke(prompt).content)


def ask(captured: Capture, search: Callable[[], list[Document]]) -> None:
    chain = RunnableLambda(lambda _: answer(search()))
    chain.invoke(QUESTION, {"callbacks": [captured.handler]})


def retrievals(captured: Capture) -> list[Any]:
    return [span for span in captured.spans if span.name.startswith("retrieval")]


SEARCHES: dict[str, Callable[[InMemoryVectorStore], Any]] = {
    "text": lambda s: s.similarity_search(QUESTION, k=2),
    "named": lambda s: s.similarity_search(query=QUESTION, k=2),
    "scores": lambda s: s.similarity_search_with_score(QUESTION, k=2),
    "vector": lambda s: s.similarity_search_by_vector(VECTOR, k=2),
    "diverse": lambda s: s.max_marginal_relevance_search(QUESTION, k=2, fetch_k=2),
    "diverse by vector": lambda s: s.max_marginal_relevance_search_by_vector(VECTOR, 2, 2),
    "by kind": lambda s: s.search(QUESTION, search_type="similarity", k=2),
    "text, awaited": lambda s: s.asimilarity_search(QUESTION, k=2),
    "scores, awaited": lambda s: s.asimilarity_search_with_score(QUESTION, k=2),
    "vector, awaited": lambda s: s.asimilarity_search_by_vector(VECTOR, k=2),
    "diverse, awaited": lambda s: s.amax_marginal_relevance_search(QUESTION, k=2, fetch_k=2),
}


@pytest.mark.parametrize("search", SEARCHES.values(), ids=SEARCHES)
def test_a_search_is_a_retrieval(search: Callable[[InMemoryVectorStore], Any]) -> None:
    """Whichever method is called, one retrieval is recorded below the run that called it.

    Also where the store implements an asynchronous one by its synchronous one, in another thread.
    """
    captured, pages = capture(), store()

    async def run(_: str) -> str:
        found = search(pages)
        found = await found if inspect.isawaitable(found) else found
        return answer([one[0] if isinstance(one, tuple) else one for one in found])

    asyncio.run(RunnableLambda(run).ainvoke(QUESTION, {"callbacks": [captured.handler]}))
    ((question, contexts, _),) = captured.truths
    assert (question, set(contexts)) == (QUESTION, set(PAGES))
    (span,) = retrievals(captured)
    assert span.attributes["rag.retrieval.document_count"] == 2
    assert span.parent.span_id == captured.span("invoke_workflow run").context.span_id


@pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("kind", ["similarity", "mmr", "similarity_score_threshold"])
def test_the_search_of_a_retriever_counts_once(kind: str, *, asynchronous: bool) -> None:
    """A retriever over a vector store is one retrieval, and has one span."""
    captured = capture()
    options: dict[str, Any] = {"k": 2, "fetch_k": 2} if kind == "mmr" else {"k": 2}
    if kind == "similarity_score_threshold":
        options["score_threshold"] = 0.0
    chain = rag(store().as_retriever(search_type=kind, search_kwargs=options))
    config: Any = {"callbacks": [captured.handler]}
    if asynchronous:
        asyncio.run(chain.ainvoke(QUESTION, config))
    else:
        chain.invoke(QUESTION, config)
    ((_, contexts, _),) = captured.truths
    assert set(contexts) == set(PAGES)
    assert len(retrievals(captured)) == 1


def test_a_search_before_a_run() -> None:
    """The run after it shows its documents, so they are one turn; also before the first run."""
    captured, pages = capture(), store()
    for _ in range(2):
        found = pages.similarity_search(QUESTION, k=2)
        shown = {"context": join(found), "question": QUESTION}
        (PROMPT | ScriptedChat()).invoke(shown, {"callbacks": [captured.handler]})
    captured.recorder.flush()
    assert [set(contexts) for _, contexts, _ in captured.truths] == [set(PAGES)] * 2


def test_a_search_that_is_a_part_of_an_open_run() -> None:
    """A chain whose context LangChain does not know keeps its search: no other run takes it."""
    captured, pages, root = capture(), store(), uuid4()
    captured.handler.on_chain_start(None, QUESTION, run_id=root, name="RetrievalQA")
    found = pages.similarity_search(QUESTION, k=2)
    captured.handler.on_chain_end("In 1987.", run_id=root)
    shown = {"context": join(found), "question": QUESTION}
    (PROMPT | ScriptedChat()).invoke(shown, {"callbacks": [captured.handler]})
    assert captured.truths == []
    assert captured.reasons == ["no_retrieval"]


def test_handlers_are_not_kept() -> None:
    """An application may make one for each request, and every one has searches recorded."""
    made = [ref(RagEvalCallbackHandler(judge=good_judge())) for _ in range(3)]
    gc.collect()
    assert [one for one in made if one() is not None] == []


def test_a_search_that_fails() -> None:
    """The application gets its own exception; the retrieval has failed."""

    class Down(InMemoryVectorStore):
        def similarity_search(self, *_: Any, **__: Any) -> list[Document]:
            raise ConnectionError

    captured = capture()
    with pytest.raises(ConnectionError):
        ask(captured, lambda: Down(WordEmbeddings()).similarity_search(QUESTION))
    (span,) = retrievals(captured)
    assert (span.attributes or {})["error.type"] == "ConnectionError"
    assert captured.truths == []
    assert captured.reasons == ["error"]


def test_a_class_defined_later() -> None:
    """A store whose class is made after the recording began is recorded, too, once."""

    class Later(InMemoryVectorStore):
        def similarity_search(self, query: str, k: int = 4, **options: Any) -> list[Document]:
            return super().similarity_search(query, k=k, **options)

    captured = capture()
    pages = Later.from_documents(company.documents(), WordEmbeddings())
    ask(captured, lambda: pages.similarity_search(QUESTION, k=2))
    assert len(retrievals(captured)) == 1
    assert len(captured.truths) == 1


def test_a_class_with_a_hook_of_its_own() -> None:
    """Arguments of class statements and hooks of subclasses work as ever."""
    seen: list[Any] = []

    class Base(InMemoryVectorStore):
        def __init_subclass__(cls, /, flavour: str = "", **options: Any) -> None:
            super().__init_subclass__(**options)
            seen.append(flavour)

    class Own(Base, flavour="sweet"):
        pass

    assert seen == ["sweet"]
    with pytest.raises(TypeError):
        type("Odd", (InMemoryVectorStore,), {}, unknown=1)


def test_the_recording_can_be_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """With ``host_hooks=False`` no class is touched."""
    monkeypatch.setattr(vectorstores, "record_searches", None)  # a call raises an exception
    provider = TracerProvider()
    handle = instrument(tracer_provider=provider, judge=good_judge(), host_hooks=False)
    assert handle.callback
    handle.shutdown()
