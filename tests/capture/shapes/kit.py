"""What the shapes in LangChain are made of: a scripted chat model, and a retriever."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from langchain_core.documents import Document
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage
from langchain_core.output_parsers import StrOutputParser
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import Runnable, RunnablePassthrough
from langchain_core.utils.function_calling import convert_to_openai_tool


class Chat(BaseChatModel):
    """Replies by the first of ``rules`` whose key is in what it is shown; raises exceptions."""

    rules: Mapping[str, Any]

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def bind_tools(self, tools: Sequence[Any], **kwargs: Any) -> Runnable[Any, AIMessage]:
        return self.bind(tools=[convert_to_openai_tool(tool) for tool in tools], **kwargs)

    def _reply(self, messages: Sequence[BaseMessage]) -> AIMessage:
        shown = "\n".join(str(message.content) for message in messages)
        reply = next(reply for key, reply in self.rules.items() if key in shown)
        if isinstance(reply, Exception):
            raise reply
        return reply.model_copy() if isinstance(reply, AIMessage) else AIMessage(reply)

    def _generate(self, messages: list[BaseMessage], *_args: Any, **_kwargs: Any) -> ChatResult:
        return ChatResult(generations=[ChatGeneration(message=self._reply(messages))])

    def _stream(
        self, messages: list[BaseMessage], *_args: Any, **_kwargs: Any
    ) -> Iterator[ChatGenerationChunk]:
        message = self._reply(messages)
        if message.tool_calls:
            chunks = [
                {"name": c["name"], "args": json.dumps(c["args"]), "id": c["id"]}
                for c in message.tool_calls
            ]
            numbered = [{**c, "index": n} for n, c in enumerate(chunks)]
            yield ChatGenerationChunk(
                message=AIMessageChunk(content="", tool_call_chunks=numbered)  # type: ignore[arg-type]
            )
            return
        for word in str(message.content).split(" "):
            space = "" if word == str(message.content).split(" ", maxsplit=1)[0] else " "
            yield ChatGenerationChunk(message=AIMessageChunk(content=space + word))


class Pages(BaseRetriever):
    """Finds the documents of the first of ``found`` whose key is in the query; or fails."""

    found: Mapping[str, Any]

    def _get_relevant_documents(self, query: str, **_kwargs: Any) -> list[Document]:
        texts = next((texts for key, texts in self.found.items() if key in query.lower()), [])
        if isinstance(texts, Exception):
            raise texts
        return [
            Document(page_content=text, metadata={"source": f"kb/{number}.md"})
            for number, text in enumerate(texts)
        ]


def call(**calls: Any) -> AIMessage:
    """Return a message that calls tools: name with its arguments, or with a list of them."""
    made = [
        {"name": name, "args": args, "id": f"call-{name}-{number}"}
        for name, several in calls.items()
        for number, args in enumerate(several if isinstance(several, list) else [several])
    ]
    return AIMessage("", tool_calls=made)


def joined(documents: Sequence[Document]) -> str:
    """Return the texts of ``documents``, with blank lines between them."""
    return "\n\n".join(document.page_content for document in documents)


def ask(model: BaseChatModel, template: str) -> Runnable[Any, str]:
    """Return a chain that fills ``template``, asks ``model`` and returns its text."""
    return ChatPromptTemplate.from_template(template) | model | StrOutputParser()


GROUNDED = "Answer from the context.\n\n{context}\n\nQuestion: {question}"
"""The prompt of most generators."""


def rag(pages: BaseRetriever, model: BaseChatModel) -> Runnable[Any, str]:
    """Return the plainest RAG chain: question in, answer out."""
    return {"context": pages | joined, "question": RunnablePassthrough()} | ask(model, GROUNDED)
