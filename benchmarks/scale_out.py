"""Measure the turns a second of 1, 2 and 4 workers behind Kafka, with a judge of 200 ms.

    python benchmarks/scale_out.py --concurrency 4 --slots 12

Application, collector, broker, judge and backend are those of `tests/e2e/kafka_stage.py`; it needs
Java, Maven and Go. Each worker asks the judge ``--concurrency`` questions at the same time, and the
judge answers at most ``--slots`` at the same time. The ideal rate is the smaller of
``workers * concurrency`` and ``slots``, divided by the latency. The rate is that of the middle 60 %
of the turns, by their arrival at the backend, so that start and end of a run do not count.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[1] / "tests"))

from e2e.kafka_stage import Backend, Stage, stage, status_of
from e2e.programs import eventually

_LATENCY = 0.2
_SECONDS = 20.0  # of a run at the ideal rate
_PATIENCE = 600.0


class Watched(Backend):
    """A backend that records when turns arrive."""

    def __init__(self) -> None:
        super().__init__()
        self.times: list[float] = []

    def _admit(self, records: Iterable[Any]) -> int:
        found = list(records)
        now = time.monotonic()
        self.times += [now for one in found if status_of(one) == "scored"]
        return super()._admit(found)


def rate(found: Stage, backend: Watched, *, workers: int, concurrency: int, ideal: float) -> float:
    """Return the turns a second of ``workers`` workers."""
    turns = int(ideal * _SECONDS)
    backend.times.clear()
    with ExitStack() as stack:
        for number in range(workers):
            options = {"RAG_EVAL_CONCURRENCY": str(concurrency)}
            stack.enter_context(found.worker(f"{workers}-{number}", **options)).wait()
        found.share(workers)
        found.make(turns)
        eventually(lambda: len(backend.times) >= turns, f"{turns} turns arrive", _PATIENCE)
        eventually(found.is_committed, "all is committed")
    first, last = int(turns * 0.2), int(turns * 0.8)
    times = sorted(backend.times)
    return (last - first) / (times[last] - times[first])


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure turns a second of several workers.")
    parser.add_argument("--concurrency", type=int, default=4)
    parser.add_argument("--slots", type=int, default=12)
    options = parser.parse_args()
    print(f"{'workers':>8}{'turns/s':>9}{'ideal':>7}{'share':>7}")
    with (
        tempfile.TemporaryDirectory() as folder,
        stage(Path(folder), latency=_LATENCY, slots=options.slots, backend=Watched()) as found,
    ):
        assert isinstance(found.backend, Watched)
        for workers in (1, 2, 4):
            ideal = min(workers * options.concurrency, options.slots) / _LATENCY
            measured = rate(
                found,
                found.backend,
                workers=workers,
                concurrency=options.concurrency,
                ideal=ideal,
            )
            print(f"{workers:>8}{measured:>9.1f}{ideal:>7.1f}{measured / ideal:>7.2f}")


if __name__ == "__main__":
    main()
