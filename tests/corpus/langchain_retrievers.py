"""The how-to pages on retrievers: each with the retriever of its page, in a chain that answers."""

import datetime as dt
from typing import Any

from langchain_core.documents import Document
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import Runnable, RunnablePassthrough
from langchain_core.vectorstores import InMemoryVectorStore

from .kit import Config, turn
from .langchain_kit import KeywordRetriever, Words, classic, documents, model, store

COFFEE = "Coffee is grown between the tropics; the bean is the seed of a cherry."
ROAST = "A dark roast is bitter, since the sugars of the bean have burnt."
GRIND = "Espresso wants a fine grind, filter coffee a medium one, the French press a coarse one."
WATER = "Brew with water of 92 to 96 degrees, just off the boil."
MILK = "Milk foams best when it is cold and has some fat."
PAGES = (COFFEE, ROAST, GRIND, WATER, MILK)


def joined(docs: list[Document]) -> str:
    return "\n\n".join(d.page_content for d in docs)


def barista(retriever: Runnable[Any, Any], llm: Any) -> Runnable[str, str]:
    """The chain that most of the pages end with."""
    prompt = ChatPromptTemplate.from_template(
        "Answer from the context.\n\nContext: {context}\n\nQuestion: {question}"
    )
    return (
        {"context": retriever | joined, "question": RunnablePassthrough()}
        | prompt
        | llm
        | StrOutputParser()
    )


FINE = "How fine should I grind for espresso?"


@turn(FINE, (GRIND, ROAST), "Finely.")
def multi_query_retriever(config: Config, question: str, answer: str) -> None:
    """How to use the MultiQueryRetriever."""
    llm = model("Espresso fine grind?\nWhy is dark roast bitter?", answer)
    retriever = classic("retrievers").MultiQueryRetriever.from_llm(
        retriever=store(*PAGES).as_retriever(search_kwargs={"k": 1}), llm=llm
    )
    barista(retriever, llm).invoke(question, config)


@turn(
    "What temperature should water to brew with have?",
    (WATER, COFFEE, MILK),
    "Between 92 and 96 degrees.",
)
def ensemble_retriever(config: Config, question: str, answer: str) -> None:
    """How to combine results from several retrievers: EnsembleRetriever."""
    keywords = KeywordRetriever(documents=documents(*PAGES), k=1)
    vectors = store(*PAGES).as_retriever(search_kwargs={"k": 3})
    hybrid = classic("retrievers").EnsembleRetriever(
        retrievers=[keywords, vectors], weights=[0.5, 0.5]
    )
    barista(hybrid, model(answer)).invoke(question, config)


LONG_NOTE = (
    "The shop opens at eight and the oven is on from six. The grinder by the window is for filter "
    "coffee. The espresso grinder is cleaned on Mondays with the brush that hangs beside it."
)
CLEANED = "The espresso grinder is cleaned on Mondays with the brush that hangs beside it."


@turn(
    "When is the espresso grinder cleaned?",
    (CLEANED,),
    "On Mondays.",
    also=({"contexts": (LONG_NOTE,)},),
)
def contextual_compression_extractor(config: Config, question: str, answer: str) -> None:
    """How to do retrieval with contextual compression: LLMChainExtractor."""
    compressors = classic("retrievers.document_compressors")
    llm = model({"Extracted relevant parts": CLEANED, "Answer from the context": answer})
    retriever = classic("retrievers").ContextualCompressionRetriever(
        base_compressor=compressors.LLMChainExtractor.from_llm(llm),
        base_retriever=store(LONG_NOTE).as_retriever(),
    )
    barista(retriever, llm).invoke(question, config)


class Relevant(InMemoryVectorStore):
    """A store that takes similarity for relevance."""

    def _select_relevance_score_fn(self) -> Any:
        return lambda similarity: similarity


NOTE_OLD = "The team's room is 204."
NOTE_NEW = "The team's room is 311, since the move."


@turn("Which room is the team's?", (NOTE_NEW, NOTE_OLD), "Room 311.")
def time_weighted_retriever(config: Config, question: str, answer: str) -> None:
    """How to use a time-weighted vector store retriever."""
    weighted = classic("retrievers").TimeWeightedVectorStoreRetriever(
        vectorstore=Relevant(Words()), decay_rate=0.5, k=2
    )
    long_ago = dt.datetime.now() - dt.timedelta(days=30)  # noqa: DTZ005 - as it does
    weighted.add_documents([Document(NOTE_OLD, metadata={"last_accessed_at": long_ago})])
    weighted.add_documents([Document(NOTE_NEW)])
    barista(weighted, model(answer)).invoke(question, config)


@turn("Who owns the moon?", (), "I have found nothing on that.")
def nothing_found(config: Config, question: str, answer: str) -> None:
    """Similarity score threshold retrieval that finds nothing."""
    retriever = KeywordRetriever(documents=documents(ROAST, MILK))
    barista(retriever, model(answer)).invoke(question, config)
