"""Records spans as a processor is shown them, in the format of the shared recordings."""

import json
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from opentelemetry.sdk.trace import ReadableSpan, Span, SpanProcessor


class Recorder(SpanProcessor):
    """Notes each start and end."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.clear()

    def clear(self) -> None:
        """Forget what was recorded."""
        self.spans: list[dict[str, Any]] = []
        self.calls: list[dict[str, Any]] = []
        self.open: dict[str, dict[str, Any]] = {}

    def on_start(self, span: Span, parent_context: Any = None) -> None:
        """Note that ``span`` has started."""
        made = _made(span)
        with self._lock:
            self.open[made["span_id"]] = made
            started = {"name": span.name, "attributes_at_start": _plain(span.attributes)}
            self._note("start", made["span_id"], **started)

    def on_end(self, span: ReadableSpan) -> None:
        """Note ``span`` as it is now."""
        made = _made(span)
        with self._lock:
            self.open.pop(made["span_id"], None)
            self.spans.append(made)
            self._note("end", made["span_id"])

    def _note(self, operation: str, span_id: str, **more: Any) -> None:
        self.calls.append({"op": operation, "span_id": span_id, "t": time.time_ns(), **more})

    def write(self, path: Path, **about: Any) -> None:
        """Write what was recorded to ``path``."""
        recorded = {
            **about,
            "spans": self.spans,
            "processor_sequence": self.calls,
            "never_ended": list(self.open.values()),
            "logs": [],
        }
        text = json.dumps(recorded, ensure_ascii=False, separators=(",", ":"))
        path.write_text(text + "\n", encoding="utf-8")


def _made(span: ReadableSpan) -> dict[str, Any]:
    context, parent = span.get_span_context(), span.parent
    scope = span.instrumentation_scope
    return {
        "name": span.name,
        "trace_id": f"{context.trace_id:032x}",
        "span_id": f"{context.span_id:016x}",
        "parent_span_id": None if parent is None else f"{parent.span_id:016x}",
        "parent_is_remote": parent is not None and parent.is_remote,
        "start_time_unix_nano": span.start_time,
        "end_time_unix_nano": span.end_time,
        "status": {
            "code": span.status.status_code.name,
            "description": (span.status.description or "").partition("Traceback")[0],
        },
        "attributes": _plain(span.attributes),
        "dropped_attributes": span.dropped_attributes,
        "events": [{"name": e.name, "attributes": _plain(e.attributes)} for e in span.events],
        "scope": {"name": scope.name if scope is not None else ""},
    }


def _plain(attributes: Mapping[str, Any] | None) -> dict[str, Any]:
    return {
        key: list(item) if isinstance(item, tuple) else item
        for key, item in (attributes or {}).items()
        if key != "exception.stacktrace"  # names places on the machine that recorded
    }
