"""Define the records of drift detection: streams of scores, alarms, and reports to the user.

A *baseline* is the mean with which a detector compares new scores. The *onset* of a change is the
estimated index of the first score after the change.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

from rag_eval_otel.types import SpanRef

View = Literal["level", "tail", "spread", "rise"]
VIEWS: tuple[View, ...] = ("level", "tail", "spread", "rise")

Directions: TypeAlias = Literal["both", "down", "up"]
"""The changes of scores that a detector looks for: falls, rises, or all changes."""

Direction = Literal["down", "up", "spread"]
"""The change that an alarm reports.

``spread`` means that scores lie further from their mean than in the baseline.
"""

Cause = Literal["judge", "system", "unknown"]
"""What caused a change of scores: the judge model, the system that answers, or "unknown".

A canary set is a fixed set of samples that is scored regularly. If the scores of these samples
change, the judge has changed. Otherwise the system that answers the questions has changed. Without
a canary set, the cause is "unknown".
"""

_DIRECTION_OF_VIEW: Mapping[View, Direction] = {
    "level": "down",
    "tail": "down",
    "spread": "spread",
    "rise": "up",
}


def direction_of(view: View, interval: tuple[float, float]) -> Direction:
    """Return in which direction the scores have changed.

    ``interval`` is a confidence interval for the change of the mean. If it includes 0, the result
    is the direction of ``view``, the test that raised the alarm.
    """
    low, high = interval
    if high < 0:
        return "down"
    return "up" if low > 0 else _DIRECTION_OF_VIEW[view]


_NORMAL = 2.8  # not 1.96, because the chosen onset makes the change look as large as possible


@dataclass(frozen=True, slots=True, kw_only=True)
class Alarm:
    """A change of scores that a detector found.

    ``index`` is the index of the score that raised the alarm, and ``onset`` the estimated index of
    the first score after the change. Indexes count the valid scores of the stream, from 0. ``view``
    is the test that raised the alarm. ``before`` is the mean of the baseline, ``after`` the mean of
    the ``n`` scores since the onset. ``interval`` is a 95 % confidence interval for the difference
    of these means. It is wider than usual, because the onset was estimated from the same scores.
    """

    index: int
    onset: int
    n: int
    direction: Direction
    view: View
    before: float
    after: float
    interval: tuple[float, float]
    log10_evidence: float | None = None
    every: float | None = None

    @property
    def change(self) -> float:
        """The change of the mean of the scores, ``after - before``."""
        return self.after - self.before


def change_interval(
    change: float, *, variance: float, effect: float, n: int, baseline_error: float
) -> tuple[float, float]:
    """Return a 95 % confidence interval for ``change``, the change of the mean of the scores.

    ``change`` is the mean of the ``n`` scores since the change, minus the mean of the baseline.
    ``variance`` is the variance of the ``n`` scores. ``effect`` is the number of these scores that
    carry as much information as one independent score. ``baseline_error`` is the standard error of
    the mean of the baseline.
    """
    half = _NORMAL * math.sqrt(variance * effect / max(n, 1) + baseline_error**2)
    return change - half, change + half


@dataclass(frozen=True, slots=True, kw_only=True)
class Stream:
    """The key of a stream of values that one detector watches: service, name and version.

    ``name`` is the name of a metric, or ``<metric>.scored``, ``answer_length`` or
    ``question_embedding``. ``version`` changes if the metric is measured in another way, for
    instance with another judge.
    """

    service: str
    name: str
    version: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorstTurn:
    """The score and the span of one of the worst answers after the scores changed."""

    score: float
    span: SpanRef | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Drift:
    """An alarm with its stream of scores, its cause, and the worst answers since the change."""

    stream: Stream
    alarm: Alarm
    cause: Cause = "unknown"
    worst: tuple[WorstTurn, ...] = ()

    def __str__(self) -> str:
        alarm = self.alarm
        low, high = alarm.interval
        return (
            f"{self.stream.name} of {self.stream.service or 'unknown service'} drifted"
            f" ({alarm.direction}): mean {alarm.before:.3f} -> {alarm.after:.3f}, change"
            f" {alarm.change:+.3f} [{low:+.3f}, {high:+.3f}], {alarm.n} scores since the onset;"
            f" cause: {self.cause}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class NewBaseline:
    """Report that the scores of a metric now have another version than before.

    The version changes if the metric is measured in another way, for instance with another judge. A
    detector for the new version learns a new baseline. ``previous`` is the version before.
    """

    stream: Stream
    previous: str


Report: TypeAlias = Drift | NewBaseline
