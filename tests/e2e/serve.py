"""``rag-eval-otel serve`` as a process, with its log, its ports, its memory and CPU time."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from e2e.programs import PATIENCE, eventually
from processes import environment

METHOD = "/opentelemetry.proto.collector.trace.v1.TraceService/Export"


@dataclass
class Serve:
    """A running worker."""

    process: subprocess.Popen[str]
    log: list[str] = field(default_factory=list)

    def read(self) -> None:
        self.log.extend(self.process.stderr or ())

    @property
    def ports(self) -> dict[str, int]:
        """The ports for gRPC and HTTP, or of the probes."""
        pairs = re.findall(r"(gRPC|HTTP|probes) at port (\d+)", "".join(self.log))
        return {name: int(number) for name, number in pairs}

    @property
    def counts(self) -> dict[str, int]:
        """How many spans and turns there were, by what became of them; after the end."""
        parts = re.findall(r"([\d,]+) ([a-z_]+)", "".join(self.log[-2:]))
        counts = {name: int(number.replace(",", "")) for number, name in parts}
        return {name: number for name, number in counts.items() if number and name != "in"}

    @property
    def cpu(self) -> float:
        parts = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(parts[11]) + int(parts[12])) / os.sysconf("SC_CLK_TCK")

    def memory(self, kind: str = "VmRSS") -> float:
        """Return the memory of the process in MiB: now, or at its highest (``VmHWM``)."""
        text = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(text.partition(f"{kind}:")[2].split()[0]) / 1024

    def end(self, number: int = signal.SIGTERM) -> int:
        """Send a signal, and return the exit status."""
        self.process.send_signal(number)
        return self.process.wait(PATIENCE)


@contextmanager
def serving(endpoint: str, *options: str, **variables: str) -> Iterator[Serve]:
    """Run a worker that sends to ``endpoint`` during the block."""
    command = [sys.executable, "-m", "rag_eval_otel", "serve", "--http-port=0", "--grpc-port=0"]
    kept = {k: v for k, v in environment().items() if not k.startswith("COV")}
    process = subprocess.Popen(
        [*command, f"--endpoint={endpoint}", *options],
        env={**kept, "RAG_EVAL_JUDGE": "lexical", "RAG_EVAL_DRIFT": "off", **variables},
        stderr=subprocess.PIPE,
        text=True,
    )
    worker = Serve(process)
    reader = threading.Thread(target=worker.read, daemon=True)
    reader.start()
    try:
        eventually(lambda: worker.ports or process.poll() is not None, "the worker serves")
        assert process.poll() is None, worker.log
        yield worker
    finally:
        process.kill()
        process.wait(PATIENCE)
        reader.join(PATIENCE)
        if process.stderr is not None:
            process.stderr.close()
