"""A look around: the traffic fills the dashboards, and alerts fire and resolve.

Two minutes by default. `make look` runs ten: it sets the variable ``LOOK_MINUTES``.
"""

import os
import runpy
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from e2e.stack import COLLECTOR
from e2e.test_alert import Monitoring, monitoring
from rag_eval_otel.tools.rules import Target

MINUTES = float(os.environ.get("LOOK_MINUTES", "2"))
RATE = max(2.0, 16.0 / MINUTES)
"""Questions a second: two, or in a shorter run so many that the rules have enough scores."""
RULES = Target(
    time_scale=60, label_metrics=("context_relevance", "faithfulness", "response_groundedness")
)
QUERIES = tuple(runpy.run_path(str(COLLECTOR / "grafana" / "pages.py"))["queries"]())
ROOT = Path(__file__).parents[2]


@dataclass(frozen=True, kw_only=True)
class Stack(Monitoring):
    """All programs with the rules of a look around."""

    since: float

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        kept = {name: text for name, text in os.environ.items() if not name.startswith("OTEL_")}
        return subprocess.run(
            [sys.executable, *command],
            env={
                **kept,
                "PYTHONPATH": str(ROOT),
                "OTEL_EXPORTER_OTLP_ENDPOINT": self.gateway.http,
                "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
            },
            capture_output=True,
            text=True,
            timeout=60 * MINUTES + 600,
            check=False,
        )

    def empty(self) -> list[str]:
        return [
            query
            for query in dict.fromkeys(QUERIES)
            if not self.prometheus.has_data(_shown(query), since=self.since)
        ]


def _shown(expression: str) -> str:
    """Return ``expression`` as Grafana sends it for one metric, all services."""
    for variable, value in (
        ('="$metric"', '="faithfulness"'),
        ("$metric", ".+"),
        ("$service", ".+"),
        ("$__rate_interval", "1m"),
        ("$__range", "15m"),
    ):
        expression = expression.replace(variable, value)
    return expression


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
    _print(capsys, done.stdout, f"{len(told)} of {len(set(QUERIES))} queries without data", *told)
    bad = {"alertname": "RagAnswersGoBad", "gen_ai_evaluation_name": "faithfulness"}
    for labels in (bad, {"alertname": "RagBreakerOpen"}):
        for status in ("firing", "resolved"):
            assert stack.webhook.alert(status, service_name="handbook", **labels)
    assert len(told) <= 2, told


def _print(capsys: pytest.CaptureFixture[str], *lines: str) -> None:
    with capsys.disabled():
        print("", *lines, sep="\n    ")  # noqa: T201  # for the reader
