"""Read the spans that Phoenix has stored, as messages of OTLP."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from datetime import datetime, timezone
from typing import Any, Final

from rag_eval_otel.capture.otlp import as_attributes
from rag_eval_otel.capture.otlp_files import Message
from rag_eval_otel.errors import ConfigError
from rag_eval_otel.export.backends.annotation import backend_error
from rag_eval_otel.runtime.guard import require

_ALL: Final = 10**9  # the highest number of spans to read
_CREDENTIALS: Final = re.compile(r"//[^/@\s]*@")
_QUOTED: Final = 300  # characters of an error of the client


def phoenix_messages(
    project: str, *, since: datetime | None = None, until: datetime | None = None
) -> Iterator[Message]:
    """Yield one message with the spans of ``project``, a name or id, in a Phoenix server.

    The client of the package ``arize-phoenix-client`` reads the address and the key from
    ``PHOENIX_ENDPOINT`` and ``PHOENIX_API_KEY``. Raises `ConfigError` if the server cannot be
    reached or has no such project, and `MissingDependencyError` without the package.
    """
    client = require("phoenix.client", "phoenix").Client()
    try:
        spans = client.spans.get_spans(
            project_identifier=project, start_time=since, end_time=until, limit=_ALL
        )
    except require("httpx", "phoenix").HTTPError as error:
        status = None if isinstance(error.__context__, OSError) else backend_error(error).status
        reason = _CREDENTIALS.sub("//", str(error) or type(error).__name__)[:_QUOTED]
        msg = f"Phoenix cannot be reached: {reason}; set PHOENIX_ENDPOINT to its address"
        if status is not None:
            msg = (
                f"Phoenix answered {status} for the project {project!r};"
                " check PHOENIX_ENDPOINT and PHOENIX_API_KEY"
            )
        raise ConfigError(msg) from error
    resource = {"attributes": as_attributes({"service.name": project})}
    scopes = [{"scope": {"name": ""}, "spans": list(map(_span, spans))}]  # Phoenix keeps none
    yield {"resourceSpans": [{"resource": resource, "scopeSpans": scopes}]}


def _span(span: Mapping[str, Any]) -> dict[str, Any]:
    """Return a span of Phoenix in OTLP JSON."""
    has_failed = span.get("status_code") == "ERROR"
    return {
        "traceId": span["context"]["trace_id"],
        "spanId": span["context"]["span_id"],
        "parentSpanId": span.get("parent_id") or "",
        "name": span["name"],
        "startTimeUnixNano": _nanoseconds(span["start_time"]),
        "endTimeUnixNano": _nanoseconds(span["end_time"]),
        "attributes": as_attributes(span.get("attributes") or {}),
        "events": [
            {"name": event["name"], "attributes": as_attributes(event.get("attributes") or {})}
            for event in span.get("events") or ()
        ],
        "status": {"code": 2, "message": span.get("status_message") or ""} if has_failed else {},
    }


def _nanoseconds(text: str) -> int:
    moment = datetime.fromisoformat(text.replace("Z", "+00:00"))
    since = moment - datetime(1970, 1, 1, tzinfo=timezone.utc)
    return (since.days * 86_400 + since.seconds) * 10**9 + since.microseconds * 1000
