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
from rag_eval_otel.live.spending import build_measurement
from rag_eval_otel.runtime.fork import call_in_child
from rag_eval_otel.runtime.guard import Edge
from rag_eval_otel.runtime.workers import Sweeper
from rag_eval_otel.sinks.drift import DriftSink
from rag_eval_otel.types import Evaluation, Sample

Measure: TypeAlias = Callable[[Sample], Awaitable[Evaluation]]

MAX_ROWS = 64  # each sample is a stratum of the test, and a baseline has at most 64 strata
_LEARNING_ROUNDS = 5
_JUDGE_ROUNDS = 20  # rounds after a change of the judge in which alarms are attributed to the judge
_MAX_MINUTES = 60 * 24 * 366  # between rounds; the timeout of a thread cannot be much longer


@dataclass(slots=True)
class _CanaryMetric:
    """The drift detector for the scores of one version of a metric on the canary set.

    ``changed_in_round`` is the number of the round with the last alarm, or None without an alarm.
    """

    detector: BettingDetector
    changed_in_round: int | None = None


class CanaryMonitor:
    """Compare scores of a canary set with earlier scores, and name the cause of drift alarms.

    A canary set is a small dataset of ``rows`` samples that is scored again and again. In each
    round, every sample is scored once. The monitor compares the scores of a sample with the earlier
    scores of the same sample. The first five rounds give the baseline for each version of a metric.

    The texts of the canary set stay the same. So if their scores change after the baseline, the
    judge has changed. The monitor then passes an alarm with the cause ``judge`` to ``report``.
    ``every`` limits false alarms: 100,000 means at most one in 100,000 scores of a metric. `cause`
    returns the cause of an alarm on live scores. The class is thread-safe.
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
        """Create the lock of this monitor.

        A forked child creates a new lock, because no thread of the child could unlock a lock that
        was locked during the fork.
        """
        self._lock = threading.RLock()

    def begin_round(self) -> None:
        with self._lock:
            self._rounds += 1

    def add(self, row: int, evaluation: Evaluation) -> None:
        """Compare the scores in ``evaluation`` with earlier scores of the same canary sample.

        The canary set is a small dataset that is scored again and again, and ``row`` is the number
        of the sample in it. Failed scores are ignored. If the scores of a metric have changed, an
        alarm is passed to the function ``report`` of this monitor.
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

        The canary set is a small dataset that is scored again and again, once in each round. If its
        scores for this metric had an alarm in the last twenty rounds, the cause is ``judge``. If
        they had no alarm in these rounds, the cause is ``system``. While the baseline of the canary
        set is learned, or if the canary set has no scores for this metric, the cause is
        ``unknown``.
        """
        with self._lock:
            metric = self._metrics.get((stream.name, stream.version))
            if metric is None or metric.detector.baseline is None:
                return "unknown"
            changed = metric.changed_in_round
            is_recent = changed is not None and self._rounds - changed <= _JUDGE_ROUNDS
            return "judge" if is_recent else "system"


class Canary:
    """Score the samples of a canary set again and again, and pass the scores to ``monitor``.

    A canary set is a small dataset whose scores show whether the judge has changed. In a round,
    each of ``samples`` is scored once, one after the other. ``measure`` scores one sample. If a
    round raises an exception, ``edge`` handles the exception, and the next round still runs. After
    ``is_over()`` has returned True, no sample is scored.
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
        """Score every sample of the canary set once, and return when all samples are scored.

        If ``is_over()`` returns True, end the schedule of `start` and score nothing. Do not call
        this method from within an event loop.
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
        """Start a thread that scores all samples every ``seconds`` seconds, until `stop` is called.

        The first samples are scored after ``seconds`` seconds.
        """
        self._sweeper = Sweeper(self.run_once, seconds=seconds)
        self._sweeper.wake()

    def stop(self) -> None:
        if self._sweeper is not None:
            self._sweeper.stop()


def watch_canary(handle: Handle, data: object, *, minutes: float = 60.0) -> Canary:
    """Score the samples of ``data`` every ``minutes`` minutes, to detect a change of the judge.

    The samples are scored with the metrics and the judge of ``handle``. ``data`` is a file, a list
    or a frame with at most 64 samples, as for `evaluate_dataset`. The scores of the first five
    rounds are the baseline. Replies of the judge are not cached.

    The samples stay the same, so if their scores change, the judge has changed. The change is
    reported as an alarm for ``canary.<metric>`` with the cause ``judge``. Drift alarms on live
    scores then also have the cause ``judge``. `Handle.shutdown` or `Canary.stop` ends the rounds.

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
