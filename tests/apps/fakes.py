"""Offline models and retrievers about the company, on those of the corpus."""

from collections.abc import Mapping
from typing import Any

from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings
from langchain_core.messages import AIMessage, BaseMessage
from pydantic import Field

from corpus import langchain_kit

from . import company
from .replies import Reply, from_pages


class ScriptedChat(langchain_kit.Scripted):
    """A chat model that replies by a function of the messages, and streams word by word."""

    script: Any = None
    reply: Reply = from_pages

    def _reply(self, messages: list[BaseMessage], kwargs: Mapping[str, Any]) -> AIMessage:
        del kwargs
        return self.reply(messages)


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


class WordEmbeddings(Embeddings):
    """One dimension for each word of the handbook."""

    def embed_query(self, text: str) -> list[float]:
        found = company.words(text)
        return [float(word in found) for word in sorted(company.words(" ".join(company.PAGES)))]

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        return [self.embed_query(text) for text in texts]
