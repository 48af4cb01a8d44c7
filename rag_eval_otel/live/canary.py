"""Score the same small dataset again and again, to find out whether the judge has changed.

Such a dataset is called a *canary set*. Its questions, contexts and answers stay the same, so a
change of its scores comes from the judge and not from the application. `watch_canary` starts the
scoring on a schedule.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeAlias

from rag_eval_otel.dataset.read import open_dataset
from rag_eval_otel.drift.betting import BettingDetector
from rag_eval_otel.drift.records import Alarm, Cause, Drift, Stream
from rag_eval_otel.errors import ConfigError
from rag_eval_otel.live.instrument import Handle, pipeline_of
from rag_eval_otel.live.score import build_measurement
from rag_eval_otel.runtime.background import Sweeper
from rag_eval_otel.runtime.fork import call_in_child
from rag_eval_otel.runtime.guard import Edge
from rag_eval_otel.sinks.drift import DriftSink
from rag_eval_otel.types import Evaluation, Sample

Measure: TypeAlias = Callable[[Sample], Awaitable[Evaluation]]

MAX_ROWS = 64  # each sample is a stratum of the test, and a baseline has at most 64 strata
_LEARNING_ROUNDS = 5
_JUDGE_ROUNDS = 20  # rounds after a change of the judge in which alarms are attributed to the judge
_MAX_MINUTES = 60 * 24 * 366  # between rounds; the timeout of a thread cannot be much longer


@dataclass(slots=True)
class _CanaryMetric:
    """The drift detector of one metric in one version, and the round of its last alarm."""

    detector: BettingDetector
    changed_in_round: int | None = None


class CanaryMonitor:
    """Compare scores of a canary set with earlier scores, and name the cause of drift alarms.

    A canary set is a small dataset that is scored again and again. The monitor compares each row
    with earlier scores of that row. The first five rounds are the baseline of each metric and
    version.

    The texts of the canary set stay the same. So a later alarm on its scores has the cause
    ``judge``, and the monitor passes that alarm to ``report``. `cause` returns the cause of an
    alarm on live scores. The class is thread-safe.
    """

    def __init__(
        self,
        report: Callable[[Drift], object],
        *,
        rows: int,
        every: float = 100_000,
        service: str = "",
    ) -> None:
        self._report = report
        self._service = service
        self._make_detector = partial(
            BettingDetector, every=every, learn=max(2, rows) * _LEARNING_ROUNDS, cooldown=rows
        )
        self._metrics: dict[tuple[str, str], _CanaryMetric] = {}
        self._rounds = 0
        self._create_lock()
        call_in_child(self._create_lock)

    def _create_lock(self) -> None:
        """Create the lock; also in a forked child, where the parent's lock may stay locked."""
        self._lock = threading.RLock()

    def begin_round(self) -> None:
        with self._lock:
            self._rounds += 1

    def add(self, row: int, evaluation: Evaluation) -> None:
        """Compare the scores of row number ``row`` of the canary set with its earlier scores.

        Failed scores are ignored. An alarm is passed to the ``report`` function of the monitor.
        """
        for score in evaluation.scores:
            value = score.value if score.normalized is None else score.normalized
            alarm = self._update((score.name, score.version), value, row)
            if alarm is not None:
                stream = Stream(
                    service=self._service, name=f"canary.{score.name}", version=score.version
                )
                self._report(Drift(stream=stream, alarm=alarm, cause="judge"))

    def _update(self, key: tuple[str, str], value: float | None, row: int) -> Alarm | None:
        with self._lock:
            metric = self._metrics.setdefault(key, _CanaryMetric(self._make_detector()))
            if not metric.detector.update(value, stratum=str(row)):
                return None
            metric.changed_in_round = self._rounds
            return metric.detector.alarm

    def cause(self, stream: Stream) -> Cause:
        """Return the cause of a drift alarm on ``stream``, the live scores of one metric.

        The cause is ``judge`` if the canary set had an alarm for this metric in the last twenty
        rounds, and ``system`` if the canary set had none in these rounds. It is ``unknown`` while
        the baseline of the canary set is learned, and for a metric that the canary set does not
        have.
        """
        with self._lock:
            metric = self._metrics.get((stream.name, stream.version))
            if metric is None or metric.detector.baseline is None:
                return "unknown"
            changed = metric.changed_in_round
            is_recent = changed is not None and self._rounds - changed <= _JUDGE_ROUNDS
            return "judge" if is_recent else "system"


class Canary:
    """Score the samples of a canary set round after round, and pass the scores to ``monitor``.

    ``measure`` scores one sample. The samples of a round are scored one after the other. ``edge``
    handles exceptions, so that the next round still runs. No round starts after ``is_over`` has
    returned True.
    """

    def __init__(
        self,
        samples: Sequence[Sample],
        measure: Measure,
        *,
        monitor: CanaryMonitor,
        edge: Edge,
        is_over: Callable[[], bool] = lambda: False,
    ) -> None:
        self._is_over = is_over
        self._samples = samples
        self._measure = measure
        self._monitor = monitor
        self._edge = edge
        self._sweeper: Sweeper | None = None

    def run_once(self) -> None:
        """Score every sample of the canary set once, and return when all have been scored.

        Do not call this method from within an event loop.
        """
        if self._is_over():
            self.stop()
            return
        with self._edge:
            asyncio.run(self._round())

    async def _round(self) -> None:
        self._monitor.begin_round()
        for row, sample in enumerate(self._samples):
            if self._is_over():
                return
            self._monitor.add(row, await self._measure(sample))

    def start(self, seconds: float) -> None:
        """Start a thread that scores all samples every ``seconds``, until `stop` is called."""
        self._sweeper = Sweeper(self.run_once, seconds=seconds)
        self._sweeper.wake()

    def stop(self) -> None:
        if self._sweeper is not None:
            self._sweeper.stop()


def watch_canary(handle: Handle, data: object, *, minutes: float = 60.0) -> Canary:
    """Score the samples of ``data`` every ``minutes``, to detect a change of the judge.

    The metrics and the judge are those of ``handle``. ``data`` is a file, a list or a frame with at
    most 64 samples, as for `evaluate_dataset`. The first five rounds are the baseline. Replies of
    the judge are not cached.

    The samples stay the same, so a change of their scores comes from the judge. It is reported as
    an alarm for ``canary.<metric>`` with the cause ``judge``. Drift alarms on live scores then also
    have the cause ``judge``. The rounds end with `Handle.shutdown` or `Canary.stop`.

    Raises `ConfigError` for invalid data, and if ``handle`` does not monitor drift.
    """
    if not 0 < minutes < _MAX_MINUTES:
        msg = f"minutes must be above 0 and below {_MAX_MINUTES:,}, not {minutes!r}"
        raise ConfigError(msg)
    dataset = open_dataset(data)
    if not 0 < dataset.count <= MAX_ROWS:
        msg = f"{dataset.name}: a canary set has 1 to {MAX_ROWS} samples, not {dataset.count}"
        raise ConfigError(msg)
    pipeline = pipeline_of(handle)
    sink = next((s for s in pipeline.scorer.sinks if isinstance(s, DriftSink)), None)
    if sink is None:
        msg = "a canary set needs drift='on': its alarms are reported with those of live scores"
        raise ConfigError(msg)
    service = sink.monitor.service
    monitor = CanaryMonitor(sink.monitor.report, rows=dataset.count, service=service)
    sink.monitor.explain(monitor.cause)
    measurement = replace(build_measurement(handle.config), cache=None)  # it would hide a change
    canary = Canary(
        list(dataset.samples()),
        measurement.of,
        monitor=monitor,
        edge=pipeline.edge("canary"),
        is_over=lambda: pipeline.evaluator.is_closed,
    )
    canary.start(minutes * 60)
    return canary
