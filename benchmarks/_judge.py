"""A judge and embedder on the loopback interface that takes little CPU time for a request.

`ScriptedOpenAI` of the tests has a thread for each connection. With 64 requests at once, its
threads would take longer than the client that is measured.
"""

from __future__ import annotations

import asyncio
import base64
import json
import random
import struct
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeAlias

sys.path.append(str(Path(__file__).parents[1] / "tests"))

from _turns import embed, reply

from openai_server import estimate_tokens

Fault: TypeAlias = Literal["none", "500", "429"]

_VECTOR = base64.b64encode(struct.pack("<256f", *embed("a text"))).decode()
_FAILED = 0.05  # the part of requests that fail with 500
_RATE, _BURST = 60.0, 30.0  # requests a second before a 429, and requests that may come at once


@dataclass
class Judge:
    """Answers chats after ``latency`` seconds and embeddings after ``embed_latency`` seconds.

    At most ``slots`` chats are answered at the same time. With ``fault="500"``, a twentieth of the
    chats fails. With ``fault="429"``, chats above 60 a second are refused.
    """

    latency: float = 0.2
    embed_latency: float = 0.02
    slots: int = 64
    fault: Fault = "none"
    chats: list[Mapping[str, Any]] = field(default_factory=list)
    written: list[str] = field(default_factory=list)
    embeddings: int = 0
    refused: int = 0
    failed: int = 0

    def __post_init__(self) -> None:
        self._free = self.slots
        self._waiting: deque[Callable[[], None]] = deque()
        self._random = random.Random(7)  # which requests fail
        self._left, self._filled = _BURST, time.monotonic()

    async def start(self) -> str:
        """Serve on a free port, and return the base URL."""
        loop = asyncio.get_running_loop()
        server = await loop.create_server(lambda: _Connection(self), "127.0.0.1", 0, backlog=512)
        self._server = server
        return f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"

    def clear(self) -> None:
        """Forget the requests so far."""
        self.chats, self.written = [], []
        self.embeddings = self.refused = self.failed = 0

    def stop(self) -> None:
        """Take no further connections."""
        self._server.close()

    @property
    def tokens(self) -> tuple[int, int]:
        """The tokens of all prompts and of all replies, about."""
        shown = (str(m["content"]) for body in self.chats for m in body["messages"])
        return sum(map(estimate_tokens, shown)), sum(map(estimate_tokens, self.written))

    def answer(self, path: str, raw: bytes, send: Callable[[int, bytes], None]) -> None:
        """Answer a request to ``path`` with the body ``raw`` by a call of ``send``, later."""
        body, loop = json.loads(raw), asyncio.get_running_loop()
        if path.endswith("/embeddings"):
            self.embeddings += 1
            loop.call_later(self.embed_latency, send, 200, _embedded(body["input"]))
            return
        if self.fault == "429" and not self._take():
            self.refused += 1
            send(429, b'{"error": {"message": "rate limit"}}')
            return
        if self.fault == "500" and self._random.random() < _FAILED:
            self.failed += 1
            loop.call_later(self.latency, send, 500, b'{"error": {"message": "failed"}}')
            return
        self.chats.append(body)
        said = reply(body)
        text = said if isinstance(said, str) else json.dumps(said)
        self.written.append(text)
        self._in_slot(lambda: send(200, _completion(text)))

    def _take(self) -> bool:
        now = time.monotonic()
        self._left = min(_BURST, self._left + (now - self._filled) * _RATE)
        self._filled = now
        if self._left < 1:
            return False
        self._left -= 1
        return True

    def _in_slot(self, send: Callable[[], None]) -> None:
        if not self._free:
            self._waiting.append(send)
            return
        self._free -= 1
        asyncio.get_running_loop().call_later(self.latency, self._done, send)

    def _done(self, send: Callable[[], None]) -> None:
        self._free += 1
        send()
        if self._waiting:
            self._in_slot(self._waiting.popleft())


def _completion(text: str) -> bytes:
    message = {"role": "assistant", "content": text}
    usage = {"prompt_tokens": 700, "completion_tokens": 40, "total_tokens": 740}
    choice = {"index": 0, "message": message, "finish_reason": "stop"}
    head = {"id": "c", "object": "chat.completion", "created": 0, "model": "judge"}
    return json.dumps({**head, "choices": [choice], "usage": usage}).encode()


def _embedded(texts: list[str]) -> bytes:
    rows = [{"object": "embedding", "index": i, "embedding": _VECTOR} for i in range(len(texts))]
    usage = {"prompt_tokens": 10, "total_tokens": 10}
    return json.dumps({"object": "list", "model": "e", "data": rows, "usage": usage}).encode()


class _Connection(asyncio.Protocol):
    """One keep-alive connection of HTTP/1.1, whose requests come one after the other."""

    def __init__(self, judge: Judge) -> None:
        self._judge = judge
        self._buffer = b""

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        head, separator, rest = self._buffer.partition(b"\r\n\r\n")
        if not separator:
            return
        first, *lines = head.decode().split("\r\n")
        headers = {name.lower(): value for name, _, value in (s.partition(": ") for s in lines)}
        length = int(headers["content-length"])
        if len(rest) < length:
            return
        self._buffer = rest[length:]
        self._judge.answer(first.split()[1], rest[:length], self._send)

    def _send(self, status: int, body: bytes) -> None:
        extra = "Retry-After: 1\r\n" if status == 429 else ""
        head = (
            f"HTTP/1.1 {status} status\r\nContent-Type: application/json\r\n{extra}"
            f"Content-Length: {len(body)}\r\n\r\n"
        )
        self._transport.write(head.encode() + body)
