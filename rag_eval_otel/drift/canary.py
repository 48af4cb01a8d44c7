"""Score a *canary set*, a small fixed set of samples, periodically to detect changes of the judge.

As the texts stay the same, the judge changes the scores. In a *round*, each is scored once.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace

from rag_eval_otel.drift.detector import Alarm, BettingDetector, valid_score
from rag_eval_otel.drift.monitor import Cause, Drift, Stream
from rag_eval_otel.errors import ConfigError
from rag_eval_otel.runtime.guard import silence
from rag_eval_otel.runtime.threads import start_thread
from rag_eval_otel.types import Evaluation, Sample

_MAX_SAMPLES = 64
_MAX_MINUTES = 60 * 24 * 366  # between rounds; the timeout of a thread cannot be much longer
_LEARNING_ROUNDS = 5
_JUDGE_ROUNDS = 20  # rounds after a change of the judge in which alarms are attributed to the judge
_TAIL = 0.25  # a deviation of -.5


@dataclass(slots=True)
class _CanaryMetric:
    """The scores of one version of a metric on the canary set."""

    learning: dict[int, list[float]] = field(default_factory=dict)  # of each sample at first
    means: dict[int, float] = field(default_factory=dict)  # of each sample in these rounds
    detector: BettingDetector | None = None  # watches the deviations from the means afterwards
    changed_in_round: int | None = None  # the round of the last alarm

    def update(self, row: int, score: float, *, rows: int) -> Alarm | None:
        """Add the score of the sample ``row`` out of ``rows``; return the alarm, if any."""
        if self.detector is None:
            self.learning.setdefault(row, []).append(score)
            if sum(map(len, self.learning.values())) >= max(2, rows) * _LEARNING_ROUNDS:
                self._end_learning(rows)
            return None
        mean = self.means.get(row)
        is_raised = mean is not None and self.detector.update(_deviation(score, mean))
        alarm = self.detector.alarm
        if not is_raised or alarm is None:
            return None
        # With the means of scores instead of those of deviations.
        before, (low, high) = sum(self.means.values()) / len(self.means), alarm.interval
        after = before + 2 * alarm.change
        return replace(alarm, before=before, after=after, interval=(2 * low, 2 * high))

    def _end_learning(self, rows: int) -> None:
        scores = {at: values for at, values in self.learning.items() if len(values) > 1}
        self.means = {at: sum(values) / len(values) for at, values in scores.items()}
        # Each score is compared with the mean of the others, as later scores are with all of them.
        deviations = [
            _deviation(value, (sum(values) - value) / (len(values) - 1))
            for values in scores.values()
            for value in values
        ]
        self.detector = BettingDetector(reference=deviations, tail=_TAIL, cooldown=rows)
        self.learning = {}


def _deviation(score: float, mean: float) -> float:
    """Return the deviation from ``mean``, scaled from [-1, 1] to [0, 1]."""
    return 0.5 + (score - mean) / 2


@dataclass(slots=True)
class Canary:
    """Score the canary set ``samples`` in rounds, to detect a change of the judge.

    The scores in the first five rounds are the baseline, one for each version of a metric. If later
    scores of the same samples differ, the judge has changed: ``report`` is called with an alarm
    that has the cause ``judge``. ``measure`` scores one sample at a time, ``edge`` handles an
    exception of a round, and the rounds end when ``is_over()`` returns True. Raises `ConfigError`
    unless there are 1 to 64 samples.
    """

    samples: Sequence[Sample]
    measure: Callable[[Sample], Awaitable[Evaluation]]
    report: Callable[[Drift], object]
    edge: AbstractContextManager[object, bool | None] = field(kw_only=True)
    is_over: Callable[[], bool] = field(default=lambda: False, kw_only=True)
    service: str = field(default="", kw_only=True)
    _metrics: dict[tuple[str, str], _CanaryMetric] = field(default_factory=dict, init=False)
    _rounds: int = field(default=0, init=False)
    _stopped: threading.Event = field(default_factory=threading.Event, init=False)

    def __post_init__(self) -> None:
        if not 0 < len(self.samples) <= _MAX_SAMPLES:
            msg = f"a canary set has 1 to {_MAX_SAMPLES} samples, not {len(self.samples)}"
            raise ConfigError(msg)

    def start(self, minutes: float) -> None:
        """Start a thread that scores all samples every ``minutes`` minutes, until `stop` is called.

        Raises `ConfigError` unless ``minutes`` is between 0 and a year.
        """
        if not 0 < minutes < _MAX_MINUTES:
            msg = f"minutes must be above 0 and below {_MAX_MINUTES:,}, not {minutes!r}"
            raise ConfigError(msg)

        def repeat() -> None:
            silence()
            while not self._stopped.wait(minutes * 60):
                self.run_once()

        start_thread(repeat, "-canary")

    def stop(self) -> None:
        self._stopped.set()

    def run_once(self) -> None:
        """Score every sample once, and return when all have scores; not within an event loop."""
        if self.is_over():
            self.stop()
        else:
            with self.edge:
                asyncio.run(self._round())

    async def _round(self) -> None:
        self._rounds += 1
        for row, sample in enumerate(self.samples):
            if self.is_over():
                return
            self._add(row, await self.measure(sample))

    def _add(self, row: int, evaluation: Evaluation) -> None:
        """Add the scores of sample number ``row``; report an alarm for each that raises one."""
        for score in evaluation.scores:
            value = valid_score(score.value if score.normalized is None else score.normalized)
            if value is None:
                continue
            metric = self._metrics.setdefault((score.name, score.version), _CanaryMetric())
            alarm = metric.update(row, value, rows=len(self.samples))
            if alarm is not None:
                metric.changed_in_round = self._rounds
                name = f"canary.{score.name}"
                stream = Stream(service=self.service, name=name, version=score.version)
                self.report(Drift(stream=stream, alarm=alarm, cause="judge"))

    def cause(self, stream: Stream) -> Cause:
        """Return the cause of a drift alarm on ``stream``, the live scores of one metric.

        ``judge``: the canary set had an alarm for this metric in the last twenty rounds.
        ``unknown``: it has no baseline for the metric yet.
        """
        metric = self._metrics.get((stream.name, stream.version))
        if metric is None or metric.detector is None:
            return "unknown"
        changed = metric.changed_in_round
        is_recent = changed is not None and self._rounds - changed <= _JUDGE_ROUNDS
        return "judge" if is_recent else "system"
