"""The example for Kubernetes: valid for the schemas of Kubernetes and KEDA, and in itself."""

from __future__ import annotations

import json
import re
from argparse import ArgumentParser
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from e2e.programs import checked, program
from e2e.stack import COLLECTOR
from rag_eval_otel.config import Config
from rag_eval_otel.worker.kafka_command import add_kafka_options, chosen_kafka_options

kubernetes_validate = pytest.importorskip("kubernetes_validate")
jsonschema = pytest.importorskip("jsonschema")

KEDA = "github.com/kedacore/keda/v2@v2.21.0"
OBJECTS = list(yaml.safe_load_all((COLLECTOR / "kubernetes/worker.yaml").read_text("utf-8")))
BY_KIND = {one["kind"]: one for one in OBJECTS}
POD = BY_KIND["Deployment"]["spec"]["template"]
(WORKER,) = POD["spec"]["containers"]
VALUES = {one["name"]: one.get("value") for one in WORKER["env"]}
ARGUMENTS = dict(one[2:].split("=", 1) for one in WORKER["args"][1:])


@cache
def scaled_object() -> Any:
    """Return KEDA's schema of a ScaledObject, which its Go module has."""
    told = json.loads(checked([program("go"), "mod", "download", "-json", KEDA]))
    path = Path(told["Dir"]) / "config/crd/bases/keda.sh_scaledobjects.yaml"
    definition = yaml.safe_load(path.read_text("utf-8"))
    (version,) = definition["spec"]["versions"]
    return version["schema"]["openAPIV3Schema"]


def strict(schema: Any) -> Any:
    """Return ``schema`` so that it allows only the fields that it names."""
    if not isinstance(schema, dict):
        return schema
    found = {name: strict(each) for name, each in schema.items()}
    keeps_others = schema.get("x-kubernetes-preserve-unknown-fields", False)
    if isinstance(schema.get("properties"), dict) and not keeps_others:
        found["additionalProperties"] = False
    return found


@pytest.mark.parametrize("kind", ["Deployment", "Service", "PodDisruptionBudget"])
def test_objects_are_valid(kind: str) -> None:
    """Each object has only fields that Kubernetes knows, with values of their types."""
    kubernetes_validate.validate(BY_KIND[kind], "1.37", strict=True)
    wrong = {**BY_KIND[kind], "spec": {**BY_KIND[kind]["spec"], "replica": 3}}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(wrong, "1.37", strict=True)


def test_the_scaled_object_is_valid() -> None:
    """KEDA's own schema accepts it, and refuses a field that it does not know."""
    validator = jsonschema.Draft202012Validator(strict(scaled_object()))
    found = BY_KIND["ScaledObject"]
    validator.validate(found)
    for wrong in ({"maxReplicas": 3}, {"maxReplicaCount": "6"}):
        assert not validator.is_valid({**found, "spec": {**found["spec"], **wrong}})


def test_the_objects_fit_together() -> None:
    """Selectors find the pods, ports have names, and KEDA watches the group of the workers."""
    assert set(BY_KIND) == {"Deployment", "Service", "PodDisruptionBudget", "ScaledObject"}
    labels = POD["metadata"]["labels"]
    for kind in ("Deployment", "PodDisruptionBudget"):
        assert BY_KIND[kind]["spec"]["selector"]["matchLabels"] == labels
    assert BY_KIND["Service"]["spec"]["selector"] == labels
    scaled = BY_KIND["ScaledObject"]["spec"]
    assert scaled["scaleTargetRef"]["name"] == BY_KIND["Deployment"]["metadata"]["name"]
    (trigger,) = scaled["triggers"]
    watched = trigger["metadata"]
    assert watched["bootstrapServers"] == ARGUMENTS["kafka"]
    assert watched["consumerGroup"] == ARGUMENTS["group"]
    assert watched["topic"] == ARGUMENTS["topic"]
    (port,) = WORKER["ports"]
    assert ARGUMENTS["probes"] == f"0.0.0.0:{port['containerPort']}"
    probes = [WORKER[f"{kind}Probe"]["httpGet"] for kind in ("liveness", "startup", "readiness")]
    assert [probe["path"] for probe in probes] == ["/livez", "/livez", "/readyz"]
    assert {probe["port"] for probe in probes} == {port["name"]}


def test_the_arguments_are_options_of_the_command() -> None:
    """The command reads from the brokers, the topic and the group that the example names."""
    parser = ArgumentParser()
    add_kafka_options(parser)
    known, rest = parser.parse_known_args(WORKER["args"])
    options = chosen_kafka_options(known)
    found = (options.brokers, options.topic, options.group, options.dead_letter)
    assert found == tuple(ARGUMENTS[name] for name in ("kafka", "topic", "group", "dead-letter"))
    assert [one.partition("=")[0] for one in rest] == ["serve", "--probes"]


def test_a_pod_has_time_to_drain() -> None:
    """Kubernetes waits longer than a shutdown of the worker takes."""
    config = Config.from_env({name: value for name, value in VALUES.items() if value})
    grace = POD["spec"]["terminationGracePeriodSeconds"]
    assert grace >= config.shutdown_seconds + 10
    assert config.judge == "openai/gpt-5-mini"
    assert [str(limit) for limit in config.limits] == ["3000 requests/minute"]


def test_secrets_are_not_in_the_file() -> None:
    """Keys and the URL of Redis, which may have a password, come from a Secret."""
    secret = {one["name"] for one in WORKER["env"] if "secretKeyRef" in one.get("valueFrom", {})}
    assert secret == {"OPENAI_API_KEY", "RAG_EVAL_REDIS"}


def test_the_documented_topic_is_that_of_the_collector() -> None:
    """Agent, workers and documentation agree on the default topic."""
    agent = (COLLECTOR / "kafka/agent.yaml").read_text("utf-8")
    found = re.search(r"RAG_KAFKA_TOPIC:-(\w+)", agent)
    assert found
    assert found[1] == ARGUMENTS["topic"]
