"""`CusumDetector` and `PageHinkleyDetector`: the classics, by name, without a guarantee.

Both need their limit to be set for the stream at hand: with textbook limits the time to a false
alarm differs by a factor of a hundred between streams of scores (``docs/drift.md``).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from rag_eval_otel.drift.options import check_count, check_target, usable, usable_scores
from rag_eval_otel.drift.records import Alarm, View, change_interval
from rag_eval_otel.drift.warn import warn_of_value

_LEAST_DEVIATION = 0.01  # scores that were all alike


@dataclass(slots=True)
class _Side:
    """One direction: a sum that starts over at 0, and the scores since then."""

    view: View
    sign: Literal[-1, 1]
    sum: float = 0.0
    start: int = 0
    n: int = 0
    total: float = 0.0
    squares: float = 0.0

    def add(self, score: float, *, step: float, index: int) -> float:
        if self.sum <= 0:
            self.sum, self.start, self.n, self.total, self.squares = 0.0, index, 0, 0.0, 0.0
        self.sum += step
        self.n += 1
        self.total += score
        self.squares += score * score
        return self.sum

    def alarm(self, *, index: int, before: float, error: float) -> Alarm:
        after = self.total / self.n
        variance = max(0.0, self.squares / self.n - after * after)
        return Alarm(
            index=index,
            onset=self.start,
            n=self.n,
            direction="down" if self.sign < 0 else "up",
            view=self.view,
            before=before,
            after=after,
            interval=change_interval(
                after - before, variance=variance, effect=1.0, n=self.n, baseline_error=error
            ),
        )


def _sides() -> tuple[_Side, _Side]:
    return _Side("level", -1), _Side("rise", 1)


class CusumDetector:
    """Cumulative sums of standardised scores, in both directions.

    An alarm comes when scores have added up to ``limit`` standard deviations beyond an
    ``allowance`` for each. The mean is ``target``, or that of ``reference``, or of the first
    ``learn`` scores; the deviation likewise (of a target alone: the largest there can be).
    Raises `ConfigError` for options that cannot be used.
    """

    def __init__(
        self,
        *,
        target: float | None = None,
        reference: Sequence[object] | None = None,
        allowance: float = 0.5,
        limit: float = 5.0,
        learn: int = 2000,
    ) -> None:
        """Learn from ``reference``, if it is there."""
        check_target(target)
        check_count("learn", learn, least=2)
        self.count = 0
        self.ignored = 0
        self.drift_detected = False
        self.alarm: Alarm | None = None
        self._target, self._allowance, self._limit, self._learn = target, allowance, limit, learn
        self._learning: list[float] = []
        self._mean, self._deviation, self._error = target, 0.0, 0.0
        self._sides = _sides()
        if reference is not None:
            self._settle(usable_scores(reference))
        elif target is not None:
            self._deviation = math.sqrt(target * (1 - target))

    def _settle(self, scores: Sequence[float]) -> None:
        mean = sum(scores) / len(scores)
        variance = sum((score - mean) ** 2 for score in scores) / len(scores)
        self._deviation = max(math.sqrt(variance), _LEAST_DEVIATION)
        if self._target is None:
            self._mean, self._error = mean, self._deviation / math.sqrt(len(scores))
        self._learning = []

    def update(self, score: float | None) -> bool:
        """Take ``score`` and tell whether it raises an alarm; what is no score is passed over."""
        self.drift_detected = False
        value = usable(score)
        if value is None:
            self.ignored = warn_of_value(score, self.ignored)
            return False
        self.count += 1
        if self._mean is None:
            self._learning.append(value)
            if len(self._learning) >= self._learn:
                self._settle(self._learning)
        else:
            self._weigh(value, self._mean)
        return self.drift_detected

    def _weigh(self, score: float, mean: float) -> None:
        for side in self._sides:
            step = side.sign * (score - mean) / self._deviation - self._allowance
            if side.add(score, step=step, index=self.count - 1) > self._limit:
                self.drift_detected = True
                self.alarm = side.alarm(index=self.count - 1, before=mean, error=self._error)
        if self.drift_detected:
            self._sides = _sides()


class PageHinkleyDetector:
    """Page and Hinkley's test against the running mean, in both directions.

    An alarm comes when scores have added up to ``limit`` beyond ``tolerance`` for each, after
    ``least`` scores. The mean follows the stream, so slow drift is absorbed; ``reference`` is what
    it starts from, ``target`` fixes it. Raises `ConfigError` for options that cannot be used.
    """

    def __init__(
        self,
        *,
        target: float | None = None,
        reference: Sequence[object] | None = None,
        tolerance: float = 0.005,
        limit: float = 50.0,
        least: int = 30,
    ) -> None:
        """Start from ``reference``, if it is there."""
        check_target(target)
        check_count("least", least, least=1)
        self.count = 0
        self.ignored = 0
        self.drift_detected = False
        self.alarm: Alarm | None = None
        self._target, self._tolerance, self._limit, self._least = target, tolerance, limit, least
        scores = [] if reference is None else usable_scores(reference)
        self._seen, self._total = len(scores), sum(scores)
        self._sides = _sides()

    def update(self, score: float | None) -> bool:
        """Take ``score`` and tell whether it raises an alarm; what is no score is passed over."""
        self.drift_detected = False
        value = usable(score)
        if value is None:
            self.ignored = warn_of_value(score, self.ignored)
            return False
        self.count += 1
        self._seen += 1
        self._total += value
        self._weigh(value, self._total / self._seen if self._target is None else self._target)
        return self.drift_detected

    def _weigh(self, score: float, mean: float) -> None:
        for side in self._sides:
            step = side.sign * (score - mean) - self._tolerance
            found = side.add(score, step=step, index=self.count - 1)
            if found > self._limit and self._seen >= self._least:
                self.drift_detected = True
                self.alarm = side.alarm(index=self.count - 1, before=mean, error=0.0)
        if self.drift_detected:
            self._sides, self._seen, self._total = _sides(), 0, 0.0
