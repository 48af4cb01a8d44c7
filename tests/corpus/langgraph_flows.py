"""Graphs that fan out, nest and stream; and the functional API."""

import operator
from typing import Annotated, Any

from langchain_core.documents import Document
from langchain_core.messages import HumanMessage, SystemMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.func import entrypoint, task
from langgraph.graph import END, START, StateGraph
from langgraph.types import Send
from typing_extensions import TypedDict

from .kit import Config, turn
from .langchain_kit import model, store, text_of

TRASH = "Bins are collected on Tuesdays, paper in even weeks."
NOISE = "Quiet hours are from 22 to 7 and on Sundays all day."
PETS = "Cats need no permission; dogs do, in writing."
CELLAR = "Each flat has a cellar of four square metres; bicycles go to the yard."
HOUSE = (TRASH, NOISE, PETS, CELLAR)


class Inquiry(TypedDict):
    inquiry: str
    parts: list[str]
    found: Annotated[list[Document], operator.add]
    letter: str


class Part(TypedDict):
    part: str


@turn(
    "I want to move in with a dog and a drum kit. What must I know?",
    (PETS, NOISE),
    "Ask for the dog in writing, and do not drum after 22 hours or on Sundays.",
)
def send_one_search_for_each_part(config: Config, question: str, answer: str) -> None:
    """LangGraph: map-reduce by Send, one retrieval for each part of the question."""
    llm = model({"Split": "dogs permission\nquiet hours Sundays", "Write": answer})
    retriever = store(*HOUSE).as_retriever(search_kwargs={"k": 1})

    def split(state: Inquiry) -> dict[str, Any]:
        return {"parts": text_of(llm.invoke(f"Split: {state['inquiry']}")).splitlines()}

    def fan_out(state: Inquiry) -> list[Send]:
        return [Send("search", {"part": part}) for part in state["parts"]]

    def search(state: Part) -> dict[str, Any]:
        return {"found": retriever.invoke(state["part"])}

    def write(state: Inquiry) -> dict[str, Any]:
        rules = "\n".join(f"§ {i} {d.page_content}" for i, d in enumerate(state["found"], 1))
        return {"letter": text_of(llm.invoke(f"Write to {state['inquiry']}\n{rules}"))}

    graph = StateGraph(Inquiry)
    graph.add_node(split)
    graph.add_node(search)
    graph.add_node(write)
    graph.add_edge(START, "split")
    graph.add_conditional_edges("split", fan_out, ["search"])
    graph.add_edge("search", "write")
    graph.add_edge("write", END)
    inquiry = question
    graph.compile().invoke({"inquiry": inquiry}, config)


class Both(TypedDict):
    query: str
    hits: Annotated[list[str], operator.add]
    reply: str


@turn(
    "When are the bins collected?",
    (TRASH, "Bins: in the holidays on Wednesdays."),
    "On Tuesdays, in the holidays on Wednesdays.",
    also=({"contexts": ("Bins: in the holidays on Wednesdays.", TRASH)},),
    needs=("python>=3.11",),
)
async def two_retriever_nodes_in_parallel(config: Config, question: str, answer: str) -> None:
    """LangGraph: two retriever nodes in parallel branches."""
    rules = store(*HOUSE).as_retriever(search_kwargs={"k": 1})
    notices = store("Bins: in the holidays on Wednesdays.").as_retriever()
    llm = model(answer)

    async def house_rules(state: Both) -> dict[str, Any]:
        return {"hits": [d.page_content for d in await rules.ainvoke(state["query"])]}

    async def notice_board(state: Both) -> dict[str, Any]:
        return {"hits": [d.page_content for d in await notices.ainvoke(state["query"])]}

    async def respond(state: Both) -> dict[str, Any]:
        told = "\n\n".join(state["hits"])
        message = await llm.ainvoke([SystemMessage(told), HumanMessage(state["query"])])
        return {"reply": message.content}

    graph = StateGraph(Both)
    for node in (house_rules, notice_board, respond):
        graph.add_node(node)
    graph.add_edge(START, "house_rules")
    graph.add_edge(START, "notice_board")
    graph.add_edge(["house_rules", "notice_board"], "respond")
    await graph.compile().ainvoke({"query": question}, config)


@turn("How large is a cellar?", (CELLAR, PETS), "Four square metres.")
def functional_api(config: Config, question: str) -> None:
    """LangGraph functional API: tasks and an entrypoint."""
    retriever = store(*HOUSE).as_retriever(search_kwargs={"k": 2})
    llm = model("Four square metres.")

    @task
    def fetch(text: str) -> list[Document]:
        return retriever.invoke(text)

    @task
    def answer(text: str, docs: list[Document]) -> str:
        told = "\n\n".join(d.page_content for d in docs)
        return text_of(llm.invoke(f"{told}\n\nTenant asks: {text}"))

    @entrypoint(checkpointer=InMemorySaver())
    def janitor(text: str) -> str:
        return answer(text, fetch(text).result()).result()

    thread = {**config, "configurable": {"thread_id": "f-1"}}
    for _ in janitor.stream(question, thread):
        pass


class Live(TypedDict):
    user_msg: str
    kb: list[str]
    bot_msg: str


@turn("Who needs a permission?", (PETS,), "Owners of dogs.", needs=("python>=3.11",))
async def chain_inside_a_node(config: Config, question: str, answer: str) -> None:
    """LangGraph: `astream_events` over a graph whose node is an LCEL chain."""
    from langchain_core.output_parsers import StrOutputParser
    from langchain_core.prompts import ChatPromptTemplate

    kb = store(*HOUSE).as_retriever(search_kwargs={"k": 1})
    chain = (
        ChatPromptTemplate.from_template("[{passages}]\n{msg}") | model(answer) | StrOutputParser()
    )

    async def both(state: Live) -> dict[str, Any]:
        docs = await kb.ainvoke(state["user_msg"] + " permission writing dogs")
        passages = "; ".join(d.page_content for d in docs)
        return {"bot_msg": await chain.ainvoke({"passages": passages, "msg": state["user_msg"]})}

    graph = StateGraph(Live).add_node(both).add_edge(START, "both").compile()
    async for _ in graph.astream_events({"user_msg": question}, config, version="v2"):
        pass
