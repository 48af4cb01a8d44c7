"""A local server with the protocols of model providers.

OpenAI's chat completions and embeddings, also for providers with the same path endings;
Anthropic's messages; Ollama's chat and embeddings; Bedrock's converse; Google's generateContent.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from openai_server import HttpReply, LoopbackServer, RecordedRequest, chat_reply

RATED = '{"rating": 1}'
VECTOR = [0.0, 0.6, 0.8]
USED_IN, USED_OUT = 11, 7


@dataclass(frozen=True)
class Providers:
    """The server's address, and its received requests in order."""

    url: str
    requests: list[RecordedRequest] = field(default_factory=list)


@contextmanager
def serving(says: str = RATED) -> Iterator[Providers]:
    """Serve on loopback; every chat gets the reply ``says``, every text the same embedding."""
    found: list[RecordedRequest] = []

    def answer(path: str, headers: Mapping[str, str], raw: bytes) -> HttpReply:
        body = json.loads(raw)
        found.append(RecordedRequest(path=path, body=body, headers=dict(headers), at=0.0))
        protocol = next((make for end, make in _PROTOCOLS.items() if path.endswith(end)), None)
        if protocol is None:
            return HttpReply(status=404, body={"error": {"message": f"unknown path {path}"}})
        return HttpReply(body=protocol(body, says))

    with LoopbackServer(answer) as server:
        yield Providers(server.url, found)


def _completions(body: dict[str, Any], says: str) -> Any:
    reply = chat_reply(body, says, usage=(USED_IN, USED_OUT)).body
    return {**reply, "model": f"{body['model']}-2026-01-01"}


def _embeddings(body: dict[str, Any], _: str) -> dict[str, Any]:
    count = 1 if isinstance(body["input"], str) else len(body["input"])
    data = [{"object": "embedding", "index": i, "embedding": VECTOR} for i in range(count)]
    usage = {"prompt_tokens": USED_IN, "total_tokens": USED_IN}
    return {"object": "list", "model": body["model"], "data": data, "usage": usage}


def _messages(body: dict[str, Any], says: str) -> dict[str, Any]:
    return {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": f"{body['model']}-20260101",
        "content": [{"type": "text", "text": says}],
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "usage": {"input_tokens": USED_IN, "output_tokens": USED_OUT},
    }


def _ollama_chat(body: dict[str, Any], says: str) -> dict[str, Any]:
    return {
        "model": body["model"],
        "created_at": "2026-01-01T00:00:00Z",
        "message": {"role": "assistant", "content": says},
        "done": True,
        "done_reason": "stop",
        "prompt_eval_count": USED_IN,
        "eval_count": USED_OUT,
    }


def _ollama_embed(body: dict[str, Any], _: str) -> dict[str, Any]:
    return {"model": body["model"], "embeddings": [VECTOR for _ in body["input"]]}


def _converse(_: dict[str, Any], says: str) -> dict[str, Any]:
    message = {"role": "assistant", "content": [{"text": says}]}
    usage = {"inputTokens": USED_IN, "outputTokens": USED_OUT, "totalTokens": USED_IN + USED_OUT}
    end = {"stopReason": "end_turn", "metrics": {"latencyMs": 1}}
    return {"output": {"message": message}, "usage": usage, **end}


def _generate_content(_: dict[str, Any], says: str) -> dict[str, Any]:
    content = {"role": "model", "parts": [{"text": says}]}
    counts = {"prompt": USED_IN, "candidates": USED_OUT, "total": USED_IN + USED_OUT}
    return {
        "candidates": [{"content": content, "finishReason": "STOP"}],
        "usageMetadata": {f"{name}TokenCount": count for name, count in counts.items()},
        "modelVersion": "m",
    }


_PROTOCOLS: Mapping[str, Callable[[dict[str, Any], str], dict[str, Any]]] = {
    "/chat/completions": _completions,
    "/embeddings": _embeddings,
    "/v1/messages": _messages,
    "/api/chat": _ollama_chat,
    "/api/embed": _ollama_embed,
    "/converse": _converse,
    ":generateContent": _generate_content,
}
