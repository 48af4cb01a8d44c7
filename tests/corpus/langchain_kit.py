"""Fakes on LangChain's base classes: a scripted chat model, embeddings, a vector store.

An application names its model's replies; everything else about the model is as with a provider:
tool calls, structured output, streaming by words, usage and response metadata.
"""

import importlib
import json
import threading
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import count
from typing import Any, TypeAlias

from langchain_core.callbacks import CallbackManagerForRetrieverRun
from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings
from langchain_core.language_models import BaseChatModel
from langchain_core.language_models.llms import LLM
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage, HumanMessage
from langchain_core.messages.ai import UsageMetadata
from langchain_core.messages.tool import tool_call_chunk
from langchain_core.output_parsers import JsonOutputParser, PydanticOutputParser, StrOutputParser
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult, GenerationChunk
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import Runnable
from langchain_core.tools import BaseTool, create_retriever_tool
from langchain_core.utils.function_calling import convert_to_openai_tool
from langchain_core.vectorstores import InMemoryVectorStore
from pydantic import BaseModel

from .kit import Config, embed, pieces, words

Reply: TypeAlias = "str | dict[str, Any] | BaseModel | AIMessage | Exception"
Script: TypeAlias = "Callable[[list[BaseMessage]], Reply]"

_ids = count(1)


def classic(name: str) -> Any:
    """Import ``langchain_classic.<name>``, or ``langchain.<name>`` where LangChain is 0.3."""
    try:
        return importlib.import_module(f"langchain_classic.{name}")
    except ModuleNotFoundError:
        return importlib.import_module(f"langchain.{name}")


def create_agent(*args: Any, **options: Any) -> Any:
    """Make an agent by `create_agent` of LangChain 1, which 0.3 does not have."""
    return importlib.import_module("langchain.agents").create_agent(*args, **options)


def ask_agent(
    config: Config, question: str, tools: Sequence[Any], *script: Any, **options: Any
) -> Any:
    """Ask an agent of LangChain 1 whose model replies by ``script``, and return its state."""
    agent = create_agent(model(*script), tools, **options)
    return agent.invoke({"messages": [HumanMessage(question)]}, config)


def call(name: str, /, **args: Any) -> AIMessage:
    return calls((name, args))


def calls(*wanted: tuple[str, dict[str, Any]], text: str = "") -> AIMessage:
    made = [
        {"name": name, "args": args, "id": f"call_{next(_ids):05d}", "type": "tool_call"}
        for name, args in wanted
    ]
    return AIMessage(content=text, tool_calls=made)


def text_of(message: BaseMessage) -> str:
    if isinstance(message.content, str):
        return message.content
    parts = (part if isinstance(part, str) else part.get("text", "") for part in message.content)
    return "".join(parts)


class Scripted(BaseChatModel):
    """A chat model that replies by a script and streams word by word."""

    script: Any
    model_name: str = "scripted-chat-1"

    @property
    def _llm_type(self) -> str:
        return "scripted-chat"

    def get_num_tokens(self, text: str) -> int:
        return len(text.split())

    def bind_tools(self, tools: Sequence[Any], **kwargs: Any) -> Runnable[Any, AIMessage]:
        return self.bind(tools=[convert_to_openai_tool(tool) for tool in tools], **kwargs)

    def with_structured_output(
        self, schema: Any, *, include_raw: bool = False, **kwargs: Any
    ) -> Runnable[Any, Any]:
        if kwargs.pop("method", "function_calling") == "function_calling":
            return super().with_structured_output(schema, include_raw=include_raw)
        is_model = isinstance(schema, type) and issubclass(schema, BaseModel)
        parser = PydanticOutputParser(pydantic_object=schema) if is_model else JsonOutputParser()
        return self.bind(response_format={"type": "json_schema"}) | parser

    def _generate(self, messages: list[BaseMessage], *_args: Any, **kwargs: Any) -> ChatResult:
        message = self._reply(messages, kwargs)
        message = message.model_copy(update={"usage_metadata": usage_of(messages, message)})
        return ChatResult(generations=[ChatGeneration(message=message)])

    def _stream(
        self, messages: list[BaseMessage], *_args: Any, **kwargs: Any
    ) -> Iterator[ChatGenerationChunk]:
        message = self._reply(messages, kwargs)
        for piece in pieces(text_of(message)):
            yield ChatGenerationChunk(message=AIMessageChunk(content=piece))
        yield _last_chunk(message, usage_of(messages, message))

    def _reply(self, messages: list[BaseMessage], kwargs: Mapping[str, Any]) -> AIMessage:
        message = as_message(self.script(messages), kwargs)
        message.response_metadata = {"model_name": self.model_name, "finish_reason": "stop"}
        return message


class ScriptedLLM(LLM):
    """A completion model that replies by a script on its prompt."""

    script: Any

    @property
    def _llm_type(self) -> str:
        return "scripted-completion"

    def get_num_tokens(self, text: str) -> int:
        return len(text.split())

    def _call(self, prompt: str, *_args: Any, **_kwargs: Any) -> str:
        return str(self.script([AIMessage(prompt)]))

    def _stream(self, prompt: str, *_args: Any, **_kwargs: Any) -> Iterator[GenerationChunk]:
        yield from (GenerationChunk(text=piece) for piece in pieces(self._call(prompt)))


def model(*script: Any, **fields: Any) -> Scripted:
    return Scripted(script=as_script(script), **fields)


def completion_model(*script: Any) -> ScriptedLLM:
    return ScriptedLLM(script=as_script(script))


class Words(Embeddings):
    """Embeddings by the words of a text; no two texts are equally near to a query."""

    def embed_query(self, text: str) -> list[float]:
        return [*embed(text), 0.001 + zlib.crc32(text.encode()) * 1e-13]

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        return [self.embed_query(text) for text in texts]


class KeywordRetriever(BaseRetriever):
    """A custom retriever: the documents that share most words with the query."""

    documents: list[Document]
    k: int = 3

    def _get_relevant_documents(
        self, query: str, *, run_manager: CallbackManagerForRetrieverRun
    ) -> list[Document]:
        asked = set(words(query))
        shared = [len(asked & set(words(d.page_content))) for d in self.documents]
        ranked = sorted(zip(shared, self.documents, strict=True), key=lambda pair: -pair[0])
        return [document for number, document in ranked if number][: self.k]


def documents(*texts: str | Document, **metadata: Any) -> list[Document]:
    return [
        text
        if isinstance(text, Document)
        else Document(page_content=text, metadata=dict(metadata), id=f"doc-{number}")
        for number, text in enumerate(texts, 1)
    ]


def store(*texts: str | Document, **metadata: Any) -> InMemoryVectorStore:
    made = InMemoryVectorStore(Words())
    made.add_documents(documents(*texts, **metadata))
    return made


def retriever(*texts: str | Document, k: int = 4, **metadata: Any) -> BaseRetriever:
    return store(*texts, **metadata).as_retriever(search_kwargs={"k": k})


def search_tool(name: str, *texts: str | Document, k: int = 4) -> BaseTool:
    return create_retriever_tool(retriever(*texts, k=k), name, "Looks for what was written on it.")


def joined(found: Sequence[Document]) -> str:
    return "\n\n".join(document.page_content for document in found)


def lines(found: Sequence[Document]) -> str:
    return "\n".join(document.page_content for document in found)


def in_a_row(state: Any, *nodes: Callable[..., Any], **options: Any) -> Any:
    """Compile a graph of ``nodes``, one after the other."""
    from langgraph.graph import START, StateGraph

    graph = StateGraph(state).add_sequence(nodes).add_edge(START, nodes[0].__name__)
    return graph.compile(**options)


def lcel(template: str, llm: Runnable[Any, Any]) -> Runnable[Any, str]:
    """Return a chain that fills ``template``, passes it to ``llm`` and returns the text."""
    return ChatPromptTemplate.from_template(template) | llm | StrOutputParser()


def as_script(script: Sequence[Any]) -> Script:
    if len(script) == 1 and callable(script[0]):
        return script[0]
    if len(script) == 1 and isinstance(script[0], Mapping):
        return _by_cue(script[0])
    return _Replies(script)


class _Replies:
    """Replies one after the other."""

    def __init__(self, replies: Sequence[Reply]) -> None:
        self._replies = list(replies)
        self._lock = threading.Lock()

    def __call__(self, messages: list[BaseMessage]) -> Reply:
        with self._lock:
            assert self._replies, f"no reply left for {messages[-1].content!r}"
            return self._replies.pop(0)


def _by_cue(replies: Mapping[str, Reply]) -> Script:
    def reply(messages: list[BaseMessage]) -> Reply:
        last, whole = text_of(messages[-1]), "\n".join(text_of(m) for m in messages)
        for text in (last, whole):
            for cue, found in replies.items():
                if cue in text:
                    return found
        message = f"no reply for {last!r}"
        raise AssertionError(message)

    return reply


def as_message(reply: Reply, kwargs: Mapping[str, Any]) -> AIMessage:
    if isinstance(reply, Exception):
        raise reply
    if isinstance(reply, AIMessage):
        return reply.model_copy()
    if isinstance(reply, str):
        return AIMessage(content=reply)
    fields = reply.model_dump() if isinstance(reply, BaseModel) else reply
    if kwargs.get("tools"):
        return call(kwargs["tools"][0]["function"]["name"], **fields)
    return AIMessage(content=json.dumps(fields, ensure_ascii=False))


def usage_of(messages: Sequence[BaseMessage], reply: AIMessage) -> UsageMetadata:
    asked = sum(len(text_of(message).split()) for message in messages)
    said = len(text_of(reply).split()) + 7 * len(reply.tool_calls)
    return UsageMetadata(input_tokens=asked, output_tokens=said, total_tokens=asked + said)


def _last_chunk(message: AIMessage, usage: UsageMetadata) -> ChatGenerationChunk:
    chunks = [
        tool_call_chunk(name=c["name"], args=json.dumps(c["args"]), id=c["id"], index=i)
        for i, c in enumerate(message.tool_calls)
    ]
    last = AIMessageChunk(
        content="",
        tool_call_chunks=chunks,
        usage_metadata=usage,
        response_metadata=message.response_metadata,
    )
    return ChatGenerationChunk(message=last)
