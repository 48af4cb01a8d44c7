"""The numbers in the drawings of a series: scale, bins, running means, and drift."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Literal

from rag_eval_otel.dataset.series import Series
from rag_eval_otel.dataset.summary import mean_interval
from rag_eval_otel.drift.betting import BettingDetector
from rag_eval_otel.drift.records import Alarm
from rag_eval_otel.drift.validation import default_learn, valid_score

MAX_VERSIONS = 12
"""The number of versions of a metric that are drawn."""

_BINS = 20
_POINTS = 240  # of a running mean: a screen shows no more
_DOTS = 400
_PARTS = 20  # of a series, in the table beside its drawing
_LARGEST = 1e12  # a score beyond it is not drawn to scale
_NARROW = 1e-6

Range = tuple[float, float]
Unit = Literal["row", "time"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Bin:
    """The number of scores from ``low`` up to ``high``; the last bin includes its end."""

    low: float
    high: float
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Mean:
    """The mean of ``n`` scores from ``since`` to ``at``; no interval for fewer than two."""

    at: float
    n: int
    mean: float
    interval: Range | None
    since: float
    lowest: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """The scores of one version in order: ``at`` is the row or time of each."""

    version: str
    at: Sequence[float]
    values: Sequence[float]
    units: Sequence[float]


# --- the scale and its bins -----------------------------------------------------------------------


def scale_of(series: Series) -> Range:
    """Return the ends of the metric's scale, as its scores imply them."""
    values = [max(-_LARGEST, min(_LARGEST, value)) for value in series.values]
    low, high = min(values, default=0.0), max(values, default=1.0)
    own = _own_scale(series)
    if own is not None:
        return own
    if low >= 0 and high <= 1:
        return 0.0, 1.0
    width = max(high - low, _NARROW * max(1.0, abs(low)))
    return low - 0.05 * width, high + 0.05 * width


def _own_scale(series: Series) -> Range | None:
    """Return the ends of a scale other than [0, 1] that values and units imply, if they do."""
    if series.values == series.units or not series.values:
        return None
    pairs = list(zip(series.units, series.values, strict=True))
    (u0, low), (u1, high) = min(pairs), max(pairs)
    if u1 - u0 < _NARROW:
        return None
    per_unit = (high - low) / (u1 - u0)
    start, end = low - u0 * per_unit, low + (1 - u0) * per_unit
    fits = end - start > _NARROW and max(abs(start), abs(end)) < _LARGEST
    return (round(start, 6), round(end, 6)) if fits else None


def bins(values: Sequence[float], scale: Range) -> list[Bin]:
    """Return the distribution of ``values``; those outside the scale are in its outer bins."""
    low, high = scale
    counts = [0] * _BINS
    for value in values:
        counts[max(0, min(_BINS - 1, int((value - low) / (high - low) * _BINS + 1e-9)))] += 1
    edges = [low + (high - low) * i / _BINS for i in range(_BINS + 1)]
    return [
        Bin(low=start, high=end, count=count)
        for (start, end), count in zip(pairwise(edges), counts, strict=True)
    ]


# --- the time line --------------------------------------------------------------------------------


def unit_of(series: Series) -> Unit:
    """Return ``time`` if every score has a time, and not all the same; else ``row``."""
    timed = not any(map(math.isnan, series.times))
    return "time" if timed and len(set(series.times)) > 1 else "row"


def lines(series: Series) -> list[Line]:
    """Return the scores of each version in order; of many versions, those with the most scores."""
    at = series.times if unit_of(series) == "time" else [float(row) for row in series.rows]
    by_version: list[list[int]] = [[] for _ in series.versions]
    for i in sorted(range(len(at)), key=at.__getitem__):
        by_version[series.version[i]].append(i)
    largest = sorted(range(len(by_version)), key=lambda k: -len(by_version[k]))[:MAX_VERSIONS]
    return [
        Line(
            version=series.versions[k],
            at=[at[i] for i in by_version[k]],
            values=[series.values[i] for i in by_version[k]],
            units=[series.units[i] for i in by_version[k]],
        )
        for k in sorted(largest, key=lambda k: at[by_version[k][0]])
    ]


def window_of(count: int) -> int:
    """Return the number of scores in each running mean of ``count`` scores."""
    return max(20, count // 40)


def running(line: Line) -> list[Mean]:
    """Return the running mean at evenly spaced scores, from half a window on."""
    count, window = len(line.at), window_of(len(line.at))
    first = min(count, window // 2)
    step = max(1, math.ceil((count - first + 1) / _POINTS))
    ends = [*range(first, count, step), count] if count else []
    return [_mean(line, max(0, end - window), end) for end in ends]


def parts(line: Line) -> Iterator[Mean]:
    """Yield the means of at most twenty parts of equal length."""
    size = max(1, math.ceil(len(line.at) / _PARTS))
    for start in range(0, len(line.at), size):
        yield _mean(line, start, min(len(line.at), start + size))


def _mean(line: Line, start: int, end: int) -> Mean:
    values, n = line.values[start:end], end - start
    mean = sum(values) / n
    squares = sum([(value - mean) * (value - mean) for value in values])
    return Mean(
        at=line.at[end - 1],
        since=line.at[start],
        n=n,
        mean=mean,
        interval=mean_interval(mean, math.sqrt(squares / max(1, n - 1)), n=n),
        lowest=min(values),
    )


def dots(line: Line) -> list[tuple[float, float]]:
    """Return scores and their places, every n-th of many."""
    step = math.ceil(len(line.at) / _DOTS) or 1
    return list(zip(line.at[::step], line.values[::step], strict=True))


# --- drift ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class DriftMark:
    """A change that the drift detector found: its estimated onset, and its alarm at ``at``.

    A change that lasts raises the alarm again after each cool-down: ``again`` times, last at
    ``until``.
    """

    alarm: Alarm
    at: float
    onset: float
    until: float
    again: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionDrift:
    """The drift in the ``count`` usable scores of a version.

    The detector learned its baseline from the first ``learn`` of them. ``outside`` is the number of
    scores that are not in [0, 1].
    """

    marks: tuple[DriftMark, ...]
    count: int
    learn: int
    outside: int

    @property
    def alarms(self) -> int:
        """The number of alarms, repeated ones included."""
        return sum(1 + mark.again for mark in self.marks)

    @property
    def has_baseline(self) -> bool:
        """Whether there were enough scores to learn a baseline."""
        return self.count > self.learn


def find_drift(line: Line) -> VersionDrift:
    """Run the default detector over the scores of one version."""
    used = [i for i, unit in enumerate(line.units) if valid_score(unit) is not None]
    learn = default_learn(len(used))
    detector = BettingDetector(learn=learn)
    marks: list[DriftMark] = []
    for i in used:
        alarm = detector.alarm if detector.update(line.units[i]) else None
        if alarm is None:
            continue
        at, onset = line.at[used[alarm.index]], line.at[used[alarm.onset]]
        if marks and marks[-1].alarm.direction == alarm.direction:
            marks[-1] = replace(marks[-1], again=marks[-1].again + 1, until=at)
        else:
            marks.append(DriftMark(alarm=alarm, at=at, onset=onset, until=at))
    outside = len(line.units) - len(used)
    return VersionDrift(marks=tuple(marks), count=len(used), learn=learn, outside=outside)
