"""Chains in the LangChain Expression Language, invoked once."""

import asyncio

from langchain_core.documents import Document
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate, PromptTemplate
from langchain_core.runnables import RunnableParallel, RunnablePassthrough
from pydantic import BaseModel

from . import company
from .app import Handlers, Truth, app, config
from .company import FOUNDER, HISTORY, PRODUCTS, RETURNS, WARRANTY, WORKSHOP
from .fakes import KeywordRetriever, ScriptedChat, ScriptedLLM
from .parts import PROMPT, handbook, join, lookup, rag
from .replies import cited_answer, saying

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


class CitedAnswer(BaseModel):
    """An answer and the titles of its sources."""

    answer: str
    sources: list[str]


@app(FOUNDED)
def lcel_basic(callbacks: Handlers) -> object:
    """A question in, a string out."""
    return rag().invoke(company.FOUNDED, config(callbacks))


@app(FOUNDED)
def lcel_returns_docs(callbacks: Handlers) -> object:
    """A dict out: the documents, the question and the answer."""
    found = RunnableParallel(context=handbook(), question=RunnablePassthrough())
    pages = RunnablePassthrough.assign(context=lambda values: join(values["context"]))
    answer = pages | PROMPT | ScriptedChat() | StrOutputParser()
    return found.assign(answer=answer).invoke(company.FOUNDED, config(callbacks))


@app(FOUNDED)
def structured_output(callbacks: Handlers) -> object:
    """A pydantic object out, whose field `answer` is the answer; the model's own text is empty."""
    llm = ScriptedChat(reply=cited_answer).with_structured_output(CitedAnswer)
    return (lookup() | PROMPT | llm).invoke(company.FOUNDED, config(callbacks))


@app(
    Truth(
        question=company.TOWING,
        contexts=(RETURNS, PRODUCTS),
        answer="The Fulmar tows small boats. [Returns; Products]",
    )
)
def rerank_lambda(callbacks: Handlers) -> object:
    """A function puts the shortest pages first, ranks them in place and drops the third."""

    def rerank(documents: list[Document]) -> list[Document]:
        ranked = sorted(documents, key=lambda document: len(document.page_content))
        for rank, document in enumerate(ranked, start=1):
            document.metadata["rank"] = rank
        return ranked[:2]

    return rag(KeywordRetriever(k=4) | rerank).invoke(company.TOWING, config(callbacks))


@app(Truth(question=company.FOUNDED, contexts=(), answer="It was founded in 1987."))
def zero_docs(callbacks: Handlers) -> object:
    """The retriever finds nothing, and the model answers all the same."""
    return rag(KeywordRetriever(documents=[])).invoke(company.FOUNDED, config(callbacks))


@app(FOUNDED)
def ainvoke_completion_llm(callbacks: Handlers) -> object:
    """A completion model in an asynchronous chain."""
    prompt = PromptTemplate.from_template("{context}\n\nQuestion: {question}\nAnswer:")
    chain = lookup() | prompt | ScriptedLLM() | StrOutputParser()
    return asyncio.run(chain.ainvoke(company.FOUNDED, config(callbacks)))


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
