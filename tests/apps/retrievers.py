"""Retrievers made of retrievers, with models inside them."""

from langchain_core.documents import BaseDocumentCompressor
from langchain_core.retrievers import BaseRetriever

from . import company
from .app import Handlers, Truth, app, config
from .company import FOUNDER, HISTORY, PRODUCTS, RETURNS, WORKSHOP
from .compat import (
    ContextualCompressionRetriever,
    EnsembleRetriever,
    LLMChainExtractor,
    MultiQueryRetriever,
)
from .fakes import KeywordFilter, KeywordRetriever, ScriptedChat
from .parts import handbook, rag
from .replies import extract, saying

QUERIES = f"{company.FOUNDED}\n{company.REFUND}\n{company.REPAIRS}"
EXTRACTED_HISTORY = "History: the firm of Tromsø began in 1987."
EXTRACTED_FOUNDER = "Founder: it was begun by Ada Lindqvist."


@app(
    Truth(
        question=company.HANDBOOK,
        contexts=(HISTORY, FOUNDER, RETURNS, WORKSHOP),
        answer="A company of 1987 with kites, refunds and repairs. "
        "[History; Founder; Returns; Workshop]",
    )
)
def multi_query(callbacks: Handlers) -> object:
    """A model inside the retriever writes three queries."""
    return rag(_multi_query(KeywordRetriever())).invoke(company.HANDBOOK, config(callbacks))


@app(
    Truth(
        question=company.TOWING,
        contexts=(PRODUCTS, FOUNDER, RETURNS),
        answer="The Fulmar tows small boats. [Products; Founder; Returns]",
    )
)
def ensemble(callbacks: Handlers) -> object:
    """Two retrievers in one, their results fused."""
    return rag(_ensemble(KeywordRetriever(), handbook())).invoke(company.TOWING, config(callbacks))


@app(
    Truth(
        question=company.FOUNDED,
        contexts=(EXTRACTED_HISTORY, EXTRACTED_FOUNDER),
        answer="It was founded in 1987. [History; Founder]",
    )
)
def compression_llm(callbacks: Handlers) -> object:
    """A model inside the retriever rewords each document or drops it; ids are lost."""
    return rag(_extracting(handbook(k=3))).invoke(company.FOUNDED, config(callbacks))


@app(
    Truth(
        question=company.TOWING,
        contexts=(PRODUCTS,),
        answer="The Fulmar tows small boats. [Products]",
    )
)
def compression_filter(callbacks: Handlers) -> object:
    """A filter inside the retriever drops documents without a model; ids are lost."""
    retriever = _compressing(handbook(k=3), KeywordFilter())
    return rag(retriever).invoke(company.TOWING, config(callbacks))


@app(
    Truth(
        question=company.SAILMAKER,
        contexts=(EXTRACTED_FOUNDER, EXTRACTED_HISTORY),
        answer="The sailmaker Ada Lindqvist did. [Founder; History]",
    )
)
def nested_all(callbacks: Handlers) -> object:
    """Compression of an ensemble of multi-query and keyword search: two kinds of model inside."""
    retriever = _extracting(_ensemble(KeywordRetriever(), _multi_query(handbook())))
    return rag(retriever).invoke(company.SAILMAKER, config(callbacks))


def _multi_query(retriever: BaseRetriever) -> BaseRetriever:
    llm = ScriptedChat(reply=saying(QUERIES))
    multi: BaseRetriever = MultiQueryRetriever.from_llm(retriever, llm)
    return multi


def _ensemble(*retrievers: BaseRetriever) -> BaseRetriever:
    weights = [1 / len(retrievers)] * len(retrievers)
    fused: BaseRetriever = EnsembleRetriever(retrievers=list(retrievers), weights=weights)
    return fused


def _extracting(retriever: BaseRetriever) -> BaseRetriever:
    compressor = LLMChainExtractor.from_llm(ScriptedChat(reply=extract))
    return _compressing(retriever, compressor)


def _compressing(retriever: BaseRetriever, compressor: BaseDocumentCompressor) -> BaseRetriever:
    compressing: BaseRetriever = ContextualCompressionRetriever(
        base_compressor=compressor, base_retriever=retriever
    )
    return compressing
