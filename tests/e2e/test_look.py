"""A look around: the traffic fills the dashboards, and alerts fire and resolve.

Two minutes by default. `make look` runs ten: it sets the variable ``LOOK_MINUTES``.
"""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from e2e.stack import COLLECTOR, QUERIES, shown
from e2e.test_alert import Monitoring, monitoring
from processes import environment
from rag_eval_otel.tools.rules import Target

MINUTES = float(os.environ.get("LOOK_MINUTES", "2"))
RATE = max(2.0, 16.0 / MINUTES)
"""Questions a second: two, or in a shorter run so many that the rules have enough scores."""
RULES = Target(
    time_scale=60, label_metrics=("context_relevance", "faithfulness", "response_groundedness")
)
ROOT = Path(__file__).parents[2]


@dataclass(frozen=True, kw_only=True)
class Stack(Monitoring):
    """All programs with the rules of a look around."""

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
    with monitoring(tmp_path, rules=RULES) as found:
        yield Stack(**vars(found), since=time.time())


@pytest.mark.timeout(60 * MINUTES + 900)
def test_traffic_fills_the_panels_and_two_alerts_fire_and_resolve(
    stack: Stack, capsys: pytest.CaptureFixture[str]
) -> None:
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
    assert len(told) <= 2, told


def _print(capsys: pytest.CaptureFixture[str], *lines: str) -> None:
    with capsys.disabled():
        print("", *lines, sep="\n    ")  # noqa: T201  # for the reader
