"""The records of drift: streams, alarms, and the reports of the monitor."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

from rag_eval_otel.types import SpanRef

View = Literal["level", "tail", "spread", "rise"]
VIEWS: tuple[View, ...] = ("level", "tail", "spread", "rise")

Directions: TypeAlias = Literal["both", "down", "up"]
"""The changes that a detector looks for."""

Direction = Literal["down", "up", "spread"]
"""The change of an alarm. ``spread``: scores lie further from their mean than in the baseline."""

Cause = Literal["judge", "system", "unknown"]
"""The cause of a change, according to the canary set; ``unknown`` without one."""

_DIRECTION_OF_VIEW: Mapping[View, Direction] = {
    "level": "down",
    "tail": "down",
    "spread": "spread",
    "rise": "up",
}


def direction_of(view: View, interval: tuple[float, float]) -> Direction:
    """Return the direction of a change with this ``interval``.

    If the interval contains 0, the direction is the one that ``view`` looks for.
    """
    low, high = interval
    if high < 0:
        return "down"
    return "up" if low > 0 else _DIRECTION_OF_VIEW[view]


_NORMAL = 2.8  # not 1.96: the onset is the one that makes the change look largest


@dataclass(frozen=True, slots=True, kw_only=True)
class Alarm:
    """A change that a detector found. Indexes count the valid scores of the stream, from 0.

    ``before`` is the mean of the baseline, ``after`` the mean of the ``n`` scores since ``onset``,
    which is the estimated start of the change. ``interval`` is a 95 % interval for ``change``,
    widened because the onset was estimated from the same scores.
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
        """The change of the mean, ``after - before``."""
        return self.after - self.before


def change_interval(
    change: float, *, variance: float, effect: float, n: int, baseline_error: float
) -> tuple[float, float]:
    """Return a 95 % interval for ``change``, the mean of ``n`` scores less the baseline's mean."""
    half = _NORMAL * math.sqrt(variance * effect / max(n, 1) + baseline_error**2)
    return change - half, change + half


@dataclass(frozen=True, slots=True, kw_only=True)
class Stream:
    """The identity of a stream of scores; each stream has a detector of its own.

    ``name`` is a metric, ``<metric>.scored``, ``answer_length`` or ``question_embedding``.
    """

    service: str
    name: str
    version: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorstTurn:
    """One of the turns with the worst scores since the onset of a change."""

    score: float
    span: SpanRef | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Drift:
    """An alarm on a stream, with its cause and the worst turns since the onset."""

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
    """A metric has another version than before; the detector of the new one learns a baseline."""

    stream: Stream
    previous: str


Report: TypeAlias = Drift | NewBaseline
