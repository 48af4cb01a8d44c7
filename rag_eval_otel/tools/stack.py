"""Start a collector, Prometheus and Alertmanager on free ports, and end them."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from importlib.resources import files
from pathlib import Path
from typing import Final

from rag_eval_otel.environment import otlp_variables
from rag_eval_otel.tools.cli.options import say

OTLP: Final = "OTLP for your own application"

_START_SECONDS: Final = 30.0
_END_SECONDS: Final = 5.0
_BUILD_SECONDS: Final = 2.0  # a collector that is built already is found in less
_PLACES: Final = f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin:/usr/local/go/bin"
_DROP: Final = "yaml:service::pipelines::traces/out::exporters: [debug]"


class Programs:
    """Programs that run beside this process, each in a process group of its own."""

    def __init__(self, folder: Path, stopped: threading.Event) -> None:
        self.folder, self.stopped = folder, stopped
        self._running: list[subprocess.Popen[bytes]] = []

    def launch(self, name: str, *command: str | Path, **variables: str) -> subprocess.Popen[bytes]:
        others = otlp_variables()  # of the user's own application, also its keys
        environ = {name: value for name, value in os.environ.items() if name not in others}
        # A signal only sets `stopped`, so none comes between the start and the list.
        with (self.folder / f"{name}.log").open("wb") as log:
            process = subprocess.Popen(  # noqa: S603  # the commands are ours
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**environ, "PATH": _PLACES, **variables},
                cwd=self.folder,
                start_new_session=True,  # ^C is for us, and we end them
            )
        self._running.append(process)
        return process

    def last_line(self, name: str) -> str:
        text = (self.folder / f"{name}.log").read_text(encoding="utf-8", errors="replace")
        return (text.splitlines() or ["no output"])[-1]

    def start(self, name: str, *command: str | Path, ready: str, **variables: str) -> bool:
        """Start a program; return whether ``ready`` (host:port) accepts connections in time."""
        process = self.launch(name, *command, **variables)
        deadline = time.monotonic() + _START_SECONDS
        host, _, port = ready.partition(":")
        while process.poll() is None and time.monotonic() < deadline:
            with suppress(OSError), socket.create_connection((host, int(port)), timeout=1):
                return True
            if self.stopped.wait(0.1):
                return False
        say(f"{name} does not run: {self.last_line(name)}")
        return False

    def close(self) -> None:
        running = [each for each in self._running if each.poll() is None]  # ids are used again
        for number in (signal.SIGTERM, signal.SIGKILL):
            for process in running:
                with suppress(OSError):  # it has ended
                    os.killpg(process.pid, number)
            deadline = time.monotonic() + _END_SECONDS
            for process in running:
                with suppress(subprocess.TimeoutExpired):
                    process.wait(max(0.1, deadline - time.monotonic()))


def configure(endpoint: str | None) -> None:
    """Set ``OTEL_*`` for an SDK made later: spans leave each second, to ``endpoint``.

    All ``OTEL_*`` variables of the user are deleted first; with None, they stay and prevail.
    """
    if endpoint is not None:
        for name in otlp_variables():
            del os.environ[name]
        os.environ |= {
            "OTEL_EXPORTER_OTLP_ENDPOINT": endpoint,
            "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
            **dict.fromkeys(("no_proxy", "NO_PROXY"), "127.0.0.1"),
        }
    os.environ.setdefault("OTEL_BSP_SCHEDULE_DELAY", "1000")
    os.environ.setdefault("OTEL_EXPORTER_OTLP_TIMEOUT", "1")  # a dead endpoint delays the end


def started(programs: Programs, begin: Callable[[str], object]) -> Mapping[str, str]:
    """Start a collector, Prometheus and Alertmanager; return the addresses of what runs by name.

    Empty without a collector or Prometheus. ``begin`` gets a text while the collector is built.
    """
    prometheus = _installed("prometheus")
    collector = _built(programs, begin) if prometheus else None
    if collector is None or prometheus is None:
        say("the page shows the scores and turns of this process, without dashboards and alerts")
        return {}
    grpc, otlp, health, apps, spans, own, server, manager = _free_addresses(8)
    variables = {
        "RAG_GRPC": grpc,
        "RAG_HTTP": otlp,
        "RAG_HEALTH": health,
        "RAG_METRICS_APPS": apps,
        "RAG_METRICS_SPANS": spans,
        "RAG_SELF_PORT": own.rpartition(":")[2],
        "RAG_QUEUE": str(programs.folder / "queue"),
    }
    configs = [_source(name) for name in ("gateway.yaml", "content.yaml", "scores.yaml")]
    # Without a backend for traces, the gateway counts scores and drops the spans.
    drop = () if "RAG_TRACES" in os.environ else (_DROP,)
    options = [f"--config={each}" for each in (*configs, *drop)]
    if not programs.start("collector", collector, *options, ready=health, **variables):
        return {}
    addresses = {OTLP: f"http://{otlp}"}
    if alertmanager := _installed("prometheus-alertmanager", "alertmanager"):
        options = [
            f"--config.file={_source('look/alertmanager.yaml')}",
            f"--storage.path={programs.folder / 'alerts'}",
            f"--web.listen-address={manager}",
            "--cluster.listen-address=",
        ]
        if programs.start("Alertmanager", alertmanager, *options, ready=manager):
            addresses["Alertmanager"] = f"http://{manager}"
    options = _prometheus_options(
        programs.folder,
        {
            "alertmanager:9093": manager,
            "gateway:8888": own,
            "gateway:8889": apps,
            "gateway:8890": spans,
        },
    )
    options.append(f"--web.listen-address={server}")
    if programs.start("Prometheus", prometheus, *options, ready=server):
        addresses["Prometheus"] = f"http://{server}"
    return addresses


def _prometheus_options(folder: Path, hosts: Mapping[str, str]) -> list[str]:
    """Write a configuration with the addresses of ``hosts``; return Prometheus' options."""
    text = _source("look/prometheus.yaml").read_text(encoding="utf-8")
    for host, address in hosts.items():
        text = text.replace(host, address)
    (folder / "prometheus.yaml").write_text(text, encoding="utf-8")
    shutil.copy(_source("look/rules.yaml"), folder)
    return [
        f"--config.file={folder / 'prometheus.yaml'}",
        f"--storage.tsdb.path={folder / 'metrics'}",
        "--enable-feature=exemplar-storage",
        "--rules.alert.resend-delay=1s",
    ]


def _installed(*names: str) -> str | None:
    paths = [path for name in names if (path := shutil.which(name, path=_PLACES))]
    if not paths:
        say(f"{names[0]} is not installed: apt install {names[0]}, or prometheus.io/download")
    return paths[0] if paths else None


def _source(name: str) -> Path:
    """Return the file ``name`` of the folder collector/, which a wheel has inside the package."""
    packaged = Path(str(files("rag_eval_otel.tools"))) / "collector"
    folder = packaged if packaged.is_dir() else Path(__file__).parents[2] / "collector"
    return folder / name


def _built(programs: Programs, begin: Callable[[str], object]) -> str | None:
    """Return the path of the collector, built on first use (minutes); None if that fails."""
    build = programs.launch("build", "/bin/sh", _source("build.sh"))
    if not programs.stopped.wait(_BUILD_SECONDS) and build.poll() is None:
        begin(f"building the collector, once, for minutes: {programs.folder / 'build.log'}")
    while build.poll() is None and not programs.stopped.wait(0.1):
        pass
    if build.returncode == 0:
        return programs.last_line("build")
    if not programs.stopped.is_set():
        reason = programs.last_line("build")
        say(f"the collector is not built ({reason}): install Go 1.25 or newer, https://go.dev/dl")
    return None


def _free_addresses(count: int) -> Sequence[str]:
    with ExitStack() as stack:
        servers = (socket.create_server(("127.0.0.1", 0)) for _ in range(count))
        ports = [stack.enter_context(server).getsockname()[1] for server in servers]
    return [f"127.0.0.1:{port}" for port in ports]
