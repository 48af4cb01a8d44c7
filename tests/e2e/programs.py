"""External programs on loopback: start, wait, query over HTTP, and stop."""

import fcntl
import json
import os
import re
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from functools import partial
from http.client import HTTPException
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlencode
from urllib.request import urlopen

import pytest

PATIENCE = 120.0
PLACES = f"{os.environ.get('PATH', '')}:/usr/local/sbin:/usr/sbin:/usr/local/go/bin"
"""Debian's daemons and a Go of one's own are often not in a user's path."""

CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "rag-eval-otel"
MAVEN = ("mvn", "-q", "-B", "dependency:copy-dependencies", "-DoutputDirectory=libs")

T = TypeVar("T")


def program(name: str) -> str:
    """Return the path of the program ``name``; skip the test if it is not installed."""
    found = shutil.which(name, path=PLACES)
    if found is None:
        pytest.skip(f"{name} is not installed")
    return found


def free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        servers = [
            stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)
        ]
        return [server.getsockname()[1] for server in servers]


def eventually(condition: Callable[[], T], told: str, patience: float = PATIENCE) -> T:
    """Return the first true value of ``condition()``; AssertionError after ``patience`` s."""
    pause = threading.Event()  # the state of another process can only be polled
    deadline = time.monotonic() + patience
    while not (found := condition()):
        assert time.monotonic() < deadline, f"not within {patience:.0f} s: {told}"
        pause.wait(0.1)
    return found


def get(url: str, **parameters: str) -> str:
    """Return the response of ``url``, or an empty string without a complete one in time."""
    asked = f"{url}?{urlencode(parameters)}" if parameters else url
    with suppress(OSError, HTTPException), closing(urlopen(asked, timeout=10)) as answer:  # noqa: S310
        text: str = answer.read().decode()
        return text
    return ""


@contextmanager
def running(
    command: Sequence[str],
    *,
    ready: str,
    log: Path,
    environment: Mapping[str, str] | None = None,
    patience: float = PATIENCE,
) -> Iterator[subprocess.Popen[bytes]]:
    with log.open("wb") as out:
        process = subprocess.Popen(
            command,
            stdout=out,
            stderr=subprocess.STDOUT,
            env={**os.environ, **(environment or {})},
            cwd=log.parent,
        )
    try:
        told = f"{command[0]} at {ready}; its log is {log}"
        eventually(lambda: process.poll() is not None or get(ready), told, patience)
        assert process.poll() is None, log.read_text(errors="replace")[-3000:]
        yield process
    finally:
        end(process)


def end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    with suppress(subprocess.TimeoutExpired):
        process.wait(20)
    process.kill()
    process.wait()


@contextmanager
def responding(handler: Callable[..., BaseHTTPRequestHandler]) -> Iterator[str]:
    """Run an HTTP server of 127.0.0.1 during the block, which gets its URL."""
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


def checked(command: Sequence[str], environment: Mapping[str, str] | None = None) -> str:
    """Run ``command``, assert that it succeeds, and return its output."""
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
        env={**os.environ, **(environment or {})},
    )
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def downloaded(folder: Path, command: Sequence[str], sources: Path) -> Path:
    """Copy ``sources`` to a folder of the cache, and run ``command`` there if none has done it.

    Skip the test if the program is not installed, or finds no packages.
    """
    path = program(command[0])
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # who comes second waits, and finds them
        shutil.copytree(sources, folder, dirs_exist_ok=True)
        if not (folder / ".installed").exists():
            run = partial(subprocess.run, capture_output=True, text=True, check=False)
            try:
                done = run([path, *command[1:]], cwd=folder, timeout=900)
            except subprocess.TimeoutExpired:
                pytest.skip(f"{command[0]} has not downloaded the packages in 15 minutes")
            if done.returncode != 0:
                pytest.skip(f"{command[0]}: {done.stdout[-500:]}{done.stderr[-500:]}")
            (folder / ".installed").touch()
    return folder


def recent(name: str, wanted: int, option: str = "--version") -> str:
    """Return the path of a program; skip the test if it is older than the version ``wanted``."""
    path = program(name)
    shown = subprocess.run([path, option], capture_output=True, text=True, check=False).stdout
    number = re.search(r"\d+", shown)
    if number is None or int(number[0]) < wanted:
        pytest.skip(f"the packages need {name} {wanted} or newer, and this is {shown.strip()!r}")
    return path


class Prometheus:
    """A running Prometheus."""

    def __init__(self, url: str) -> None:
        self.url = url

    def query(self, expression: str) -> list[dict[str, Any]]:
        answer = json.loads(get(f"{self.url}/api/v1/query", query=expression) or "{}")
        assert answer.get("status", "success") == "success", answer
        found: list[dict[str, Any]] = answer.get("data", {}).get("result", [])
        return found

    def has_data(self, expression: str, *, since: float) -> bool:
        times = {"start": str(since), "end": str(time.time()), "step": "5"}
        told = get(f"{self.url}/api/v1/query_range", query=expression, **times)
        answer = json.loads(told or "{}")
        assert answer.get("status", "success") == "success", answer
        return bool(answer.get("data", {}).get("result"))

    def value(self, expression: str) -> float:
        return sum(float(series["value"][1]) for series in self.query(expression))

    def exemplars(self, expression: str) -> list[dict[str, Any]]:
        now = time.time()
        times = {"start": str(now - 3600), "end": str(now + 60)}
        told = get(f"{self.url}/api/v1/query_exemplars", query=expression, **times)
        answer = json.loads(told or '{"data": []}')
        return [one for series in answer["data"] for one in series["exemplars"]]

    def alerts(self, name: str, state: str = "firing") -> list[dict[str, Any]]:
        answer = json.loads(get(f"{self.url}/api/v1/alerts") or '{"data": {"alerts": []}}')
        alerts = answer["data"]["alerts"]
        return [a for a in alerts if a["labels"]["alertname"] == name and a["state"] == state]
