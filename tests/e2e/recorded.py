"""A local server that stands for Langfuse, and records what its client sends.

It answers the requests of the real client as the documentation of the service says. A test with it
shows which requests are sent, and not what the service makes of them.
"""

import gzip
import json
from base64 import b64decode
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timezone
from http.server import BaseHTTPRequestHandler
from typing import Any
from urllib.parse import parse_qs, urlsplit

from e2e.programs import responding

KEY = "the-right-key"
PROJECT_ID = "11111111-1111-4111-8111-111111111111"
Answer = tuple[int, Any]


@dataclass(frozen=True, kw_only=True)
class Recorded:
    """A request: its method, path, query, headers (with names in lower case) and JSON body."""

    method: str
    path: str
    query: dict[str, list[str]]
    headers: dict[str, str]
    body: Any


@dataclass
class Langfuse:
    """Stores scores by their ids, and returns ``observations``, by pages."""

    observations: list[dict[str, Any]] = field(default_factory=list)
    stored: dict[str, dict[str, Any]] = field(default_factory=dict)
    requests: list[Recorded] = field(default_factory=list)
    url: str = ""

    def sent(self, method: str, path: str) -> list[Recorded]:
        return [one for one in self.requests if (one.method, one.path) == (method, path)]

    def answer(self, request: Recorded) -> Answer:
        key = request.headers.get("authorization", "").removeprefix("Basic ")
        if b64decode(key).decode().partition(":")[2] != KEY:
            return 401, {"message": "Invalid credentials"}
        if (request.method, request.path) == ("POST", "/api/public/scores"):
            self.stored |= {one["id"]: one for one in request.body}
            return 202, {"message": "Accepted"}
        if (request.method, request.path) == ("GET", "/api/public/v2/observations"):
            return 200, self._page(self.observations, request)
        if (request.method, request.path) == ("GET", "/api/public/v3/scores"):
            return 200, self._page([*map(_read_score, self.stored.values())], request)
        return 405, {}

    def _page(self, items: list[Any], request: Recorded) -> dict[str, Any]:
        start = int(request.query.get("cursor", ["0"])[0])
        end = start + int(request.query["limit"][0])
        return (
            {"data": items[start:end], "meta": {"limit": 1, "cursor": str(end)}}
            if (end < len(items))
            else {"data": items[start:], "meta": {"limit": 1}}
        )


def _read_score(score: dict[str, Any]) -> dict[str, Any]:
    """Return a stored score as the server does: its span is the subject."""
    names = ("id", "name", "value", "dataType", "timestamp", "metadata")
    subject = {"kind": "observation", "id": score["observationId"], "traceId": score["traceId"]}
    times = dict.fromkeys(("createdAt", "updatedAt"), score["timestamp"])
    rest = {"projectId": PROJECT_ID, "source": "API", "environment": "default", **times}
    return {**{name: score[name] for name in names}, **rest, "subject": subject}


_TYPES = {"CHAIN": "SPAN", "LLM": "GENERATION"}


def langfuse_observation(span: Any) -> dict[str, Any]:
    """Return a span of the SDK as an observation of Langfuse, with its texts as in- and output."""
    attributes = span.attributes
    kind = attributes.get("openinference.span.kind", "SPAN")
    asked = attributes.get("llm.input_messages.0.message.content")
    messages = [{"role": "user", "content": asked}]
    documents = [
        {"page_content": value} for name, value in attributes.items() if ".document.content" in name
    ]
    start, end = (
        datetime.fromtimestamp(at / 1e9, timezone.utc).isoformat()
        for at in (span.start_time, span.end_time)
    )
    return {
        "id": f"{span.context.span_id:016x}",
        "traceId": f"{span.context.trace_id:032x}",
        "projectId": PROJECT_ID,
        "parentObservationId": None if span.parent is None else f"{span.parent.span_id:016x}",
        "isRootObservation": span.parent is None,
        "type": _TYPES.get(kind, kind),
        "name": span.name,
        "startTime": start,
        "endTime": end,
        "level": "DEFAULT",
        "input": json.dumps(messages) if kind == "LLM" else attributes.get("input.value"),
        "output": json.dumps(documents) if documents else attributes.get("output.value"),
    }


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    service: Langfuse

    def _serve(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        if self.headers.get("content-encoding") == "gzip":
            body = gzip.decompress(body)
        place = urlsplit(self.path)
        request = Recorded(
            method=self.command,
            path=place.path,
            query=parse_qs(place.query),
            headers={name.lower(): value for name, value in self.headers.items()},
            body=json.loads(body or "null"),
        )
        self.service.requests.append(request)
        status, answer = self.service.answer(request)
        told = json.dumps(answer)
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(told)))
        self.end_headers()
        self.wfile.write(told.encode())

    do_GET = do_POST = do_PUT = do_PATCH = _serve  # noqa: N815

    def log_message(self, *_: Any) -> None:
        """Log nothing."""


@contextmanager
def serving(service: Langfuse) -> Iterator[Langfuse]:
    """Serve ``service`` at its ``url`` during the block."""
    handler = type("Handler", (_Handler,), {"service": service})
    with responding(handler) as url:
        service.url = url
        yield service
