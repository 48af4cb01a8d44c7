"""Graphs with states, contexts and policies of every kind; steps around the RAG turn."""

from __future__ import annotations

import dataclasses
import operator
from typing import Annotated, Any, Literal

from langchain_core.documents import Document
from langchain_core.messages import AnyMessage, HumanMessage, SystemMessage
from langgraph.graph import START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.types import Command, RetryPolicy, Send
from pydantic import BaseModel, Field
from typing_extensions import TypedDict

from .kit import Config, Truth, app
from .langchain_kit import KeywordRetriever, documents, model, store, text_of

ASPIRIN = "Aspirin: do not take it with anticoagulants; adults take at most 3 g a day."
SYRUP = "Cough syrup: contains alcohol; not for children under six."
CREAM = "Zinc cream: apply thinly twice a day; external use only."
DROPS = "Eye drops: discard four weeks after opening."
SHELF = (ASPIRIN, SYRUP, CREAM, DROPS)


class Consultation(BaseModel):
    """A state that validates."""

    patient_question: str
    leaflets: list[str] = Field(default_factory=list)
    advice: str = ""


@app(
    Truth(
        question="How much aspirin may I take with a day?",
        contexts=(ASPIRIN,),
        answer="At most three grams.",
    ),
    page="LangGraph: a Pydantic model as the state",
)
def pydantic_state(config: Config) -> None:
    shelf = store(*SHELF).as_retriever(search_kwargs={"k": 1})
    llm = model("At most three grams.")

    def consult_leaflets(state: Consultation) -> dict[str, Any]:
        return {"leaflets": [d.page_content for d in shelf.invoke(state.patient_question)]}

    def advise(state: Consultation) -> dict[str, Any]:
        told = "\n".join(f"* {leaflet}" for leaflet in state.leaflets)
        return {"advice": text_of(llm.invoke(f"{told}\n\n{state.patient_question}"))}

    graph = StateGraph(Consultation).add_sequence([consult_leaflets, advise])
    graph.add_edge(START, "consult_leaflets").compile().invoke(
        {"patient_question": "How much aspirin may I take with a day?"}, config
    )


@dataclasses.dataclass
class Ticket:
    """A state as a dataclass."""

    subject: str
    body: str
    references: list[Document] = dataclasses.field(default_factory=list)
    reply: str = ""


@app(
    Truth(
        question="Can my four-year-old have the syrup?",
        contexts=(SYRUP,),
        answer="No, not before the age of six.",
        also=(
            {"question": "Cough syrup: children Can my four-year-old have the syrup?"},
            {"question": "Cough syrup: children\nCan my four-year-old have the syrup?"},
        ),
    ),
    page="LangGraph: a dataclass as the state, subject and body of a ticket",
)
def dataclass_state(config: Config) -> None:
    shelf = store(*SHELF).as_retriever(search_kwargs={"k": 1})
    llm = model("No, not before the age of six.")

    def attach(state: Ticket) -> dict[str, Any]:
        return {"references": shelf.invoke(f"{state.subject} {state.body}")}

    def reply(state: Ticket) -> dict[str, Any]:
        told = "\n\n".join(d.page_content for d in state.references)
        message = llm.invoke([("system", f"References:\n{told}"), ("human", state.body)])
        return {"reply": message.content}

    graph = StateGraph(Ticket).add_sequence([attach, reply]).add_edge(START, "attach").compile()
    graph.invoke(
        {"subject": "Cough syrup: children", "body": "Can my four-year-old have the syrup?"}, config
    )


class Ask(TypedDict):
    text: str


class Told(TypedDict):
    reply: str


class Everything(Ask, Told):
    hits: list[str]


@app(
    Truth(
        question="How long do the drops keep?",
        contexts=(DROPS,),
        answer="Four weeks after opening.",
    ),
    page="LangGraph: input and output schemas, a private state between the nodes",
    needs=("python>=3.11",),
)
async def input_and_output_schemas(config: Config) -> None:
    shelf = store(*SHELF).as_retriever(search_kwargs={"k": 1})
    llm = model("Four weeks after opening.")

    async def look(state: Ask) -> dict[str, Any]:
        return {"hits": [d.page_content for d in await shelf.ainvoke(state["text"])]}

    async def tell(state: Everything) -> dict[str, Any]:
        asked = [SystemMessage("\n".join(state["hits"])), HumanMessage(state["text"])]
        return {"reply": text_of(await llm.ainvoke(asked))}

    graph = StateGraph(Everything, input_schema=Ask, output_schema=Told)
    graph.add_sequence([look, tell]).add_edge(START, "look")
    result = await graph.compile().ainvoke({"text": "How long do the drops keep?"}, config)
    assert list(result) == ["reply"]


class Flaky(KeywordRetriever):
    """Fails when it is asked for the first time."""

    failed: list[str] = Field(default_factory=list)

    def _get_relevant_documents(self, query: str, *, run_manager: Any) -> list[Document]:
        if not self.failed:
            self.failed.append(query)
            message = "connection reset"
            raise ConnectionError(message)
        return super()._get_relevant_documents(query, run_manager=run_manager)


@app(
    Truth(
        question="Is zinc cream for external use only?",
        contexts=(CREAM,),
        answer="Yes; apply it thinly.",
    ),
    page="LangGraph: a retry policy on the retrieval node, whose first attempt fails",
)
def retry_policy_on_retrieval(config: Config) -> None:
    flaky = Flaky(documents=documents(*SHELF), k=1)
    llm = model("Yes; apply it thinly.")

    def look(state: Everything) -> dict[str, Any]:
        return {"hits": [d.page_content for d in flaky.invoke(state["text"])]}

    def tell(state: Everything) -> dict[str, Any]:
        return {"reply": text_of(llm.invoke(f"{state['hits'][0]}\n\n{state['text']}"))}

    graph = StateGraph(Everything)
    graph.add_node(look, retry_policy=RetryPolicy(initial_interval=0.01, jitter=False))
    graph.add_node(tell)
    graph.add_edge(START, "look")
    graph.add_edge("look", "tell")
    graph.compile().invoke({"text": "Is zinc cream for external use only?"}, config)


class Hops(TypedDict):
    question: str
    sub_questions: list[str]
    evidence: Annotated[list[Document], operator.add]
    answer: str


OWNER = "The pharmacy at the market belongs to Edda Krohn."
EDDA = "Edda Krohn studied in Greifswald and came to the town in 1998."


@app(
    Truth(
        question="Where did the owner of the pharmacy at the market study?",
        contexts=(OWNER, EDDA),
        answer="In Greifswald.",
    ),
    page="LangGraph: multi-hop retrieval, the next query written from what was found",
)
def multi_hop(config: Config) -> None:
    town = store(OWNER, EDDA, DROPS).as_retriever(search_kwargs={"k": 1})
    llm = model("Where did Edda Krohn study, Greifswald?", "DONE", "In Greifswald.")

    def search(state: Hops) -> dict[str, Any]:
        query = (state.get("sub_questions") or [state["question"]])[-1]
        return {"evidence": town.invoke(query)}

    def think(state: Hops) -> Command[Literal["search", "conclude"]]:
        facts = " ".join(d.page_content for d in state["evidence"])
        said = text_of(llm.invoke(f"Known: {facts}\nNext query for: {state['question']}, or DONE"))
        if said == "DONE":
            return Command(goto="conclude")
        return Command(goto="search", update={"sub_questions": [said]})

    def conclude(state: Hops) -> dict[str, Any]:
        facts = "\n".join(f"{i}. {d.page_content}" for i, d in enumerate(state["evidence"], 1))
        return {"answer": text_of(llm.invoke(f"Facts:\n{facts}\n\nQ: {state['question']}"))}

    graph = StateGraph(Hops)
    for node in (search, think, conclude):
        graph.add_node(node)
    graph.add_edge(START, "search")
    graph.add_edge("search", "think")
    question = "Where did the owner of the pharmacy at the market study?"
    graph.compile().invoke({"question": question}, config)


class Graded(TypedDict):
    question: str
    documents: list[Document]
    relevant: Annotated[list[Document], operator.add]
    generation: str


@app(
    Truth(
        question="What must I not combine with aspirin?",
        contexts=(ASPIRIN,),
        answer="Anticoagulants.",
    ),
    page="LangGraph: documents graded in parallel by Send before the generation",
)
def graded_in_parallel(config: Config) -> None:
    shelf = store(*SHELF).as_retriever(search_kwargs={"k": 3})
    grader = model(
        lambda messages: "yes" if "Aspirin:" in text_of(messages[-1]) else "no",
        model_name="scripted-mini",
    )
    llm = model("Anticoagulants.")

    def retrieve(state: Graded) -> dict[str, Any]:
        return {"documents": shelf.invoke(state["question"])}

    def grade(state: dict[str, Any]) -> dict[str, Any]:
        page = state["document"].page_content
        verdict = grader.invoke(f"Is this on '{state['question']}'? {page}")
        return {"relevant": [state["document"]] if text_of(verdict) == "yes" else []}

    def generate(state: Graded) -> dict[str, Any]:
        told = "\n\n".join(d.page_content for d in state["relevant"])
        message = llm.invoke([SystemMessage(told), HumanMessage(state["question"])])
        return {"generation": message.content}

    def fan_out(state: Graded) -> list[Send]:
        asked = state["question"]
        return [Send("grade", {"document": d, "question": asked}) for d in state["documents"]]

    graph = StateGraph(Graded)
    graph.add_node(retrieve)
    graph.add_node("grade", grade)
    graph.add_node(generate)
    graph.add_edge(START, "retrieve")
    graph.add_conditional_edges("retrieve", fan_out, ["grade"])
    graph.add_edge("grade", "generate")
    graph.compile().invoke({"question": "What must I not combine with aspirin?"}, config)


@app(
    Truth(
        question="Which is thinner, cream or syrup?",
        contexts=(CREAM, SYRUP),
        answer="Cream is applied thinly, syrup is thin.",
    ),
    page="LangGraph: a model as reranker, one score for each document",
)
def reranked_by_a_model(config: Config) -> None:
    shelf = store(SYRUP, CREAM, DROPS).as_retriever(search_kwargs={"k": 3})
    scores = {"Zinc cream": "9", "Cough syrup": "7", "Eye drops": "1"}
    ranker = model({f"passage: {cue}": score for cue, score in scores.items()})
    llm = model("Cream is applied thinly, syrup is thin.")

    def retrieve(state: Graded) -> dict[str, Any]:
        return {"documents": shelf.invoke(state["question"])}

    def rerank(state: Graded) -> dict[str, Any]:
        asked = [f"0 to 10, passage: {d.page_content}" for d in state["documents"]]
        rated = [int(text_of(m)) for m in ranker.batch(asked)]
        pairs = sorted(zip(rated, state["documents"], strict=True), key=lambda pair: -pair[0])
        return {"relevant": [d for _, d in pairs[:2]]}

    def generate(state: Graded) -> dict[str, Any]:
        told = "\n\n".join(d.page_content for d in state["relevant"])
        message = llm.invoke([SystemMessage(told), HumanMessage(state["question"])])
        return {"generation": message.content}

    graph = StateGraph(Graded).add_sequence([retrieve, rerank, generate])
    graph.add_edge(START, "retrieve").compile().invoke(
        {"question": "Which is thinner, cream or syrup?"}, config
    )


class Titled(TypedDict):
    messages: Annotated[list[AnyMessage], add_messages]
    title: str
    intent: str


@app(
    Truth(
        question="Hi, is there alcohol in the syrup?",
        contexts=(SYRUP, CREAM),
        answer="Yes, there is.",
    ),
    page="LangGraph: intent first, then the answer, then a title for the conversation",
    needs=("python>=3.11",),
)
async def intent_answer_title(config: Config) -> None:
    llm = model("product_question", "Yes, there is.", "Alcohol in cough syrup")
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
        {"messages": [HumanMessage("Hi, is there alcohol in the syrup?")]},
        config,
        stream_mode="messages",
    ):
        pass


@app(
    Truth(
        question="What is on the shelf of the east branch?",
        contexts=("East: three boxes of gauze.",),
        answer="Three boxes of gauze.",
    ),
    page="LangGraph: runtime context chooses the user's collection",
    needs=("langgraph>=0.6",),
)
def runtime_context_chooses_collection(config: Config) -> None:
    from langgraph.runtime import Runtime

    @dataclasses.dataclass
    class Branch:
        name: str

    collections = {
        "east": store("East: three boxes of gauze."),
        "west": store("West: two crutches."),
    }
    llm = model("Three boxes of gauze.")

    def look(state: Everything, runtime: Runtime[Branch]) -> dict[str, Any]:
        retriever = collections[runtime.context.name].as_retriever()
        return {"hits": [d.page_content for d in retriever.invoke(state["text"])]}

    def tell(state: Everything) -> dict[str, Any]:
        return {"reply": text_of(llm.invoke(f"{state['hits'][0]}\n\n{state['text']}"))}

    look.__annotations__["runtime"] = Runtime[Branch]
    graph = StateGraph(Everything, context_schema=Branch).add_sequence([look, tell])
    graph.add_edge(START, "look").compile().invoke(
        {"text": "What is on the shelf of the east branch?"}, config, context=Branch("east")
    )


@app(
    Truth(
        question="Do you sell zinc cream?",
        contexts=(CREAM,),
        answer="Yes, for external use.",
    ),
    page="Retrieval by the application's own function, told by `record_retrieval()`",
    not_on_spans=("openinference",),
)
def own_search_recorded_by_hand(config: Config) -> None:
    from rag_eval_otel import record_retrieval

    llm = model("Yes, for external use.")

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
    graph.compile().invoke({"text": "Do you sell zinc cream?"}, config)
