"""Forms of answers: citations, structured answers, sources, and steps after the answer."""

from operator import itemgetter
from typing import Any

from langchain_core.documents import Document
from langchain_core.output_parsers import CommaSeparatedListOutputParser, StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import RunnableLambda, RunnablePassthrough, chain
from pydantic import BaseModel, Field

from .kit import Config, turn
from .langchain_kit import model, store, text_of

CHEETAH = Document(
    "The cheetah is capable of running at 93 to 104 km/h; it has evolved for speed.",
    metadata={"title": "Cheetah", "source": "https://wiki.example.org/Cheetah"},
)
FALCON = Document(
    "The peregrine falcon dives at more than 320 km/h, which makes it the fastest animal.",
    metadata={"title": "Falcon", "source": "https://wiki.example.org/Falcon"},
)
SLOTH = Document(
    "Sloths move at 0.24 km/h and sleep fifteen hours a day.",
    metadata={"title": "Sloth", "source": "https://wiki.example.org/Sloth"},
)
FAST = "How fast are cheetahs?"
SPEED = "Cheetahs run at 93 to 104 km/h."


def animals(k: int = 2) -> Any:
    return store(CHEETAH, FALCON, SLOTH).as_retriever(search_kwargs={"k": k})


def titled(docs: list[Document]) -> str:
    return "\n\n".join(
        f"Article Title: {d.metadata['title']}\nArticle Snippet: {d.page_content}" for d in docs
    )


class CitedAnswer(BaseModel):
    """Answer based only on the given sources, and cite the sources used."""

    answer: str = Field(description="The answer.")
    citations: list[int] = Field(description="The IDs of the sources that justify the answer.")


@turn(
    FAST,
    (CHEETAH.page_content, SLOTH.page_content),
    SPEED,
    also=({"answer": '{"answer": "Cheetahs run at 93 to 104 km/h.", "citations": [0]}'},),
)
def citations_by_structured_output(config: Config, question: str, answer: str) -> None:
    """How to get a RAG application to add citations: tool calling."""
    prompt = ChatPromptTemplate.from_messages(
        [("system", "Here are the articles: {context}"), ("human", "{question}")]
    )

    def numbered(docs: list[Document]) -> str:
        return "\n\n".join(
            f"Source ID: {i}\nArticle Title: {d.metadata['title']}\nArticle Snippet: {d.page_content}"
            for i, d in enumerate(docs)
        )

    llm = model(CitedAnswer(answer=answer, citations=[0]))
    rag = RunnablePassthrough.assign(context=itemgetter("docs") | RunnableLambda(numbered)) | (
        prompt | llm.with_structured_output(CitedAnswer)
    )
    whole = {"docs": itemgetter("question") | animals(), "question": itemgetter("question")} | rag
    result = whole.invoke({"question": question}, config)
    assert result.citations == [0]


@turn(
    "Which animals are faster than a car in town?",
    (FALCON.page_content, SLOTH.page_content, CHEETAH.page_content),
    "cheetah, falcon",
    also=({"answer": "['cheetah', 'falcon']"}, {"answer": '["cheetah", "falcon"]'}),
)
def list_as_the_answer(config: Config, question: str, answer: str) -> None:
    """A list as the answer, by CommaSeparatedListOutputParser."""
    rag = (
        {"articles": animals(3) | titled, "q": RunnablePassthrough()}
        | ChatPromptTemplate.from_template("{articles}\nList, separated by commas: {q}")
        | model(answer)
        | CommaSeparatedListOutputParser()
    )
    rag.invoke(question, config)


@turn(
    "How do I outrun a cheetah?",
    (CHEETAH.page_content, SLOTH.page_content),
    "I would rather not answer that.",
)
def guardrail_that_replaces_the_answer(config: Config, answer: str) -> None:
    """A guardrail after the answer that replaces it."""
    llm = model("Run at 105 km/h, or hide.", "UNSAFE")

    @chain
    def guarded(question: str) -> str:
        context = titled(animals().invoke(question))
        draft = llm.invoke([("system", context), ("human", question)])
        verdict = llm.invoke([("system", "SAFE or UNSAFE?"), ("human", text_of(draft))])
        return text_of(draft) if verdict.content == "SAFE" else answer

    guarded.invoke("How do I outrun a cheetah?", config)


@turn(
    "What is there on sloths?",
    (SLOTH.page_content, CHEETAH.page_content),
    "They are slow and sleepy.",
)
def documents_rewritten_before_the_answer(config: Config, question: str, answer: str) -> None:
    """Documents are shortened by a model before the answer is written."""
    short = {"Sloths move": "- 0.24 km/h, 15 h of sleep", "The cheetah": "- quick, 100 km/h"}
    llm = model({**short, "Facts:": answer})
    condense = ChatPromptTemplate.from_template("In five words: {page_content}") | llm

    def condensed(docs: list[Document]) -> str:
        notes = condense.batch([{"page_content": d.page_content} for d in docs])
        return "\n".join(text_of(n) for n in notes)

    whole = (
        {"facts": store(SLOTH, CHEETAH).as_retriever() | condensed, "q": RunnablePassthrough()}
        | ChatPromptTemplate.from_template("Facts:\n{facts}\n\n{q}")
        | llm
        | StrOutputParser()
    )
    whole.invoke(question, config)
