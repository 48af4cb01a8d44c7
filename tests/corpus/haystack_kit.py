"""Models for the Haystack applications: OpenAI's classes on a scripted server, and a local one.

`served(script)` gives generators and embedders of Haystack that ask a server on loopback. The
local components stand for the many integrations that are components of their own.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import haystack
from haystack import Document, Pipeline, component
from haystack.components.embedders import OpenAITextEmbedder
from haystack.components.generators.chat import OpenAIChatGenerator
from haystack.dataclasses import ChatMessage, StreamingChunk
from haystack.document_stores.in_memory import InMemoryDocumentStore
from haystack.utils import Secret

from rag_eval_otel.testing import HttpReply, ScriptedOpenAI

from .kit import embed, pieces
from .scripted import Call, Reply, Script, scripted

AwaitedPipeline: type[Any] = getattr(haystack, "AsyncPipeline", Pipeline)
"""The class with `run_async`: in Haystack 2 one of its own."""

OPENLLMETRY = ("traceloop",)
"""For `not_on_spans`: it records a pipeline's inputs and outputs; no documents, prompts, tools."""

ID, CREATED = "chatcmpl-1", 1_760_000_000


@dataclass(frozen=True)
class Models:
    """Makes components that ask a scripted server."""

    server: ScriptedOpenAI

    def chat(self, **options: Any) -> OpenAIChatGenerator:
        """Return a chat generator."""
        return OpenAIChatGenerator(model="gpt-4o-mini", **self._at(), **options)

    def generator(self, **options: Any) -> Any:
        """Return a generator for a prompt; Haystack 3 has none."""
        from haystack.components.generators import OpenAIGenerator

        return OpenAIGenerator(model="gpt-4o-mini", **self._at(), **options)

    def text_embedder(self) -> OpenAITextEmbedder:
        """Return an embedder for queries."""
        return OpenAITextEmbedder(model="text-embedding-3-small", **self._at())

    def _at(self) -> dict[str, Any]:
        return {"api_key": Secret.from_token("none"), "api_base_url": self.server.base_url}


@contextmanager
def served(script: Script) -> Iterator[Models]:
    """Serve a model that answers by ``script``."""
    reply = scripted(script)

    def answer(body: dict[str, Any]) -> HttpReply:
        said = reply(_as_text(body["messages"]))
        return _stream(body, said) if body.get("stream") else _completion(body, said)

    with ScriptedOpenAI(answer, embed) as server:
        yield Models(server)


@component
class LocalGenerator:
    """A generator of an integration: takes a prompt, gives texts."""

    def __init__(self, script: Script) -> None:
        self._script = scripted(script)

    @component.output_types(replies=list[str], meta=list[dict[str, Any]])
    def run(self, prompt: str, generation_kwargs: dict[str, Any] | None = None) -> dict[str, Any]:
        """Generate."""
        return {"replies": [str(self._script(prompt))], "meta": [{"model": "local-8b"}]}


@component
class LocalChatGenerator:
    """A chat generator of an integration, with streaming, sync and async."""

    def __init__(self, script: Script, streaming_callback: Any = None) -> None:
        self._script, self.streaming_callback = scripted(script), streaming_callback

    @component.output_types(replies=list[ChatMessage])
    def run(
        self,
        messages: list[ChatMessage],
        streaming_callback: Any = None,
        generation_kwargs: dict[str, Any] | None = None,
    ) -> dict[str, Any]:
        """Reply."""
        text = str(self._script("\n".join(f"{m.role.value}: {m.text}" for m in messages)))
        for part in pieces(text) if (told := streaming_callback or self.streaming_callback) else ():
            told(StreamingChunk(content=part))
        meta = {"model": "local-chat-8b", "finish_reason": "stop"}
        return {"replies": [ChatMessage.from_assistant(text, meta=meta)]}

    @component.output_types(replies=list[ChatMessage])
    async def run_async(
        self,
        messages: list[ChatMessage],
        streaming_callback: Any = None,
        generation_kwargs: dict[str, Any] | None = None,
    ) -> dict[str, Any]:
        """Reply, awaited."""
        return self.run(messages)


@component
class LocalTextEmbedder:
    """An embedder of an integration."""

    @component.output_types(embedding=list[float])
    def run(self, text: str) -> dict[str, Any]:
        """Embed a query."""
        return {"embedding": embed(text)}


def store(*texts: str, **options: Any) -> InMemoryDocumentStore:
    """Return a store with a document for each text, embedded."""
    return filled(*(Document(content=text) for text in texts), **options)


def filled(*documents: Document, **options: Any) -> InMemoryDocumentStore:
    """Return a store with ``documents``, embedded."""
    made = InMemoryDocumentStore(embedding_similarity_function="cosine", **options)
    made.write_documents([replace(d, embedding=embed(d.content or "")) for d in documents])
    return made


def _as_text(messages: list[dict[str, Any]]) -> str:
    return "\n".join(f"{message['role']}: {_content(message)}" for message in messages)


def _content(message: dict[str, Any]) -> str:
    content = message.get("content") or ""
    if isinstance(content, list):
        content = "".join(part.get("text", "") for part in content)
    calls = [call["function"] for call in message.get("tool_calls") or ()]
    return " ".join([content, *(f"[{call['name']}({call['arguments']})]" for call in calls)])


def _calls(reply: Reply) -> list[dict[str, Any]]:
    wanted = [] if isinstance(reply, str) else [reply] if isinstance(reply, Call) else reply
    return [
        {
            "id": f"call_{place}",
            "type": "function",
            "function": {"name": call.tool, "arguments": json.dumps(call.arguments)},
        }
        for place, call in enumerate(wanted)
    ]


def _completion(body: dict[str, Any], reply: Reply) -> HttpReply:
    message: dict[str, Any] = {"role": "assistant", "content": None, "refusal": None}
    if calls := _calls(reply):
        message["tool_calls"] = calls
    else:
        message["content"] = reply
    finish = "tool_calls" if calls else "stop"
    choice = {"index": 0, "message": message, "finish_reason": finish, "logprobs": None}
    head = {"id": ID, "object": "chat.completion", "created": CREATED, "model": body["model"]}
    usage = {"prompt_tokens": 50, "completion_tokens": 10, "total_tokens": 60}
    return HttpReply(body={**head, "choices": [choice], "usage": usage})


def _stream(body: dict[str, Any], reply: Reply) -> HttpReply:
    head = {"id": ID, "object": "chat.completion.chunk", "created": CREATED, "model": body["model"]}
    calls = [{"index": place, **call} for place, call in enumerate(_calls(reply))]
    deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}]
    deltas += [{"tool_calls": calls}] if calls else [{"content": p} for p in pieces(str(reply))]
    finish = "tool_calls" if calls else "stop"
    choices = [{"index": 0, "delta": delta, "finish_reason": None} for delta in deltas]
    choices.append({"index": 0, "delta": {}, "finish_reason": finish})
    lines = [f"data: {json.dumps({**head, 'choices': [choice]})}\n\n" for choice in choices]
    return HttpReply(
        body="".join([*lines, "data: [DONE]\n\n"]), headers={"Content-Type": "text/event-stream"}
    )
