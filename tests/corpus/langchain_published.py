"""Shapes of programs that people publish: calls without a chain around them, and odd prompts."""

from collections.abc import Sequence
from typing import Any

from langchain_core.documents import Document
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import RunnablePassthrough, chain
from langchain_core.tools import tool
from opentelemetry import trace
from pydantic import BaseModel
from typing_extensions import TypedDict

from .kit import NOWHERE, Config, app, turn
from .langchain_kit import ask_agent, call, classic, in_a_row, joined, lcel, model, retriever

BEE = "A honey bee visits up to a hundred flowers on one flight from the hive."
WAX = "Worker bees make wax in glands below the abdomen, and build the comb from it."
DANCE = "By a dance on the comb, a bee tells the others how far away the flowers are."
HIVE = (BEE, WAX, DANCE)
ASKED = "How many flowers does a bee visit on a flight?"
SAID = "Up to a hundred flowers on one flight."
TEMPLATE = "Answer from the context.\n\nContext:\n{context}\n\nQuestion: {question}"


class Answer(BaseModel):
    """The answer to a question."""

    answer_based_on_content: str


class Grade(BaseModel):
    """Whether a document helps."""

    binary_score: str


def found(config: Config, question: str = ASKED, k: int = 2) -> list[Document]:
    return retriever(*HIVE, k=k).invoke(question, config)


TWO = (BEE, DANCE)


@turn(ASKED, TWO, SAID, not_on_spans=NOWHERE - {"callback"})
def retriever_then_chain(config: Config, question: str, answer: str) -> None:
    docs = found(config)
    shown = {"context": joined(docs), "question": question}
    lcel(TEMPLATE, model(answer)).invoke(shown, config)


@turn(ASKED, TWO, SAID, not_on_spans=NOWHERE - {"callback"})
def retriever_then_chain_with_documents(config: Config, question: str, answer: str) -> None:
    docs = found(config)
    combine = classic("chains.combine_documents")
    prompt = ChatPromptTemplate.from_template(TEMPLATE)
    combine.create_stuff_documents_chain(model(answer), prompt).invoke(
        {"context": docs, "question": question}, config
    )


@turn(ASKED, TWO, SAID, not_on_spans=NOWHERE - {"callback"})
def retriever_then_model(config: Config, question: str, answer: str) -> None:
    docs = found(config)
    prompt = f"Use the notes to answer.\n\n{joined(docs)}\n\nQuestion: {question}"
    model(answer).invoke(prompt, config)


@turn(ASKED, TWO, SAID, not_on_spans=NOWHERE - {"callback"})
async def asynchronous_retriever_then_chain(config: Config, question: str, answer: str) -> None:
    docs = await retriever(*HIVE, k=2).ainvoke(question, config)
    shown = {"context": joined(docs), "question": question}
    await lcel(TEMPLATE, model(answer)).ainvoke(shown, config)


@turn(ASKED, TWO, SAID, not_on_spans=NOWHERE - {"callback"})
def retriever_then_structured_answer(config: Config, question: str, answer: str) -> None:
    """A collection of RAG techniques: helper functions for retrieval and for the answer."""
    context = [doc.page_content for doc in found(config)]
    prompt = ChatPromptTemplate.from_template(TEMPLATE)
    llm = model(Answer(answer_based_on_content=answer)).with_structured_output(Answer)
    (prompt | llm).invoke({"question": question, "context": context}, config)


@turn(ASKED, TWO, SAID, not_on_spans=NOWHERE - {"callback"})
def graded_before_and_after(config: Config, question: str, answer: str) -> None:
    """Reliable RAG: each document is graded, then the answer."""
    llm = model(*[Grade(binary_score="yes")] * 2)
    grader = ChatPromptTemplate.from_template("{d}\n\nQ: {q}") | llm.with_structured_output(Grade)
    docs = found(config)
    for doc in docs:
        grader.invoke({"d": doc.page_content, "q": question}, config)
    shown = {"context": joined(docs), "question": question}
    lcel(TEMPLATE, model(answer)).invoke(shown, config)
    check = ChatPromptTemplate.from_template("Facts: {f}\n\nAnswer: {a}")
    check |= model(Grade(binary_score="yes")).with_structured_output(Grade)
    check.invoke({"f": joined(docs), "a": answer}, config)


@app()
def retriever_alone(config: Config) -> None:
    found(config)


@app()
def one_draft_for_each_document(config: Config) -> None:
    for doc in found(config):
        shown = {"context": doc.page_content, "question": ASKED}
        lcel(TEMPLATE, model(SAID + doc.page_content[:9])).invoke(shown, config)


@app()
def documents_summed_up_before_the_answer(config: Config) -> None:
    docs = found(config)
    note = "Bees fly far, visit up to a hundred flowers and dance about it."
    lcel("Sum up for {question}:\n{context}", model(note)).invoke(
        {"context": joined(docs), "question": ASKED}, config
    )
    lcel(TEMPLATE, model(SAID)).invoke({"context": note, "question": ASKED}, config)


@app()
def graded_at_length_after_the_answer(config: Config) -> None:
    docs = found(config)
    note = "The answer is faithful to the documents, and gives the number that they state."
    lcel("Judge.\n{context}\nQ: {question}\nA: {answer}", model(note)).invoke(
        {"context": joined(docs), "question": ASKED, "answer": SAID}, config
    )


@app()
def other_documents_shown_too(config: Config) -> None:
    found(config)
    other = "Bumble bees fly at lower temperatures than honey bees do."
    shown = {"context": f"{BEE}\n\n{other}", "question": ASKED}
    lcel(TEMPLATE, model(SAID)).invoke(shown, config)


@app()
def other_documents_shown_to_a_model(config: Config) -> None:
    found(config)
    other = "Bumble bees fly at lower temperatures than honey bees do."
    model(SAID).invoke(f"Use the notes.\n\n{BEE}\n\n{DANCE}\n\n{other}\n\nQ: {ASKED}", config)


# --- W3, verdict steps, handoffs ---


@turn(ASKED, TWO, SAID)
def structured_answer_under_a_function(config: Config, question: str, answer: str) -> None:
    llm = model(Answer(answer_based_on_content=answer)).with_structured_output(Answer)
    finder = retriever(*HIVE, k=2)

    @chain
    def ask(question: str) -> str:
        docs = finder.invoke(question)
        prompt = ChatPromptTemplate.from_template(TEMPLATE)
        return (prompt | llm).invoke({"question": question, "context": joined(docs)})

    ask.invoke(question, config)


@turn(ASKED, TWO, SAID)
def structured_answer_under_a_span(config: Config, question: str, answer: str) -> None:
    with trace.get_tracer("app").start_as_current_span("ask"):
        retriever_then_structured_answer(config)


class State(TypedDict):
    messages: list[Any]


@turn(ASKED, TWO, SAID)
def node_returns_a_text(config: Config, question: str, answer: str) -> None:
    """A `generate` node that returns a str, which becomes a human message."""
    from langgraph.graph import END, START, MessagesState, StateGraph

    finder, llm = retriever(*HIVE, k=2), model(answer)

    def retrieve(state: Any) -> Any:
        docs = finder.invoke(state["messages"][0].content)
        return {"messages": [AIMessage(joined(docs))]}

    def generate(state: Any) -> Any:
        shown = {"context": state["messages"][-1].content, "question": state["messages"][0].content}
        return {"messages": [lcel(TEMPLATE, llm).invoke(shown)]}

    graph = StateGraph(MessagesState)
    graph.add_node("retrieve", retrieve)
    graph.add_node("generate", generate)
    graph.add_edge(START, "retrieve")
    graph.add_edge("retrieve", "generate")
    graph.add_edge("generate", END)
    graph.compile().invoke({"messages": [HumanMessage(question)]}, config)


@turn(ASKED, TWO, SAID)
def last_call_grades(config: Config, question: str, answer: str) -> None:
    finder = retriever(*HIVE, k=2)

    class Row(TypedDict):
        question: str
        context: str
        generation: str
        grade: str

    def retrieve(state: Row) -> Any:
        return {"context": joined(finder.invoke(state["question"]))}

    def generate(state: Row) -> Any:
        return {
            "generation": lcel(TEMPLATE, model(answer)).invoke(
                {"context": state["context"], "question": state["question"]}
            )
        }

    def check(state: Row) -> Any:
        check = ChatPromptTemplate.from_template("Facts: {context}\n\nAnswer: {generation}")
        check |= model(Grade(binary_score="yes")).with_structured_output(Grade)
        return {"grade": check.invoke(state).binary_score}

    in_a_row(Row, retrieve, generate, check).invoke({"question": question}, config)


@turn(ASKED, TWO, SAID)
def last_call_grades_under_a_function(config: Config, question: str, answer: str) -> None:
    finder = retriever(*HIVE, k=2)

    @chain
    def ask(question: str) -> str:
        docs = joined(finder.invoke(question))
        said = lcel(TEMPLATE, model(answer)).invoke({"context": docs, "question": question})
        check = ChatPromptTemplate.from_template("Facts: {f}\n\nAnswer: {a}")
        check |= model(Grade(binary_score="yes")).with_structured_output(Grade)
        return {"verdict": check.invoke({"f": docs, "a": said}).binary_score}

    ask.invoke(question, config)


@turn(ASKED, TWO, SAID)
def last_call_grades_under_a_span(config: Config, question: str, answer: str) -> None:
    with trace.get_tracer("app").start_as_current_span("ask"):
        graded_before_and_after(config)


@turn(ASKED, TWO, SAID, not_on_spans=NOWHERE - {"callback"})
def handed_off(config: Config, question: str, answer: str) -> None:
    """A triage agent hands off, and the specialist searches."""
    from langgraph.graph import START, MessagesState, StateGraph

    finder = retriever(*HIVE, k=2)

    @tool
    def transfer_to_beekeeper() -> str:
        """Transfer to the bee keeper."""
        return "Transferred to the bee keeper."

    @tool
    def search_hive(query: str) -> str:
        """Search notes."""
        return joined(finder.invoke(query))

    from .langchain_kit import create_agent

    specialist = create_agent(model(call("search_hive", query=question), answer), [search_hive])

    def triage(state: Any) -> Any:
        from langchain_core.messages import ToolMessage

        said = (
            model(call("transfer_to_beekeeper"))
            .bind_tools([transfer_to_beekeeper])
            .invoke(state["messages"])
        )
        done = ToolMessage(
            "Transferred to the bee keeper.",
            tool_call_id=said.tool_calls[0]["id"],
            name="transfer_to_beekeeper",
        )
        return {"messages": [said, done]}

    graph = StateGraph(MessagesState).add_node("triage", triage).add_node("bees", specialist)
    graph = graph.add_edge(START, "triage").add_edge("triage", "bees")
    graph.compile().invoke({"messages": [HumanMessage(question)]}, config)


# --- shown text by coverage ---


@turn(ASKED, TWO, SAID)
def sources_with_prefix(config: Config, question: str, answer: str) -> None:
    """Each document with "Source 1:" before it."""

    def numbered(docs: Sequence[Document]) -> str:
        return "\n\n".join(f"Source {n}: {d.page_content}" for n, d in enumerate(docs, 1))

    chained = {"context": retriever(*HIVE, k=2) | numbered, "question": RunnablePassthrough()}
    (chained | lcel(TEMPLATE, model(answer))).invoke(question, config)


@turn(ASKED, (f"{BEE}\n{DANCE}",), SAID, also=({"contexts": TWO},))
def joined_web_results(config: Config, question: str, answer: str) -> None:
    """Corrective RAG: web results are joined into one document."""
    finder = retriever(*HIVE, k=2)

    class Row(TypedDict):
        question: str
        documents: list[Document]
        generation: str

    @tool
    def web_search(query: str) -> list[dict[str, str]]:
        """Search the web."""
        return [
            {"url": "https://example.org/1", "content": BEE},
            {"url": "https://example.org/2", "content": DANCE},
        ]

    def retrieve(state: Row) -> Any:
        return {"documents": finder.invoke("wax")}

    def web(state: Row) -> Any:
        got = web_search.invoke({"query": state["question"]})
        return {"documents": [Document("\n".join(d["content"] for d in got))]}

    def generate(state: Row) -> Any:
        return {
            "generation": lcel(TEMPLATE, model(answer)).invoke(
                {"context": joined(state["documents"]), "question": state["question"]}
            )
        }

    in_a_row(Row, retrieve, web, generate).invoke({"question": question}, config)


@turn(
    ASKED,
    (f"{BEE} {WAX}", DANCE),
    SAID,
    also=({"contexts": (f"{BEE} {WAX}", DANCE)},),
    not_on_spans=NOWHERE,
)
def sentence_windows(config: Config, question: str, answer: str) -> None:
    """Windows around the hits are joined from neighbours that the store has."""

    def widened(docs: Sequence[Document]) -> str:
        return "\n\n".join(
            f"{BEE} {WAX}" if d.page_content == BEE else d.page_content for d in docs
        )

    chained = {"context": retriever(*HIVE, k=2) | widened, "question": RunnablePassthrough()}
    (chained | lcel(TEMPLATE, model(answer))).invoke(question, config)


@app()
def classifier_alone(config: Config) -> None:
    llm = model(Grade(binary_score="yes")).with_structured_output(Grade)
    (ChatPromptTemplate.from_template("Is it on bees? {q}") | llm).invoke({"q": ASKED}, config)


@app()
def compressing_retriever_alone(config: Config) -> None:
    """A compression retriever with a model inside, alone."""
    from langchain_core.retrievers import BaseRetriever

    inner, llm = (
        retriever(*HIVE, k=2),
        model("A bee visits up to a hundred flowers.", "Dances tell it."),
    )

    class Compressing(BaseRetriever):
        def _get_relevant_documents(self, query: str, *, run_manager: Any) -> list[Document]:
            docs = inner.invoke(query, {"callbacks": run_manager.get_child()})
            prompt = (
                ChatPromptTemplate.from_template("Extract for {q}:\n{d}") | llm | StrOutputParser()
            )
            return [
                Document(
                    prompt.invoke(
                        {"q": query, "d": d.page_content}, {"callbacks": run_manager.get_child()}
                    )
                )
                for d in docs
            ]

    Compressing().invoke(ASKED, config)


@turn(ASKED, TWO, SAID)
def documents_into_a_template(config: Config, question: str, answer: str) -> None:
    """Raw documents go into a prompt, in a function around retriever and chain."""
    finder, llm = retriever(*HIVE, k=2), model(answer)

    @chain
    def ask(asked: dict[str, str]) -> dict[str, Any]:
        docs = finder.invoke(asked["question"])
        said = lcel(TEMPLATE, llm).invoke({"context": docs, "question": asked["question"]})
        return {"result": said, "sources": [d.metadata for d in docs]}

    ask.invoke({"question": question}, config)


@turn(ASKED, TWO, SAID)
def agent_of_functions_with_two_engines(config: Config, question: str, answer: str) -> None:
    """Two chains with retrievers as tools of an agent."""
    inner = {"context": retriever(*HIVE, k=2) | joined, "question": RunnablePassthrough()}

    @tool
    def bees(query: str) -> str:
        """Answer questions on bees."""
        return (inner | lcel(TEMPLATE, model("A hundred flowers on a flight."))).invoke(query)

    @tool
    def wasps(query: str) -> str:
        """Answer questions on wasps."""
        return (inner | lcel(TEMPLATE, model("Wasps visit fewer flowers than bees."))).invoke(query)

    ask_agent(
        config,
        question,
        [bees, wasps],
        call("bees", query=question),
        call("wasps", query="wasps fly how far?"),
        answer,
    )
