"""A look around: the traffic fills the dashboards, and alerts fire and resolve.

Two minutes by default. `make look` runs ten: it sets the variable ``LOOK_MINUTES``.
"""

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from e2e.programs import PATIENCE, Prometheus
from e2e.stack import (
    COLLECTOR,
    GATEWAY,
    QUERIES,
    Collector,
    alertmanager,
    collector,
    prometheus,
    shown,
)
from openai_server import HttpReply, LoopbackServer
from otlp_receiver import OtlpReceiver
from processes import environment
from rag_eval_otel.tools.rules import Target

MINUTES = float(os.environ.get("LOOK_MINUTES", "2"))
RATE = max(2.0, 16.0 / MINUTES)
"""Questions a second: two, or in a shorter run so many that the rules have enough scores."""
RULES = Target(
    time_scale=60, label_metrics=("context_relevance", "faithfulness", "response_groundedness")
)
ROOT = Path(__file__).parents[2]


class Webhook:
    """A webhook that keeps Alertmanager's messages."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._posted: list[tuple[str, dict[str, Any]]] = []
        self.server = LoopbackServer(self._take)

    def _take(self, path: str, headers: Mapping[str, str], body: bytes) -> HttpReply:
        with self._changed:
            self._posted.append((path, json.loads(body)))
            self._changed.notify_all()
        return HttpReply()

    def alert(self, status: str, **labels: str) -> tuple[str, dict[str, Any]]:
        with self._changed:
            found = self._changed.wait_for(lambda: self._find(status, labels), PATIENCE)
        assert found, f"no {status} message for {labels}: {self._posted}"
        return found

    def _find(self, status: str, labels: Mapping[str, str]) -> tuple[str, dict[str, Any]] | None:
        for path, message in self._posted:
            for alert in message["alerts"]:
                if alert["status"] == status and labels.items() <= alert["labels"].items():
                    return path, alert
        return None


@dataclass(frozen=True, kw_only=True)
class Stack:
    """A collector, Prometheus, and Alertmanager with a webhook, with the rules of a look around."""

    gateway: Collector
    prometheus: Prometheus
    webhook: Webhook
    since: float

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        protocol = {"OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf"}
        return subprocess.run(
            [sys.executable, *command],
            env=environment(OTEL_EXPORTER_OTLP_ENDPOINT=self.gateway.http, **protocol),
            capture_output=True,
            text=True,
            timeout=60 * MINUTES + 600,
            check=False,
        )

    def empty(self) -> list[str]:
        has_data, since = self.prometheus.has_data, self.since
        return [q for q in QUERIES if not has_data(shown(q, interval="1m"), since=since)]


@pytest.fixture
def stack(tmp_path: Path) -> Iterator[Stack]:
    with ExitStack() as stack:
        backend = stack.enter_context(OtlpReceiver())
        webhook = Webhook()
        stack.enter_context(webhook.server)
        traces = backend.grpc_endpoint.removeprefix("http://")
        settings = {"RAG_TRACES": traces, "RAG_DECISION_WAIT": "1s"}
        gateway = stack.enter_context(collector(tmp_path / "gw", *GATEWAY, **settings))
        manager = stack.enter_context(alertmanager(tmp_path / "am", webhook.server.url))
        options: dict[str, Any] = {"alertmanager": manager, "rules": RULES}
        asked = stack.enter_context(prometheus(tmp_path / "prom", gateway, **options))
        yield Stack(gateway=gateway, prometheus=asked, webhook=webhook, since=time.time())


@pytest.mark.timeout(60 * MINUTES + 900)
def test_panels_fill_and_alerts_fire(stack: Stack, capsys: pytest.CaptureFixture[str]) -> None:
    """At most 2 queries have no data; the page and the ticket reach the webhook, and their end."""
    traffic = str(COLLECTOR / "look" / "traffic.py")
    done = stack.run(traffic, "--minutes", f"{MINUTES:g}", "--rate", f"{RATE:g}")
    assert done.returncode == 0, done.stdout + done.stderr
    told = stack.empty()
    _print(capsys, done.stdout, f"{len(told)} of {len(QUERIES)} queries without data", *told)
    bad = {"alertname": "RagAnswersGoBad", "gen_ai_evaluation_name": "faithfulness"}
    for labels in (bad, {"alertname": "RagBreakerOpen"}):
        for status in ("firing", "resolved"):
            assert stack.webhook.alert(status, service_name="handbook", **labels)
    path, alert = stack.webhook.alert("firing", **bad)
    notes = alert["annotations"]
    assert (path, alert["labels"]["severity"]) == ("/page", "page")
    assert notes["summary"].startswith("faithfulness of handbook: more than 10% of the answers are")
    assert "service=handbook&tags=%7B%22rag.evaluation.faithfulness" in notes["traces"]
    assert len(told) <= 2, told


def _print(capsys: pytest.CaptureFixture[str], *lines: str) -> None:
    with capsys.disabled():
        print("", *lines, sep="\n    ")  # noqa: T201  # for the reader
