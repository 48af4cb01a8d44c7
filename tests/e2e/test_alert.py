"""An alert fires when answers become bad, and is resolved when they are good again.

An app's answers become bad half-way. The scores pass its spans, the collector's histogram,
Prometheus and Alertmanager to a webhook. All programs are real and run our configuration.
"""

import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from e2e.fickle import BAD, Fickle, Signals, fickle
from e2e.programs import PATIENCE, Prometheus, eventually
from e2e.stack import GATEWAY, QUICK, Collector, alertmanager, collector, prometheus
from openai_server import HttpReply, LoopbackServer
from otlp_receiver import OtlpReceiver, ReceivedLog
from rag_eval_otel.drift import DriftOptions
from rag_eval_otel.tools.rules import Target

SERVICE, METRIC, ALERT = "shop", "faithfulness", "RagAnswersGoBad"
OURS = {"service_name": SERVICE, "gen_ai_evaluation_name": METRIC}  # labels


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
class Monitoring:
    """A collector, Prometheus, Alertmanager with a webhook, and a backend of traces and logs."""

    gateway: Collector
    prometheus: Prometheus
    webhook: Webhook
    backend: OtlpReceiver


@contextmanager
def monitoring(folder: Path, *further: str, rules: Target = QUICK) -> Iterator[Monitoring]:
    """Run all programs; ``further`` are configurations of the collector."""
    with ExitStack() as stack:
        backend = stack.enter_context(OtlpReceiver())
        webhook = Webhook()
        stack.enter_context(webhook.server)
        settings = {
            "RAG_TRACES": backend.grpc_endpoint.removeprefix("http://"),
            "RAG_EVENTS": backend.http_endpoint,
            "RAG_DECISION_WAIT": "1s",
        }
        gateway = stack.enter_context(collector(folder / "gw", *GATEWAY, *further, **settings))
        manager = stack.enter_context(alertmanager(folder / "am", webhook.server.url))
        asked = stack.enter_context(
            prometheus(folder / "prom", gateway, alertmanager=manager, rules=rules)
        )
        yield Monitoring(gateway=gateway, prometheus=asked, webhook=webhook, backend=backend)


@dataclass(frozen=True, kw_only=True)
class Watched(Monitoring):
    """An app, and the programs that monitor it."""

    app: Fickle

    def counted(self, at_least: int) -> None:
        expression = (
            f'rag_evaluation_span_score_count{{service_name="{SERVICE}",'
            f'gen_ai_evaluation_name="{METRIC}"}}'
        )
        told = f"{at_least} scores in Prometheus"
        eventually(lambda: self.prometheus.value(expression) >= at_least, told)


@contextmanager
def watching(folder: Path, signals: Signals, **options: Any) -> Iterator[Watched]:
    """Run all programs for an app that exports ``signals``."""
    with (
        monitoring(folder, "events.yaml") as found,
        fickle(found.gateway, SERVICE, signals=signals, **options) as app,
    ):
        yield Watched(app=app, **vars(found))


def test_bad_answers_fire_the_page_and_good_answers_resolve_it(tmp_path: Path) -> None:
    """The alert names metric, service, change and traces; good answers resolve it."""
    with watching(tmp_path, "traces") as watched:
        watched.app.ask(5)  # the first sample of a series gives no increase
        watched.counted(5)
        watched.app.ask(40)
        watched.counted(45)
        assert not watched.prometheus.alerts(ALERT)

        watched.app.ask(30, BAD)
        (alert,) = eventually(
            lambda: [
                one
                for one in watched.prometheus.alerts(ALERT)
                if OURS.items() <= one["labels"].items()
            ],
            "the alert fires",
        )
        path, told = watched.webhook.alert("firing", alertname=ALERT, **OURS)
        assert path == "/page"
        assert alert["labels"]["severity"] == "page"
        summary = told["annotations"]["summary"]
        assert summary == f"{METRIC} of {SERVICE}: more than 10% of the answers are bad"
        assert "% in the last 30 minutes" in told["annotations"]["description"]
        query = f"service={SERVICE}&tags=%7B%22rag.evaluation.{METRIC}"
        assert query in told["annotations"]["traces"]

        watched.app.ask(120)
        watched.webhook.alert("resolved", alertname=ALERT, **OURS)


def test_drift_is_an_event_and_a_ticket(tmp_path: Path) -> None:
    """The app's detector is faster than the page; its alarm is both an event and a ticket."""
    with watching(tmp_path, "all", drift=DriftOptions(learn=100, every=10_000)) as watched:
        watched.app.ask(130)
        watched.app.ask(20, BAD)
        watched.backend.wait_for(lambda store: any(_drifts(store)), PATIENCE)
        event = next(_drifts(watched.backend))
        assert event.attributes["rag.evaluation.drift.direction"] == "down"
        assert SERVICE in str(event.body)
        path, told = watched.webhook.alert(
            "firing", alertname="RagScoreDrift", rag_evaluation_drift_direction="down", **OURS
        )
        assert path == "/ticket"
        summary = told["annotations"]["summary"]
        assert summary == f"{METRIC} of {SERVICE} has drifted: down, by a change of: unknown"


def _drifts(store: OtlpReceiver) -> Iterator[ReceivedLog]:
    for log in store.logs():
        of = log.attributes.get("gen_ai.evaluation.name")
        if log.event_name == "rag.evaluation.drift" and of == METRIC:
            yield log
