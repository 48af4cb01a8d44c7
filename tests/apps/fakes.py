"""Offline models and retrievers about the company, on those of the corpus."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import Any

from langchain_core.callbacks import CallbackManagerForRetrieverRun
from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage
from langchain_core.outputs import ChatGenerationChunk, ChatResult
from langchain_core.retrievers import BaseRetriever
from pydantic import Field

from corpus import langchain_kit
from corpus.kit import pieces

from . import company
from .replies import Reply, from_pages


class ScriptedChat(langchain_kit.Scripted):
    """A chat model that replies by a function of the messages, and streams word by word."""

    script: Any = None
    reply: Reply = from_pages

    def _reply(self, messages: list[BaseMessage], kwargs: Mapping[str, Any]) -> AIMessage:
        del kwargs
        return self.reply(messages)


class StallingChat(ScriptedChat):
    """A chat model that stalls for ever: after two words when streaming, else at once."""

    stalled: asyncio.Event = Field(default_factory=asyncio.Event)

    async def _agenerate(
        self, messages: list[BaseMessage], *_args: Any, **_kwargs: Any
    ) -> ChatResult:
        await self._stall()
        return self._generate(messages)

    async def _astream(
        self, messages: list[BaseMessage], *_args: Any, **_kwargs: Any
    ) -> AsyncIterator[ChatGenerationChunk]:
        for word in pieces(str(self.reply(messages).content))[:2]:
            yield ChatGenerationChunk(message=AIMessageChunk(content=word))
        await self._stall()

    async def _stall(self) -> None:
        self.stalled.set()
        await asyncio.Event().wait()


def answered(messages: list[BaseMessage]) -> str:
    """Answer the last known question in a prompt."""
    prompt = str(messages[0].content)
    return company.answer(max(company.ANSWERS, key=prompt.rfind), prompt)


class ScriptedLLM(langchain_kit.ScriptedLLM):
    """A completion model: it answers the last known question in its prompt."""

    script: Any = answered


class KeywordRetriever(langchain_kit.KeywordRetriever):
    """Finds the documents that share most words with the query, and none that share no word."""

    documents: list[Document] = Field(default_factory=company.documents)
    k: int = 2


class DownRetriever(BaseRetriever):
    """Fails, as a retriever does whose database is down."""

    def _get_relevant_documents(
        self, query: str, *, run_manager: CallbackManagerForRetrieverRun
    ) -> list[Document]:
        del query, run_manager
        message = "the vector database is down"
        raise ConnectionError(message)


class WordEmbeddings(Embeddings):
    """One dimension for each word of the handbook."""

    def embed_query(self, text: str) -> list[float]:
        found = company.words(text)
        return [float(word in found) for word in sorted(company.words(" ".join(company.PAGES)))]

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        return [self.embed_query(text) for text in texts]
