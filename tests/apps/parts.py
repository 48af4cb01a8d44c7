"""The parts that apps are made of: a prompt, a retriever, and the plain RAG chain."""

from collections.abc import Iterable
from typing import Any, TypeAlias

from langchain_core.documents import Document
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import Runnable, RunnableParallel, RunnablePassthrough
from langchain_core.vectorstores import InMemoryVectorStore

from . import company
from .fakes import ScriptedChat, WordEmbeddings

Retriever: TypeAlias = Runnable[str, list[Document]]

PROMPT = ChatPromptTemplate.from_messages(
    [("system", "Answer from these pages only.\n\n{context}"), ("human", "{question}")]
)


def join(documents: Iterable[Document]) -> str:
    return "\n\n".join(document.page_content for document in documents)


def handbook(k: int = 2) -> BaseRetriever:
    """Give a retriever over a vector store of the handbook."""
    store = InMemoryVectorStore.from_documents(company.documents(), WordEmbeddings())
    return store.as_retriever(search_kwargs={"k": k})


def lookup(retriever: Retriever | None = None) -> Runnable[str, dict[str, Any]]:
    """Make a question into the variables of the prompt."""
    context = (retriever or handbook()) | join
    return RunnableParallel({"context": context, "question": RunnablePassthrough()})


def rag(
    retriever: Retriever | None = None, llm: Runnable[Any, Any] | None = None
) -> Runnable[str, str]:
    """Make the plain chain: retrieve, fill the prompt, ask the model, parse."""
    return lookup(retriever) | PROMPT | (llm or ScriptedChat()) | StrOutputParser()
