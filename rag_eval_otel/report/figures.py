"""The numbers of the drawings: ranges, bins, and running means with their intervals."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from rag_eval_otel.dataset.student import mean_interval
from rag_eval_otel.report.scale import Unit
from rag_eval_otel.report.series import Series

MOST_VERSIONS = 12
"""Of a metric that have lines of their own."""

_BINS = 20
_POINTS = 240  # of a running mean: a screen shows no more
_DOTS = 400
_PARTS = 20  # of a series, in the table beside its drawing
_LARGEST = 1e12  # a score beyond it is not drawn to scale
_NARROW = 1e-6

Range = tuple[float, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Bin:
    """How many scores are from ``low`` up to ``high``; the last bin has those at its end, too."""

    low: float
    high: float
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Mean:
    """The mean of ``n`` scores, the last of them at ``at``; no interval for fewer than two."""

    at: float
    n: int
    mean: float
    interval: Range | None
    since: float
    lowest: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """The scores of one version in the order of their axis: a row or a time, a value, a unit."""

    version: str
    at: Sequence[float]
    values: Sequence[float]
    units: Sequence[float]


# --- the range and its bins -----------------------------------------------------------------------


def range_of(series: Series) -> Range:
    """Return the scale the metric is on, as far as its scores tell."""
    values = [max(-_LARGEST, min(_LARGEST, value)) for value in series.values]
    low, high = min(values, default=0.0), max(values, default=1.0)
    own = _own_scale(series)
    if own is not None:
        return own
    if low >= 0 and high <= 1:
        return 0.0, 1.0
    wide = max(high - low, _NARROW * max(1.0, abs(low)))
    return low - 0.05 * wide, high + 0.05 * wide


def _own_scale(series: Series) -> Range | None:
    """Return the ends of the scale that values and their places on [0, 1] imply, if they do."""
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


def bins(values: Sequence[float], within: Range) -> list[Bin]:
    """Return how ``values`` lie in ``within``; what is outside counts in the bin at that end."""
    low, high = within
    counts = [0] * _BINS
    for value in values:
        counts[max(0, min(_BINS - 1, int((value - low) / (high - low) * _BINS + 1e-9)))] += 1
    edges = [low + (high - low) * i / _BINS for i in range(_BINS + 1)]
    return [
        Bin(low=start, high=end, count=count)
        for (start, end), count in zip(pairwise(edges), counts, strict=True)
    ]


def median(values: Sequence[float]) -> float | None:
    """Return the middle value, of an even number the mean of both; None of nothing."""
    ordered = sorted(values)
    half = len(ordered) // 2
    middle = ordered[half - (len(ordered) % 2 == 0) : half + 1]
    return sum(middle) / len(middle) if middle else None


# --- the time line --------------------------------------------------------------------------------


def unit_of(series: Series) -> Unit:
    """Tell what scores are lined up by: their times where all of them have one."""
    timed = not any(map(math.isnan, series.times))
    return "time" if timed and len(set(series.times)) > 1 else "row"


def lines(series: Series) -> list[Line]:
    """Return the scores of each version, in order; of many, of those with the most scores."""
    at = series.times if unit_of(series) == "time" else [float(row) for row in series.rows]
    order = sorted(range(len(at)), key=at.__getitem__)
    found: list[list[int]] = [[] for _ in series.versions]
    for i in order:
        found[series.version[i]].append(i)
    most = sorted(range(len(found)), key=lambda k: -len(found[k]))[:MOST_VERSIONS]
    first = sorted(most, key=lambda k: at[found[k][0]])
    return [
        Line(
            version=series.versions[k],
            at=[at[i] for i in found[k]],
            values=[series.values[i] for i in found[k]],
            units=[series.units[i] for i in found[k]],
        )
        for k in first
    ]


def window_of(count: int) -> int:
    """Return over how many scores a running mean of ``count`` scores is taken."""
    return max(20, count // 40)


def running(line: Line) -> list[Mean]:
    """Return the running mean at some places, never fewer than half a window behind each."""
    count, window = len(line.at), window_of(len(line.at))
    first = min(count, window // 2)
    step = max(1, math.ceil((count - first + 1) / _POINTS))
    ends = [*range(first, count, step), count] if count else []
    return [mean_of(line, max(0, end - window), end) for end in ends]


def parts(line: Line) -> Iterator[Mean]:
    """Yield the means of at most twenty parts of equal length."""
    size = max(1, math.ceil(len(line.at) / _PARTS))
    for start in range(0, len(line.at), size):
        yield mean_of(line, start, min(len(line.at), start + size))


def mean_of(line: Line, start: int, end: int) -> Mean:
    """Return the mean of the scores from ``start`` to before ``end``, at least one."""
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
    """Return single scores, evenly chosen where there are many."""
    step = math.ceil(len(line.at) / _DOTS) or 1
    return list(zip(line.at[::step], line.values[::step], strict=True))
