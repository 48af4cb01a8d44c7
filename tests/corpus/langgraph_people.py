"""Graphs with human input, memory, and steps after the answer."""

from typing import Any

from langchain_core.documents import Document
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.types import Command, interrupt
from typing_extensions import TypedDict

from .kit import Config, Truth, app, turn
from .langchain_kit import documents, model, store, text_of

TRASH = "Bins are collected on Tuesdays, paper in even weeks."
NOISE = "Quiet hours are from 22 to 7 and on Sundays all day."
PETS = "Cats need no permission; dogs do, in writing."
CELLAR = "Each flat has a cellar of four square metres; bicycles go to the yard."
HOUSE = (TRASH, NOISE, PETS, CELLAR)


class Review(TypedDict):
    customer: str
    pages: list[str]
    draft: str
    final: str


def review_graph(llm: Any) -> Any:
    retriever = store(*HOUSE).as_retriever(search_kwargs={"k": 1})

    def gather(state: Review) -> dict[str, Any]:
        return {"pages": [d.page_content for d in retriever.invoke(state["customer"])]}

    def compose(state: Review) -> dict[str, Any]:
        pages = "\n".join(state["pages"])
        return {"draft": text_of(llm.invoke(f"Rules: {pages}\nTenant: {state['customer']}"))}

    def approve(state: Review) -> Command[Any]:
        decision = interrupt({"draft": state["draft"]})
        return Command(goto=END, update={"final": decision.get("edited") or state["draft"]})

    graph = StateGraph(Review).add_sequence([gather, compose, approve])
    return graph.add_edge(START, "gather").compile(checkpointer=InMemorySaver())


@turn("Can I use the drill on Sunday?", (NOISE,), "No, Sundays are quiet all day.")
def draft_approved(config: Config, question: str, answer: str) -> None:
    """LangGraph: human in the loop, a draft approved by interrupt and resume."""
    graph = review_graph(model(answer))
    thread = {**config, "configurable": {"thread_id": "t-1"}}
    graph.invoke({"customer": question}, thread)
    graph.invoke(Command(resume={"edited": ""}), thread)


@turn(
    "Can I use the drill on Sunday?",
    (NOISE,),
    "No, and not after 22 hours either.",
    also=({"answer": "No, Sundays are for rest."},),
)
def draft_edited_by_a_person(config: Config, question: str, answer: str) -> None:
    """LangGraph: human in the loop, a draft edited by a person."""
    graph = review_graph(model("No, Sundays are for rest."))
    thread = {**config, "configurable": {"thread_id": "t-2"}}
    graph.invoke({"customer": question}, thread)
    graph.invoke(Command(resume={"edited": answer}), thread)


class Consent(TypedDict):
    question: str
    hits: list[Document]
    answer: str


@turn("What about paper bins?", (TRASH,), "In even weeks.")
def interrupted_between_retrieval_and_generation(
    config: Config, question: str, answer: str
) -> None:
    """LangGraph: interrupt between retrieval and generation."""
    retriever = store(*HOUSE).as_retriever(search_kwargs={"k": 1})
    llm = model(answer)

    def retrieve(state: Consent) -> dict[str, Any]:
        return {"hits": retriever.invoke(state["question"])}

    def generate(state: Consent) -> dict[str, Any]:
        if not interrupt("Shall these be used?"):
            return {"answer": "Not used."}
        told = "\n".join(d.page_content for d in state["hits"])
        return {"answer": text_of(llm.invoke([("system", told), ("user", state["question"])]))}

    graph = StateGraph(Consent).add_sequence([retrieve, generate]).add_edge(START, "retrieve")
    compiled = graph.compile(checkpointer=InMemorySaver())
    thread = {**config, "configurable": {"thread_id": "t-3"}}
    compiled.invoke({"question": question}, thread)
    compiled.invoke(Command(resume=True), thread)


@app(
    Truth("May I have a dog?", (PETS,), "With a permission in writing."),
    Truth("And a cat?", (PETS,), "Without any."),
)
def two_turns_of_one_thread(config: Config) -> None:
    """LangGraph: conversational RAG with a checkpointer, two turns of one thread."""
    retriever = store(*HOUSE).as_retriever(search_kwargs={"k": 1})
    llm = model("With a permission in writing.", "Without any.")

    def chatbot(state: MessagesState) -> dict[str, Any]:
        asked = " ".join(text_of(m) for m in state["messages"] if m.type == "human")
        told = "\n".join(d.page_content for d in retriever.invoke(asked + " dogs cats permission"))
        system = SystemMessage(f"You answer tenants.\nRules:\n{told}")
        return {"messages": [llm.invoke([system, *state["messages"]])]}

    graph = StateGraph(MessagesState).add_node(chatbot).add_edge(START, "chatbot")
    compiled = graph.compile(checkpointer=InMemorySaver())
    thread = {**config, "configurable": {"thread_id": "tenant-4"}}
    compiled.invoke({"messages": [("user", "May I have a dog?")]}, thread)
    compiled.invoke({"messages": [("user", "And a cat?")]}, thread)


class Answered(MessagesState):
    context: list[Document]
    suggestions: list[str]


@turn("Do dogs need a lead?", (PETS,), "I am not sure, please ask the caretaker.")
def answer_replaced_by_a_check(config: Config, question: str, answer: str) -> None:
    """LangGraph: a check of groundedness after the answer, which replaces it."""
    retriever = store(*documents(*HOUSE)).as_retriever(search_kwargs={"k": 1})
    llm = model("Yes, a short one.", "ungrounded")

    def rag(state: Answered) -> dict[str, Any]:
        found = retriever.invoke(text_of(state["messages"][-1]))
        told = "\n".join(d.page_content for d in found)
        message = llm.invoke([SystemMessage(told), *state["messages"]])
        return {"messages": [message], "context": found}

    def check(state: Answered) -> dict[str, Any]:
        draft = state["messages"][-1]
        told = "\n".join(d.page_content for d in state["context"])
        if text_of(llm.invoke(f"Grounded?\n{told}\n{text_of(draft)}")) == "grounded":
            return {}
        sorry = AIMessage(answer, id=draft.id)
        return {"messages": [sorry]}

    graph = StateGraph(Answered).add_sequence([rag, check]).add_edge(START, "rag").compile()
    graph.invoke({"messages": [HumanMessage(question)]}, config)
