"""Shapes of LangChain applications that are seen less often, or give less to see."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any, TypedDict

import pytest
from langchain_core.caches import InMemoryCache
from langchain_core.globals import set_llm_cache
from langchain_core.messages import HumanMessage
from langchain_core.tools import tool
from langchain_core.vectorstores import InMemoryVectorStore

from apps import company
from apps.compat import START, RetrievalQA, StateGraph, make_agent, quietly
from apps.fakes import KeywordRetriever, ScriptedChat, ScriptedLLM, WordEmbeddings
from apps.parts import PROMPT, handbook, join, lookup, rag
from apps.replies import calling, from_pages, saying, unavailable
from pipeline import good_judge, running, turns_counted
from rag_eval_otel import record_answer, record_question, record_retrieval
from recording import Capture, capture

with quietly():
    from langgraph.checkpoint.memory import InMemorySaver
    from langgraph.types import Command, interrupt

FOUNDED = (company.FOUNDED, (company.HISTORY, company.FOUNDER))


def with_handler(captured: Capture) -> Any:
    """Return the config of a call."""
    return {"callbacks": [captured.handler]}


def store() -> InMemoryVectorStore:
    """Return a vector store that is no retriever."""
    return InMemoryVectorStore.from_documents(company.documents(), WordEmbeddings())


@pytest.mark.parametrize("kind", ["refine", "map_reduce"])
def test_several_prompts_for_one_answer(kind: str) -> None:
    """The pages are in different prompts; all of them reached the answer."""
    captured = capture()
    with quietly():
        chain = RetrievalQA.from_chain_type(
            ScriptedChat(
                reply=saying("It was founded in 1987, by a sailmaker."),
                custom_get_token_ids=lambda text: list(range(len(text.split()))),
            ),
            retriever=handbook(),
            chain_type=kind,
        )
    chain.invoke({"query": company.FOUNDED}, with_handler(captured))
    ((question, contexts, answer),) = captured.truths
    assert (question, set(contexts)) == (FOUNDED[0], set(FOUNDED[1]))
    assert answer == "It was founded in 1987, by a sailmaker."


def test_a_tool_that_searches_by_itself() -> None:
    """A vector store that is called directly tells nobody; what the tool returned does."""

    @tool
    def search_handbook(query: str) -> str:
        """Search the handbook."""
        return join(store().similarity_search(query, k=2))

    captured = capture()
    script = calling("search_handbook", {"query": company.FOUNDED})
    agent = make_agent(ScriptedChat(reply=script), [search_handbook])
    agent.invoke({"messages": [HumanMessage(company.FOUNDED)]}, with_handler(captured))
    ((question, contexts, answer),) = captured.truths
    assert (question, contexts) == FOUNDED
    assert answer == "It was founded in 1987. [History; Founder]"


def test_events_of_the_first_version() -> None:
    """The older stream of events tells the same."""
    captured = capture()

    async def read() -> None:
        with quietly():
            stream = rag().astream_events(company.FOUNDED, with_handler(captured), version="v1")
            assert [event async for event in stream]

    asyncio.run(read())
    assert [truth[:2] for truth in captured.truths] == [FOUNDED]


@contextmanager
def cached() -> Iterator[None]:
    """Let LangChain cache the completions of models."""
    set_llm_cache(InMemoryCache())
    yield
    set_llm_cache(None)


@pytest.mark.parametrize("llm", [ScriptedChat(), ScriptedLLM()], ids=["chat", "completion"])
def test_a_model_that_is_not_asked_again(llm: Any) -> None:
    """A cached reply is as good; of completion models LangChain tells nothing at all then."""
    captured = capture()
    chain = lookup() | PROMPT | llm
    with cached():
        for _ in range(2):
            chain.invoke(company.FOUNDED, with_handler(captured))
    first, second = captured.truths
    assert first == second
    assert first[:2] == FOUNDED


def ask(captured: Capture) -> None:
    """Retrieve and ask, each by itself, as plain functions do."""
    documents = handbook().invoke(company.FOUNDED, with_handler(captured))
    prompt = PROMPT.invoke({"context": join(documents), "question": company.FOUNDED})
    ScriptedChat().invoke(prompt, with_handler(captured))


def test_a_plain_function_under_a_span() -> None:
    """Two runs without a chain around them are one turn, by the span that is current."""
    captured = capture()
    with captured.within("ask"):
        ask(captured)
    ((question, contexts, answer),) = captured.truths
    assert (question, contexts) == FOUNDED
    assert answer == "It was founded in 1987. [History; Founder]"
    assert captured.reasons == []


def test_a_plain_function_without_a_span() -> None:
    """Nothing joins the two runs, and that is said."""
    captured = capture()
    ask(captured)
    assert captured.reasons == ["no_answer", "no_retrieval"]


def test_a_vector_store_that_is_called_directly() -> None:
    """Its documents are in the prompt alone; that is no retrieval anybody could see."""
    captured = capture()
    found = join(store().similarity_search(company.FOUNDED))
    with captured.within("ask"):
        prompt = PROMPT.invoke({"context": found, "question": company.FOUNDED})
        ScriptedChat().invoke(prompt, with_handler(captured))
    assert captured.reasons == ["no_retrieval"]


def test_handlers_in_constructors() -> None:
    """A handler is told of the object it was given to, alone: no turn."""
    captured = capture()
    llm = ScriptedChat(callbacks=[captured.handler])
    with quietly():
        chain = RetrievalQA.from_chain_type(
            llm, retriever=KeywordRetriever(), callbacks=[captured.handler]
        )
    chain.invoke({"query": company.FOUNDED})
    assert captured.truths == []
    assert len(captured.recorder) == 0


# --- what is joined by the span that is current ---------------------------------------------------


def prompt(page: str, question: str) -> Any:
    """Return a filled prompt."""
    return PROMPT.invoke({"context": page, "question": question})


def test_a_grader_before_the_answer() -> None:
    """The span stands for the turn as it is when it ends, not as it was at the first call."""
    captured = capture()
    call = with_handler(captured)
    with captured.within("ask"):
        documents = handbook().invoke(company.FOUNDED, call)
        ScriptedChat(reply=saying("yes")).invoke(join(documents), call)
        ScriptedChat().invoke(prompt(join(documents), company.FOUNDED), call)
    ((_, contexts, answer),) = captured.truths
    assert contexts == FOUNDED[1]
    assert answer == "It was founded in 1987. [History; Founder]"


def test_turns_of_one_span_are_told_apart() -> None:
    """Questions asked one after the other below a span are separate turns."""
    captured = capture()
    with captured.within("batch"):
        for question in (company.FOUNDED, company.SPARS):
            documents = handbook().invoke(question, with_handler(captured))
            ScriptedChat().invoke(prompt(join(documents), question), with_handler(captured))
    spars = (company.SPARS, (company.WARRANTY, company.WORKSHOP))
    assert [truth[:2] for truth in captured.truths] == [spars, FOUNDED]
    assert captured.reasons == []


def test_a_call_that_was_not_shown_the_pages_is_no_turn() -> None:
    """Under one span there may be a search for this and a model for that."""
    captured = capture()
    with captured.within("work"):
        handbook().invoke(company.FOUNDED, with_handler(captured))
        ScriptedChat(reply=saying("A poem about the sea and its waves.")).invoke(
            "Write a poem.", with_handler(captured)
        )
    assert captured.truths == []
    assert captured.reasons == ["ambiguous"]


def test_a_retrieval_that_is_said() -> None:
    """A vector store that is called directly is seen where the application says what it found."""
    captured = capture()
    with captured.within("ask"):
        found = [page.page_content for page in store().similarity_search(company.FOUNDED, k=2)]
        record_retrieval(company.FOUNDED, found)
        ScriptedChat().invoke(prompt("\n".join(found), company.FOUNDED), with_handler(captured))
    ((question, contexts, _),) = captured.truths
    assert (question, contexts) == FOUNDED


def test_a_span_that_has_ended_joins_nothing() -> None:
    """Neither does a span that another instrumentation has started by itself."""
    captured = capture()
    with captured.within("ask") as span:
        span.end()
        ask(captured)
    attributes = {"openinference.span.kind": "CHAIN"}
    with captured.within("theirs", attributes=attributes):
        ask(captured)
    assert captured.reasons == ["no_answer", "no_retrieval"] * 2


def test_a_call_that_failed_joins_nothing() -> None:
    """The turn is the one of the call that did not."""
    captured = capture()
    call = with_handler(captured)
    with captured.within("ask"):
        documents = handbook().invoke(company.FOUNDED, call)
        with pytest.raises(ConnectionError):
            ScriptedChat(reply=unavailable).invoke("?", call)
        ScriptedChat().invoke(prompt(join(documents), company.FOUNDED), call)
    assert captured.reasons == ["error"]
    assert len(captured.truths) == 1


def test_a_plain_function_is_scored_on_its_span() -> None:
    """The scores are on the application's own span."""
    with running() as app:
        call: Any = {"callbacks": [app.handle.callback]}
        with app.tracer.start_as_current_span("ask"):
            documents = handbook().invoke(company.FOUNDED, call)
            ScriptedChat().invoke(prompt(join(documents), company.FOUNDED), call)
        app.stop()
        spans = {span.name: span for span in app.receiver.spans()}
        counted = turns_counted(app.receiver)
    assert spans["ask"].attributes["rag.evaluation.status"] == "scored"
    assert counted == {("scored", None): 1}


@pytest.mark.parametrize("chain", [True, False], ids=["chain", "function"])
def test_what_is_said_wins_until_the_span_ends(*, chain: bool) -> None:
    """The span of the application stands for the turn, and what it says last counts."""
    judge = good_judge()
    with running(spans="none", judge=judge) as app:
        call: Any = {"callbacks": [app.handle.callback]}
        with app.tracer.start_as_current_span("ask"):
            if chain:
                (lookup() | PROMPT | ScriptedChat()).invoke(company.FOUNDED, call)
            else:
                documents = handbook().invoke(company.FOUNDED, call)
                ScriptedChat().invoke(prompt(join(documents), company.FOUNDED), call)
            record_question("What was asked?")
            record_answer("What was shown.")
        app.stop()
        (span,) = app.receiver.spans()
    assert span.attributes["rag.evaluation.status"] == "scored"
    asked = str(judge.requests)
    assert "What was asked?" in asked
    assert "What was shown." in asked
    assert company.HISTORY in asked
    assert "It was founded in 1987." not in asked


# --- models that are no models of LangChain -------------------------------------------------------


def test_a_model_that_langchain_does_not_know() -> None:
    """A client called in a function leaves no trace but the prompt before it."""
    captured = capture()
    chain = lookup() | PROMPT | (lambda value: from_pages(value.to_messages()).content)
    chain.invoke(company.FOUNDED, with_handler(captured))
    ((question, contexts, answer),) = captured.truths
    assert (question, contexts) == FOUNDED
    assert answer == "It was founded in 1987. [History; Founder]"


@pytest.mark.parametrize("chain", [lookup() | PROMPT, handbook() | join], ids=["prompt", "join"])
def test_without_any_model(chain: Any) -> None:
    """A chain that only retrieves, or only fills a prompt, answers nothing."""
    captured = capture()
    chain.invoke(company.FOUNDED, with_handler(captured))
    assert captured.truths == []


def test_a_graph_that_is_interrupted() -> None:
    """Retrieval and answer in two requests are not joined, and that is said."""

    def retrieve(state: dict[str, Any]) -> dict[str, Any]:
        return {"documents": join(handbook().invoke(state["question"]))}

    def confirm(_: dict[str, Any]) -> dict[str, Any]:
        interrupt("go on?")
        return {}

    def generate(state: dict[str, Any]) -> dict[str, Any]:
        said = ScriptedChat().invoke(prompt(state["documents"], state["question"]))
        return {"generation": said.content}

    captured = capture()
    graph: Any = StateGraph(State)
    names = [START, "retrieve", "confirm", "generate"]
    for name, node in zip(names[1:], (retrieve, confirm, generate), strict=True):
        graph.add_node(name, node)
    for one, next_one in pairwise(names):
        graph.add_edge(one, next_one)
    app = graph.compile(checkpointer=InMemorySaver())
    call = {**with_handler(captured), "configurable": {"thread_id": "t"}}
    app.invoke({"question": company.FOUNDED}, call)
    assert app.invoke(Command(resume=True), call)["generation"]
    assert captured.truths == []
    assert captured.reasons == ["no_answer", "no_retrieval"]


class State(TypedDict, total=False):
    """The state of the graph."""

    question: str
    documents: str
    generation: str
