"""Fakes for the LlamaIndex applications: a chat model, a completion model and an embedding model.

The models answer from a script. The embedding model is `kit.embed`, so retrieval is real: nodes
are ranked by the words that they share with the query.
"""

from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from itertools import accumulate
from typing import Any

from llama_index.core import Document, VectorStoreIndex
from llama_index.core.base.llms.types import (
    ChatMessage,
    ChatResponse,
    CompletionResponse,
    LLMMetadata,
    MessageRole,
    TextBlock,
    ToolCallBlock,
)
from llama_index.core.embeddings import BaseEmbedding
from llama_index.core.llms import CustomLLM
from llama_index.core.llms.callbacks import llm_chat_callback, llm_completion_callback
from llama_index.core.llms.function_calling import FunctionCallingLLM
from llama_index.core.llms.llm import ToolSelection
from llama_index.core.schema import TextNode
from pydantic import PrivateAttr

from .kit import embed, pieces
from .scripted import Call, Reply, Rule, scripted


class ChatModel(FunctionCallingLLM):
    """A chat model with tool calls, as the classes for hosted models are."""

    name: str = "scripted-chat-1"
    window: int = 8192
    _script: Callable[[str], Reply] = PrivateAttr()

    def __init__(self, *rules: Rule, **fields: Any) -> None:
        super().__init__(**fields)
        self._script = scripted(*rules)

    @classmethod
    def class_name(cls) -> str:
        return "scripted_chat_model"

    @property
    def metadata(self) -> LLMMetadata:
        return LLMMetadata(
            context_window=self.window,
            num_output=256,
            is_chat_model=True,
            is_function_calling_model=True,
            model_name=self.name,
        )

    @llm_chat_callback()
    def chat(self, messages: Sequence[ChatMessage], **_: Any) -> ChatResponse:
        return self._whole(messages)

    @llm_chat_callback()
    async def achat(self, messages: Sequence[ChatMessage], **_: Any) -> ChatResponse:
        return self._whole(messages)

    @llm_chat_callback()
    def stream_chat(self, messages: Sequence[ChatMessage], **_: Any) -> Iterator[ChatResponse]:
        return self._parts(messages)

    @llm_chat_callback()
    async def astream_chat(
        self, messages: Sequence[ChatMessage], **_: Any
    ) -> AsyncIterator[ChatResponse]:
        return _awaited(self._parts(messages))

    @llm_completion_callback()
    def complete(self, prompt: str, **_: Any) -> CompletionResponse:
        return self._completed(prompt)

    @llm_completion_callback()
    async def acomplete(self, prompt: str, **_: Any) -> CompletionResponse:
        return self._completed(prompt)

    @llm_completion_callback()
    def stream_complete(self, prompt: str, **_: Any) -> Iterator[CompletionResponse]:
        return _streamed(str(self._script(prompt)))

    @llm_completion_callback()
    async def astream_complete(self, prompt: str, **_: Any) -> AsyncIterator[CompletionResponse]:
        return _awaited(_streamed(str(self._script(prompt))))

    def get_tool_calls_from_response(
        self,
        response: ChatResponse,
        error_on_no_tool_call: bool = True,  # noqa: FBT001, FBT002 - the base class's
        **_: Any,
    ) -> list[ToolSelection]:
        calls = [block for block in response.message.blocks if isinstance(block, ToolCallBlock)]
        if not calls and error_on_no_tool_call:
            message = "the model has called no tool"
            raise ValueError(message)
        return [
            ToolSelection(
                tool_id=call.tool_call_id or "",
                tool_name=call.tool_name,
                tool_kwargs=dict(call.tool_kwargs),
            )
            for call in calls
        ]

    def _prepare_chat_with_tools(
        self,
        tools: Sequence[Any],
        user_msg: str | ChatMessage | None = None,
        chat_history: list[ChatMessage] | None = None,
        **_: Any,
    ) -> dict[str, Any]:
        messages = list(chat_history or [])
        if isinstance(user_msg, str):
            user_msg = ChatMessage(role=MessageRole.USER, content=user_msg)
        messages += [user_msg] if user_msg else []
        functions = [tool.metadata.to_openai_tool() for tool in tools]
        return {"messages": messages, "tools": functions}

    def _completed(self, prompt: str) -> CompletionResponse:
        response = self._whole([ChatMessage(role=MessageRole.USER, content=prompt)])
        return CompletionResponse(text=response.message.content or "", raw=response.raw)

    def _whole(self, messages: Sequence[ChatMessage]) -> ChatResponse:
        prompt = _as_text(messages)
        message = _message(self._script(prompt), number=len(messages))
        return ChatResponse(message=message, raw=_raw(self.name, prompt, message))

    def _parts(self, messages: Sequence[ChatMessage]) -> Iterator[ChatResponse]:
        whole = self._whole(messages)
        text = whole.message.content or ""
        if not text:
            yield whole.model_copy(update={"delta": ""})
        parts = pieces(text)
        for delta, so_far in zip(parts, accumulate(parts), strict=True):
            message = ChatMessage(role=MessageRole.ASSISTANT, content=so_far)
            yield ChatResponse(message=message, delta=delta, raw={"model": self.name})


class CompletionModel(CustomLLM):
    """A completion model without chat or tools, as local models are wrapped."""

    name: str = "scripted-completion-1"
    _script: Callable[[str], Reply] = PrivateAttr()

    def __init__(self, *rules: Rule, **fields: Any) -> None:
        super().__init__(**fields)
        self._script = scripted(*rules)

    @property
    def metadata(self) -> LLMMetadata:
        return LLMMetadata(context_window=4096, num_output=256, model_name=self.name)

    @llm_completion_callback()
    def complete(self, prompt: str, **_: Any) -> CompletionResponse:
        return CompletionResponse(text=str(self._script(prompt)))

    @llm_completion_callback()
    def stream_complete(self, prompt: str, **_: Any) -> Iterator[CompletionResponse]:
        return _streamed(str(self._script(prompt)))


class Embedding(BaseEmbedding):
    """Embeds by the words of a text."""

    model_name: str = "scripted-embedding-1"

    def _get_query_embedding(self, query: str) -> list[float]:
        return embed(query)

    async def _aget_query_embedding(self, query: str) -> list[float]:
        return embed(query)

    def _get_text_embedding(self, text: str) -> list[float]:
        return embed(text)


def nodes(*texts: str) -> list[TextNode]:
    return [TextNode(text=text, id_=f"node-{number}") for number, text in enumerate(texts, 1)]


def documents(**texts: str) -> list[Document]:
    return [
        Document(text=text, id_=name, metadata={"file_name": f"{name}.md"})
        for name, text in texts.items()
    ]


def index(*texts: str) -> VectorStoreIndex:
    return VectorStoreIndex(nodes(*texts), embed_model=Embedding())


def ask(question: str, texts: Sequence[str], llm: CustomLLM | ChatModel, **options: Any) -> str:
    """Return the answer of a query engine over an index of ``texts``."""
    return str(index(*texts).as_query_engine(llm=llm, **options).query(question))


def headed(name: str, text: str) -> str:
    """Return ``text`` as LlamaIndex shows it to a model below the metadata of its document."""
    return f"file_name: {name}.md\n\n{text}"


async def _awaited(parts: Iterator[Any]) -> AsyncIterator[Any]:
    for part in parts:
        yield part


def _as_text(messages: Sequence[ChatMessage]) -> str:
    return "\n".join(f"{message.role.value}: {_content(message)}" for message in messages)


def _content(message: ChatMessage) -> str:
    called = [
        f"[{block.tool_name}({block.tool_kwargs})]"
        for block in message.blocks
        if isinstance(block, ToolCallBlock)
    ]
    return " ".join([message.content or "", *called]).strip()


def _message(reply: Reply, *, number: int) -> ChatMessage:
    if isinstance(reply, str):
        return ChatMessage(role=MessageRole.ASSISTANT, content=reply)
    calls = [reply] if isinstance(reply, Call) else reply
    blocks: list[Any] = [TextBlock(text="")]
    blocks += [
        ToolCallBlock(
            tool_call_id=f"call_{number}_{place}", tool_name=call.tool, tool_kwargs=call.arguments
        )
        for place, call in enumerate(calls)
    ]
    return ChatMessage(role=MessageRole.ASSISTANT, blocks=blocks)


def _raw(model: str, prompt: str, message: ChatMessage) -> dict[str, Any]:
    asked, said = len(prompt.split()), len((message.content or "").split())
    usage = {"prompt_tokens": asked, "completion_tokens": said, "total_tokens": asked + said}
    return {"id": "chatcmpl-1", "model": model, "usage": usage}


def _streamed(text: str) -> Iterator[CompletionResponse]:
    parts = pieces(text)
    for delta, so_far in zip(parts, accumulate(parts), strict=True):
        yield CompletionResponse(text=so_far, delta=delta)
