"""The how-to pages on retrievers: each with the retriever of its page, in a chain that answers."""

from __future__ import annotations

import datetime as dt
from operator import itemgetter
from typing import Any

from langchain_core.callbacks import (
    AsyncCallbackManagerForRetrieverRun,
    CallbackManagerForRetrieverRun,
)
from langchain_core.documents import BaseDocumentCompressor, Document
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import ConfigurableField, Runnable, RunnablePassthrough
from langchain_core.stores import InMemoryByteStore, InMemoryStore
from langchain_core.structured_query import Comparator, Comparison, StructuredQuery, Visitor
from langchain_core.vectorstores import InMemoryVectorStore

from .kit import Config, Truth, app, words
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


@app(
    Truth(
        question=FINE,
        contexts=(GRIND, ROAST),
        answer="Finely.",
    ),
    page="How to use the MultiQueryRetriever",
)
def multi_query_retriever(config: Config) -> None:
    llm = model("Espresso fine grind?\nWhy is dark roast bitter?", "Finely.")
    retriever = classic("retrievers").MultiQueryRetriever.from_llm(
        retriever=store(*PAGES).as_retriever(search_kwargs={"k": 1}), llm=llm
    )
    barista(retriever, llm).invoke(FINE, config)


@app(
    Truth(
        question="What temperature should water to brew with have?",
        contexts=(WATER, COFFEE, MILK),
        answer="Between 92 and 96 degrees.",
    ),
    page="How to combine results from several retrievers: EnsembleRetriever",
)
def ensemble_retriever(config: Config) -> None:
    keywords = KeywordRetriever(documents=documents(*PAGES), k=1)
    vectors = store(*PAGES).as_retriever(search_kwargs={"k": 3})
    hybrid = classic("retrievers").EnsembleRetriever(
        retrievers=[keywords, vectors], weights=[0.5, 0.5]
    )
    question = "What temperature should water to brew with have?"
    barista(hybrid, model("Between 92 and 96 degrees.")).invoke(question, config)


LONG_NOTE = (
    "The shop opens at eight and the oven is on from six. The grinder by the window is for filter "
    "coffee. The espresso grinder is cleaned on Mondays with the brush that hangs beside it."
)
CLEANED = "The espresso grinder is cleaned on Mondays with the brush that hangs beside it."


@app(
    Truth(
        question="When is the espresso grinder cleaned?",
        contexts=(CLEANED,),
        answer="On Mondays.",
        also=({"contexts": (LONG_NOTE,)},),
    ),
    page="How to do retrieval with contextual compression: LLMChainExtractor",
)
def contextual_compression_extractor(config: Config) -> None:
    compressors = classic("retrievers.document_compressors")
    llm = model({"Extracted relevant parts": CLEANED, "Answer from the context": "On Mondays."})
    retriever = classic("retrievers").ContextualCompressionRetriever(
        base_compressor=compressors.LLMChainExtractor.from_llm(llm),
        base_retriever=store(LONG_NOTE).as_retriever(),
    )
    barista(retriever, llm).invoke("When is the espresso grinder cleaned?", config)


@app(
    Truth(
        question="Which grind does the French press want?",
        contexts=(GRIND,),
        answer="A coarse one.",
    ),
    page="How to do retrieval with contextual compression: LLMChainFilter",
)
def contextual_compression_filter(config: Config) -> None:
    compressors = classic("retrievers.document_compressors")
    llm = model({"Espresso wants": "YES", "> Context:": "NO", "Answer from": "A coarse one."})
    retriever = classic("retrievers").ContextualCompressionRetriever(
        base_compressor=compressors.LLMChainFilter.from_llm(llm),
        base_retriever=store(*PAGES).as_retriever(search_kwargs={"k": 3}),
    )
    answerer = model("A coarse one.", model_name="scripted-large")
    barista(retriever, answerer).invoke("Which grind does the French press want?", config)


class ByLength(BaseDocumentCompressor):
    """A reranker that prefers short documents."""

    top_n: int = 2

    def compress_documents(self, documents: Any, query: str, callbacks: Any = None) -> Any:
        """Return the shortest."""
        ranked = sorted(documents, key=lambda d: len(d.page_content))
        for rank, document in enumerate(ranked):
            document.metadata["relevance_score"] = 1.0 / (1 + rank)
        return ranked[: self.top_n]


@app(
    Truth(
        question="What do I need to know on coffee, milk and water?",
        contexts=(MILK, WATER),
        answer="Cold milk foams best, and water should be just off the boil.",
    ),
    page="Provider pages on rerankers: a reranker as a compressor that writes scores to metadata",
)
async def reranker(config: Config) -> None:
    retriever = classic("retrievers").ContextualCompressionRetriever(
        base_compressor=ByLength(), base_retriever=store(*PAGES).as_retriever()
    )
    llm = model("Cold milk foams best, and water should be just off the boil.")
    await barista(retriever, llm).ainvoke(
        "What do I need to know on coffee, milk and water?", config
    )


PARENT_A = """Chapter 3: The house

The roof was thatched with reed until 1911. It burnt that year.

The new roof is of slate from the quarry at Penrhyn, and has stood since."""
PARENT_B = """Chapter 4: The garden

The apple trees were planted by the second owner.

A well was dug in 1925 and still gives water."""


@app(
    Truth(
        question="What is the new roof made of?",
        contexts=(PARENT_A,),
        answer="Of slate from Penrhyn.",
    ),
    page="How to use the Parent Document Retriever",
)
def parent_document_retriever(config: Config) -> None:
    from langchain_text_splitters import CharacterTextSplitter

    retriever = classic("retrievers").ParentDocumentRetriever(
        vectorstore=InMemoryVectorStore(Words()),
        docstore=InMemoryStore(),
        child_splitter=CharacterTextSplitter(separator="\n\n", chunk_size=90, chunk_overlap=0),
        search_kwargs={"k": 1},
    )
    retriever.add_documents([Document(PARENT_A), Document(PARENT_B)], ids=None)
    barista(retriever, model("Of slate from Penrhyn.")).invoke(
        "What is the new roof made of?", config
    )


@app(
    Truth(
        question="Who planted the apple trees?",
        contexts=(PARENT_B,),
        answer="The second owner.",
    ),
    page="How to retrieve using multiple vectors for each document: summaries in the index",
)
def multi_vector_retriever(config: Config) -> None:
    multi_vector = classic("retrievers.multi_vector")
    llm = model(
        {"Summarize": "A chapter.", "Who planted": "The second owner."}, model_name="scripted-mini"
    )
    originals = [Document(PARENT_A), Document(PARENT_B)]
    summaries = [
        Document("The house and its roof of slate.", metadata={"doc_id": "a"}),
        Document("The garden: who planted apple trees, the well.", metadata={"doc_id": "b"}),
    ]
    retriever = multi_vector.MultiVectorRetriever(
        vectorstore=store(*summaries), byte_store=InMemoryByteStore(), search_kwargs={"k": 1}
    )
    retriever.docstore.mset(list(zip(["a", "b"], originals, strict=True)))
    barista(retriever, llm).invoke("Who planted the apple trees?", config)


SF = Document("A crew wakes from cold sleep above a water planet.", metadata={"year": 2019})
DOGS = Document("Two dogs and a cat cross a mountain range to get home.", metadata={"year": 1993})
TOYS = Document("Toys come alive and have a blast doing so.", metadata={"year": 1995})


class ByYear(Visitor):
    """Translates a structured query to a filter of the in-memory store."""

    allowed_comparators = (Comparator.GT, Comparator.LT)
    allowed_operators = ()

    def visit_operation(self, operation: Any) -> Any:
        """Refuse: there are none."""
        raise NotImplementedError

    def visit_comparison(self, comparison: Any) -> Any:
        """Refuse: only whole queries are translated."""
        raise NotImplementedError

    def visit_structured_query(
        self, structured_query: StructuredQuery
    ) -> tuple[str, dict[str, Any]]:
        """Return query and keywords."""
        limit = structured_query.filter
        assert isinstance(limit, Comparison)
        return structured_query.query, {
            "filter": lambda d: d.metadata[limit.attribute] > limit.value
        }


@app(
    Truth(
        question="Any film after 2000 on a planet?",
        contexts=("A crew wakes from cold sleep above a water planet.",),
        answer="One of 2019, with a crew above a water planet.",
    ),
    page="How to do self-querying retrieval",
)
def self_query_retriever(config: Config) -> None:
    self_query = classic("retrievers.self_query.base")
    wanted = StructuredQuery(
        query="planet",
        filter=Comparison(comparator=Comparator.GT, attribute="year", value=2000),
    )
    prompt = ChatPromptTemplate.from_template("Structure this request: {query}")
    constructor = prompt | model('{"query": "planet", "filter": "gt(\\"year\\", 2000)"}')
    retriever = self_query.SelfQueryRetriever(
        query_constructor=constructor | (lambda _: wanted),
        vectorstore=store(SF, DOGS, TOYS),
        structured_query_translator=ByYear(),
    )
    llm = model("One of 2019, with a crew above a water planet.")
    barista(retriever, llm).invoke("Any film after 2000 on a planet?", config)


class Relevant(InMemoryVectorStore):
    """A store that takes similarity for relevance."""

    def _select_relevance_score_fn(self) -> Any:
        return lambda similarity: similarity


NOTE_OLD = "The team's room is 204."
NOTE_NEW = "The team's room is 311, since the move."


@app(
    Truth(
        question="Which room is the team's?",
        contexts=(NOTE_NEW, NOTE_OLD),
        answer="Room 311.",
    ),
    page="How to use a time-weighted vector store retriever",
)
def time_weighted_retriever(config: Config) -> None:
    weighted = classic("retrievers").TimeWeightedVectorStoreRetriever(
        vectorstore=Relevant(Words()), decay_rate=0.5, k=2
    )
    long_ago = dt.datetime.now() - dt.timedelta(days=30)  # noqa: DTZ005 - as it does
    weighted.add_documents([Document(NOTE_OLD, metadata={"last_accessed_at": long_ago})])
    weighted.add_documents([Document(NOTE_NEW)])
    barista(weighted, model("Room 311.")).invoke("Which room is the team's?", config)


class ToyRetriever(BaseRetriever):
    """The retriever of the how-to page: documents that contain the words of the query."""

    documents: list[Document]
    k: int

    def _get_relevant_documents(
        self, query: str, *, run_manager: CallbackManagerForRetrieverRun
    ) -> list[Document]:
        asked = set(words(query))
        return [d for d in self.documents if asked & set(words(d.page_content))][: self.k]

    async def _aget_relevant_documents(
        self, query: str, *, run_manager: AsyncCallbackManagerForRetrieverRun
    ) -> list[Document]:
        return self._get_relevant_documents(query, run_manager=run_manager.get_sync())


@app(
    Truth(
        question="Why is a dark roast bitter?",
        contexts=(ROAST,),
        answer="Because the sugars have burnt.",
    ),
    page="How to create a custom retriever",
)
async def custom_retriever(config: Config) -> None:
    retriever = ToyRetriever(documents=documents(*PAGES), k=1)
    chain = barista(retriever, model("Because the sugars have burnt."))
    async for _ in chain.astream("Why is a dark roast bitter?", config):
        pass


@app(
    Truth(
        question="Does milk foam when it is cold?",
        contexts=(MILK,),
        answer="Yes, best of all with some fat.",
    ),
    page="How to add scores to retriever results: a `@chain` function over `..._with_score`",
)
def scores_by_a_chain_function(config: Config) -> None:
    from langchain_core.runnables import chain

    vectorstore = store(*PAGES)

    @chain
    def retriever(query: str) -> list[Document]:
        found = vectorstore.similarity_search_with_score(query, k=1)
        for doc, score in found:
            doc.metadata["score"] = score
        return [doc for doc, _ in found]

    llm = model("Yes, best of all with some fat.")
    barista(retriever, llm).invoke("Does milk foam when it is cold?", config)


@app(
    Truth(
        question="What do you know of coffee?",
        contexts=(GRIND, MILK, WATER, COFFEE),
        answer="Its bean is the seed of a cherry.",
        also=({"contexts": (COFFEE, GRIND, WATER, MILK)},),
    ),
    page="How to reorder retrieved results to mitigate the lost-in-the-middle effect",
)
def long_context_reorder(config: Config) -> None:
    def reorder(docs: list[Document]) -> list[Document]:
        ordered: list[Document] = []
        for i, document in enumerate(reversed(docs)):
            if i % 2 == 1:
                ordered.append(document)
            else:
                ordered.insert(0, document)
        return ordered

    retriever = store(*PAGES).as_retriever()
    llm = model("Its bean is the seed of a cherry.")
    barista(retriever | reorder, llm).invoke("What do you know of coffee?", config)


HARRISON = Document("I worked at the cooperative bank.", metadata={"user": "harrison"})
ANKUSH = Document("I worked at the tram depot.", metadata={"user": "ankush"})


@app(
    Truth(
        question="Where did I work?",
        contexts=("I worked at the tram depot.",),
        answer="At the tram depot.",
    ),
    page="How to do per-user retrieval: search_kwargs by `configurable`",
)
def per_user_retrieval(config: Config) -> None:
    retriever = store(HARRISON, ANKUSH).as_retriever()
    per_user = retriever.configurable_fields(
        search_kwargs=ConfigurableField(id="search_kwargs", name="Search Kwargs")
    )
    mine = {"filter": lambda d: d.metadata["user"] == "ankush", "k": 1}
    barista(per_user, model("At the tram depot.")).invoke(
        "Where did I work?", {**config, "configurable": {"search_kwargs": mine}}
    )


@app(
    Truth(
        question="Is a fine grind right for filter coffee?",
        contexts=(GRIND, COFFEE),
        answer="No, a medium one is.",
    ),
    page="How to use a vector store as a retriever: maximal marginal relevance, returned sources",
)
def mmr_with_sources(config: Config) -> None:
    retriever = store(*PAGES).as_retriever(
        search_type="mmr", search_kwargs={"k": 2, "fetch_k": 4, "lambda_mult": 0.9}
    )
    prompt = ChatPromptTemplate.from_messages(
        [("system", "Context: {context}"), ("human", "{input}")]
    )
    answer = (
        RunnablePassthrough.assign(context=lambda x: joined(x["context"]))
        | prompt
        | model("No, a medium one is.")
        | StrOutputParser()
    )
    chain = RunnablePassthrough.assign(context=itemgetter("input") | retriever).assign(
        answer=answer
    )
    result = chain.invoke({"input": "Is a fine grind right for filter coffee?"}, config)
    assert len(result["context"]) == 2


@app(
    Truth(
        question="Who owns the moon?",
        contexts=(),
        answer="I have found nothing on that.",
    ),
    page="Similarity score threshold retrieval that finds nothing",
)
def nothing_found(config: Config) -> None:
    retriever = KeywordRetriever(documents=documents(ROAST, MILK))
    barista(retriever, model("I have found nothing on that.")).invoke("Who owns the moon?", config)
