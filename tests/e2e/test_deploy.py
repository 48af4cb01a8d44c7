"""The folder ``deploy/``: the chart rendered by Helm, the compose file, and the image.

The image is built from ``DEPLOY_TEST_PYTHON``, by default the one that the Dockerfile names.
"""

import json
import os
import subprocess
from argparse import ArgumentParser
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

pytest.importorskip("confluent_kafka")
from e2e.kafka_broker import Broker, jars
from e2e.programs import CACHE, PLACES, checked, program
from e2e.stack import loaded
from rag_eval_otel.config import Config
from rag_eval_otel.worker.command import add_options
from rag_eval_otel.worker.wire import LARGEST

kubernetes_validate = pytest.importorskip("kubernetes_validate")
jsonschema = pytest.importorskip("jsonschema")

DEPLOY = Path(__file__).parents[2] / "deploy"
CHART = DEPLOY / "helm" / "rag-eval-worker"
COMPOSE = yaml.safe_load((DEPLOY / "docker-compose.yaml").read_text("utf-8"))
KUBERNETES = "1.37.0"
HELM, KEDA = "helm.sh/helm/v3/cmd/helm@v3.22.0", "github.com/kedacore/keda/v2@v2.21.0"
COMPOSE_GO = "github.com/compose-spec/compose-go/v2@v2.16.2"
SCALED = ("autoscaling.enabled=true", "secret=keys", r"kafka.options.security\.protocol=SSL")


@cache
def helm() -> str:
    """Return the path of Helm, which is built from its Go module if it is not installed."""
    binary = CACHE / HELM.rpartition("@")[2] / "helm"
    if not binary.exists():
        try:
            return program("helm")
        except pytest.skip.Exception:
            environment = {"PATH": PLACES, "CGO_ENABLED": "0", "GOBIN": str(binary.parent)}
            checked([program("go"), "install", HELM], environment)
    return str(binary)


def rendered(*values: str) -> dict[str, Any]:
    """Return the objects of the chart by their kinds."""
    sets = [f"--set={value}" for value in values]
    text = checked([helm(), "template", "shop", str(CHART), f"--kube-version={KUBERNETES}", *sets])
    return {one["kind"]: one for one in yaml.safe_load_all(text)}


def module(name: str) -> Path:
    about = json.loads(checked([program("go"), "mod", "download", "-json", name]))
    return Path(about["Dir"])


def strict(schema: Any) -> Any:
    """Return ``schema`` so that it allows only the fields that it names."""
    if not isinstance(schema, dict):
        return schema
    copy = {name: strict(each) for name, each in schema.items()}
    keeps_others = schema.get("x-kubernetes-preserve-unknown-fields", False)
    if isinstance(schema.get("properties"), dict) and not keeps_others:
        copy["additionalProperties"] = False
    return copy


def options(arguments: Sequence[str]) -> Any:
    parser = ArgumentParser(exit_on_error=False)
    add_options(parser)
    return parser.parse_args(arguments)


def test_helm_finds_no_fault() -> None:
    """The chart is clean for the linter, and its schema refuses values that make no sense."""
    assert "0 chart(s) failed" in checked([helm(), "lint", "--strict", str(CHART)])
    for wrong in ("kafka.broker=a:1", "source=otlp,autoscaling.enabled=true", "replicas=-1"):
        with pytest.raises(AssertionError, match="values don't meet the specifications"):
            rendered(wrong)


@pytest.mark.parametrize("values", [(), SCALED, ("source=otlp",)], ids=str)
def test_objects_are_valid_and_fit_together(values: Sequence[str]) -> None:
    """Kubernetes and KEDA know each field; ports, selectors, arguments and times agree."""
    objects = rendered(*values)
    scaled = objects.pop("ScaledObject", None)
    kinds = {"Deployment", "Service", "PodDisruptionBudget", "ServiceAccount"}
    assert objects.keys() == kinds
    for each in objects.values():
        kubernetes_validate.validate(each, KUBERNETES.rpartition(".")[0], strict=True)
    deployment = objects["Deployment"]["spec"]
    pod = deployment["template"]
    (worker,) = pod["spec"]["containers"]
    selector = deployment["selector"]["matchLabels"]
    assert selector.items() <= pod["metadata"]["labels"].items()
    assert objects["Service"]["spec"]["selector"] == selector
    assert objects["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"] == selector
    ports = {port["name"]: port["containerPort"] for port in worker["ports"]}
    assert {p["targetPort"]: p["port"] for p in objects["Service"]["spec"]["ports"]} == ports
    probes = [worker[f"{kind}Probe"]["httpGet"] for kind in ("liveness", "startup", "readiness")]
    assert [probe["path"] for probe in probes] == ["/livez", "/livez", "/readyz"]
    command = options(worker["args"])
    assert command.http_port == ports["http"]
    assert ports.get("grpc", command.grpc_port) == command.grpc_port
    assert command.kafka == (None if "grpc" in ports else "kafka:9092")
    config = Config.from_env({one["name"]: one.get("value", "") for one in worker["env"]})
    assert pod["spec"]["terminationGracePeriodSeconds"] >= config.shutdown_seconds + 15
    assert ("replicas" in deployment) is (scaled is None)
    if values == SCALED:
        definition = module(KEDA) / "config/crd/bases/keda.sh_scaledobjects.yaml"
        (version,) = yaml.safe_load(definition.read_text("utf-8"))["spec"]["versions"]
        validator = jsonschema.Draft202012Validator(strict(version["schema"]["openAPIV3Schema"]))
        validator.validate(scaled)
        assert not validator.is_valid({**scaled, "spec": {**scaled["spec"], "maxReplicas": 3}})
        watched = scaled["spec"]["triggers"][0]["metadata"]
        names = ("bootstrapServers", "topic", "consumerGroup")
        assert [watched[name] for name in names] == [command.kafka, command.topic, command.group]
        assert command.kafka_option == ["security.protocol=SSL"]
        assert worker["envFrom"] == [{"secretRef": {"name": "keys"}}]


def test_the_compose_file_is_valid() -> None:
    """The schema accepts it, files are there, and worker, collector and topic agree."""
    schema = json.loads((module(COMPOSE_GO) / "schema/compose-spec.json").read_text("utf-8"))
    jsonschema.validate(COMPOSE, schema)
    services = COMPOSE["services"]
    sources = [volume.split(":")[0] for volume in services["collector"]["volumes"]]
    assert [(DEPLOY / path).is_file() for path in sources if "/" in path] == [True]
    config = loaded("worker.yaml")
    assert all(f"env:{name}:-" in str(config) for name in services["collector"]["environment"])
    topic = services["topic"]["command"]
    command = options(services["worker"]["command"])
    assert f"--topic {command.topic} " in topic
    largest = int(config["exporters"]["kafka"]["producer"]["max_message_bytes"].split(":-")[1][:-1])
    assert largest < int(topic.partition("max.message.bytes=")[2].split()[0]) < LARGEST


def test_the_broker_accepts_its_settings(tmp_path: Path) -> None:
    """Kafka's own tool reads the variables of the compose file, as the image passes them on."""
    jars()
    settings = {**COMPOSE["services"]["kafka"]["environment"], "KAFKA_LOG_DIRS": tmp_path / "data"}
    lines = [f"{k[6:].lower().replace('_', '.')}={v}" for k, v in settings.items()]
    (tmp_path / "server.properties").write_text("\n".join(lines))
    Broker(tmp_path, 0, 0).format()
    assert (tmp_path / "data" / "meta.properties").exists()


def test_the_image_runs_the_worker() -> None:
    """It is built, runs as a user without rights, and has the extras."""
    python = os.environ.get("DEPLOY_TEST_PYTHON", "docker.io/library/python:3.12-slim")
    buildah = [program("buildah")]  # STORAGE_DRIVER=vfs where there is no overlay
    certificates = "--volume=/etc/ssl/certs:/etc/ssl/certs:ro"  # of a proxy of this machine
    build = ("bud", "--isolation=chroot", "--format=docker", certificates, "-t", "rag-eval-worker")
    where = (f"--build-arg=PYTHON={python}", "-f", str(DEPLOY / "Dockerfile"), str(DEPLOY.parent))
    built = subprocess.run(
        [*buildah, *build, *where], capture_output=True, text=True, timeout=900, check=False
    )
    if "initializing source" in built.stderr or "creating build container" in built.stderr:
        pytest.skip(f"{python} cannot be had: {built.stderr[-200:]}")
    assert built.returncode == 0, built.stderr[-3000:]
    container = checked([*buildah, "from", "--pull-never", "localhost/rag-eval-worker"]).strip()
    try:
        run = [*buildah, "run", "--isolation=chroot", container, "--"]
        assert checked([*run, "id", "-u"]).strip() == "10001"
        assert "redis" in checked(
            [*run, "python", "-c", "import confluent_kafka, redis as r;print(r)"]
        )
        assert "--kafka" in checked([*run, "rag-eval-otel", "serve", "--help"])
    finally:
        checked([*buildah, "rm", container])
