"""LangGraph apps."""

import asyncio
import itertools
from collections.abc import Callable
from typing import Any, TypedDict

from langchain_core.documents import Document
from langchain_core.messages import HumanMessage, SystemMessage
from langchain_core.output_parsers import StrOutputParser
from langchain_core.runnables import Runnable

from . import company
from .app import Handlers, Truth, app, config
from .company import FOUNDER, HISTORY
from .compat import END, NO_V3_EVENTS, START, StateGraph, entrypoint, quietly, task
from .fakes import KeywordRetriever, ScriptedChat
from .lcel import FOUNDED
from .parts import PROMPT, handbook, join
from .replies import grade, saying

RETRIEVER = KeywordRetriever()
GENERATOR = PROMPT | ScriptedChat() | StrOutputParser()


class State(TypedDict, total=False):
    """What the nodes of a RAG graph share."""

    question: str
    documents: list[Document]
    generation: str
    tries: int


@app(FOUNDED)
def langgraph_rag(callbacks: Handlers) -> object:
    """Two nodes: retrieve, generate."""
    return _line(State, retrieve=_retrieve, generate=_generate).invoke(
        {"question": company.FOUNDED}, config(callbacks)
    )


@app(
    Truth(
        question=company.VAGUE,
        contexts=(FOUNDER, HISTORY),
        answer="The company goes back to 1987. [Founder; History]",
    )
)
def langgraph_crag(callbacks: Handlers) -> object:
    """Grade each document, rewrite the question if fewer than two survive, and try again."""
    retriever, grader = KeywordRetriever(k=3), ScriptedChat(reply=grade)
    rewriter = ScriptedChat(reply=saying(company.REWRITTEN))

    def retrieve(state: State) -> State:
        return {"documents": retriever.invoke(state["question"])}

    def keep(state: State) -> State:
        graded = [(d, grader.invoke(_grading(state, d)).content) for d in state["documents"]]
        return {"documents": [document for document, verdict in graded if verdict == "yes"]}

    def rewrite(state: State) -> State:
        rewritten = rewriter.invoke(f"Ask this more plainly: {state['question']}")
        return {"question": str(rewritten.content)}

    graph = _graph(State, retrieve=retrieve, grade=keep, rewrite=rewrite, generate=_generate)
    graph.add_edge(START, "retrieve")
    graph.add_edge("retrieve", "grade")
    graph.add_conditional_edges("grade", _next_step, ["rewrite", "generate"])
    graph.add_edge("rewrite", "retrieve")
    return graph.compile().invoke({"question": company.VAGUE}, config(callbacks))


@app(FOUNDED)
def langgraph_functional(callbacks: Handlers) -> object:
    """The functional API: a string in, a string out."""

    @task
    def retrieve(question: str) -> list[Document]:
        return handbook().invoke(question)

    @task
    def generate(question: str, documents: list[Document]) -> str:
        pages = SystemMessage(f"Pages:\n{join(documents)}")
        return str(ScriptedChat().invoke([pages, HumanMessage(question)]).content)

    @entrypoint()
    def answer(question: str) -> str:
        return generate(question, retrieve(question).result()).result()

    return answer.invoke(company.FOUNDED, config(callbacks))


@app(FOUNDED, skip=NO_V3_EVENTS)
def graph_astream_events_v3(callbacks: Handlers) -> object:
    """The graph, streamed as version 3 events, where the model's message is a list of blocks."""

    async def read() -> list[Any]:
        graph: Any = _line(State, retrieve=_retrieve, generate=_generate)
        state = {"question": company.FOUNDED}
        with quietly():
            events = await graph.astream_events(state, config=config(callbacks), version="v3")
        return [event async for event in events]

    return asyncio.run(read())


def _graph(state: type[Any], **nodes: Callable[..., Any]) -> Any:
    graph: Any = StateGraph(state)
    for name, node in nodes.items():
        graph.add_node(name, node)
    graph.add_edge("generate", END)
    return graph


def _line(state: type[Any], **nodes: Callable[..., Any]) -> Runnable[Any, Any]:
    graph = _graph(state, **nodes)
    for before, after in itertools.pairwise([START, *nodes]):
        graph.add_edge(before, after)
    compiled: Runnable[Any, Any] = graph.compile()
    return compiled


def _retrieve(state: State) -> State:
    return {"documents": RETRIEVER.invoke(state["question"])}


def _generate(state: State) -> State:
    return {"generation": GENERATOR.invoke(_variables(state))}


def _variables(state: State) -> dict[str, str]:
    return {"context": join(state["documents"]), "question": state["question"]}


def _grading(state: State, document: Document) -> str:
    return f"Does this page help? Question: {state['question']}\n\n{document.page_content}"


def _next_step(state: State) -> str:
    return "generate" if len(state["documents"]) > 1 else "rewrite"
