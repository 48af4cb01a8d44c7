"""The same names from LangChain 0.3 and 1.x, and their known warnings kept quiet."""

import contextlib
import importlib
import sys
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

from langchain_core._api.beta_decorator import LangChainBetaWarning
from langchain_core._api.deprecation import (
    LangChainDeprecationWarning,
    LangChainPendingDeprecationWarning,
)
from langchain_core.language_models import BaseChatModel
from langchain_core.runnables import Runnable
from langchain_core.tools import BaseTool


@contextlib.contextmanager
def quietly() -> Iterator[None]:
    """Ignore what LangChain says of its old and its new, where an app uses it on purpose."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LangChainDeprecationWarning)
        warnings.simplefilter("ignore", LangChainPendingDeprecationWarning)
        warnings.simplefilter("ignore", LangChainBetaWarning)
        yield


def _classic(name: str) -> Any:
    try:
        return importlib.import_module(f"langchain_classic.{name}")
    except ModuleNotFoundError:
        return importlib.import_module(f"langchain.{name}")


with quietly():
    from langgraph.func import entrypoint, task
    from langgraph.graph import END, START, MessagesState, StateGraph
    from langgraph.pregel import Pregel

    _chains = _classic("chains")
    _documents = _classic("chains.combine_documents")
    _retrievers = _classic("retrievers")
    _compressors = _classic("retrievers.document_compressors")
    _agents: Any = importlib.import_module("langchain.agents")
    _prebuilt: Any = importlib.import_module("langgraph.prebuilt")

ConversationalRetrievalChain = _chains.ConversationalRetrievalChain
RetrievalQA = _chains.RetrievalQA
create_history_aware_retriever = _chains.create_history_aware_retriever
create_retrieval_chain = _chains.create_retrieval_chain
create_stuff_documents_chain = _documents.create_stuff_documents_chain
ContextualCompressionRetriever = _retrievers.ContextualCompressionRetriever
EnsembleRetriever = _retrievers.EnsembleRetriever
MultiQueryRetriever = _retrievers.MultiQueryRetriever
LLMChainExtractor = _compressors.LLMChainExtractor

NO_V3_EVENTS = "" if hasattr(Pregel, "stream_events") else "LangGraph has no version 3 events"
if sys.version_info < (3, 11):
    NO_V3_EVENTS = "before Python 3.11 LangGraph loses the callbacks of version 3 events"


def make_agent(llm: BaseChatModel, tools: Sequence[BaseTool]) -> Runnable[Any, Any]:
    """Make a tool-calling agent: `create_agent`, or its predecessor in LangGraph."""
    create = getattr(_agents, "create_agent", None) or _prebuilt.create_react_agent
    agent: Runnable[Any, Any] = create(llm, tools)
    return agent


__all__ = [
    "END",
    "NO_V3_EVENTS",
    "START",
    "ContextualCompressionRetriever",
    "ConversationalRetrievalChain",
    "EnsembleRetriever",
    "LLMChainExtractor",
    "MessagesState",
    "MultiQueryRetriever",
    "RetrievalQA",
    "StateGraph",
    "create_history_aware_retriever",
    "create_retrieval_chain",
    "create_stuff_documents_chain",
    "entrypoint",
    "make_agent",
    "quietly",
    "task",
]
