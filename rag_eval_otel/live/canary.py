"""`watch_canary`: a small dataset scored on a schedule, so that a change of the judge shows."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import TypeAlias

from rag_eval_otel.dataset.read import open_dataset
from rag_eval_otel.drift.canary import MAX_ROWS, CanaryWatch
from rag_eval_otel.errors import ConfigError
from rag_eval_otel.live.instrument import Handle
from rag_eval_otel.live.score import build_measurement
from rag_eval_otel.runtime.background import Sweeper
from rag_eval_otel.runtime.guard import Edge
from rag_eval_otel.sinks.online import DriftSink
from rag_eval_otel.types import Evaluation, Sample

Measure: TypeAlias = Callable[[Sample], Awaitable[Evaluation]]

_LONGEST = 60 * 24 * 366  # minutes between rounds; threads cannot wait much longer


class Canary:
    """Scores ``samples`` with ``measure``, one after the other, and tells ``watch``.

    What goes wrong in a round is kept in by ``edge``, and the next round comes all the same, until
    ``is_over`` says that nobody is there any more.
    """

    def __init__(
        self,
        samples: Sequence[Sample],
        measure: Measure,
        *,
        watch: CanaryWatch,
        edge: Edge,
        is_over: Callable[[], bool] = lambda: False,
    ) -> None:
        """Score nothing yet."""
        self._is_over = is_over
        self._samples = samples
        self._measure = measure
        self._watch = watch
        self._edge = edge
        self._sweeper: Sweeper | None = None

    def run_once(self) -> None:
        """Score every sample once, and wait for it; not from within an event loop."""
        if self._is_over():
            self.stop()
            return
        with self._edge:
            asyncio.run(self._round())

    async def _round(self) -> None:
        self._watch.begin_round()
        for row, sample in enumerate(self._samples):
            if self._is_over():  # a round cut short is none
                return
            self._watch.take(row, await self._measure(sample))

    def start(self, seconds: float) -> None:
        """Score every ``seconds``, on a thread of its own, until `stop`."""
        self._sweeper = Sweeper(self.run_once, seconds=seconds)
        self._sweeper.wake()

    def stop(self) -> None:
        """Score no more."""
        if self._sweeper is not None:
            self._sweeper.stop()


def watch_canary(handle: Handle, data: object, *, minutes: float = 60.0) -> Canary:
    """Score the samples of ``data`` every ``minutes`` with the metrics and the judge of ``handle``.

    ``data`` is what `evaluate_dataset` takes: a file, a list, a frame; at most 64 samples. From
    then on alarms on live scores say whether the canary set has changed, too; its own are reported
    like them, under ``canary.<metric>``, with cause ``judge``. Nothing comes from a cache. The
    first five rounds are learned from. Raises `ConfigError` for data that cannot be used, and where
    ``handle`` does not watch for drift. It ends with `Handle.shutdown`, or `Canary.stop`.
    """
    if not 0 < minutes < _LONGEST:
        msg = f"minutes must be above 0 and below {_LONGEST:,}, not {minutes!r}"
        raise ConfigError(msg)
    dataset = open_dataset(data)
    if not 0 < dataset.count <= MAX_ROWS:
        msg = f"{dataset.name}: a canary set has 1 to {MAX_ROWS} samples, not {dataset.count}"
        raise ConfigError(msg)
    sink = next((s for s in handle.pipeline.scorer.sinks if isinstance(s, DriftSink)), None)
    if sink is None:
        msg = "a canary set needs drift='on': nobody would be told"
        raise ConfigError(msg)
    service = sink.monitor.service
    watch = CanaryWatch(sink.monitor.report, rows=dataset.count, service=service)
    sink.monitor.explain(watch.cause)
    measurement = replace(build_measurement(handle.config), cache=None)  # it would hide a change
    edge = handle.pipeline.edge("canary")
    canary = Canary(
        list(dataset.samples()),
        measurement.of,
        watch=watch,
        edge=edge,
        is_over=lambda: handle.pipeline.evaluator.is_closed,
    )
    canary.start(minutes * 60)
    return canary
