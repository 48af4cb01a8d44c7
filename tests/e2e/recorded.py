"""Local servers that stand for LangSmith, Langfuse and Opik, and record what their clients send.

They answer the requests of the real clients as the documentation of each service says. A test with
them shows which requests are sent, and not what the service makes of them.
"""

import gzip
import json
from base64 import b64decode
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timezone
from hashlib import sha256
from http.server import BaseHTTPRequestHandler
from typing import Any
from urllib.parse import parse_qs, urlsplit
from uuid import UUID

from e2e.programs import responding

KEY = "the-right-key"
PROJECT = "shop"
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
class Service:
    """A service; ``known`` has the OpenTelemetry ids of its spans, if it finds scores by them."""

    known: set[int] = field(default_factory=set)
    stored: dict[str, dict[str, Any]] = field(default_factory=dict)
    requests: list[Recorded] = field(default_factory=list)
    url: str = ""

    def answer(self, request: Recorded) -> Answer:
        raise NotImplementedError

    def sent(self, method: str, path: str) -> list[Recorded]:
        return [one for one in self.requests if (one.method, one.path) == (method, path)]


class LangSmith(Service):
    """Stores feedback by its id; the run of a span has the span's id."""

    def answer(self, request: Recorded) -> Answer:
        if request.path == "/info":
            return 200, {"version": "0.12.0", "instance_flags": {}}
        if request.headers.get("x-api-key") != KEY:
            return 401, {"detail": "Invalid token"}
        if request.path == "/sessions":
            assert request.query["name"] == [PROJECT]
            ids = dict.fromkeys(("id", "tenant_id"), PROJECT_ID)
            return 200, [{**ids, "reference_dataset_id": None}]
        if (request.method, request.path) != ("POST", "/feedback"):
            return 405, {}
        self.stored[request.body["id"]] = request.body
        return 200, {}


@dataclass
class Langfuse(Service):
    """Stores scores by their ids, and returns ``observations``, by pages."""

    observations: list[dict[str, Any]] = field(default_factory=list)

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


class Opik(Service):
    """Stores feedback scores by the id of the span and their names."""

    def answer(self, request: Recorded) -> Answer:
        if request.headers.get("authorization") != KEY:
            return 401, {"code": 401, "message": "API key should be provided"}
        if request.path == "/v1/private/spans/search":
            (asked,) = request.body["filters"]
            assert (asked["field"], asked["operator"]) == ("id", "ends_with")
            ids = [opik_id(one) for one in self.known]
            found = [id_ for id_ in ids if id_.endswith(asked["value"])]
            assert request.body["project_name"] == PROJECT
            return 200, [{"id": id_, "start_time": "2026-11-22T00:00:00Z"} for id_ in found]
        if (request.method, request.path) != ("PUT", "/v1/private/spans/feedback-scores"):
            return 405, {}
        self.stored |= {f"{one['id']} {one['name']}": one for one in request.body["scores"]}
        return 204, None


def opik_id(span_id: int) -> str:
    """Return the UUID that Opik makes of a span: of the trace's time, and a hash of the id."""
    digest = bytearray(sha256(span_id.to_bytes(8, "big")).digest()[:10])
    digest[0] = digest[0] & 0x0F | 0x70
    digest[2] = digest[2] & 0x3F | 0x80
    return str(UUID(bytes=(1_795_000_000_123).to_bytes(6, "big") + bytes(digest)))


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    service: Service

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
        is_stream = place.path.endswith("/search")  # one object in each line
        told = "".join(f"{json.dumps(one)}\n" for one in answer) if is_stream else ""
        told = told if is_stream else json.dumps(answer) if answer is not None else ""
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(told)))
        self.end_headers()
        self.wfile.write(told.encode())

    do_GET = do_POST = do_PUT = do_PATCH = _serve  # noqa: N815

    def log_message(self, *_: Any) -> None:
        """Log nothing."""


@contextmanager
def serving(service: Service) -> Iterator[Service]:
    """Serve ``service`` at its ``url`` during the block."""
    handler = type("Handler", (_Handler,), {"service": service})
    with responding(handler) as url:
        service.url = url
        yield service
