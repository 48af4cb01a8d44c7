"""The corpus' scripted models as `ChatOpenAI`, over HTTP to a server on loopback.

For instrumentations that patch the OpenAI client. Within `openai_models()`, `model()` of
`langchain_kit` returns `ChatOpenAI` objects; the server replies by the same scripts.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import count
from typing import Any

from langchain_core.messages import convert_to_messages
from langchain_openai import ChatOpenAI

from openai_server import HttpReply, ScriptedOpenAI, chat_reply

from . import langchain_kit


class Served:
    """The scripts by model name, and the errors that they raised."""

    def __init__(self) -> None:
        self.scripts: dict[str, Any] = {}
        self.errors: dict[str, Exception] = {}
        self.server = ScriptedOpenAI(self._answer)
        self._numbers = count(1)

    def model(self, *script: Any, **fields: Any) -> ChatOpenAI:
        name = f"{fields.get('model_name', 'scripted-chat-1')}-{next(self._numbers)}"
        self.scripts[name] = langchain_kit.as_script(script)
        return Client(model=name, base_url=self.server.base_url, served=self)

    def _answer(self, body: dict[str, Any]) -> HttpReply:
        messages = convert_to_messages(body["messages"])
        try:
            message = langchain_kit.as_message(self.scripts[body["model"]](messages), body)
        except Exception as error:  # noqa: BLE001 - it is raised again in the client
            self.errors[body["model"]] = error
            return HttpReply(status=500, body={"error": {"message": "scripted"}})
        usage = langchain_kit.usage_of(messages, message)
        reply = chat_reply(
            body,
            langchain_kit.text_of(message),
            [(call["name"], call["args"]) for call in message.tool_calls],
            (usage["input_tokens"], usage["output_tokens"]),
        )
        # No connection outlives the event loop of its request.
        return replace(reply, headers={**reply.headers, "Connection": "close"})


class Client(ChatOpenAI):
    """`ChatOpenAI` that raises what its script raises, and counts words as tokens."""

    served: Any = None

    def __init__(self, **fields: Any) -> None:
        super().__init__(api_key="of-no-account", max_retries=0, timeout=30, **fields)

    def get_num_tokens(self, text: str) -> int:
        return len(text.split())

    def _generate(self, *args: Any, **kwargs: Any) -> Any:
        with self._as_scripted():
            return super()._generate(*args, **kwargs)

    async def _agenerate(self, *args: Any, **kwargs: Any) -> Any:
        with self._as_scripted():
            return await super()._agenerate(*args, **kwargs)

    @contextmanager
    def _as_scripted(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            raise self.served.errors.pop(self.model_name, error) from error


@contextmanager
def openai_models() -> Iterator[None]:
    """Serve scripted models on loopback and let `langchain_kit.model` return their clients."""
    served = Served()
    langchain_kit.use_models(served.model)
    try:
        with served.server:
            yield
    finally:
        langchain_kit.use_models(None)
