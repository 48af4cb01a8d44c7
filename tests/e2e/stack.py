"""The folder ``collector/`` run on loopback, unchanged except for addresses."""

import os
import runpy
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from e2e.programs import PLACES, Prometheus, checked, free_ports, program, running
from rag_eval_otel.tools.rules import Target, render

COLLECTOR = Path(__file__).parents[2] / "collector"
GATEWAY = ("gateway.yaml", "content.yaml", "scores.yaml")
QUICK = Target(interval="1s")
"""The rules as shipped, run every second."""

QUERIES = tuple(dict.fromkeys(runpy.run_path(str(COLLECTOR / "grafana" / "pages.py"))["queries"]()))


def shown(query: str, *, interval: str) -> str:
    """Return a query of a dashboard as Grafana sends it for one metric, all services."""
    variables = {
        '="$metric"': '="faithfulness"',
        "$metric": ".+",
        "$service": ".+",
        "$__rate_interval": interval,
        "$__range": "15m",
    }
    for variable, value in variables.items():
        query = query.replace(variable, value)
    return query


@cache
def built_collector() -> str:
    """Return the path of the collector, built on first use; skip the test if that fails."""
    told = checked([program("go"), "env", "GOVERSION"]).strip()
    version = tuple(int(part) for part in told.removeprefix("go").split(".")[:2])
    if version < (1, 25):
        pytest.skip(f"the collector is built with Go 1.25 or newer, and this is {told}")
    done = subprocess.run(
        [str(COLLECTOR / "build.sh")],
        stdout=subprocess.PIPE,
        check=True,
        text=True,
        env={**os.environ, "PATH": PLACES},
    )
    return done.stdout.strip()


def validate(*names: str, environment: Mapping[str, str] | None = None) -> None:
    """Let the collector validate the combined configurations."""
    options = [f"--config={COLLECTOR / name}" for name in names]
    checked([built_collector(), "validate", *options], environment)


@dataclass(frozen=True, kw_only=True)
class Collector:
    """A running collector."""

    grpc: str
    http: str
    apps: str
    spans: str
    log: Path

    def told(self) -> str:
        return self.log.read_text(errors="replace")


@contextmanager
def collector(folder: Path, *names: str, **settings: str) -> Iterator[Collector]:
    """Run a collector with the configurations ``names`` and their variables ``settings``."""
    binary = built_collector()
    folder.mkdir(exist_ok=True)
    grpc, http, health, apps, spans, own = free_ports(6)
    environment = {
        "RAG_GRPC": f"127.0.0.1:{grpc}",
        "RAG_HTTP": f"127.0.0.1:{http}",
        "RAG_HEALTH": f"127.0.0.1:{health}",
        "RAG_METRICS_APPS": f"127.0.0.1:{apps}",
        "RAG_METRICS_SPANS": f"127.0.0.1:{spans}",
        "RAG_SELF_PORT": str(own),
        "RAG_QUEUE": str(folder / "queue"),
        **settings,
    }
    command = [binary, *(f"--config={COLLECTOR / name}" for name in names)]
    ready, log = f"http://127.0.0.1:{health}", folder / "collector.log"
    with running(command, ready=ready, log=log, environment=environment):
        yield Collector(
            grpc=f"127.0.0.1:{grpc}",
            http=f"http://127.0.0.1:{http}",
            apps=f"127.0.0.1:{apps}",
            spans=f"127.0.0.1:{spans}",
            log=log,
        )


def loaded(name: str) -> Any:
    return yaml.safe_load((COLLECTOR / name).read_text(encoding="utf-8"))


@contextmanager
def prometheus(folder: Path, gateway: Collector) -> Iterator[Prometheus]:
    binary = program("prometheus")
    folder.mkdir(exist_ok=True)
    config = loaded("prometheus/prometheus.yaml")
    config["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    jobs = {job["job_name"]: job for job in config["scrape_configs"]}
    jobs["rag-apps"]["static_configs"] = [{"targets": [gateway.apps]}]
    jobs["rag-spans"]["static_configs"] = [{"targets": [gateway.spans]}]
    config["scrape_configs"] = [jobs["rag-apps"], jobs["rag-spans"]]
    config["alerting"]["alertmanagers"] = [{"static_configs": [{"targets": ["127.0.0.1:9"]}]}]
    (folder / "prometheus.yaml").write_text(yaml.safe_dump(config))
    (folder / "rules.yaml").write_text(render(QUICK))
    (port,) = free_ports(1)
    url = f"http://127.0.0.1:{port}"
    command = [
        binary,
        f"--config.file={folder / 'prometheus.yaml'}",
        f"--storage.tsdb.path={folder / 'data'}",
        "--enable-feature=exemplar-storage",
        f"--web.listen-address=127.0.0.1:{port}",
    ]
    with running(command, ready=f"{url}/-/ready", log=folder / "prometheus.log"):
        yield Prometheus(url)
