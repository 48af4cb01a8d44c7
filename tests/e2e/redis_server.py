"""A Redis or Valkey server on loopback, which may be killed and started again."""

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import redis

from e2e.programs import PLACES, eventually, free_ports
from processes import PATIENCE


@dataclass
class Server:
    """A Redis or Valkey server that keeps its port and, with ``--appendonly yes``, its data."""

    command: list[str]
    port: int
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def start(self) -> None:
        self.processes.append(subprocess.Popen(self.command, stdout=subprocess.DEVNULL))
        eventually(self._answers, "the server answers")

    def send(self, number: int) -> None:
        self.processes[-1].send_signal(number)

    def kill(self) -> None:
        self.processes[-1].kill()
        self.processes[-1].wait(PATIENCE)

    def _answers(self) -> bool:
        try:
            with self.client() as client:
                return bool(client.ping())
        except redis.exceptions.RedisError:
            return False

    def client(self) -> Any:
        return redis.Redis(port=self.port, socket_timeout=PATIENCE)

    def counted(self) -> int:
        with self.client() as client:
            cells = [client.hgetall(key) for key in client.scan_iter("*")]
        return sum(int(amount) for each in cells for at, amount in each.items() if at.isdigit())

    @property
    def address(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def url(self, patience: float | None = PATIENCE) -> str:
        times = f"?socket_timeout={patience}&socket_connect_timeout={patience}" if patience else ""
        return f"{self.address}{times}#test"


@contextmanager
def serving(folder: Path, *options: str) -> Iterator[Server]:
    """Run a server during the block; skip the test if no server is installed."""
    found = [shutil.which(name, path=PLACES) for name in ("redis-server", "valkey-server")]
    program = next(filter(None, found), None)
    if program is None:
        pytest.skip("neither redis-server nor valkey-server is installed")
    (port,) = free_ports(1)
    bind = ("--bind", "127.0.0.1", "--port", str(port), "--dir", str(folder), "--save", "")
    server = Server([program, *bind, *options], port)
    server.start()
    try:
        yield server
    finally:
        server.kill()
