"""Score the same small set of samples again and again, to find out whether the judge has changed.

Such a set is called a *canary set*. Its questions, contexts and answers stay the same, so a change
of its scores comes from the judge and not from the application. In a *round*, each sample is
scored once.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeAlias

from rag_eval_otel.drift.detector import Alarm, BettingDetector, valid_score
from rag_eval_otel.drift.monitor import Cause, Drift, Stream
from rag_eval_otel.errors import ConfigError
from rag_eval_otel.runtime.fork import call_in_child
from rag_eval_otel.runtime.guard import silence
from rag_eval_otel.runtime.threads import start_thread
from rag_eval_otel.types import Evaluation, Sample

Measure: TypeAlias = Callable[[Sample], Awaitable[Evaluation]]

_MAX_SAMPLES = 64
_MAX_MINUTES = 60 * 24 * 366  # between rounds; the timeout of a thread cannot be much longer
_LEARNING_ROUNDS = 5
_JUDGE_ROUNDS = 20  # rounds after a change of the judge in which alarms are attributed to the judge
_TAIL = 0.25  # a deviation of -.5


@dataclass(slots=True)
class _CanaryMetric:
    """The scores of one version of a metric on the canary set.

    ``learning`` has the scores of each sample in the first rounds. Afterwards, ``means`` has the
    mean of each sample and ``detector`` watches the deviations from these means.
    ``changed_in_round`` is the number of the round with the last alarm, or None without an alarm.
    """

    learning: dict[int, list[float]] = field(default_factory=dict)
    means: dict[int, float] = field(default_factory=dict)
    detector: BettingDetector | None = None
    changed_in_round: int | None = None

    def update(self, row: int, score: float, *, learn: int, every: float, cooldown: int) -> bool:
        """Add the score of the sample ``row``; return True if it raises an alarm."""
        if self.detector is not None:
            mean = self.means.get(row)
            return mean is not None and self.detector.update(_deviation(score, mean))
        self.learning.setdefault(row, []).append(score)
        if sum(map(len, self.learning.values())) >= learn:
            self._end_learning(every, cooldown)
        return False

    def _end_learning(self, every: float, cooldown: int) -> None:
        scores = {row: values for row, values in self.learning.items() if len(values) > 1}
        self.means = {row: sum(values) / len(values) for row, values in scores.items()}
        # Each score is compared with the mean of the others, as later scores are with all of them.
        deviations = [
            _deviation(value, (sum(values) - value) / (len(values) - 1))
            for values in scores.values()
            for value in values
        ]
        self.detector = BettingDetector(
            reference=deviations, every=every, tail=_TAIL, cooldown=cooldown
        )
        self.learning = {}

    def alarm(self) -> Alarm | None:
        """Return the last alarm, with the means of scores instead of those of deviations."""
        alarm = self.detector and self.detector.alarm
        if not alarm:
            return None
        before = sum(self.means.values()) / len(self.means)
        low, high = alarm.interval
        return replace(
            alarm, before=before, after=before + 2 * alarm.change, interval=(2 * low, 2 * high)
        )


def _deviation(score: float, mean: float) -> float:
    """Return the deviation of ``score`` from ``mean`` as a number in [0, 1], .5 for none."""
    return 0.5 + (score - mean) / 2


class CanaryMonitor:
    """Compare scores of a canary set with earlier scores, and name the cause of drift alarms.

    ``rows`` is the number of samples. The scores of a sample are compared with the earlier scores
    of the same sample. The first five rounds give the baseline for each version of a metric.

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
        self._rows = rows
        self._every = every
        self._service = service
        self._metrics: dict[tuple[str, str], _CanaryMetric] = {}
        self._rounds = 0
        self._create_lock()
        call_in_child(self._create_lock)

    def _create_lock(self) -> None:
        self._lock = threading.RLock()

    def begin_round(self) -> None:
        with self._lock:
            self._rounds += 1

    def add(self, row: int, evaluation: Evaluation) -> None:
        """Compare the scores in ``evaluation`` with earlier scores of the sample number ``row``.

        Failed scores are ignored. An alarm is passed to ``report``.
        """
        for score in evaluation.scores:
            value = valid_score(score.value if score.normalized is None else score.normalized)
            if value is None:
                continue
            alarm = self._update((score.name, score.version), value, row)
            if alarm is not None:
                name = f"canary.{score.name}"
                stream = Stream(service=self._service, name=name, version=score.version)
                self._report(Drift(stream=stream, alarm=alarm, cause="judge"))

    def _update(self, key: tuple[str, str], score: float, row: int) -> Alarm | None:
        learn = max(2, self._rows) * _LEARNING_ROUNDS
        with self._lock:
            metric = self._metrics.setdefault(key, _CanaryMetric())
            if not metric.update(row, score, learn=learn, every=self._every, cooldown=self._rows):
                return None
            metric.changed_in_round = self._rounds
            return metric.alarm()

    def cause(self, stream: Stream) -> Cause:
        """Return the cause of a drift alarm on ``stream``, the live scores of one metric.

        If the canary set had an alarm for this metric in the last twenty rounds, the cause is
        ``judge``, else ``system``. While the baseline of the canary set is learned, or if the
        canary set has no scores for this metric, the cause is ``unknown``.
        """
        with self._lock:
            metric = self._metrics.get((stream.name, stream.version))
            if metric is None or metric.detector is None:
                return "unknown"
            changed = metric.changed_in_round
            is_recent = changed is not None and self._rounds - changed <= _JUDGE_ROUNDS
            return "judge" if is_recent else "system"


class Canary:
    """Score ``samples``, a canary set, again and again, and pass the scores to ``monitor``.

    In a round, ``measure`` scores each sample once, one after the other; ``edge`` handles an
    exception of a round. After ``is_over()`` has returned True, no sample is scored. Raises
    `ConfigError` unless there are 1 to 64 samples.
    """

    def __init__(
        self,
        samples: Sequence[Sample],
        measure: Measure,
        *,
        monitor: CanaryMonitor,
        edge: AbstractContextManager[object, bool | None],
        is_over: Callable[[], bool] = lambda: False,
    ) -> None:
        if not 0 < len(samples) <= _MAX_SAMPLES:
            msg = f"a canary set has 1 to {_MAX_SAMPLES} samples, not {len(samples)}"
            raise ConfigError(msg)
        self._is_over = is_over
        self._samples = samples
        self._measure = measure
        self._monitor = monitor
        self._edge = edge
        self._stopped = threading.Event()

    def run_once(self) -> None:
        """Score every sample once, and return when all are scored; not from within an event loop.

        If ``is_over()`` returns True, end the schedule of `start` and score nothing.
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

    def start(self, minutes: float) -> None:
        """Start a thread that scores all samples every ``minutes`` minutes, until `stop` is called.

        The first round begins after ``minutes`` minutes. Raises `ConfigError` if that is not
        between 0 and a year.
        """
        if not 0 < minutes < _MAX_MINUTES:
            msg = f"minutes must be above 0 and below {_MAX_MINUTES:,}, not {minutes!r}"
            raise ConfigError(msg)
        start_thread(partial(self._repeat, minutes * 60), "-canary")

    def _repeat(self, seconds: float) -> None:
        silence()
        while not self._stopped.wait(seconds):
            self.run_once()

    def stop(self) -> None:
        self._stopped.set()
