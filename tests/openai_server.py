"""A server on the loopback interface that speaks the OpenAI API, with replies from the test.

The module also has `LoopbackServer`, a small HTTP server that the OTLP receiver uses as well.
"""

import base64
import json
import re
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from typing import Any, Literal, TypeAlias

from typing_extensions import Self

_BASE = "/v1"
_NUMBERS = count(1)
_SECRET_HEADERS = frozenset({"authorization", "api-key", "x-api-key"})
_FORMATS = {  # by the richest response format of a server: all formats that the server accepts
    "none": ("text",),
    "json_object": ("text", "json_object"),
    "json_schema": ("text", "json_object", "json_schema"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpReply:
    """An HTTP response that a test prescribes, and that the server sends after `delay` seconds."""

    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    body: str | bytes | dict[str, Any] | list[Any] = ""
    delay: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedRequest:
    """One request as the server received it."""

    path: str
    body: dict[str, Any]
    headers: dict[str, str]
    at: float


Answer: TypeAlias = "Callable[[str, Mapping[str, str], bytes], HttpReply]"


class LoopbackServer(ThreadingHTTPServer):
    """An HTTP server for POST requests on a free port of 127.0.0.1, one thread a connection."""

    daemon_threads = True
    request_queue_size = 256

    def __init__(self, answer: Answer) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.answer = answer
        self.stopping = threading.Event()
        self._lock = threading.Lock()
        self._connections: set[socket.socket] = set()
        self._thread = threading.Thread(target=self._serve, daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def start(self) -> None:
        self._thread.start()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        self.stopping.set()
        if self._thread.ident is not None:
            with suppress(OSError):  # a connection ends the wait for the next one
                socket.create_connection(self.server_address).close()
            self._thread.join()
        self.server_close()
        with self._lock:
            connections = list(self._connections)
        for connection in connections:  # the thread of the connection sees its end, and closes it
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def _serve(self) -> None:
        while not self.stopping.is_set():
            self.handle_request()

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._lock:
            self._connections.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        with self._lock:
            self._connections.discard(request)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    """The handler of one keep-alive connection."""

    server: LoopbackServer
    protocol_version = "HTTP/1.1"
    wbufsize = -1  # headers and body leave together, so no client waits for a delayed ACK

    def do_POST(self) -> None:
        length = self.headers.get("Content-Length")
        if length is None:
            self.send_error(411)
            return
        body = self.rfile.read(int(length))
        headers = {name.lower(): value for name, value in self.headers.items()}
        reply = self.server.answer(self.path.partition("?")[0], headers, body)
        if self.server.stopping.wait(reply.delay):
            self.close_connection = True
        else:
            self._send(reply)

    def _send(self, reply: HttpReply) -> None:
        raw = _to_bytes(reply.body)
        size = str(len(raw))
        headers = {"Content-Type": "application/json", "Content-Length": size, **reply.headers}
        self.send_response(reply.status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(raw)
        self.close_connection = self.close_connection or headers["Content-Length"] != size

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
        """Print nothing, because the server records the requests."""


def count_words(text: str) -> int:
    return len(text.split())


def estimate_tokens(text: str) -> int:
    """Return about as many tokens as a byte-pair encoding of English text and JSON would give."""
    return len(_TOKEN.findall(text))


_TOKEN = re.compile(r"[^\W\d_]{1,7}|\d{1,3}|[^\w\s]{1,3}|_")


class ScriptedOpenAI:
    """An OpenAI server for chat completions and embeddings, with replies from functions."""

    def __init__(
        self,
        reply: Callable[[dict[str, Any]], object],
        embed: Callable[[str], Sequence[float] | HttpReply] | None = None,
        *,
        supports_schema: Literal["json_schema", "json_object", "none"] = "json_schema",
        answered_model: str | None = None,
        latency: float = 0.0,
        embed_latency: float = 0.0,
        token_latency: float = 0.0,
        slots: int | None = None,
        tokens: Callable[[str], int] = count_words,
        secrets: Literal["mask", "keep"] = "mask",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._reply = reply
        self._embed = embed
        self._formats = _FORMATS[supports_schema]
        self._answered_model = answered_model
        self._latency = latency
        self._embed_latency = embed_latency
        self._token_latency = token_latency
        self._slots = nullcontext() if slots is None else threading.BoundedSemaphore(slots)
        self._tokens = tokens
        self._secret_headers = _SECRET_HEADERS if secrets == "mask" else frozenset()
        self._clock = clock
        self._lock = threading.Lock()
        self._requests: list[RecordedRequest] = []
        self._server = LoopbackServer(self._answer)

    def start(self) -> Self:
        self._server.start()
        return self

    def stop(self) -> None:
        self._server.stop()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *exception: object) -> None:
        self.stop()

    @property
    def base_url(self) -> str:
        return self._server.url + _BASE

    @property
    def requests(self) -> list[RecordedRequest]:
        with self._lock:
            return list(self._requests)

    def _answer(self, path: str, headers: Mapping[str, str], raw: bytes) -> HttpReply:
        try:
            body = json.loads(raw)
        except ValueError:
            return _error(400, "the request body is not JSON")
        self._record(path, headers, body=body)
        if path == f"{_BASE}/chat/completions":
            return self._served(self._chat(body))
        if path == f"{_BASE}/embeddings" and self._embed is not None:
            reply, latency = self._embeddings(body, self._embed), self._embed_latency
        else:
            return _error(404, f"unknown path {path}")
        return replace(reply, delay=reply.delay + latency)

    def _served(self, reply: HttpReply) -> HttpReply:
        """Wait as long as a model would need for ``reply``, and return ``reply``."""
        usage = reply.body.get("usage") if isinstance(reply.body, dict) else None
        tokens = usage.get("completion_tokens") if isinstance(usage, dict) else None
        delay = self._latency + self._token_latency * (tokens or 0)
        if isinstance(self._slots, nullcontext):
            return replace(reply, delay=reply.delay + delay)
        with self._slots:
            self._server.stopping.wait(delay)
        return reply

    def _record(self, path: str, headers: Mapping[str, str], *, body: dict[str, Any]) -> None:
        shown = {k: "***" if k in self._secret_headers else v for k, v in headers.items()}
        with self._lock:
            request = RecordedRequest(path=path, body=body, headers=shown, at=self._clock())
            self._requests.append(request)

    def _chat(self, body: dict[str, Any]) -> HttpReply:
        wanted = (body.get("response_format") or {"type": "text"})["type"]
        if wanted not in self._formats:
            message = f"this model does not support response_format {wanted!r}"
            return _error(400, message, param="response_format")
        said = self._reply(body)
        if isinstance(said, HttpReply):
            return said
        content = said if isinstance(said, str) else json.dumps(said)
        asked = sum(self._count(message.get("content")) for message in body["messages"])
        usage = _usage(asked, self._tokens(content))
        return HttpReply(body=_completion(self._model(body), content, usage=usage))

    def _embeddings(
        self, body: dict[str, Any], embed: Callable[[str], Sequence[float] | HttpReply]
    ) -> HttpReply:
        texts = [body["input"]] if isinstance(body["input"], str) else body["input"]
        coded = _packed if body.get("encoding_format") == "base64" else list
        items: list[dict[str, Any]] = []
        for index, text in enumerate(texts):
            vector = embed(text)
            if isinstance(vector, HttpReply):
                return vector
            items.append({"object": "embedding", "index": index, "embedding": coded(vector)})
        asked = sum(self._tokens(str(text)) for text in texts)
        usage = {"prompt_tokens": asked, "total_tokens": asked}
        head = {"object": "list", "model": self._model(body)}
        return HttpReply(body={**head, "data": items, "usage": usage})

    def _count(self, content: object) -> int:
        if isinstance(content, list):
            return sum(self._count(part.get("text")) for part in content)
        return self._tokens(str(content or ""))

    def _model(self, body: dict[str, Any]) -> str:
        return self._answered_model or f"{body['model']}-2026-01-01"


def chat_reply(
    body: Mapping[str, Any],
    text: str,
    calls: Sequence[tuple[str, Mapping[str, Any]]] = (),
    usage: tuple[int, int] = (50, 10),
) -> HttpReply:
    """Return a chat completion with a text, tool calls or both; in pieces if ``body`` says so."""
    head = {"id": f"chatcmpl-{next(_NUMBERS)}", "created": 1, "model": body["model"]}
    made = [
        {
            "id": f"call_{next(_NUMBERS)}",
            "type": "function",
            "function": {"name": name, "arguments": json.dumps(arguments)},
        }
        for name, arguments in calls
    ]
    finish = "tool_calls" if calls else "stop"
    if not body.get("stream"):
        message = {"role": "assistant", "content": text or None, "refusal": None}
        message |= {"tool_calls": made} if calls else {}
        choice = {"index": 0, "message": message, "finish_reason": finish, "logprobs": None}
        head |= {"object": "chat.completion", "choices": [choice], "usage": _usage(*usage)}
        return HttpReply(body=head)
    deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}]
    deltas += [{"content": piece} for piece in re.findall(r"\S+\s*|^\s+", text)]
    deltas += [{"tool_calls": [{"index": i, **call}]} for i, call in enumerate(made)]
    choices = [{"index": 0, "delta": delta, "finish_reason": None} for delta in deltas]
    choices.append({"index": 0, "delta": {}, "finish_reason": finish})
    chunks: list[dict[str, Any]] = [{"choices": [choice]} for choice in choices]
    if (body.get("stream_options") or {}).get("include_usage"):
        chunks.append({"choices": [], "usage": _usage(*usage)})
    head |= {"object": "chat.completion.chunk"}
    lines = [f"data: {json.dumps({**head, **chunk})}\n\n" for chunk in chunks]
    return HttpReply(
        body="".join([*lines, "data: [DONE]\n\n"]), headers={"Content-Type": "text/event-stream"}
    )


def _usage(asked: int, said: int) -> dict[str, int]:
    return {"prompt_tokens": asked, "completion_tokens": said, "total_tokens": asked + said}


def _completion(model: str, content: str, *, usage: Mapping[str, int]) -> dict[str, Any]:
    message = {"role": "assistant", "content": content, "refusal": None}
    choice = {"index": 0, "message": message, "finish_reason": "stop", "logprobs": None}
    head = {"id": "chatcmpl-scripted", "object": "chat.completion", "created": 0}
    return {**head, "model": model, "choices": [choice], "usage": dict(usage)}


def _error(status: int, message: str, *, param: str | None = None) -> HttpReply:
    error = {"message": message, "type": "invalid_request_error", "param": param, "code": None}
    return HttpReply(status=status, body={"error": error})


def _packed(vector: Sequence[float]) -> str:
    return base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode()


def _to_bytes(body: str | bytes | dict[str, Any] | list[Any]) -> bytes:
    if isinstance(body, bytes):
        return body
    return (body if isinstance(body, str) else json.dumps(body)).encode()
