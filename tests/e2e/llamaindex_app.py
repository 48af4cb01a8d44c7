"""The handbook's query engine in LlamaIndex."""

from typing import Any

import pytest
from llama_index.core import VectorStoreIndex
from llama_index.core.chat_engine import CondensePlusContextChatEngine, ContextChatEngine
from llama_index.core.embeddings import BaseEmbedding
from llama_index.core.llms import (
    ChatMessage,
    CompletionResponse,
    CompletionResponseGen,
    CustomLLM,
    LLMMetadata,
)
from llama_index.core.llms.callbacks import llm_completion_callback
from llama_index.core.memory import ChatMemoryBuffer
from llama_index.core.postprocessor import SimilarityPostprocessor
from llama_index.core.query_engine import BaseQueryEngine
from llama_index.core.retrievers import BaseRetriever
from llama_index.core.schema import NodeWithScore, QueryBundle, TextNode

from apps import company
from apps.fakes import WordEmbeddings
from conversations import REPHRASE, Ask, Messages, reply_to
from corpus.llamaindex_kit import ChatModel


class Words(BaseEmbedding):
    """Embeddings with one dimension for each word of the handbook."""

    def _get_query_embedding(self, query: str) -> list[float]:
        return WordEmbeddings().embed_query(query)

    def _get_text_embedding(self, text: str) -> list[float]:
        return WordEmbeddings().embed_query(text)

    async def _aget_query_embedding(self, query: str) -> list[float]:
        return self._get_query_embedding(query)


class Writer(CustomLLM):
    """A model that answers the last known question in its prompt, and streams word by word."""

    @property
    def metadata(self) -> LLMMetadata:
        return LLMMetadata(model_name="writer")

    @llm_completion_callback()
    def complete(self, prompt: str, *_args: Any, **_options: Any) -> CompletionResponse:
        return CompletionResponse(text=self._answer(prompt))

    @llm_completion_callback()
    def stream_complete(self, prompt: str, *_args: Any, **_options: Any) -> CompletionResponseGen:
        text = ""
        for word in self._answer(prompt).split(" "):
            delta = word if not text else f" {word}"
            text += delta
            yield CompletionResponse(text=text, delta=delta)

    def _answer(self, prompt: str) -> str:
        return company.answer(max(company.ANSWERS, key=prompt.rfind), prompt)


class DeadWriter(Writer):
    """A model that always fails."""

    def _answer(self, prompt: str) -> str:
        message = "the model is down"
        raise ConnectionError(message)


class Shelf(BaseRetriever):
    """Finds one page, which has its query."""

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        text = f"This page was found by its words: {query_bundle.query_str}"
        return [NodeWithScore(node=TextNode(text=text), score=1.0)]


def conversing(kind: str) -> Ask:
    """Return a chat engine, whose history its caller keeps."""
    options: dict[str, Any] = {"retriever": Shelf(), "llm": ChatModel(reply_to)}
    if kind == "system":
        options["system_prompt"] = "You are helpful."
    if kind == "rewritten":
        options["condense_prompt"] = f"{REPHRASE}\n{{chat_history}}\n{{question}}"
    kinds = {"rewritten": CondensePlusContextChatEngine}

    def ask(question: str, history: Messages) -> str:
        memory = ChatMemoryBuffer.from_defaults(llm=options["llm"])
        made = kinds.get(kind, ContextChatEngine)
        engine = made.from_defaults(**options, memory=memory)
        before = [ChatMessage(role=role, content=text) for role, text in history]
        if kind == "streamed":
            return "".join(engine.stream_chat(question, chat_history=before).response_gen)
        return str(engine.chat(question, chat_history=before))

    return ask


class HandbookEngine:
    """A query engine over an index of the handbook."""

    def __init__(self) -> None:
        nodes = [TextNode(id_=str(page.id), text=page.page_content) for page in company.documents()]
        self._index = VectorStoreIndex(nodes, embed_model=Words())

    conversing = staticmethod(conversing)

    def ask(self, question: str) -> str:
        return str(self._engine(Writer()).query(question))

    async def aask(self, question: str) -> str:
        return str(await self._engine(Writer()).aquery(question))

    def ask_filtered(self, question: str) -> str:
        near = SimilarityPostprocessor(similarity_cutoff=0.4)
        engine = self._engine(Writer(), similarity_top_k=4, node_postprocessors=[near])
        return str(engine.query(question))

    def stream(self, question: str) -> str:
        return "".join(self._engine(Writer(), streaming=True).query(question).response_gen)

    def fail(self, question: str) -> None:
        with pytest.raises(ConnectionError):
            self._engine(DeadWriter()).query(question)

    def chat(self, greeting: str) -> str:
        return Writer().complete(greeting).text

    def _engine(self, llm: Writer, **options: Any) -> BaseQueryEngine:
        return self._index.as_query_engine(llm=llm, **{"similarity_top_k": 2, **options})
