"""Shapes of programs that people publish: calls without a chain around them, and odd prompts."""

from collections.abc import Sequence
from typing import Any

from langchain_core.documents import Document
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import RunnablePassthrough, chain
from langchain_core.tools import tool
from pydantic import BaseModel
from typing_extensions import TypedDict

from .kit import SPANS, Config, app, turn
from .langchain_kit import classic, in_a_row, joined, lcel, model, retriever

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


@turn(ASKED, TWO, SAID, not_on_spans=SPANS)
def retriever_then_chain(config: Config, question: str, answer: str) -> None:
    docs = found(config)
    shown = {"context": joined(docs), "question": question}
    lcel(TEMPLATE, model(answer)).invoke(shown, config)


@turn(ASKED, TWO, SAID, not_on_spans=SPANS)
def retriever_then_chain_with_documents(config: Config, question: str, answer: str) -> None:
    docs = found(config)
    combine = classic("chains.combine_documents")
    prompt = ChatPromptTemplate.from_template(TEMPLATE)
    combine.create_stuff_documents_chain(model(answer), prompt).invoke(
        {"context": docs, "question": question}, config
    )


@turn(ASKED, TWO, SAID, not_on_spans=SPANS)
def retriever_then_structured_answer(config: Config, question: str, answer: str) -> None:
    """A collection of RAG techniques: helper functions for retrieval and for the answer."""
    context = [doc.page_content for doc in found(config)]
    prompt = ChatPromptTemplate.from_template(TEMPLATE)
    llm = model(Answer(answer_based_on_content=answer)).with_structured_output(Answer)
    (prompt | llm).invoke({"question": question, "context": context}, config)


@turn(ASKED, TWO, SAID, not_on_spans=SPANS)
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
def documents_summed_up_before_the_answer(config: Config) -> None:
    docs = found(config)
    note = "Bees fly far, visit up to a hundred flowers and dance about it."
    lcel("Sum up for {question}:\n{context}", model(note)).invoke(
        {"context": joined(docs), "question": ASKED}, config
    )
    lcel(TEMPLATE, model(SAID)).invoke({"context": note, "question": ASKED}, config)


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


@app()
def sentence_windows(config: Config) -> None:
    """Windows around the hits are joined from neighbours that the store has."""

    def widened(docs: Sequence[Document]) -> str:
        return "\n\n".join(
            f"{BEE} {WAX}" if d.page_content == BEE else d.page_content for d in docs
        )

    chained = {"context": retriever(*HIVE, k=2) | widened, "question": RunnablePassthrough()}
    (chained | lcel(TEMPLATE, model(SAID))).invoke(ASKED, config)


class Row(TypedDict):
    question: str
    facts: list[str] | str
    docs: str
    answer: str


def searched_by_a_node(config: Config, facts: Any, *, is_given: bool = False) -> None:
    """Recipes: a node calls a search of its own, and the next shows the texts that it returned."""

    def retrieve(_: Row) -> Any:
        return {"facts": facts}

    def generate(state: Row) -> Any:
        found = state["facts"]
        shown = found if isinstance(found, str) else "\n".join(found)
        chain = lcel(TEMPLATE, model(SAID))
        return {"answer": chain.invoke({"context": shown, "question": state["question"]})}

    graph = in_a_row(Row, *([] if is_given else [retrieve]), generate)
    graph.invoke({"question": ASKED, **({"facts": facts} if is_given else {})}, config)


@turn(ASKED, TWO, SAID)
def texts_returned_by_a_node(config: Config) -> None:
    searched_by_a_node(config, [*TWO])


@app()
def text_returned_by_a_node(config: Config) -> None:
    """A single text under such a name may be a memory."""
    searched_by_a_node(config, f"{BEE} {DANCE}")


@app()
def lines_returned_by_a_node(config: Config) -> None:
    """What divides the texts is not known."""
    searched_by_a_node(config, f"{BEE}\n{DANCE}")


@app()
def texts_given_by_the_caller(config: Config) -> None:
    searched_by_a_node(config, [*TWO], is_given=True)


@app()
def names_of_documents(config: Config) -> None:
    searched_by_a_node(config, ["reports/of_the_year/bees.pdf", "reports/of_the_year/wax.pdf"])


@app()
def parts_of_what_was_given(config: Config) -> None:
    def divide(state: Row) -> Any:
        return {"facts": state["question"].split("\n")}

    def sum_up(state: Row) -> Any:
        notes = [
            lcel("Sum up: {text}", model("A bee flies far.")).invoke(f) for f in state["facts"]
        ]
        return {"answer": lcel("Join: {notes}", model(SAID)).invoke({"notes": notes})}

    in_a_row(Row, divide, sum_up).invoke({"question": "\n".join(HIVE)}, config)


@app()
def facts_and_more_texts(config: Config) -> None:
    """What is known of the user is not all that the model was shown."""

    def retrieve(_: Row) -> Any:
        return {"facts": ["The user keeps bees."], "docs": "\n".join(TWO)}

    def generate(state: Row) -> Any:
        shown = {"context": f"{state['facts'][0]}\n{state['docs']}", "question": state["question"]}
        return {"answer": lcel(TEMPLATE, model(SAID)).invoke(shown)}

    in_a_row(Row, retrieve, generate).invoke({"question": ASKED}, config)


@app()
def facts_written_by_a_model(config: Config) -> None:
    def recall(state: Row) -> Any:
        said = lcel("Recall facts for {question}", model(BEE)).invoke(state)
        return {"facts": f"Recalled: {said}"}

    def generate(state: Row) -> Any:
        shown = {"context": state["facts"], "question": state["question"]}
        return {"answer": lcel(TEMPLATE, model(SAID)).invoke(shown)}

    in_a_row(Row, recall, generate).invoke({"question": ASKED}, config)
