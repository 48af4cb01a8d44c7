"""Rules and dashboards on a real Prometheus with data from a real app."""

import json
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter

from e2e.fickle import BAD, GOOD, fickle
from e2e.programs import Prometheus, checked, eventually, get, program
from e2e.stack import COLLECTOR, GATEWAY, QUERIES, Collector, collector, loaded, prometheus, shown
from endpoints import Desk
from otlp_receiver import OtlpReceiver
from rag_eval_otel.runtime.sdk import Providers
from rag_eval_otel.tools.rules import Target, render

SHOP, DESK = "shop", "desk"
METRICS = 4
ROUNDS = ((4, GOOD), (2, BAD), (4, GOOD), (30, BAD))
"""Each answer twice: what a series begins with is no increase."""
TARGETS = (
    Target(),
    Target(slo=0.5, tau=0.05, every=1000),
    Target(slo=0.95, tau=0.95, interval="30s"),
    Target(slo=0.9999, traces="https://traces.example/{service}?q={metric}"),
)


@dataclass(frozen=True, kw_only=True)
class Seen:
    """A Prometheus with data of good and bad turns of two services, and the trace backend."""

    prometheus: Prometheus
    backend: OtlpReceiver


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Seen]:
    """Run two services before and after Prometheus's first scrape."""
    folder = tmp_path_factory.mktemp("prometheus")
    with ExitStack() as stack:
        backend = stack.enter_context(OtlpReceiver())
        traces = backend.grpc_endpoint.removeprefix("http://")
        gateway = stack.enter_context(
            collector(folder / "gateway", *GATEWAY, RAG_TRACES=traces, RAG_DECISION_WAIT="1s")
        )
        found = stack.enter_context(prometheus(folder / "prometheus", gateway))
        app = stack.enter_context(fickle(gateway, SHOP))
        desk = stack.enter_context(_desk(gateway))
        asked = 0
        for round_, (turns, answer) in enumerate(ROUNDS, 1):
            app.ask(turns, answer)
            desk.work()
            asked += turns
            _counted(found, SHOP, asked * METRICS)
            _counted(found, DESK, round_)
        eventually(lambda: found.alerts("RagAnswersGoBad"), "the alert fires")
        yield Seen(prometheus=found, backend=backend)


@contextmanager
def _desk(gateway: Collector) -> Iterator[Desk]:
    exporter = OTLPMetricExporter(endpoint=f"{gateway.http}/v1/metrics")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OTEL_SERVICE_NAME", DESK)
        providers = Providers.exporting(traces=[], metrics=[exporter], logs=[])
    yield Desk(providers.meter_provider, DESK)
    providers.shutdown()


def _counted(found: Prometheus, service: str, scores: int) -> None:
    series = f'rag_evaluation_score_count{{service_name="{service}"}}'
    eventually(lambda: found.value(series) >= scores, f"{scores} scores of {service}")


def test_every_rule_can_be_run(seen: Seen) -> None:
    """Prometheus has evaluated each rule, without an error."""

    def run() -> list[dict[str, Any]]:
        told = get(f"{seen.prometheus.url}/api/v1/rules") or '{"data": {"groups": []}}'
        rules = [rule for group in json.loads(told)["data"]["groups"] for rule in group["rules"]]
        return rules if all(rule["health"] != "unknown" for rule in rules) else []

    rules = eventually(run, "all rules were run")
    assert {rule["name"]: rule["lastError"] for rule in rules if rule["health"] != "ok"} == {}


@pytest.mark.parametrize("expression", QUERIES, ids=range(len(QUERIES)))
def test_no_panel_is_empty(seen: Seen, expression: str) -> None:
    """Each query of the dashboards returns data."""
    asked = shown(expression, interval="5m")
    eventually(lambda: seen.prometheus.query(asked), asked)


def test_exemplars_lead_to_kept_traces(seen: Seen) -> None:
    """The exemplars of low scores are the ids of bad turns that the backend holds."""
    failed = f'service_name="{SHOP}", gen_ai_evaluation_score_label="fail"'
    low = f"rag_evaluation_score_bucket{{{failed}}}"
    found = eventually(lambda: seen.prometheus.exemplars(low), "exemplars of low scores")
    ids = {one["labels"]["trace_id"] for one in found}
    eventually(
        lambda: ids & {f"{span.trace_id:032x}" for span in seen.backend.spans()},
        "a trace that an exemplar names",
    )


def test_rules_group_by_service(seen: Seen) -> None:
    """The rules group by the application's service name."""
    counted = seen.prometheus.query("group by (service_name) (rag_evaluation_score_count)")
    assert {series["metric"]["service_name"] for series in counted} == {SHOP, DESK}


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: f"{target.slo:g}-{target.tau:g}")
def test_rules_of_all_targets_are_valid(target: Target, tmp_path: Path) -> None:
    """`promtool check rules` reports no problem."""
    (tmp_path / "rules.yaml").write_text(render(target), encoding="utf-8")
    checked([program("promtool"), "check", "rules", str(tmp_path / "rules.yaml")])


def test_alerts_fire_as_the_scenarios_state(tmp_path: Path) -> None:
    """The scenarios of `rules_test.yaml` pass; all rules are in one group, in their order."""
    (group,) = loaded("prometheus/rules.yaml")["groups"]
    rules = _prometheus("rules.yaml").read_text("utf-8")
    assert "SUCCESS" in _scenarios(rules, [group["name"]], tmp_path)


def _scenarios(rules: str, order: Sequence[str], folder: Path) -> str:
    """Run the scenarios on ``rules`` with groups in ``order``; AssertionError on a failure."""
    scenarios = _prometheus("rules_test.yaml").read_text("utf-8")
    told = f"{scenarios}\ngroup_eval_order: {json.dumps(order)}\n"
    (folder / "rules.yaml").write_text(rules, encoding="utf-8")
    (folder / "rules_test.yaml").write_text(told, encoding="utf-8")
    return checked([program("promtool"), "test", "rules", str(folder / "rules_test.yaml")])


def test_prometheus_reads_its_configuration() -> None:
    """`promtool check config` accepts it, and the rules it names."""
    checked([program("promtool"), "check", "config", str(_prometheus("prometheus.yaml"))])


def _prometheus(name: str) -> Path:
    return COLLECTOR / "prometheus" / name


def test_alertmanager_reads_its_routing() -> None:
    """`amtool check-config` accepts it, and routes pages and tickets apart."""
    config = str(COLLECTOR / "alertmanager" / "alertmanager.yaml")
    checked([program("amtool"), "check-config", config])
    route = [program("amtool"), "config", "routes", "test", f"--config.file={config}"]
    assert checked([*route, "severity=page"]).strip() == "page"
    assert checked([*route, "severity=ticket"]).strip() == "ticket"


def test_message_names_metric_service_change_and_traces(tmp_path: Path) -> None:
    """A message names the metric, the service, the change and the place of the traces."""
    annotations = {
        "summary": "faithfulness of shop: more than 10% of the answers are bad",
        "description": "Bad answers: 38% in the last 30 minutes, 8% in the day before.",
        "traces": "http://localhost:16686/search?service=shop",
    }
    alert = {"status": "firing", "labels": {}, "annotations": annotations}
    (tmp_path / "data.json").write_text(json.dumps({"status": "resolved", "alerts": [alert]}))
    command = [
        *(program("amtool"), "template", "render"),
        f"--template.glob={COLLECTOR / 'alertmanager' / 'message.tmpl'}",
        f"--template.data={tmp_path / 'data.json'}",
        '--template.text={{ template "rag.title" . }}\n{{ template "rag.text" . }}',
    ]
    title, summary, description, traces = checked(command).strip().splitlines()
    assert title == f"Resolved: {annotations['summary']}"
    assert (summary, description) == (annotations["summary"], annotations["description"])
    assert traces == f"Traces: {annotations['traces']}"
