"""Graphs with states, contexts and policies of every kind; steps around the RAG turn."""

import dataclasses
from typing import Annotated, Any

from langchain_core.documents import Document
from langchain_core.messages import AnyMessage, HumanMessage, SystemMessage
from langgraph.graph import START, StateGraph
from langgraph.graph.message import add_messages
from typing_extensions import TypedDict

from .kit import Config, turn
from .langchain_kit import model, store, text_of

ASPIRIN = "Aspirin: do not take it with anticoagulants; adults take at most 3 g a day."
SYRUP = "Cough syrup: contains alcohol; not for children under six."
CREAM = "Zinc cream: apply thinly twice a day; external use only."
DROPS = "Eye drops: discard four weeks after opening."
SHELF = (ASPIRIN, SYRUP, CREAM, DROPS)


@dataclasses.dataclass
class Ticket:
    """A state as a dataclass."""

    subject: str
    body: str
    references: list[Document] = dataclasses.field(default_factory=list)
    reply: str = ""


@turn(
    "Can my four-year-old have the syrup?",
    (SYRUP,),
    "No, not before the age of six.",
    also=(
        {"question": "Cough syrup: children Can my four-year-old have the syrup?"},
        {"question": "Cough syrup: children\nCan my four-year-old have the syrup?"},
    ),
)
def dataclass_state(config: Config, question: str, answer: str) -> None:
    """LangGraph: a dataclass as the state, subject and body of a ticket."""
    shelf = store(*SHELF).as_retriever(search_kwargs={"k": 1})
    llm = model(answer)

    def attach(state: Ticket) -> dict[str, Any]:
        return {"references": shelf.invoke(f"{state.subject} {state.body}")}

    def reply(state: Ticket) -> dict[str, Any]:
        told = "\n\n".join(d.page_content for d in state.references)
        message = llm.invoke([("system", f"References:\n{told}"), ("human", state.body)])
        return {"reply": message.content}

    graph = StateGraph(Ticket).add_sequence([attach, reply]).add_edge(START, "attach").compile()
    graph.invoke({"subject": "Cough syrup: children", "body": question}, config)


class Ask(TypedDict):
    text: str


class Told(TypedDict):
    reply: str


class Everything(Ask, Told):
    hits: list[str]


class Titled(TypedDict):
    messages: Annotated[list[AnyMessage], add_messages]
    title: str
    intent: str


@turn(
    "Hi, is there alcohol in the syrup?", (SYRUP, CREAM), "Yes, there is.", needs=("python>=3.11",)
)
async def intent_answer_title(config: Config, question: str, answer: str) -> None:
    """LangGraph: intent first, then the answer, then a title for the conversation."""
    llm = model("product_question", answer, "Alcohol in cough syrup")
    shelf = store(SYRUP, CREAM).as_retriever()

    async def classify(state: Titled) -> dict[str, Any]:
        said = await llm.ainvoke([SystemMessage("Name the intent."), *state["messages"]])
        return {"intent": text_of(said)}

    async def respond(state: Titled) -> dict[str, Any]:
        found = await shelf.ainvoke(text_of(state["messages"][-1]))
        told = SystemMessage("Products:\n" + "\n".join(d.page_content for d in found))
        return {"messages": [await llm.ainvoke([told, *state["messages"]])]}

    async def entitle(state: Titled) -> dict[str, Any]:
        talk = "\n".join(f"{m.type}: {text_of(m)}" for m in state["messages"])
        return {"title": text_of(await llm.ainvoke(f"A title of five words for:\n{talk}"))}

    graph = StateGraph(Titled)
    graph.add_sequence([classify, respond, entitle]).add_edge(START, "classify")
    async for _ in graph.compile().astream(
        {"messages": [HumanMessage(question)]}, config, stream_mode="messages"
    ):
        pass


@turn(
    "Do you sell zinc cream?", (CREAM,), "Yes, for external use.", not_on_spans=("openinference",)
)
def own_search_recorded_by_hand(config: Config, question: str, answer: str) -> None:
    """Retrieval by the application's own function, told by `record_retrieval()`."""
    from rag_eval_otel import record_retrieval

    llm = model(answer)

    def search(text: str) -> list[str]:
        found = [page for page in SHELF if any(w in page.lower() for w in ("zinc", "cream"))]
        record_retrieval(text, found)
        return found

    def look(state: Everything) -> dict[str, Any]:
        return {"hits": search(state["text"])}

    def tell(state: Everything) -> dict[str, Any]:
        told = "\n".join(state["hits"])
        return {"reply": text_of(llm.invoke(f"{told}\n\n{state['text']}"))}

    graph = StateGraph(Everything).add_sequence([look, tell]).add_edge(START, "look")
    graph.compile().invoke({"text": question}, config)
