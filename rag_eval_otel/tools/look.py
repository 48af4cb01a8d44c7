"""Run the demo's traffic with dashboards and alerts, and show them on a local page."""

from __future__ import annotations

import argparse
import json
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from http.client import HTTPException
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from mimetypes import guess_type
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.request import urlopen

from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from rag_eval_otel import semconv
from rag_eval_otel.environment import Signal, first_set
from rag_eval_otel.errors import ConfigError
from rag_eval_otel.tools.cli.options import say
from rag_eval_otel.tools.rows import CAUSES
from rag_eval_otel.tools.stack import OTLP, Programs, configure, started

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan

_REPLY_SECONDS: Final = 5.0
_SHOWN_SECONDS: Final = 600.0  # of the charts
_KEPT: Final = 1000  # turns
_WORST: Final = 8
_FILES: Final = ("look.html", "look.js", "look.css", "style.css", "dashboards.json")
_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:;"
    " base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


def run(options: argparse.Namespace) -> int:
    """Play traffic until a signal comes, and return the exit status."""
    if not (0 <= options.port < 2**16 and options.minutes > 0 and options.rate > 0):
        raise ConfigError("--port must be from 0 to 65535, --minutes and --rate above 0")
    if options.trace_url and not options.trace_url.startswith(("http://", "https://")):
        raise ConfigError(f"--trace-url must be an http(s) address, not {options.trace_url!r}")
    stopped = threading.Event()
    for name in {"SIGINT", "SIGTERM", "SIGHUP"} & set(dir(signal)):
        signal.signal(getattr(signal, name), lambda *_: stopped.set())
    # These take seconds, in which ^C may come.
    from rag_eval_otel.runtime.sdk import exporters  # noqa: PLC0415
    from rag_eval_otel.tools.traffic import play  # noqa: PLC0415

    look = Look(stopped=stopped, traces=options.trace_url or "")
    with ExitStack() as stack:
        stack.enter_context(served(look, options.port))
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        programs = stack.enter_context(closing(Programs(Path(folder), stopped)))
        signals: tuple[Signal, ...] = ("traces", "metrics", "logs")
        endpoint = None
        if not first_set(("OTEL_EXPORTER_OTLP_ENDPOINT",)):
            look.addresses = started(programs, look.begin)
            signals = signals if look.addresses else ()
            endpoint = look.addresses.get(OTLP, "")
        configure(endpoint)
        export = {name: [*exporters(name)] for name in signals}
        export["traces"] = [look.turns, *export.get("traces", ())]
        for name, address in look.addresses.items():
            _print(f"{name}: {address}")
        times = {"minutes": options.minutes, "rate": options.rate}
        counts = play(export, **times, begin=look.begin, wait=look.wait)
    _print("turns: " + ", ".join(f"{count} {name}" for name, count in sorted(counts.items())))
    return 0


def _print(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


class Turns(SpanExporter):
    """The last turns, read from the application's spans, the oldest first."""

    def __init__(self) -> None:
        self.latest: tuple[Mapping[str, Any], ...] = ()
        self._contexts: dict[int, list[str]] = {}  # of traces whose root has not ended

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        for span in spans:
            trace, attributes = span.context.trace_id, span.attributes or {}
            if semconv.EVALUATION_STATUS in attributes:
                turn = _turn_of(span, attributes, self._contexts.pop(trace, []))
                self.latest = (*self.latest[1 - _KEPT :], turn)
            elif texts := [str(v) for k, v in attributes.items() if k.endswith("document.content")]:
                self._contexts[trace] = texts
                if len(self._contexts) > _KEPT:
                    del self._contexts[next(iter(self._contexts))]
        return SpanExportResult.SUCCESS

    def worst(self) -> list[Mapping[str, Any]]:
        """Return the latest turn of each question, those that fail and the lowest scores first."""
        latest = {turn["question"]: turn for turn in self.latest if turn["scores"]}

        def order(turn: Mapping[str, Any]) -> tuple[bool, float]:
            return turn["label"] == "pass", sum(turn["scores"].values())

        return sorted(latest.values(), key=order)[:_WORST]


def _turn_of(
    span: ReadableSpan, attributes: Mapping[str, Any], contexts: list[str]
) -> Mapping[str, Any]:
    prefix, leaf = f"{semconv.METRIC_PREFIX}.", f".{semconv.LEAF_SCORE}"
    scored = [name for name in attributes if name.startswith(prefix) and name.endswith(leaf)]
    cause = attributes.get(semconv.EVALUATION_CAUSE, "")
    return {
        "time": (span.end_time or 0) / 1e9,
        "trace": f"{span.context.trace_id:032x}",
        "question": str(attributes.get("input.value", "")),
        "answer": str(attributes.get("output.value", "")),
        "contexts": contexts,
        "offsets": list(attributes.get(semconv.EVALUATION_OFFSETS, ())),
        "label": attributes.get(semconv.EVALUATION_LABEL),
        "why": f"{cause}: {CAUSES[cause]}" if cause in CAUSES else cause,
        "scores": {n.removeprefix(prefix).removesuffix(leaf): attributes[n] for n in scored},
    }


@dataclass(slots=True, kw_only=True)
class Look:
    """The state of the demo that the page shows: phase, addresses, alerts and turns."""

    stopped: threading.Event
    traces: str
    turns: Turns = field(default_factory=Turns)
    addresses: Mapping[str, str] = field(default_factory=dict)
    alerts: Mapping[frozenset[Any], dict[str, Any]] = field(default_factory=dict)
    phase: str = "starting"
    start: float = field(default_factory=time.time)
    asked: float = 0.0

    def tell(self, text: str) -> None:
        _print(f"{time.time() - self.start:6.0f} s  {text}")

    def begin(self, phase: str) -> None:
        self.phase = phase
        self.tell(phase)

    def wait(self, seconds: float) -> bool:
        """Wait for the next question, and read the alerts once a second. True after a signal."""
        if time.time() - self.asked >= 1:
            self.asked = time.time()
            self._read_alerts()
        return self.stopped.wait(seconds)

    def asked_of(self, program: str, path: str) -> Any:
        address = self.addresses.get(program)
        return fetched(f"{address}{path}") if address else None

    def _read_alerts(self) -> None:
        if (reply := self.asked_of("Prometheus", "/api/v1/alerts")) is None:
            return
        firing = [alert for alert in reply["data"]["alerts"] if alert["state"] == "firing"]
        alerts = {key: {**alert, "state": "resolved"} for key, alert in self.alerts.items()}
        alerts |= {frozenset(alert["labels"].items()): alert for alert in firing}
        for key, alert in alerts.items():
            known = self.alerts.get(key, {})
            alert["changed"] = known.get("changed")
            if alert["state"] != known.get("state"):
                alert["changed"] = time.time()
                name, severity = (alert["labels"].get(label) for label in ("alertname", "severity"))
                summary = alert["annotations"].get("summary", "")
                self.tell(f"{alert['state']:<8}  {name} ({severity}): {summary}")
        self.alerts = alerts

    def state(self) -> Mapping[str, Any]:
        """Return what the page shows beside its charts, for JSON."""
        now, has_prometheus = time.time(), "Prometheus" in self.addresses
        return {
            "phase": self.phase,
            "from": max(self.start, now - _SHOWN_SECONDS),
            "to": now,
            "addresses": self.addresses,
            "traces": self.traces,
            "alerts": [*self.alerts.values()] if has_prometheus else None,
            "routed": self.asked_of("Alertmanager", "/api/v2/alerts") or [],
            "turns": [(turn["time"], turn["label"], turn["scores"]) for turn in self.turns.latest],
            "worst": self.turns.worst(),
        }


def fetched(url: str) -> Any:
    """Return the JSON that ``url`` replies, or None without a reply that can be read."""
    try:
        with urlopen(url, timeout=_REPLY_SECONDS) as reply:  # noqa: S310  # a program of ours
            return json.load(reply)
    except (OSError, HTTPException, ValueError):
        return None


def _file(name: str) -> str:
    return (files("rag_eval_otel.tools") / "templates" / name).read_text(encoding="utf-8")


class _Handler(BaseHTTPRequestHandler):
    """Serves the page, its files, and the data that it shows, as JSON."""

    def __init__(self, look: Look, *rest: Any) -> None:
        self._look = look
        super().__init__(*rest)

    def handle(self) -> None:
        with suppress(ConnectionError):  # the page was closed
            super().handle()

    def do_GET(self) -> None:  # the base class's name
        path, _, query = self.path.partition("?")
        name = path.removeprefix("/") or "look.html"
        if self.headers.get("Host", "").partition(":")[0] not in {"127.0.0.1", "localhost"}:
            self.send_error(403, "the page is at 127.0.0.1")  # a site may name our address its own
        elif name == "state":
            self._reply("application/json", json.dumps(self._look.state()))
        elif name == "series":
            reply = self._look.asked_of("Prometheus", f"/api/v1/query_range?{query}")
            self._reply("application/json", json.dumps(reply))
        elif name in _FILES:
            self._reply(guess_type(name)[0] or "text/plain", _file(name))
        else:
            self.send_error(404)

    def _reply(self, kind: str, text: str) -> None:
        self.send_response(200)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Security-Policy", _POLICY)
        self.send_header("X-Content-Type-Options", "nosniff")
        self.end_headers()
        self.wfile.write(text.encode("utf-8", "replace"))

    def log_message(self, *_: Any) -> None: ...


@contextmanager
def served(look: Look, port: int) -> Iterator[str]:
    """Serve the page in the ``with`` block, and yield its address, perhaps with another port."""
    handler = partial(_Handler, look)
    try:
        server = ThreadingHTTPServer(("127.0.0.1", port), handler)
    except OSError as error:
        say(f"port {port} cannot be used ({error.strerror}): taking a free one")
        server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    address = f"http://127.0.0.1:{server.server_port}/"
    _print(f"The page is at {address} (^C ends the command)")
    try:
        yield address
    finally:
        server.shutdown()
        server.socket.close()  # `server_close` would wait for a request under way
