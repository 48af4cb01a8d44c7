"""Compute the numbers for drawings of scores: axis range, histogram bins, running means, drift."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Literal

from rag_eval_otel.dataset.series import Series
from rag_eval_otel.dataset.summary import Range, linear_scale, score_interval, unit_scale
from rag_eval_otel.drift.betting import BettingDetector
from rag_eval_otel.drift.records import Alarm
from rag_eval_otel.drift.validation import default_learn, valid_score

MAX_VERSIONS = 12
"""The highest number of versions of one metric that a drawing shows."""

_BINS = 20
_POINTS = 240  # points of a running mean: a screen shows no more
_DOTS = 400
_PARTS = 20  # lines of the table beside a drawing
_LARGEST = 1e12  # scores beyond this are not drawn to scale
_NARROW = 1e-6

Unit = Literal["row", "time"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Bin:
    """One bin of a histogram: the number of scores from ``low`` up to ``high``.

    A score equal to ``high`` counts in the next bin. The last bin includes its upper end.
    """

    low: float
    high: float
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Mean:
    """The mean of ``n`` consecutive scores.

    ``since`` and ``at`` are the row number or time of the first and last score. ``interval`` is the
    95 % confidence interval of the mean, None for fewer than two scores. ``lowest`` is the lowest
    score.
    """

    at: float
    n: int
    mean: float
    interval: Range | None
    since: float
    lowest: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """The scores of one version of a metric, in the order of ``at``.

    ``at`` is the row number or time of each score. ``values`` are the scores on the metric's own
    scale, ``units`` the scores on [0, 1].
    """

    version: str
    at: Sequence[float]
    values: Sequence[float]
    units: Sequence[float]


# --- the scale and its bins -----------------------------------------------------------------------


def scale_of(series: Series) -> Range:
    """Return the lowest and highest value of the axis for the scores of ``series``.

    If the scale of the metric, such as 1 to 5, can be computed from the scores, its ends are
    returned. Otherwise the result is 0 and 1 if all scores are in [0, 1], else a range a little
    wider than the scores.
    """
    return _own_scale(series) or range_of(series.values)


def range_of(scores: Iterable[float]) -> Range:
    """Return 0 and 1 if all ``scores`` are in [0, 1], else a range a little wider than they are."""
    values = [max(-_LARGEST, min(_LARGEST, value)) for value in scores]
    low, high = min(values, default=0.0), max(values, default=1.0)
    width = max(high - low, _NARROW * max(1.0, abs(low)))
    return unit_scale(low, high) or (low - 0.05 * width, high + 0.05 * width)


def _own_scale(series: Series) -> Range | None:
    """Compute the ends of the metric's own scale, such as 1 and 5, from its scores.

    Each score is known on the metric's own scale and on [0, 1], so two different scores are enough.
    The result is None if both scales are equal, or if the ends cannot be computed.
    """
    if series.values == series.units or not series.values:
        return None
    return linear_scale(series.values, series.units)


def bins(values: Sequence[float], scale: Range) -> list[Bin]:
    """Count ``values`` in twenty bins of equal width over the range ``scale``.

    A value below the range counts in the first bin, a value above the range in the last bin.
    """
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
    """Return the unit of the horizontal axis for ``series``: ``time`` or ``row``.

    The unit is ``time`` if every score has a time and the times are not all equal.
    """
    timed = not any(map(math.isnan, series.times))
    return "time" if timed and len(set(series.times)) > 1 else "row"


def lines(series: Series) -> list[Line]:
    """Return one `Line` for each version of the metric in ``series``.

    If there are more than ``MAX_VERSIONS`` versions, only the versions with the most scores are
    returned.
    """
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
    """Return how many scores each running mean covers, for a line of ``count`` scores."""
    return max(20, count // 40)


def running(line: Line) -> list[Mean]:
    """Return running means of the scores in ``line``, at about 240 evenly spaced scores at most.

    Each mean covers as many scores as `window_of` says. The first means cover fewer.
    """
    count, window = len(line.at), window_of(len(line.at))
    first = min(count, window // 2)
    step = max(1, math.ceil((count - first + 1) / _POINTS))
    ends = [*range(first, count, step), count] if count else []
    scale = _scale_of_line(line)
    return [_mean(line, max(0, end - window), end, scale=scale) for end in ends]


def parts(line: Line) -> Iterator[Mean]:
    """Divide ``line`` into at most twenty parts of equal length, and yield the mean of each."""
    size = max(1, math.ceil(len(line.at) / _PARTS))
    scale = _scale_of_line(line)
    for start in range(0, len(line.at), size):
        yield _mean(line, start, min(len(line.at), start + size), scale=scale)


def _scale_of_line(line: Line) -> Range | None:
    """Return the scale of the scores in ``line`` for their intervals; None if it is unknown."""
    if not line.values:
        return None
    if line.values != line.units:
        return linear_scale(line.values, line.units)
    return unit_scale(min(line.values), max(line.values))


def _mean(line: Line, start: int, end: int, *, scale: Range | None) -> Mean:
    values, n = line.values[start:end], end - start
    mean = sum(values) / n
    squares = sum([(value - mean) * (value - mean) for value in values])
    return Mean(
        at=line.at[end - 1],
        since=line.at[start],
        n=n,
        mean=mean,
        interval=score_interval(mean, math.sqrt(squares / max(1, n - 1)), n=n, scale=scale),
        lowest=min(values),
    )


def dots(line: Line) -> list[tuple[float, float]]:
    """Return the position and value of scores in ``line``, for at most 400 scores.

    If ``line`` has more scores, only every n-th score is returned.
    """
    step = math.ceil(len(line.at) / _DOTS) or 1
    return list(zip(line.at[::step], line.values[::step], strict=True))


# --- drift ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class DriftMark:
    """A change in the scores that the drift detector found.

    ``onset`` is the estimated start of the change and ``at`` the position of the alarm, as a row
    number or a time. While a change lasts, the detector raises the alarm again after each
    cool-down: ``again`` times, the last time at ``until``.
    """

    alarm: Alarm
    at: float
    onset: float
    until: float
    again: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionDrift:
    """The drift alarms in the scores of one version of a metric.

    ``count`` is the number of scores that the detector used. The detector learned its baseline from
    the first ``learn`` of these scores. ``outside`` is the number of scores that the detector did
    not use, because they are not in [0, 1].
    """

    marks: tuple[DriftMark, ...]
    count: int
    learn: int
    outside: int

    @property
    def alarms(self) -> int:
        """The number of alarms, repeated alarms included."""
        return sum(1 + mark.again for mark in self.marks)

    @property
    def has_baseline(self) -> bool:
        """Whether the version had enough scores for the detector to learn its baseline."""
        return self.count > self.learn


def find_drift(line: Line) -> VersionDrift:
    """Run a `BettingDetector` over the scores in ``line``, and return its alarms.

    The detector learns its baseline from the first half of the scores, at most 2,000.
    """
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
