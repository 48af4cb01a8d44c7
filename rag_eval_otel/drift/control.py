"""`CusumDetector` and `PageHinkleyDetector`: the classics, by name, without a guarantee.

Both need their limit to be set for the stream at hand: with textbook limits the time to a false
alarm differs by a factor of a hundred between streams of scores (``docs/drift.md``).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass
from typing import Any, ClassVar, Literal

from rag_eval_otel.drift.betting import FORMAT
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


def _restored(state: Iterable[Iterable[float]]) -> tuple[_Side, _Side]:
    """Return the sides with the numbers of ``state``; raise TypeError or ValueError for others."""
    for side, numbers in zip(found := _sides(), state, strict=True):
        side.sum, *others = map(float, numbers)
        if not math.isfinite(side.sum) or not all(0 <= one < math.inf for one in others):
            msg = "a number is not finite, or below 0"
            raise ValueError(msg)
        start, n, side.total, side.squares = others
        side.start, side.n = int(start), int(n)
    return found


class _Chart(ABC):
    """Two sums of what scores deviate by, one in each direction, and a limit for them."""

    kind: ClassVar[str]
    log10_evidence = None
    """None: a control chart has no evidence that could be compared with other detectors'."""

    def __init__(self, target: float | None, slack: float) -> None:
        check_target(target)
        self.count = 0
        """Scores taken, those that it has learned from included."""
        self.ignored = 0
        """How many values were no scores; None is not counted."""
        self.drift_detected = False
        """Whether the last score raised an alarm."""
        self.alarm: Alarm | None = None
        """The last alarm."""
        self._target, self._slack = target, slack
        self._sides = _sides()

    @property
    def since(self) -> int:
        """The index from which on scores are part of a sum."""
        return min((side.start for side in self._sides if side.sum > 0), default=self.count)

    def update(self, score: float | None, *, stratum: str | None = None) -> bool:  # noqa: ARG002
        """Take ``score`` and tell whether it raises an alarm; what is no score is passed over.

        ``stratum`` is of no effect: there is one mean for all.
        """
        self.drift_detected = False
        value = usable(score)
        if value is None:
            self.ignored = warn_of_value(score, self.ignored)
        else:
            self.count += 1
            self._take(value)
        return self.drift_detected

    @abstractmethod
    def _take(self, score: float) -> None:
        """Learn from ``score``, or weigh it."""

    def _weigh(
        self, score: float, *, step: float, limit: float, mean: float, error: float = 0.0
    ) -> None:
        """Add ``step`` less the slack, in each direction; a sum above ``limit`` is an alarm."""
        for side in self._sides:
            found = side.add(score, step=side.sign * step - self._slack, index=self.count - 1)
            if found > limit:
                self.drift_detected = True
                self.alarm = side.alarm(index=self.count - 1, before=mean, error=error)
        if self.drift_detected:
            self._sides = _sides()

    def to_state(self) -> dict[str, Any]:
        """Return what it has learned and gathered, as JSON can hold it; options are not in it."""
        return {
            "format": FORMAT,
            "kind": self.kind,
            "target": self._target,
            "count": self.count,
            "sides": [astuple(side)[2:] for side in self._sides],
            "learned": self._learned(),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from what `to_state` returned; errors as for `BettingDetector.restore`."""
        same = (FORMAT, self.kind, self._target)
        found = tuple(state[name] for name in ("format", "kind", "target"))
        if found != same:
            msg = f"it is of {found}, not of {same}"
            raise ValueError(msg)
        count = int(state["count"])
        if count < 0:
            msg = f"nobody took {count} scores"
            raise ValueError(msg)
        sides = _restored(state["sides"])
        self._relearn(*state["learned"])
        self.count, self._sides = count, sides

    @abstractmethod
    def _learned(self) -> list[Any]:
        """Return what `_relearn` takes, as JSON can hold it."""

    @abstractmethod
    def _relearn(self, *learned: Any) -> None:
        """Take up what `_learned` returned; raise TypeError or ValueError for all else."""


class CusumDetector(_Chart):
    """Cumulative sums of standardised scores, in both directions.

    An alarm comes when scores have added up to ``limit`` standard deviations beyond an
    ``allowance`` for each. The mean is ``target``, or that of ``reference``, or of the first
    ``learn`` scores; the deviation likewise (of a target alone: the largest there can be).
    Raises `ConfigError` for options that cannot be used.
    """

    kind = "cusum"

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
        check_count("learn", learn, least=2)
        super().__init__(target, slack=allowance)
        self._limit, self._learn = limit, learn
        self._learning: list[float] = []
        self._mean, self._deviation, self._error = target, 0.0, 0.0
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

    def _take(self, score: float) -> None:
        if self._mean is None:
            self._learning.append(score)
            if len(self._learning) >= self._learn:
                self._settle(self._learning)
            return
        step = (score - self._mean) / self._deviation
        self._weigh(score, step=step, limit=self._limit, mean=self._mean, error=self._error)

    def _learned(self) -> list[Any]:
        return [self._mean, self._deviation, self._error, self._learning]

    def _relearn(self, *learned: Any) -> None:
        mean, deviation, error, scores = learned
        if None in map(usable, [*scores, *([] if mean is None else [mean])]):
            msg = "what it was learning from, or its mean, is no score"
            raise ValueError(msg)
        known = mean is None or deviation > 0
        if not (known and 0 <= deviation < math.inf and 0 <= error < math.inf):
            msg = f"no scores deviate by {deviation}, {error}"
            raise ValueError(msg)
        self._mean, self._deviation, self._error = mean, float(deviation), float(error)
        self._learning = list(scores)


class PageHinkleyDetector(_Chart):
    """Page and Hinkley's test against the running mean, in both directions.

    An alarm comes when scores have added up to ``limit`` beyond ``tolerance`` for each, after
    ``least`` scores. The mean follows the stream, so slow drift is absorbed; ``reference`` is what
    it starts from, ``target`` fixes it. Raises `ConfigError` for options that cannot be used.
    """

    kind = "page_hinkley"

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
        check_count("least", least, least=1)
        super().__init__(target, slack=tolerance)
        self._limit, self._least = limit, least
        scores = [] if reference is None else usable_scores(reference)
        self._seen, self._total = len(scores), sum(scores)

    def _take(self, score: float) -> None:
        self._seen += 1
        self._total += score
        mean = self._total / self._seen if self._target is None else self._target
        limit = self._limit if self._seen >= self._least else math.inf
        self._weigh(score, step=score - mean, limit=limit, mean=mean)
        if self.drift_detected:
            self._seen, self._total = 0, 0.0

    def _learned(self) -> list[Any]:
        return [self._seen, self._total]

    def _relearn(self, *learned: Any) -> None:
        seen, total = learned
        if not 0 <= total <= seen < math.inf:
            msg = f"no {seen} scores add up to {total}"
            raise ValueError(msg)
        self._seen, self._total = int(seen), float(total)
