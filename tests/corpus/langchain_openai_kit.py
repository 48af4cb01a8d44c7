"""The corpus' scripted models as `ChatOpenAI`, over HTTP to a server on loopback.

For instrumentations that patch the OpenAI client. Within `openai_models()`, `model()` of
`langchain_kit` returns `ChatOpenAI` objects; the server replies by the same scripts.
"""

import json
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from typing import Any

from langchain_core.messages import AIMessage, convert_to_messages
from langchain_openai import ChatOpenAI

from . import langchain_kit
from .kit import pieces

_NUMBERS = count(1)


class Served:
    """The scripts by model name, and the errors that they raised."""

    url = ""

    def __init__(self) -> None:
        self.scripts: dict[str, Any] = {}
        self.errors: dict[str, Exception] = {}

    def model(self, *script: Any, **fields: Any) -> ChatOpenAI:
        name = f"{fields.get('model_name', 'scripted-chat-1')}-{next(_NUMBERS)}"
        self.scripts[name] = langchain_kit._script(script)  # noqa: SLF001 - a part of that kit
        return ScriptedOpenAI(model=name, base_url=self.url, served=self)


class ScriptedOpenAI(ChatOpenAI):
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
    server = Server(("127.0.0.1", 0), _handler(served))
    served.url = f"http://127.0.0.1:{server.server_address[1]}/v1"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    langchain_kit.use_models(served.model)
    try:
        yield
    finally:
        langchain_kit.use_models(None)
        server.shutdown()
        server.server_close()
        thread.join()


class Server(ThreadingHTTPServer):
    """A server that does not log disconnected clients."""

    daemon_threads = True

    def handle_error(self, *_args: Any) -> None:
        """Ignore it."""


def _handler(served: Served) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.0"  # no connection outlives the event loop of its request

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            try:
                message = _reply(served, body)
            except Exception as error:  # noqa: BLE001 - it is raised again in the client
                served.errors[body["model"]] = error
                self._send(500, "application/json", b'{"error": {"message": "scripted"}}')
                return
            if body.get("stream"):
                self._send(200, "text/event-stream", _events(body, message))
            else:
                reply = json.dumps(_completion(body, message)).encode()
                self._send(200, "application/json", reply)

        def _send(self, status: int, content_type: str, content: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Type", content_type)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_args: Any) -> None:
            """Log nothing."""

    return Handler


def _reply(served: Served, body: Mapping[str, Any]) -> AIMessage:
    messages = convert_to_messages(body["messages"])
    return langchain_kit._as_message(served.scripts[body["model"]](messages), body)  # noqa: SLF001


def _completion(body: Mapping[str, Any], message: AIMessage) -> dict[str, Any]:
    said = {"role": "assistant", "content": langchain_kit.text_of(message) or None}
    if message.tool_calls:
        said["tool_calls"] = _tool_calls(message)
    choice = {"index": 0, "message": said, "finish_reason": _finish(message)}
    return {**_head(body, "chat.completion"), "choices": [choice], "usage": _usage(body, message)}


def _events(body: Mapping[str, Any], message: AIMessage) -> bytes:
    head = _head(body, "chat.completion.chunk")
    deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}]
    deltas += [{"content": piece} for piece in pieces(langchain_kit.text_of(message))]
    if message.tool_calls:
        deltas.append({"tool_calls": _tool_calls(message)})
    chunks = [{**head, "choices": [{"index": 0, "delta": delta}]} for delta in deltas]
    last = {"index": 0, "delta": {}, "finish_reason": _finish(message)}
    chunks.append({**head, "choices": [last]})
    chunks.append({**head, "choices": [], "usage": _usage(body, message)})
    lines = [f"data: {json.dumps(chunk)}\n\n" for chunk in chunks]
    return "".join([*lines, "data: [DONE]\n\n"]).encode()


def _tool_calls(message: AIMessage) -> list[dict[str, Any]]:
    return [
        {
            "index": index,
            "id": one["id"],
            "type": "function",
            "function": {"name": one["name"], "arguments": json.dumps(one["args"])},
        }
        for index, one in enumerate(message.tool_calls)
    ]


def _finish(message: AIMessage) -> str:
    return "tool_calls" if message.tool_calls else "stop"


def _head(body: Mapping[str, Any], kind: str) -> dict[str, Any]:
    return {
        "id": f"chatcmpl-{next(_NUMBERS)}",
        "object": kind,
        "created": int(time.time()),
        "model": body["model"],
    }


def _usage(body: Mapping[str, Any], message: AIMessage) -> dict[str, int]:
    asked = len(json.dumps(body["messages"]).split())
    said = len(langchain_kit.text_of(message).split()) + 7 * len(message.tool_calls)
    return {"prompt_tokens": asked, "completion_tokens": said, "total_tokens": asked + said}
