"""Retrievers made of retrievers, with models inside them."""

from langchain_core.documents import BaseDocumentCompressor
from langchain_core.retrievers import BaseRetriever

from . import company
from .app import Handlers, Truth, app, config
from .compat import (
    ContextualCompressionRetriever,
    EnsembleRetriever,
    LLMChainExtractor,
    MultiQueryRetriever,
)
from .fakes import KeywordRetriever, ScriptedChat
from .parts import handbook, rag
from .replies import extract, saying

QUERIES = f"{company.FOUNDED}\n{company.REFUND}\n{company.REPAIRS}"
EXTRACTED_HISTORY = "History: the firm of Tromsø began in 1987."
EXTRACTED_FOUNDER = "Founder: it was begun by Ada Lindqvist."


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
