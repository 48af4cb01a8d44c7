"""The handbook's pipeline in Haystack."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from haystack import Document, Pipeline
from haystack.components.agents import Agent
from haystack.components.builders import ChatPromptBuilder
from haystack.components.embedders import MockTextEmbedder
from haystack.components.generators.chat import MockChatGenerator
from haystack.components.retrievers.in_memory import InMemoryEmbeddingRetriever
from haystack.core.errors import PipelineRuntimeError
from haystack.dataclasses import ChatMessage, StreamingChunk, ToolCall
from haystack.document_stores.in_memory import InMemoryDocumentStore
from haystack.tools import create_tool_from_function

from apps import company
from apps.fakes import WordEmbeddings
from conversations import Ask, Messages, reply_to

TEMPLATE = (
    "Answer from these pages only.\n\n{% for page in documents %}{{ page.content }}\n\n{% endfor %}"
)


def answer(messages: Sequence[ChatMessage]) -> str:
    *system, user = (str(message.text) for message in messages)
    return company.answer(user, "".join(system))


def search_first(messages: Sequence[ChatMessage]) -> ChatMessage:
    """Call the search tool, then answer from its result."""
    question = str(next(m.text for m in reversed(messages) if m.is_from("user")))
    found = messages[-1].tool_call_results
    if found:
        return ChatMessage.from_assistant(company.answer(question, str(found[0].result)))
    call = ToolCall(tool_name="search_handbook", arguments={"query": question})
    return ChatMessage.from_assistant(tool_calls=[call])


def spoken(messages: Sequence[ChatMessage]) -> str:
    return reply_to("\n".join(str(message.text) for message in messages))


def unavailable(messages: Sequence[ChatMessage]) -> str:
    del messages
    message = "the model is down"
    raise ConnectionError(message)


class HandbookPipeline:
    """A pipeline that embeds, retrieves, fills a prompt and asks a model."""

    def __init__(self) -> None:
        embed = WordEmbeddings().embed_query
        pages = [(str(page.id), page.page_content) for page in company.documents()]
        self._store = InMemoryDocumentStore(embedding_similarity_function="cosine")
        self._store.write_documents(
            [Document(id=name, content=text, embedding=embed(text)) for name, text in pages]
        )

    def conversing(self, kind: str) -> Ask:
        """Return a pipeline that gets the messages before a question as its prompt."""
        roles = {"user": ChatMessage.from_user, "assistant": ChatMessage.from_assistant}

        def ask(question: str, history: Messages) -> str:
            before = [roles[role](text) for role, text in history]
            system = ChatMessage.from_system(TEMPLATE)
            template = [system, *before, ChatMessage.from_user("{{ question }}")]
            inputs = _inputs(question)
            inputs["prompt"]["template"] = template
            if kind == "streamed":
                inputs["llm"] = {"streaming_callback": lambda _: None}
            return _reply(self._pipeline(spoken).run(inputs))

        return ask

    def ask(self, question: str) -> str:
        return _reply(self._pipeline().run(_inputs(question)))

    async def aask(self, question: str) -> str:
        return _reply(await self._pipeline().run_async(_inputs(question)))

    def stream(self, question: str) -> str:
        chunks: list[StreamingChunk] = []
        inputs = {**_inputs(question), "llm": {"streaming_callback": chunks.append}}
        self._pipeline().run(inputs)
        return "".join(chunk.content for chunk in chunks)

    def ask_agent(self, question: str) -> str:
        chunks: list[StreamingChunk] = []
        search = create_tool_from_function(self._search, name="search_handbook")
        agent = Agent(chat_generator=MockChatGenerator(response_fn=search_first), tools=[search])
        agent.run([ChatMessage.from_user(question)], streaming_callback=chunks.append)
        return "".join(chunk.content for chunk in chunks if not chunk.tool_call_result)

    def fail(self, question: str) -> None:
        with pytest.raises(PipelineRuntimeError, match="the model is down"):
            self._pipeline(unavailable).run(_inputs(question))

    def chat(self, greeting: str) -> str:
        pipeline = Pipeline()
        pipeline.add_component("llm", MockChatGenerator(response_fn=answer))
        return _reply(pipeline.run({"llm": {"messages": [ChatMessage.from_user(greeting)]}}))

    def _search(self, query: str) -> str:
        near = InMemoryEmbeddingRetriever(self._store, top_k=2)
        found = near.run(query_embedding=WordEmbeddings().embed_query(query))
        return "\n\n".join(str(page.content) for page in found["documents"])

    def _pipeline(self, reply: Callable[..., str] = answer) -> Pipeline:
        prompt = [ChatMessage.from_system(TEMPLATE), ChatMessage.from_user("{{ question }}")]
        pipeline = Pipeline()
        embedder = MockTextEmbedder(embedding_fn=WordEmbeddings().embed_query)
        pipeline.add_component("embedder", embedder)
        pipeline.add_component("retriever", InMemoryEmbeddingRetriever(self._store, top_k=2))
        pipeline.add_component("prompt", ChatPromptBuilder(prompt, required_variables="*"))
        pipeline.add_component("llm", MockChatGenerator(response_fn=reply))
        pipeline.connect("embedder.embedding", "retriever.query_embedding")
        pipeline.connect("retriever.documents", "prompt.documents")
        pipeline.connect("prompt.prompt", "llm.messages")
        return pipeline


def _inputs(question: str) -> dict[str, Any]:
    return {"embedder": {"text": question}, "prompt": {"question": question}}


def _reply(outputs: dict[str, Any]) -> str:
    return str(outputs["llm"]["replies"][0].text)
