"""The folder ``collector/`` fits the library: generated files, names and mounts."""

import json
import re
import runpy
from pathlib import Path
from typing import Any

import pytest
import yaml
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import Histogram, InMemoryMetricReader, Sum

from endpoints import Desk
from rag_eval_otel import semconv
from rag_eval_otel.metrics import METRICS
from rag_eval_otel.tools.cli import main
from rag_eval_otel.tools.rules import Target, render

COLLECTOR = Path(__file__).parents[2] / "collector"
SCRIPTS = sorted(COLLECTOR.rglob("generate.py"))
TEXTS = [*COLLECTOR.glob("prometheus/*.yaml"), *COLLECTOR.glob("grafana/dashboards/*.json")]
LABELS = ("status", "judge", "label", "outcome", "cause", "currency", "drift_direction")
COMPOSE = "docker-compose.yaml"
SUFFIXES = {"1": "", "s": "_seconds"}


def prometheus_names(name: str, unit: str, data: object) -> set[str]:
    """Return the names of an instrument's series in the Prometheus exporter."""
    base = name.replace(".", "_") + SUFFIXES.get(unit, "")
    if isinstance(data, Histogram):
        return {f"{base}_{part}" for part in ("bucket", "count", "sum")}
    if isinstance(data, Sum):
        return {f"{base}_total"} if data.is_monotonic else {base}
    return {f"{base}_ratio"} if unit == "1" else {base}


def known_names() -> set[str]:
    """Return the names of all series, after each instrument has recorded something."""
    reader = InMemoryMetricReader()
    desk = Desk(MeterProvider([reader]), "shop")
    desk.work()
    data = reader.get_metrics_data()
    assert data is not None
    scopes = [scope for resource in data.resource_metrics for scope in resource.scope_metrics]
    ours = [prometheus_names(m.name, m.unit, m.data) for scope in scopes for m in scope.metrics]
    histogram = {f"{semconv.SPAN_SCORE.replace('.', '_')}_{x}" for x in ("bucket", "count", "sum")}
    return set().union(*ours, histogram, {f"{semconv.SPAN_TURNS.replace('.', '_')}_total"})


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.parent.name)
def test_generated_files_are_up_to_date(script: Path) -> None:
    """Rules, dashboards and the list of scores equal the output of their generators."""
    generated = runpy.run_path(str(script))["generated"]()
    stale = [path.name for path, text in generated.items() if path.read_text("utf-8") != text]
    assert not stale, f"run: python {script.relative_to(COLLECTOR.parent)}"


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: path.name)
def test_rules_and_dashboards_use_existing_series(path: Path) -> None:
    """Every series in a query is one of an instrument, or recorded by a rule."""
    text = path.read_text(encoding="utf-8")
    rules = (COLLECTOR / "prometheus" / "rules.yaml").read_text(encoding="utf-8")
    recorded = set(re.findall(r"record: (\S+)", rules))
    labels = {f"rag_evaluation_{name}" for name in LABELS}
    asked = {name.rstrip(":") for name in re.findall(r"\brag_evaluation[\w:]+", text)}
    assert asked - known_names() - recorded - labels == set()


def test_the_gateway_counts_every_metric() -> None:
    """Each metric has a histogram, over the score on [0, 1]."""
    scores = loaded("scores.yaml")
    entries = scores["connectors"]["signal_to_metrics"]["spans"][1:]
    assert [entry["attributes"][0]["default_value"] for entry in entries] == sorted(METRICS)
    for entry in entries:
        assert entry["histogram"]["buckets"] == list(semconv.SCORE_BOUNDS)
        value = re.search(r'span\.attributes\["[^"]+"\]', entry["histogram"]["value"])
        assert value is not None
        has_score = f"{value[0]} != nil"
        is_uniform = f'span.attributes["{semconv.EVALUATION_SAMPLING_TARGETED}"] == nil'
        assert entry["conditions"] == [f"{has_score} and {is_uniform}"]


def test_the_list_of_other_scales_is_complete(capsys: pytest.CaptureFixture[str]) -> None:
    """The metrics whose score is brought to [0, 1] are those with another scale."""
    assert main(["metrics", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    elsewhere = {one["name"] for one in listed if not one["range"].endswith(" 1")}
    others = runpy.run_path(str(COLLECTOR / "generate.py"))["OTHER_SCALES"]
    assert elsewhere & set(METRICS) == others


PAGES = [json.loads(p.read_text("utf-8")) for p in COLLECTOR.glob("grafana/dashboards/*.json")]


def test_exemplars_link_to_traces() -> None:
    """Some panel shows exemplars, and the provisioned data source knows the tracing backend."""
    targets = [t for page in PAGES for p in page["panels"] for t in p["targets"]]
    assert any(target["exemplar"] for target in targets)
    sources = loaded("grafana/provisioning/datasources/sources.yaml")["datasources"]
    (prometheus,) = [one for one in sources if one["type"] == "prometheus"]
    (lead,) = prometheus["jsonData"]["exemplarTraceIdDestinations"]
    assert lead["datasourceUid"] in {one["uid"] for one in sources if one["type"] == "jaeger"}


def loaded(name: str) -> Any:
    return yaml.safe_load((COLLECTOR / name).read_text(encoding="utf-8"))


def test_compose_mounts_existing_files() -> None:
    """The source of every mount is a file of the folder, or a declared volume."""
    told = loaded(COMPOSE)
    mounts = [m for service in told["services"].values() for m in service.get("volumes", ())]
    assert mounts
    for mount in mounts:
        source = mount.split(":")[0]
        if source.startswith("."):
            assert (COLLECTOR / source).exists(), source
        else:
            assert source in told["volumes"]


def test_look_around_has_the_rules_sixty_times_as_fast() -> None:
    """`look/` has the generated rules, and replaces files that the compose file mounts."""
    metrics = ("context_relevance", "faithfulness", "response_groundedness")
    rules = (COLLECTOR / "look" / "rules.yaml").read_text(encoding="utf-8")
    assert rules == render(Target(time_scale=60, label_metrics=metrics))
    told = loaded("look/docker-compose.yaml")
    for name, service in told["services"].items():
        folder, place = loaded(COMPOSE)["services"][name]["volumes"][0].split(":")[:2]
        for mount in service["volumes"]:
            source, target = mount.split(":")[:2]
            assert (COLLECTOR / source).is_file()
            assert (COLLECTOR / folder / target.removeprefix(f"{place}/")).is_file()


def test_compose_pins_its_images() -> None:
    """Each image has a version; the collector's is the one that is built and tested here."""
    images = {name: service["image"] for name, service in loaded(COMPOSE)["services"].items()}
    assert all(re.search(r":v?\d+\.\d+\.\d+$", image) for image in images.values())
    manifest = loaded("builder-config.yaml")
    assert images["gateway"].endswith(f":{manifest['dist']['version']}")


def test_hosts_in_configurations_are_compose_services() -> None:
    """Every host that a configuration names is a service of the compose file."""
    services = set(loaded(COMPOSE)["services"])
    prometheus = (COLLECTOR / "prometheus" / "prometheus.yaml").read_text(encoding="utf-8")
    assert set(re.findall(r"targets: \[(\w+):", prometheus)) <= services
    hosts = re.findall(
        r"//(\w+):\d+",
        (COLLECTOR / "grafana/provisioning/datasources/sources.yaml").read_text("utf-8"),
    )
    assert set(hosts) <= services
