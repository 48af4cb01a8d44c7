"""LangChain and LangGraph apps, offline and deterministic, each with its truth beside it."""

import asyncio
import contextlib
import gc
import itertools
import threading
from collections.abc import Callable, Coroutine
from operator import itemgetter
from typing import Any, TypeAlias, TypedDict

from langchain_core.chat_history import InMemoryChatMessageHistory
from langchain_core.documents import Document
from langchain_core.exceptions import OutputParserException
from langchain_core.messages import HumanMessage
from langchain_core.output_parsers import JsonOutputParser, StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import (
    Runnable,
    RunnableConfig,
    RunnableLambda,
    RunnableParallel,
    RunnablePassthrough,
)
from langchain_core.runnables.history import RunnableWithMessageHistory
from langchain_core.tools import create_retriever_tool, tool
from pydantic import BaseModel

from . import company
from .app import Handlers, Truth, app, config
from .company import FOUNDER, HISTORY, PRODUCTS, RETURNS, WARRANTY, WORKSHOP
from .compat import END, NO_V3_EVENTS, START, StateGraph, classic, make_agent, quietly
from .fakes import DownRetriever, KeywordRetriever, ScriptedChat, StallingChat
from .parts import PROMPT, handbook, join, lookup, rag
from .replies import calling, cited_answer, failing_once, from_pages, saying, unavailable

FOUNDED = Truth(
    question=company.FOUNDED,
    contexts=(HISTORY, FOUNDER),
    answer="It was founded in 1987. [History; Founder]",
)
SPARS = Truth(
    question=company.SPARS,
    contexts=(WARRANTY, WORKSHOP),
    answer="Three years, like the sails. [Warranty; Workshop]",
)
REFUND = Truth(question=company.REFUND, contexts=(RETURNS,), answer="You have 45 days. [Returns]")


class CitedAnswer(BaseModel):
    """An answer and the titles of its sources."""

    answer: str
    sources: list[str]


@app(FOUNDED)
def lcel_basic(callbacks: Handlers) -> object:
    """A question in, a string out."""
    return rag().invoke(company.FOUNDED, config(callbacks))


@app(FOUNDED)
def structured_output(callbacks: Handlers) -> object:
    """A pydantic object out, whose field `answer` is the answer; the model's own text is empty."""
    llm = ScriptedChat(reply=cited_answer).with_structured_output(CitedAnswer)
    return (lookup() | PROMPT | llm).invoke(company.FOUNDED, config(callbacks))


@app()
def non_rag(callbacks: Handlers) -> object:
    """A chain without retrieval."""
    prompt = ChatPromptTemplate.from_template("Translate into French: {text}")
    chain = prompt | ScriptedChat(reply=saying("Bonjour.")) | StrOutputParser()
    return chain.invoke({"text": company.GREETING}, config(callbacks))


@app()
def retriever_only(callbacks: Handlers) -> object:
    """A search without a model."""
    return handbook().invoke(company.FOUNDED, config(callbacks))


SAILMAKER = Truth(
    question=company.SAILMAKER,
    contexts=(FOUNDER, HISTORY),
    answer="The sailmaker Ada Lindqvist did. [Founder; History]",
)


@app(SPARS, REFUND)
def parallel_rag(callbacks: Handlers) -> object:
    """Two RAG chains side by side, each taking its own question out of one input."""
    chain = RunnableParallel(
        a=itemgetter("a") | rag(KeywordRetriever()), b=itemgetter("b") | rag(KeywordRetriever())
    )
    return chain.invoke({"a": company.SPARS, "b": company.REFUND}, config(callbacks))


@app(FOUNDED)
def lambda_no_config(callbacks: Handlers) -> object:
    """A function calls the chain without passing its config on."""
    chain = rag()

    def outer(question: str) -> dict[str, str]:
        return {"answer": chain.invoke(question), "echo": question}

    return RunnableLambda(outer).invoke(company.FOUNDED, config(callbacks))


def with_history(asked: str) -> ChatPromptTemplate:
    return ChatPromptTemplate.from_messages(
        [
            ("system", "Answer from these pages only.\n\n{context}"),
            ("placeholder", "{history}"),
            ("human", f"{{{asked}}}"),
        ]
    )


@app(FOUNDED, SAILMAKER)
def with_msg_history(callbacks: Handlers) -> object:
    """Two turns of a chat; the second prompt holds the first question and answer too."""
    settings: RunnableConfig = {**config(callbacks), "configurable": {"session_id": "s-1"}}
    with quietly():
        history = InMemoryChatMessageHistory()
        chat = RunnableWithMessageHistory(
            RunnablePassthrough.assign(context=itemgetter("question") | handbook() | join)
            | with_history("question")
            | ScriptedChat(),
            lambda _session_id: history,
            input_messages_key="question",
            history_messages_key="history",
        )
    return [
        chat.invoke({"question": question}, settings)
        for question in (company.FOUNDED, company.SAILMAKER)
    ]


@app(SPARS)
def double_delivery(callbacks: Handlers) -> object:
    """The same handlers bound to the chain and passed to it: root events come twice."""
    chain = rag().with_config(callbacks=list(callbacks))
    return chain.invoke(company.SPARS, config(callbacks))


@app(FOUNDED)
def thread_no_context(callbacks: Handlers) -> object:
    """A bare thread, which inherits no context, with the callbacks passed inside it."""
    answers: list[str] = []
    thread = threading.Thread(
        target=lambda: answers.append(rag().invoke(company.FOUNDED, config(callbacks)))
    )
    thread.start()
    thread.join()
    return answers


def stuff(llm: ScriptedChat) -> Any:
    combine = classic("chains.combine_documents")
    return combine.create_stuff_documents_chain(llm, with_history("input"))


@app(FOUNDED)
def retrieval_chain(callbacks: Handlers) -> object:
    """`create_retrieval_chain`: input in; input, context and answer out."""
    chain = classic("chains").create_retrieval_chain(handbook(), stuff(ScriptedChat()))
    return chain.invoke({"input": company.FOUNDED}, config(callbacks))


@app()
def non_rag_stuff_docs(callbacks: Handlers) -> object:
    """A summary of given documents: the same prompt as in RAG, but nothing was retrieved."""
    chain = stuff(ScriptedChat(reply=saying("A maker of kites, since 1987.")))
    values: dict[str, object] = {
        "input": "Summarise the pages.",
        "context": company.documents()[:2],
    }
    return chain.invoke(values, config(callbacks))


class State(TypedDict, total=False):
    """What the nodes of a RAG graph share."""

    question: str
    documents: list[Document]
    generation: str


def graph() -> Any:
    generator = PROMPT | ScriptedChat() | StrOutputParser()

    def retrieve(state: State) -> State:
        return {"documents": KeywordRetriever().invoke(state["question"])}

    def generate(state: State) -> State:
        shown = {"context": join(state["documents"]), "question": state["question"]}
        return {"generation": generator.invoke(shown)}

    made: Any = StateGraph(State)
    made.add_node("retrieve", retrieve)
    made.add_node("generate", generate)
    for before, after in itertools.pairwise([START, "retrieve", "generate", END]):
        made.add_edge(before, after)
    return made.compile()


@app(FOUNDED)
def langgraph_rag(callbacks: Handlers) -> object:
    """Two nodes: retrieve, generate."""
    return graph().invoke({"question": company.FOUNDED}, config(callbacks))


@app(FOUNDED, skip=NO_V3_EVENTS)
def graph_astream_events_v3(callbacks: Handlers) -> object:
    """The graph, streamed as version 3 events, where the model's message is a list of blocks."""

    async def read() -> list[Any]:
        state = {"question": company.FOUNDED}
        with quietly():
            events = await graph().astream_events(state, config=config(callbacks), version="v3")
        return [event async for event in events]

    return asyncio.run(read())


@app(
    Truth(
        question=company.HANDBOOK,
        contexts=(HISTORY, FOUNDER, PRODUCTS),
        answer="A company of 1987 with kites, refunds and repairs. [History; Founder; Products]",
    )
)
def agent_retriever_tools(callbacks: Handlers) -> object:
    """The agent searches twice; one page is found by both searches."""
    search = create_retriever_tool(KeywordRetriever(), "search_handbook", "Search the handbook.")
    script = calling("search_handbook", {"query": company.FOUNDED}, {"query": company.TOWING})
    agent = make_agent(ScriptedChat(reply=script), [search])
    return agent.invoke({"messages": [HumanMessage(company.HANDBOOK)]}, config(callbacks))


@app()
def agent_non_rag(callbacks: Handlers) -> object:
    """The agent calls a tool that retrieves nothing."""

    @tool
    def plus(a: int, b: int) -> int:
        """Add two numbers."""
        return a + b

    agent = make_agent(ScriptedChat(reply=calling("plus", {"a": 1987, "b": 45})), [plus])
    return agent.invoke({"messages": [HumanMessage(company.SUM)]}, config(callbacks))


Chain: TypeAlias = Runnable[str, str]


@app(FOUNDED)
def stream_sync(callbacks: Handlers) -> object:
    """The chain, streamed; the input of the root comes only with its end."""
    return list(rag().stream(company.FOUNDED, config(callbacks)))


@app()
def stream_abandoned(callbacks: Handlers) -> object:
    """A reader leaves the stream after two chunks and closes it."""
    stream = rag().stream(company.FOUNDED, config(callbacks))
    with contextlib.closing(stream):  # type: ignore[type-var]
        return list(itertools.islice(stream, 2))


@app()
def stream_gc(callbacks: Handlers) -> object:
    """A reader drops the stream after one chunk, and the garbage collector closes it."""
    gc.freeze()  # the collection need not look at what was there before
    first = next(rag().stream(company.FOUNDED, config(callbacks)))
    gc.collect()
    return first


@app()
def astream_abandoned(callbacks: Handlers) -> object:
    """A reader leaves the asynchronous stream after one chunk and closes it."""

    async def read() -> str:
        stream = rag().astream(company.FOUNDED, config(callbacks))
        async with contextlib.aclosing(stream):  # type: ignore[type-var]
            return await anext(stream)

    return asyncio.run(read())


@app()
def astream_cancelled(callbacks: Handlers) -> object:
    """The task that reads the stream is cancelled after two words."""

    async def read(chain: Chain) -> None:
        async for _chunk in chain.astream(company.FOUNDED, config(callbacks)):
            pass

    return asyncio.run(_cancelled_when_stalled(read))


@app()
def ainvoke_cancelled(callbacks: Handlers) -> object:
    """The task is cancelled while the model is asked, whose run then never ends."""

    async def ask(chain: Chain) -> None:
        await chain.ainvoke(company.FOUNDED, config(callbacks))

    return asyncio.run(_cancelled_when_stalled(ask))


async def _cancelled_when_stalled(use: Callable[[Chain], Coroutine[Any, Any, None]]) -> None:
    llm = StallingChat()
    running = asyncio.create_task(use(rag(llm=llm)))
    await llm.stalled.wait()
    running.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await running


@app()
def err_retriever(callbacks: Handlers) -> None:
    with contextlib.suppress(ConnectionError):
        rag(DownRetriever()).invoke(company.FOUNDED, config(callbacks))


@app()
def err_llm(callbacks: Handlers) -> None:
    with contextlib.suppress(ConnectionError):
        rag(llm=ScriptedChat(reply=unavailable)).invoke(company.FOUNDED, config(callbacks))


@app()
def err_parser(callbacks: Handlers) -> None:
    """The model answers, but the parser after it fails."""
    with contextlib.suppress(OutputParserException):
        (rag() | JsonOutputParser()).invoke(company.FOUNDED, config(callbacks))


@app(FOUNDED)
def llm_retry_retriever_fallback(callbacks: Handlers) -> object:
    """The model answers at the second try, and the second retriever at the first."""
    llm = ScriptedChat(reply=failing_once(from_pages))
    retrying = llm.with_retry(stop_after_attempt=2, wait_exponential_jitter=False)
    retriever = DownRetriever().with_fallbacks([KeywordRetriever()])
    return rag(retriever, retrying).invoke(company.FOUNDED, config(callbacks))
