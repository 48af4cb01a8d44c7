"""Cost of `backends=["phoenix"]` for the application, and memory while the backend is down.

First, a trace with one turn passes our span processor with and without the sink of Phoenix, in
alternate rounds. The CPU of the application's thread is compared. Then nobody listens at the
address of Phoenix for some minutes, in which turns are scored at a fixed rate. The memory of the
process and the number of waiting scores are printed for each minute. Needs `arize-phoenix-client`.

``python benchmarks/backends.py [ROUNDS [MINUTES [TURNS A SECOND]]]``
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from _common import NullEmbedder, NullJudge, median, setting, spread
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from overhead import Times, Way, plain, record_turn, trace_once

from rag_eval_otel import Handle, instrument

ROUNDS, MINUTES, RATE = 21, 10.0, 25.0
NOBODY = "http://127.0.0.1:9"
PAGE = os.sysconf("SC_PAGE_SIZE")


def way(name: str, *backends: str) -> tuple[Way, Handle]:
    """Return a variant that holds and scores a turn, and sends its scores to ``backends``."""
    provider, exporter = plain()
    handle = instrument(
        tracer_provider=provider,
        judge=NullJudge(),
        embedder=NullEmbedder(),
        backends=backends,
        raise_errors=True,
        shutdown_seconds=1.0,
    )
    return Way(name, provider, exporter, record_turn), handle


def compare(rounds: int) -> None:
    """Print the CPU of the application's thread per trace, with and without the sink."""
    made = [way("no backend"), way("backends=phoenix", "phoenix")]
    ways = [one for one, _ in made]
    for one in ways:
        one.run()
    times: dict[str, list[Times]] = {one.name: [] for one in ways}
    for number in range(rounds):
        for one in ways if number % 2 else ways[::-1]:
            times[one.name].append(one.run())
    base = times["no backend"]
    for name, found in times.items():
        cpu = [one / other for (one, *_), (other, *_) in zip(found, base, strict=True)]
        paced = [one / other for (*_, one), (*_, other) in zip(found, base, strict=True)]
        own = median([one for one, *_ in found])
        print(
            f"{name:18}{own:6.0f} us a trace, x {median(cpu):.3f} ({spread(cpu)});"
            f" paced x {median(paced):.3f} ({spread(paced)})"
        )
    for _, handle in made:
        handle.shutdown()


def down(minutes: float, rate: float) -> None:
    """Score ``rate`` turns a second while nobody takes the scores; print memory and queue."""
    reader = InMemoryMetricReader()
    provider = TracerProvider()
    handle = instrument(
        tracer_provider=provider,
        meter_provider=MeterProvider([reader]),
        judge=NullJudge(),
        embedder=NullEmbedder(),
        backends=["phoenix"],
        shutdown_seconds=1.0,
    )
    tracer, began, turns = provider.get_tracer("bench"), time.monotonic(), 0
    for minute in range(1, round(minutes) + 1):
        while time.monotonic() < began + 60 * minute:
            trace_once(tracer, record_turn)
            turns += 1
            time.sleep(max(0.0, began + turns / rate - time.monotonic()))
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
        print(
            f"minute {minute:2}: {turns} turns, {pages * PAGE / 1e6:.1f} MB, {counted(reader)}",
            flush=True,
        )
    handle.shutdown()


def counted(reader: InMemoryMetricReader) -> str:
    """Return the waiting and the dropped scores as a text."""
    data = reader.get_metrics_data()
    found = {
        metric.name: sum(point.value for point in metric.data.data_points)  # type: ignore[union-attr]
        for resource in (data.resource_metrics if data else ())
        for scope in resource.scope_metrics
        for metric in scope.metrics
        if metric.name.startswith("rag.evaluation.backend.")
    }
    return ", ".join(f"{name.rsplit('.', 1)[1]} {value}" for name, value in sorted(found.items()))


def main() -> None:
    """Measure both."""
    given = [float(one) for one in sys.argv[1:]]
    rounds, minutes, rate = given + [ROUNDS, MINUTES, RATE][len(given) :]
    os.environ["PHOENIX_COLLECTOR_ENDPOINT"] = NOBODY
    print(setting("rag-eval-otel", "arize-phoenix-client"), flush=True)
    compare(round(rounds))
    down(minutes, rate)


if __name__ == "__main__":
    main()
