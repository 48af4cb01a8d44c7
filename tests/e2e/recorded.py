"""Local servers that stand for LangSmith, Langfuse and Opik, and record what their clients send.

They answer the requests of the real clients as the documentation of each service says. A test with
them shows which requests are sent, and not what the service makes of them.
"""

from __future__ import annotations

import gzip
import json
from base64 import b64decode
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timezone
from hashlib import sha256
from http.server import BaseHTTPRequestHandler
from typing import Any
from urllib.parse import parse_qs, urlsplit
from uuid import UUID

from e2e.programs import responding
from rag_eval_otel.capture.span import Span

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
    """A service that knows the spans ``known``, by their OpenTelemetry ids; None means all.

    ``stored`` has what it stores, by id. ``requests`` are all requests in order.
    """

    known: set[int] | None = None
    stored: dict[str, dict[str, Any]] = field(default_factory=dict)
    requests: list[Recorded] = field(default_factory=list)
    url: str = ""

    def knows(self, span_id: int) -> bool:
        return self.known is None or span_id in self.known

    def answer(self, request: Recorded) -> Answer:
        """Return the status and the JSON body of the response."""
        raise NotImplementedError

    def sent(self, method: str, path: str) -> list[Recorded]:
        """Return the requests with this method to this path."""
        return [one for one in self.requests if (one.method, one.path) == (method, path)]

    def statuses(self) -> Counter[str]:
        return Counter(f"{one.method} {one.path}" for one in self.requests)


class LangSmith(Service):
    """Stores feedback by its id; the run of a span has the span's id."""

    def answer(self, request: Recorded) -> Answer:
        if request.path == "/info":
            return 200, {"version": "0.12.0", "instance_flags": {}}
        if request.headers.get("x-api-key") != KEY:
            return 401, {"detail": "Invalid token"}
        if request.path == "/sessions":
            is_known = request.query["name"] == [PROJECT]
            project = {"id": PROJECT_ID, "tenant_id": PROJECT_ID, "reference_dataset_id": None}
            return 200, [project] if is_known else []
        if (request.method, request.path) != ("POST", "/feedback"):
            return 405, {}
        if not self.knows(UUID(request.body["run_id"]).int):
            return 404, {"detail": "Run not found"}
        self.stored[request.body["id"]] = request.body
        return 200, {}


@dataclass
class Langfuse(Service):
    """Stores scores by their ids, of observations that may come later.

    ``observations`` are what it returns of the spans that it has got, ``page`` at once.
    """

    observations: Sequence[Mapping[str, Any]] = ()
    page: int = 5

    def answer(self, request: Recorded) -> Answer:
        key = request.headers.get("authorization", "").removeprefix("Basic ")
        if b64decode(key).decode().partition(":")[2] != KEY:
            return 401, {"message": "Invalid credentials"}
        asked = {name: one for name, (one, *_) in request.query.items()}
        match (request.method, request.path):
            case ("POST", "/api/public/scores"):
                self.stored |= {one["id"]: one for one in request.body}
                return 202, {"message": "Accepted"}
            case ("GET", "/api/public/v2/observations"):
                return 200, self.paged([_cut(one, asked) for one in self.observations], asked)
            case ("GET", "/api/public/v3/scores"):
                found = [one for one in self.stored.values() if one["name"] == asked["name"]]
                return 200, self.paged([_score(one) for one in found], asked)
        return 405, {}

    def paged(self, found: Sequence[Any], asked: Mapping[str, str]) -> dict[str, Any]:
        """Return the page that the cursor names."""
        start = int(asked.get("cursor", 0))
        end = start + min(self.page, int(asked["limit"]))
        meta = {"limit": self.page, **({"cursor": str(end)} if end < len(found) else {})}
        return {"data": found[start:end], "meta": meta}


def _cut(one: Mapping[str, Any], asked: Mapping[str, str]) -> dict[str, Any]:
    """Return an observation with the metadata that is not asked for cut to 200 characters."""
    names = asked.get("expandMetadata", "").split(",")
    metadata = {
        name: value if name in names or not isinstance(value, str) else value[:200]
        for name, value in one["metadata"].items()
    }
    return {**one, "metadata": metadata}


def _score(one: Mapping[str, Any]) -> dict[str, Any]:
    told = ("id", "name", "value", "dataType", "timestamp")
    subject = {"kind": "observation", "id": one["observationId"], "traceId": one["traceId"]}
    moments = dict.fromkeys(("createdAt", "updatedAt"), one["timestamp"])
    rest = {"projectId": PROJECT_ID, "source": "API", "environment": "default", **moments}
    return {**{name: one[name] for name in told}, **rest, "subject": subject}


_TEXTS = (
    ("langfuse.observation.input", "langfuse.observation.output"),
    ("traceloop.entity.input", "traceloop.entity.output"),
    ("input.value", "output.value"),
    ("gen_ai.input.messages", "gen_ai.output.messages"),
    ("gen_ai.tool.call.arguments", "gen_ai.tool.call.result"),
)


def langfuse_observation(span: Span, *, flat: bool = False) -> dict[str, Any]:
    """Return what Langfuse makes of a span, as its source of 2026 says.

    Texts become input and output. Of instrumentations other than its own, the other attributes are
    in the metadata: in one object, or ``flat`` under names that begin with ``attributes.``.
    """
    attributes = span.attributes
    texts = [attributes.get(name) for names in _TEXTS for name in names]
    found = next((pair for pair in zip(texts[::2], texts[1::2], strict=True) if any(pair)), None)
    gone = {name for names in _TEXTS for name in names}
    kept = {
        name: value if isinstance(value, str) else json.dumps(value)
        for name, value in attributes.items()
        if name not in gone and not name.startswith(("llm.input_messages", "llm.output_messages"))
    }
    metadata: dict[str, Any] = {
        "resourceAttributes": {"service.name": "shop"},
        "scope": {"name": span.scope},
    }
    if span.scope != "langfuse-sdk" and flat:
        metadata |= {f"attributes.{name}": value for name, value in kept.items()}
    elif span.scope != "langfuse-sdk":
        metadata["attributes"] = kept
    is_top = attributes.get("langfuse.internal.is_app_root") is True
    return {
        "id": f"{span.span_id:016x}",
        "traceId": f"{span.trace_id:032x}",
        "projectId": PROJECT_ID,
        "parentObservationId": None if span.parent_id is None else f"{span.parent_id:016x}",
        "isRootObservation": span.parent_id is None or is_top,
        "type": str(attributes.get("langfuse.observation.type", "span")).upper(),
        "name": span.name,
        "startTime": _iso(span.start),
        "endTime": _iso(span.end) if span.end else None,
        "level": "ERROR" if span.error else "DEFAULT",
        "statusMessage": span.error,
        "input": found[0] if found else None,
        "output": found[1] if found else None,
        "metadata": metadata,
    }


def _iso(nanoseconds: int) -> str:
    return datetime.fromtimestamp(nanoseconds / 1e9, timezone.utc).isoformat()


class Opik(Service):
    """Stores feedback scores by the id of the span and their names."""

    def answer(self, request: Recorded) -> Answer:
        if request.headers.get("authorization") != KEY:
            return 401, {"code": 401, "message": "API key should be provided"}
        if request.path == "/v1/private/spans/search":
            (asked,) = request.body["filters"]
            assert (asked["field"], asked["operator"]) == ("id", "ends_with")
            ids = [opik_id(one) for one in self.known or ()]
            found = [id_ for id_ in ids if id_.endswith(asked["value"])]
            is_known = request.body["project_name"] == PROJECT
            span = {"start_time": "2026-11-22T00:00:00Z"}
            return 200, [{"id": id_, **span} for id_ in found if is_known]
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
