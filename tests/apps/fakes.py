"""Offline models and retrievers on the base classes of LangChain, deterministic to the letter."""

import asyncio
import json
import re
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any

from langchain_core.callbacks import CallbackManagerForRetrieverRun
from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings
from langchain_core.language_models import BaseChatModel
from langchain_core.language_models.llms import LLM
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage
from langchain_core.messages.ai import UsageMetadata
from langchain_core.messages.tool import tool_call_chunk
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult, GenerationChunk
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import Runnable
from langchain_core.utils.function_calling import convert_to_openai_tool
from pydantic import Field

from . import company
from .replies import Reply, from_pages


class ScriptedChat(BaseChatModel):
    """A chat model that replies by a function of the messages, and streams word by word."""

    reply: Reply = from_pages

    @property
    def _llm_type(self) -> str:
        return "scripted-chat"

    def bind_tools(self, tools: Sequence[Any], **kwargs: Any) -> Runnable[Any, AIMessage]:
        return self.bind(tools=[convert_to_openai_tool(tool) for tool in tools], **kwargs)

    def _generate(self, messages: list[BaseMessage], *_args: Any, **_kwargs: Any) -> ChatResult:
        message = self.reply(messages).model_copy(update={"usage_metadata": _usage(messages)})
        return ChatResult(generations=[ChatGeneration(message=message)])

    def _stream(
        self, messages: list[BaseMessage], *_args: Any, **_kwargs: Any
    ) -> Iterator[ChatGenerationChunk]:
        message = self.reply(messages)
        for word in _split(str(message.content)):
            yield ChatGenerationChunk(message=AIMessageChunk(content=word))
        yield _last_chunk(message, _usage(messages))


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
        for word in _split(str(self.reply(messages).content))[:2]:
            yield ChatGenerationChunk(message=AIMessageChunk(content=word))
        await self._stall()

    async def _stall(self) -> None:
        self.stalled.set()
        await asyncio.Event().wait()


class ScriptedLLM(LLM):
    """A completion model: it answers the last known question in its prompt."""

    @property
    def _llm_type(self) -> str:
        return "scripted-completion"

    def _call(self, prompt: str, *_args: Any, **_kwargs: Any) -> str:
        return company.answer(max(company.ANSWERS, key=prompt.rfind), prompt)

    def _stream(self, prompt: str, *_args: Any, **_kwargs: Any) -> Iterator[GenerationChunk]:
        yield from (GenerationChunk(text=word) for word in _split(self._call(prompt)))


class KeywordRetriever(BaseRetriever):
    """Finds the documents that share most words with the query, and none that share no word."""

    documents: list[Document] = Field(default_factory=company.documents)
    k: int = 2

    def _get_relevant_documents(
        self, query: str, *, run_manager: CallbackManagerForRetrieverRun
    ) -> list[Document]:
        del run_manager
        shared = {id(d): _shared(query, d) for d in self.documents}
        ranked = sorted(self.documents, key=lambda d: shared[id(d)], reverse=True)
        return [document for document in ranked if shared[id(document)]][: self.k]


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


def _split(text: str) -> list[str]:
    return re.findall(r"\S+\s*", text)


def _shared(query: str, document: Document) -> int:
    return len(company.words(query) & company.words(document.page_content))


def _usage(messages: Sequence[BaseMessage]) -> UsageMetadata:
    asked = sum(len(str(message.content).split()) for message in messages)
    return UsageMetadata(input_tokens=asked, output_tokens=10, total_tokens=asked + 10)


def _last_chunk(message: AIMessage, usage: UsageMetadata) -> ChatGenerationChunk:
    chunks = [
        tool_call_chunk(name=c["name"], args=json.dumps(c["args"]), id=c["id"], index=i)
        for i, c in enumerate(message.tool_calls)
    ]
    last = AIMessageChunk(content="", tool_call_chunks=chunks, usage_metadata=usage)
    return ChatGenerationChunk(message=last)
