"""Models for the Haystack applications: OpenAI's classes on a scripted server, and a local one.

`served(script)` gives generators and embedders of Haystack that ask a server on loopback. The
local components stand for the many integrations that are components of their own.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import haystack
from haystack import Document, Pipeline, component
from haystack.components.builders import ChatPromptBuilder
from haystack.components.embedders import OpenAITextEmbedder
from haystack.components.generators.chat import OpenAIChatGenerator
from haystack.dataclasses import ChatMessage, StreamingChunk
from haystack.document_stores.in_memory import InMemoryDocumentStore
from haystack.utils import Secret

from openai_server import ScriptedOpenAI

from . import kit
from .kit import embed, pieces
from .scripted import Rule, openai_server, scripted

AwaitedPipeline: type[Any] = getattr(haystack, "AsyncPipeline", Pipeline)
"""The class with `run_async`: in Haystack 2 one of its own."""

OPENLLMETRY = ("traceloop",)
"""For `not_on_spans`: it records a pipeline's inputs and outputs; no documents, prompts, tools."""
turn = partial(kit.turn, not_on_spans=OPENLLMETRY)


def wired(parts: dict[str, Any], *connections: str, kind: Any = Pipeline, **options: Any) -> Any:
    """Return a pipeline of ``parts``; a connection is `from > to`, several have commas between."""
    pipe = kind(**options)
    for name, part in parts.items():
        pipe.add_component(name, part)
    for connection in filter(None, ", ".join(connections).split(", ")):
        pipe.connect(*connection.split(" > "))
    return pipe


def answered(pipe: Pipeline, **inputs: Any) -> str:
    """Run ``pipe`` and return the reply of its component `llm`."""
    (reply,) = pipe.run(inputs)["llm"]["replies"]
    return reply if isinstance(reply, str) else reply.text


def prompted(template: str) -> ChatPromptBuilder:
    return ChatPromptBuilder([ChatMessage.from_user(template)], required_variables="*")


def generating(
    llm: Any, template: str, parts: dict[str, Any], *connections: str, **options: Any
) -> Pipeline:
    """Return a pipeline of ``parts`` that ends in a prompt and the model ``llm``."""
    whole = {**parts, "prompt_builder": prompted(template), "llm": llm}
    return wired(whole, *connections, "prompt_builder.prompt > llm.messages", **options)


@dataclass(frozen=True)
class Models:
    """Makes components that call a scripted server."""

    server: ScriptedOpenAI

    def chat(self, **options: Any) -> OpenAIChatGenerator:
        return OpenAIChatGenerator(model="gpt-4o-mini", **self._at(), **options)

    def text_embedder(self) -> OpenAITextEmbedder:
        return OpenAITextEmbedder(model="text-embedding-3-small", **self._at())

    def _at(self) -> dict[str, Any]:
        return {"api_key": Secret.from_token("none"), "api_base_url": self.server.base_url}


@contextmanager
def served(*rules: Rule) -> Iterator[Models]:
    with openai_server(*rules) as server:
        yield Models(server)


@component
class LocalGenerator:
    """A generator of an integration: takes a prompt, gives texts."""

    def __init__(self, *rules: Rule) -> None:
        self._script = scripted(*rules)

    @component.output_types(replies=list[str], meta=list[dict[str, Any]])
    def run(self, prompt: str, generation_kwargs: dict[str, Any] | None = None) -> dict[str, Any]:
        """Generate."""
        return {"replies": [str(self._script(prompt))], "meta": [{"model": "local-8b"}]}


@component
class LocalChatGenerator:
    """A chat generator of an integration, with streaming, sync and async."""

    def __init__(self, *rules: Rule, streaming_callback: Any = None) -> None:
        self._script, self.streaming_callback = scripted(*rules), streaming_callback

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
    return filled(*(Document(content=text) for text in texts), **options)


def filled(*documents: Document, **options: Any) -> InMemoryDocumentStore:
    made = InMemoryDocumentStore(embedding_similarity_function="cosine", **options)
    made.write_documents([replace(d, embedding=embed(d.content or "")) for d in documents])
    return made
