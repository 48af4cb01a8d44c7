"""Graphs of RAG: the published ones, flows, and states of many forms."""

import dataclasses
import operator
from typing import Annotated, Any, Literal

from langchain_core.documents import Document
from langchain_core.messages import AnyMessage, HumanMessage, SystemMessage
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.tools import tool
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.types import Send
from pydantic import BaseModel, Field
from typing_extensions import TypedDict

from .kit import Config, turn
from .langchain_kit import in_a_row, joined, lcel, lines, model, retriever, text_of

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
    rules = retriever(*HOUSE, k=1)

    def split(state: Inquiry) -> dict[str, Any]:
        return {"parts": text_of(llm.invoke(f"Split: {state['inquiry']}")).splitlines()}

    def fan_out(state: Inquiry) -> list[Send]:
        return [Send("search", {"part": part}) for part in state["parts"]]

    def search(state: Part) -> dict[str, Any]:
        return {"found": rules.invoke(state["part"])}

    def write(state: Inquiry) -> dict[str, Any]:
        told = "\n".join(f"§ {i} {d.page_content}" for i, d in enumerate(state["found"], 1))
        return {"letter": text_of(llm.invoke(f"Write to {state['inquiry']}\n{told}"))}

    graph = StateGraph(Inquiry).add_node(split).add_node(search).add_node(write)
    graph.add_edge(START, "split").add_conditional_edges("split", fan_out, ["search"])
    graph.add_edge("search", "write").compile().invoke({"inquiry": question}, config)


class Live(TypedDict):
    user_msg: str
    kb: list[str]
    bot_msg: str


@turn(
    "Who needs a permission?", (PETS,), "Owners of dogs.", needs=("langgraph>=1.2", "python>=3.11")
)
async def events_of_version_3(config: Config, question: str, answer: str) -> None:
    """LangGraph: `astream_events` of version 3, where a message is a list of blocks."""
    rules, llm = retriever(*HOUSE, k=1), model(answer)

    def search(state: Live) -> dict[str, Any]:
        return {
            "kb": [d.page_content for d in rules.invoke(f"{state['user_msg']} permission dogs")]
        }

    def respond(state: Live) -> dict[str, Any]:
        return {"bot_msg": text_of(llm.invoke(f"{state['kb'][0]}\n{state['user_msg']}"))}

    graph = in_a_row(Live, search, respond)
    async for _ in await graph.astream_events({"user_msg": question}, config, version="v3"):
        pass


class GradeDocuments(BaseModel):
    """Grade documents using a binary score for relevance."""

    binary_score: str = Field(description="'yes' if relevant, or 'no' if not")


SHORT = "Short-term memory of an agent is what stands in the context window of the model."
LONG = "Long-term memory of an agent is kept in an external store and can be recalled at any time."
MATTRESS = "The memory foam mattress of our test was rated good by nine of ten sleepers."
WEB = "A survey of 2025 lists episodic, semantic and procedural memory of agents."
KINDS = "What are the types of agent memory?"
KINDS_ANSWER = "Agents have short-term memory in the context and long-term memory in a store."


class CragState(TypedDict):
    question: str
    generation: str
    web_search: str
    documents: list[Document]


def corrective_graph(llm: Any, web: Any) -> Any:
    pages = retriever(SHORT, LONG, MATTRESS)
    grade_prompt = ChatPromptTemplate.from_messages(
        [
            ("system", "You grade the relevance of a retrieved document to a user question."),
            ("human", "Retrieved document: \n\n {document} \n\n User question: {question}"),
        ]
    )
    as_json = llm.with_structured_output(GradeDocuments, method="json_schema")
    retrieval_grader = grade_prompt | as_json
    rag_chain = lcel("Question: {question} \nContext: {context} \nAnswer:", llm)
    rewrite_prompt = ChatPromptTemplate.from_messages(
        [("system", "You rewrite questions for web search."), ("human", "Initial: {question}")]
    )
    question_rewriter = rewrite_prompt | llm | StrOutputParser()

    def retrieve(state: CragState) -> dict[str, Any]:
        return {"documents": pages.invoke(state["question"]), "question": state["question"]}

    def grade_documents(state: CragState) -> dict[str, Any]:
        filtered_docs, web_search = [], "No"
        for d in state["documents"]:
            shown = {"question": state["question"], "document": d.page_content}
            if retrieval_grader.invoke(shown).binary_score == "yes":
                filtered_docs.append(d)
            else:
                web_search = "Yes"
        return {"documents": filtered_docs, "web_search": web_search}

    def transform_query(state: CragState) -> dict[str, Any]:
        return {"question": question_rewriter.invoke({"question": state["question"]})}

    def web_search(state: CragState) -> dict[str, Any]:
        results = web.invoke({"query": state["question"]})
        found = Document(page_content="\n".join(d["content"] for d in results))
        return {"documents": [*state["documents"], found]}

    def generate(state: CragState) -> dict[str, Any]:
        shown = {"context": state["documents"], "question": state["question"]}
        return {"generation": rag_chain.invoke(shown)}

    def decide_to_generate(state: CragState) -> str:
        return "transform_query" if state["web_search"] == "Yes" else "generate"

    workflow = StateGraph(CragState)
    for node in (retrieve, grade_documents, generate, transform_query):
        workflow.add_node(node)
    workflow.add_node("web_search_node", web_search)
    workflow.add_edge(START, "retrieve").add_edge("retrieve", "grade_documents")
    workflow.add_conditional_edges("grade_documents", decide_to_generate)
    workflow.add_edge("transform_query", "web_search_node").add_edge("web_search_node", "generate")
    return workflow.compile()


@tool
def web_search_tool(query: str) -> list[dict[str, str]]:
    """Search the web."""
    return [{"url": "https://news.example.com/agents", "content": WEB}]


def crag_model(answer: str, *irrelevant: str) -> Any:
    def reply(messages: list[AnyMessage]) -> Any:
        last = text_of(messages[-1])
        if last.startswith("Retrieved document"):
            return {"binary_score": "no" if any(cue in last for cue in irrelevant) else "yes"}
        return "kinds of memory in LLM agents, survey" if last.startswith("Initial") else answer

    return model(reply)


@turn(KINDS, (SHORT, LONG, MATTRESS), KINDS_ANSWER)
def corrective_rag(config: Config, question: str, answer: str) -> None:
    """LangGraph example: corrective RAG, all documents relevant, documents passed as they are."""
    graph = corrective_graph(crag_model(answer), web_search_tool)
    for output in graph.stream({"question": question}, config):
        assert output


@turn(KINDS, (SHORT, LONG, WEB), "Short-term, long-term and, by a survey, episodic memory.")
def corrective_rag_with_web_search(config: Config, question: str, answer: str) -> None:
    """LangGraph example: corrective RAG with a web search after grading."""
    llm = crag_model(answer, "mattress")
    corrective_graph(llm, web_search_tool).invoke({"question": question}, config)


class RouteQuery(BaseModel):
    """Route a user query to the most relevant datasource."""

    datasource: Literal["vectorstore", "web_search"]


class AdaptiveState(TypedDict):
    question: str
    generation: str
    documents: list[str]


LEAK = "If the tap leaks, close the main valve under the sink and renew the washer, size 15."
DRAIN = "A blocked drain is cleared with the spring in drawer 3; never use acid in old pipes."
FORECAST = "Tomorrow: sunny, 24 degrees, light wind from the west."


def adaptive_graph(llm: Any) -> Any:
    handbook = retriever(LEAK, DRAIN, k=1)
    router = llm.with_structured_output(RouteQuery)
    grader = llm.with_structured_output(GradeDocuments)

    async def route_question(state: AdaptiveState) -> str:
        return (await router.ainvoke(f"ROUTE this question: {state['question']}")).datasource

    async def web_search(state: AdaptiveState) -> dict[str, Any]:
        return {"documents": [FORECAST]}

    async def retrieve(state: AdaptiveState) -> dict[str, Any]:
        found = await handbook.ainvoke(state["question"])
        return {"documents": [d.page_content for d in found]}

    async def generate(state: AdaptiveState) -> dict[str, Any]:
        facts = "\n\n".join(state["documents"])
        reply = await llm.ainvoke(f"FACTS:\n{facts}\n\nANSWER this: {state['question']}")
        return {"generation": reply.content}

    async def grade_generation(state: AdaptiveState) -> str:
        facts, generation = "\n\n".join(state["documents"]), state["generation"]
        grounded = await grader.ainvoke(f"GROUNDED? Facts: {facts}\nGeneration: {generation}")
        if grounded.binary_score != "yes":
            return "not supported"
        useful = await grader.ainvoke(f"USEFUL? {state['question']}\nGeneration: {generation}")
        return "useful" if useful.binary_score == "yes" else "not useful"

    workflow = StateGraph(AdaptiveState)
    for node in (web_search, retrieve, generate):
        workflow.add_node(node)
    sources = {"web_search": "web_search", "vectorstore": "retrieve"}
    workflow.add_conditional_edges(START, route_question, sources)
    workflow.add_edge("web_search", "generate").add_edge("retrieve", "generate")
    after = {"not supported": "generate", "useful": END, "not useful": END}
    workflow.add_conditional_edges("generate", grade_generation, after)
    return workflow.compile()


@turn("The tap drips. What now?", (LEAK,), "Close the main valve.", needs=("python>=3.11",))
async def adaptive_rag(config: Config, question: str, answer: str) -> None:
    """LangGraph example: adaptive RAG, routed to the vector store, generation graded."""
    grades = [{"binary_score": "yes"}] * 2
    graph = adaptive_graph(model({"datasource": "vectorstore"}, answer, *grades))
    await graph.ainvoke({"question": question}, config)


FASTING = "Do not eat for six hours before the blood is drawn; water is allowed, coffee is not."
RESULT = "Results are in the portal after two working days; urgent ones are phoned through."
INSURED = "Bring your insurance card and the referral of your doctor."


class SelfState(TypedDict):
    question: str
    docs: Annotated[list[str], operator.add]
    kept: list[str]
    draft: str
    tries: int


def self_graph(llm: Any) -> Any:
    leaflet = retriever(FASTING, RESULT, INSURED, k=2)

    def look_up(state: SelfState) -> dict[str, Any]:
        hits = [d.page_content for d in leaflet.invoke(state["question"])]
        return {"docs": hits, "kept": hits, "tries": state.get("tries", 0) + 1}

    def sift(state: SelfState) -> dict[str, Any]:
        asked = [f"relevant to '{state['question']}'? {d}" for d in state["kept"]]
        said = [text_of(m) for m in llm.batch(asked)]
        pairs = zip(state["kept"], said, strict=True)
        return {"kept": [d for d, word in pairs if word.startswith("relevant")]}

    def write(state: SelfState) -> dict[str, Any]:
        leaflet_text = "\n* ".join(["Leaflet:", *state["kept"]])
        return {"draft": llm.invoke(f"{leaflet_text}\n\nPatient: {state['question']}").content}

    def critique(state: SelfState) -> str:
        said = llm.invoke(f"Does this draft answer the patient? {state['draft']}").content
        return END if said == "it does" else "rephrase"

    def rephrase(state: SelfState) -> dict[str, Any]:
        return {"question": llm.invoke(f"Rephrase: {state['question']}").content}

    flow = StateGraph(SelfState).add_sequence([look_up, sift, write]).add_node(rephrase)
    flow.add_edge(START, "look_up")
    flow.add_conditional_edges("sift", lambda s: "write" if s["kept"] else "rephrase")
    flow.add_conditional_edges("write", critique, [END, "rephrase"])
    flow.add_edge("rephrase", "look_up")
    return flow.compile()


@turn("When will I know?", (RESULT,), "After two working days, in the portal.")
def self_rag_rephrased(config: Config, question: str, answer: str) -> None:
    """LangGraph example: self-RAG, nothing relevant found at first, question rephrased."""
    replies = {
        "Rephrase:": "After how many working days are results in the portal?",
        "portal?'? Results": "relevant, it says how long",
        "relevant to": "off the point",
        "Does this draft": "it does",
        "Patient:": answer,
    }
    self_graph(model(replies)).invoke({"question": question}, config)


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


SUBJECT = "Cough syrup: children"


@turn(
    "Can my four-year-old have the syrup?",
    (SYRUP,),
    "No, not before the age of six.",
    also=tuple(
        {"question": f"{SUBJECT}{space}Can my four-year-old have the syrup?"} for space in " \n"
    ),
)
def dataclass_state(config: Config, question: str, answer: str) -> None:
    """LangGraph: a dataclass as the state, subject and body of a ticket."""
    shelf, llm = retriever(*SHELF, k=1), model(answer)

    def attach(state: Ticket) -> dict[str, Any]:
        return {"references": shelf.invoke(f"{state.subject} {state.body}")}

    def reply(state: Ticket) -> dict[str, Any]:
        shown = [("system", f"References:\n{joined(state.references)}"), ("human", state.body)]
        return {"reply": llm.invoke(shown).content}

    in_a_row(Ticket, attach, reply).invoke({"subject": SUBJECT, "body": question}, config)


class Everything(TypedDict):
    text: str
    hits: list[str]
    reply: str


class Titled(TypedDict):
    messages: Annotated[list[AnyMessage], add_messages]
    title: str
    intent: str


@turn("Is there alcohol in the syrup?", (SYRUP, CREAM), "Yes, there is.", needs=("python>=3.11",))
async def intent_answer_title(config: Config, question: str, answer: str) -> None:
    """LangGraph: intent first, then the answer, then a title for the conversation."""
    llm = model("product_question", answer, "Alcohol in cough syrup")
    shelf = retriever(SYRUP, CREAM)

    async def classify(state: Titled) -> dict[str, Any]:
        said = await llm.ainvoke([SystemMessage("Name the intent."), *state["messages"]])
        return {"intent": text_of(said)}

    async def respond(state: Titled) -> dict[str, Any]:
        found = await shelf.ainvoke(text_of(state["messages"][-1]))
        told = SystemMessage(f"Products:\n{lines(found)}")
        return {"messages": [await llm.ainvoke([told, *state["messages"]])]}

    async def entitle(state: Titled) -> dict[str, Any]:
        talk = "\n".join(f"{m.type}: {text_of(m)}" for m in state["messages"])
        return {"title": text_of(await llm.ainvoke(f"A title of five words for:\n{talk}"))}

    graph, asked = in_a_row(Titled, classify, respond, entitle), HumanMessage(question)
    async for _ in graph.astream({"messages": [asked]}, config, stream_mode="messages"):
        pass


@turn("Do you sell zinc cream?", (CREAM,), "Yes, to rub in.", not_on_spans=("openinference",))
def own_search_recorded_by_hand(config: Config, question: str, answer: str) -> None:
    """Retrieval by the application's own function, told by `record_retrieval()`."""
    from rag_eval_otel import record_retrieval

    llm = model(answer)

    def look(state: Everything) -> dict[str, Any]:
        found = [page for page in SHELF if any(w in page.lower() for w in ("zinc", "cream"))]
        record_retrieval(state["text"], found)
        return {"hits": found}

    def tell(state: Everything) -> dict[str, Any]:
        told = "\n".join(state["hits"])
        return {"reply": text_of(llm.invoke(f"{told}\n\n{state['text']}"))}

    in_a_row(Everything, look, tell).invoke({"text": question}, config)
