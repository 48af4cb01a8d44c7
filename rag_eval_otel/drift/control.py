"""`CusumDetector` and `PageHinkleyDetector`: the classics, by name, without a guarantee.

Both need their limit to be set for the stream at hand: with textbook limits the time to a false
alarm differs by a factor of a hundred between streams of scores (``docs/drift.md``).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from rag_eval_otel.drift.betting import FORMAT
from rag_eval_otel.drift.options import check_count, check_target, usable, usable_scores
from rag_eval_otel.drift.records import Alarm
from rag_eval_otel.drift.sums import Sums, count_of
from rag_eval_otel.drift.warn import warn_of_value

_LEAST_DEVIATION = 0.01  # scores that were all alike


class CusumDetector:
    """Cumulative sums of standardised scores, in both directions.

    An alarm comes when scores have added up to ``limit`` standard deviations beyond an
    ``allowance`` for each. The mean is ``target``, or that of ``reference``, or of the first
    ``learn`` scores; the deviation likewise (of a target alone: the largest there can be).
    Raises `ConfigError` for options that cannot be used.
    """

    kind = "cusum"
    log10_evidence = None
    """None: a sum is no evidence that could be compared with other detectors'."""

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
        self._target, self._limit, self._learn = target, limit, learn
        self._learning: list[float] = []
        self._mean, self._deviation, self._error = target, 0.0, 0.0
        self._sums = Sums(allowance)
        if reference is not None:
            self._settle(usable_scores(reference))
        elif target is not None:
            self._deviation = math.sqrt(target * (1 - target))

    @property
    def since(self) -> int:
        """The index from which on scores are part of a sum."""
        return self._sums.since(self.count)

    def _settle(self, scores: Sequence[float]) -> None:
        mean = sum(scores) / len(scores)
        variance = sum((score - mean) ** 2 for score in scores) / len(scores)
        self._deviation = max(math.sqrt(variance), _LEAST_DEVIATION)
        if self._target is None:
            self._mean, self._error = mean, self._deviation / math.sqrt(len(scores))
        self._learning = []

    def update(self, score: float | None, *, stratum: str | None = None) -> bool:  # noqa: ARG002
        """Take ``score`` and tell whether it raises an alarm; what is no score is passed over.

        ``stratum`` is of no effect: there is one mean for all.
        """
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
        step = (score - mean) / self._deviation
        alarm = self._sums.alarm(
            score,
            step=step,
            limit=self._limit,
            index=self.count - 1,
            mean=mean,
            error=self._error,
        )
        if alarm is not None:
            self.drift_detected, self.alarm = True, alarm

    def to_state(self) -> dict[str, Any]:
        """Return what it has learned and gathered, as JSON can hold it; options are not in it."""
        return {
            "format": FORMAT,
            "kind": self.kind,
            "target": self._target,
            "count": self.count,
            "sums": self._sums.to_state(),
            "learned": [self._mean, self._deviation, self._error],
            "learning": self._learning,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from what `to_state` returned; errors as for `BettingDetector.restore`."""
        count = count_of(state, kind=self.kind, target=self._target)
        mean, deviation, error = state["learned"]
        scores = list(state["learning"])
        if None in map(usable, [*scores, *([] if mean is None else [mean])]):
            msg = "what it was learning from, or its mean, is no score"
            raise ValueError(msg)
        least = 0 if mean is None else 1e-9
        if not (least <= deviation < math.inf and 0 <= error < math.inf):
            msg = f"no scores deviate by {deviation}, {error}"
            raise ValueError(msg)
        self._sums.restore(state["sums"])
        self._mean, self._deviation, self._error = mean, float(deviation), float(error)
        self.count, self._learning = count, scores


class PageHinkleyDetector:
    """Page and Hinkley's test against the running mean, in both directions.

    An alarm comes when scores have added up to ``limit`` beyond ``tolerance`` for each, after
    ``least`` scores. The mean follows the stream, so slow drift is absorbed; ``reference`` is what
    it starts from, ``target`` fixes it. Raises `ConfigError` for options that cannot be used.
    """

    kind = "page_hinkley"
    log10_evidence = None
    """None: a sum is no evidence that could be compared with other detectors'."""

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
        self._target, self._limit, self._least = target, limit, least
        scores = [] if reference is None else usable_scores(reference)
        self._seen, self._total = len(scores), sum(scores)
        self._sums = Sums(tolerance)

    @property
    def since(self) -> int:
        """The index from which on scores are part of a sum."""
        return self._sums.since(self.count)

    def update(self, score: float | None, *, stratum: str | None = None) -> bool:  # noqa: ARG002
        """Take ``score`` and tell whether it raises an alarm; what is no score is passed over.

        ``stratum`` is of no effect: there is one mean for all.
        """
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
        limit = self._limit if self._seen >= self._least else math.inf
        alarm = self._sums.alarm(
            score, step=score - mean, limit=limit, index=self.count - 1, mean=mean, error=0.0
        )
        if alarm is not None:
            self.drift_detected, self.alarm = True, alarm
            self._seen, self._total = 0, 0.0

    def to_state(self) -> dict[str, Any]:
        """Return what it has learned and gathered, as JSON can hold it; options are not in it."""
        return {
            "format": FORMAT,
            "kind": self.kind,
            "target": self._target,
            "count": self.count,
            "sums": self._sums.to_state(),
            "learned": [self._seen, self._total],
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from what `to_state` returned; errors as for `BettingDetector.restore`."""
        count = count_of(state, kind=self.kind, target=self._target)
        seen, total = state["learned"]
        if not 0 <= total <= seen < math.inf:
            msg = f"no {seen} scores add up to {total}"
            raise ValueError(msg)
        self._sums.restore(state["sums"])
        self.count, self._seen, self._total = count, int(seen), float(total)
