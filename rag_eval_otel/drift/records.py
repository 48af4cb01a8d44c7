"""What detectors and the monitor report."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from rag_eval_otel.types import SpanRef

View = Literal["level", "tail", "spread", "rise"]
VIEWS: tuple[View, ...] = ("level", "tail", "spread", "rise")

Direction = Literal["down", "up", "spread"]
"""``spread``: the scores lie further from their mean than they did, which may be the same."""

Cause = Literal["judge", "system", "unknown"]
"""Whose change it is, as the canary set tells; ``unknown`` without one."""

_DIRECTIONS: Mapping[View, Direction] = {
    "level": "down",
    "tail": "down",
    "spread": "spread",
    "rise": "up",
}


def direction_of(view: View, interval: tuple[float, float]) -> Direction:
    """Return where the mean has moved; where it may not have, what the view says."""
    low, high = interval
    if high < 0:
        return "down"
    return "up" if low > 0 else _DIRECTIONS[view]


_NORMAL = 2.8  # not 1.96: the onset is the one that makes the change look largest


@dataclass(frozen=True, slots=True, kw_only=True)
class Alarm:
    """A change that a detector found; indexes count the scores it was given, from 0.

    ``before`` is the mean of the baseline, ``after`` the mean of the ``n`` scores since ``onset``,
    the estimate of when it began. ``interval`` is for ``change``; it is wider than one for scores
    that were not chosen.
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
        """By how much the mean has moved."""
        return self.after - self.before


def change_interval(
    change: float, *, variance: float, effect: float, n: int, baseline_error: float
) -> tuple[float, float]:
    """Return about 95 % around ``change``, the mean of ``n`` scores less the baseline's."""
    half = _NORMAL * math.sqrt(variance * effect / max(n, 1) + baseline_error**2)
    return change - half, change + half


@dataclass(frozen=True, slots=True, kw_only=True)
class Stream:
    """Whose scores these are: one detector each.

    ``name`` is a metric's, or of what else is watched (`rag_eval_otel.drift.inputs`).
    """

    service: str
    name: str
    version: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Worst:
    """A turn that scored badly since the onset."""

    score: float
    span: SpanRef | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Drift:
    """An alarm of the monitor: whose, what, since when, why, and the worst turns since then."""

    stream: Stream
    alarm: Alarm
    cause: Cause = "unknown"
    worst: tuple[Worst, ...] = ()

    def __str__(self) -> str:
        """Say it in one line."""
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
    """A stream came up in another version: what was normal is learned again."""

    stream: Stream
    previous: str
