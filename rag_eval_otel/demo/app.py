"""The demo's app: a LangChain RAG chain over the handbook. No key, no network, no model."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.output_parsers import StrOutputParser
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import Runnable, RunnablePassthrough
from langchain_core.vectorstores import InMemoryVectorStore

from rag_eval_otel.demo.handbook import TURNS, Turn, passages
from rag_eval_otel.judge.lexical.texts import STOP, terms

if TYPE_CHECKING:
    from langchain_core.callbacks import CallbackManagerForLLMRun

__all__ = ["TURNS", "HandbookEmbeddings", "HandbookModel", "Turn", "build_app"]

TOP_K = 3
_DIMENSIONS = 2048
_UNKNOWN = "I don't know."
_PROMPT = ChatPromptTemplate.from_messages(
    [
        ("system", "Answer from these pages of the handbook.\n\n{context}"),
        ("human", "{question}"),
    ]
)


class HandbookEmbeddings(Embeddings):
    """Offline embeddings: the words with content, hashed."""

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        """Return one vector of unit length per text."""
        return [_vector(text) for text in texts]

    def embed_query(self, text: str) -> list[float]:
        """Return the vector of ``text``."""
        return _vector(text)


def _vector(text: str) -> list[float]:
    row = np.full(_DIMENSIONS, 1e-9)  # a text without words must still have a direction
    for term in terms(text):
        if term.weight > STOP:
            row[zlib.crc32(term.key.encode("utf-8", "replace")) % _DIMENSIONS] += term.weight
    unit: list[float] = (row / np.linalg.norm(row)).tolist()
    return unit


class HandbookModel(BaseChatModel):
    """Gives the scripted answer to the question that the prompt ends with."""

    answers: Mapping[str, str]
    model_name: str = "handbook-offline"

    @property
    def _llm_type(self) -> str:
        return "handbook"

    @property
    def _identifying_params(self) -> dict[str, Any]:
        return {"model_name": self.model_name}

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,  # noqa: ARG002
        run_manager: CallbackManagerForLLMRun | None = None,  # noqa: ARG002
        **kwargs: Any,  # noqa: ARG002
    ) -> ChatResult:
        answer = self.answers.get(str(messages[-1].content), _UNKNOWN)
        message = AIMessage(content=answer, response_metadata={"model_name": self.model_name})
        return ChatResult(generations=[ChatGeneration(message=message)])


def build_app() -> Runnable[str, str]:
    """Return the chain from a question to its answer."""
    model = HandbookModel(answers={turn.question: turn.answer for turn in TURNS})
    retriever = _store().as_retriever(search_kwargs={"k": TOP_K})
    inputs = {"context": retriever | _joined, "question": RunnablePassthrough()}
    chain: Runnable[str, str] = inputs | _PROMPT | model | StrOutputParser()
    return chain.with_config(run_name="handbook")


def _store() -> InMemoryVectorStore:
    store = InMemoryVectorStore(HandbookEmbeddings())
    store.add_documents(
        [
            Document(page_content=passage.text, id=passage.id, metadata={"id": passage.id})
            for passage in passages()
        ]
    )
    return store


def _joined(documents: Sequence[Document]) -> str:
    return "\n\n".join(document.page_content for document in documents)
