"""Compute the geometry of three SVG drawings: histogram, time line, and bar of score statuses.

The template ``chart.svg`` writes the geometry as SVG. Colours come from CSS. Each shape has a
fallback, so that a drawing is also readable without a stylesheet.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import TypeAlias

from rag_eval_otel.dataset.figures import Bin, DriftMark, Line, Mean, Unit, dots, running
from rag_eval_otel.dataset.summary import Range

WIDTH, HEIGHT = 720, 240
LEFT, RIGHT, TOP, BOTTOM = 56, 708, 22, 206
SHARES_WIDTH = 160

_LABEL_WIDTH = 80
_LONG = 10_000  # numbers from 10,000 on are written without decimals
_STEPS = (1, 2, 5, 10)
_MINUTE, _HOUR, _DAY, _WEEK = 60, 3600, 86400, 7 * 86400
_MONDAY = 4 * _DAY  # seconds from the epoch to the first Monday
_TIMES = (
    *(0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5),
    *(1, 5, 15, 30),
    *(n * _MINUTE for n in (1, 5, 15, 30)),
    *(n * _HOUR for n in (1, 3, 6, 12)),
    *(n * _DAY for n in (1, 2, 7, 14)),
)
_MONTHS = (1, 2, 3, 6, *(12 * n for n in (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000)))
_SHORTEST_MONTH, _SHORTEST_YEAR = 28 * _DAY, 365 * _DAY
_FIRST, _LAST = 0.0, 253402300799.0  # 1970 to 9999: the years that datetime can write

Place: TypeAlias = "tuple[float, float]"


@dataclass(frozen=True, slots=True, kw_only=True)
class Label:
    """A text beside an axis of a drawing. ``at`` is the coordinate along the axis."""

    at: float
    text: str
    anchor: str = "end"


@dataclass(frozen=True, slots=True, kw_only=True)
class Box:
    """A rectangle in a drawing. ``kind`` is the CSS class that gives the rectangle its style."""

    x: float
    y: float
    width: float
    height: float
    kind: str
    title: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Upright:
    """A vertical line in a drawing, with an optional label above it.

    ``kind`` is the CSS class of the line: mean, onset, alarm or version.
    """

    x: float
    kind: str
    label: str | None = None

    @property
    def anchor(self) -> str:
        return "end" if self.x > (LEFT + RIGHT) / 2 else "start"


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """The geometry of one drawing.

    ``title`` and ``description`` are texts for screen readers.
    """

    title: str
    description: str
    grid: Sequence[Label]
    ticks: Sequence[Label]
    boxes: Sequence[Box] = ()
    dots: Sequence[Place] = ()
    bands: Sequence[str] = ()
    lines: Sequence[str] = ()
    baseline: float | None = None
    uprights: Sequence[Upright] = ()


# --- axes -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """Map values from ``low`` to ``high`` to coordinates from ``start`` to ``end``."""

    low: float
    high: float
    start: float
    end: float

    def place(self, value: float) -> float:
        """Return the coordinate of ``value`` on the axis, rounded to a tenth.

        A value below ``low`` or above ``high`` gets the coordinate of the nearer end of the axis.
        """
        share = (value - self.low) / ((self.high - self.low) or 1.0)
        return round(self.start + min(1.0, max(0.0, share)) * (self.end - self.start), 1)


def ticks(low: float, high: float, *, most: int = 6) -> list[float]:
    """Return at most ``most`` round numbers from ``low`` to ``high``, as ticks of an axis."""
    if not high > low:
        return [low]
    least = (high - low) / (most - 1)
    power = 10.0 ** math.floor(math.log10(least))
    step = next((s * power for s in _STEPS if s * power >= least), least)
    return _multiples(low, high, step)


def time_ticks(low: float, high: float, *, most: int = 6) -> list[float]:
    """Return at most ``most`` round times from ``low`` to ``high``, as ticks of an axis.

    Times are seconds since the epoch, round in UTC: weeks begin on Monday, and longer steps are
    whole months and years of the calendar.
    """
    if not high > low:
        return [low]
    least = (high - low) / (most - 1)
    step = next((step for step in _TIMES if step >= least), None)
    if step is not None:
        start = _MONDAY if step % _WEEK == 0 else 0
        found = [start + at for at in _multiples(low - start, high - start, step)]
    elif low >= _FIRST and high <= _LAST:
        found = _month_ticks(low, high, most=most)
    else:
        found = _multiples(low, high, least)
    return found or [low]


def _month_ticks(low: float, high: float, *, most: int) -> list[float]:
    """Return the starts of months, of every n-th month, or of years from ``low`` to ``high``."""
    first, last = ((at.year * 12 + at.month - 1) for at in (_utc(low), _utc(high)))
    step = next(months for months in _MONTHS if months >= (last - first) / (most - 1))
    starts = [
        datetime(n // 12, n % 12 + 1, 1, tzinfo=timezone.utc).timestamp()
        for n in range(-(-first // step) * step, last + 1, step)
    ]
    return [at for at in starts if low <= at <= high]


def _multiples(low: float, high: float, step: float) -> list[float]:
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [n * step for n in range(first, last + 1)]


def place_name(value: float, unit: Unit) -> str:
    """Return ``value`` as text: "row 7", or the date and time in UTC, as ``unit`` says."""
    if unit == "row":
        return f"row {value:,.0f}"
    return f"{_utc(value):%Y-%m-%d %H:%M:%S} UTC"


def tick_label(value: float, unit: Unit, *, all_ticks: Sequence[float]) -> str:
    """Return the label of the tick at ``value`` on an axis of rows or times.

    ``all_ticks`` are all ticks of the axis. The label of a time has no more parts than the distance
    of the ticks needs: from milliseconds up to the year.
    """
    if unit == "row":
        return f"{value:,.0f}"
    step = all_ticks[1] - all_ticks[0] if len(all_ticks) > 1 else 0.0
    if 0 < step < 1:
        return f"{_utc(value):%H:%M:%S.%f}"[:-3]
    return _utc(value).strftime(next((form for least, form in _FORMS if step >= least), "%H:%M:%S"))


_FORMS = (
    (_SHORTEST_YEAR, "%Y"),
    (_SHORTEST_MONTH, "%Y-%m"),
    (_DAY, "%Y-%m-%d"),
    (_MINUTE, "%m-%d %H:%M"),
)
"""The least distance of ticks in seconds, and the form of their labels."""


def _utc(value: float) -> datetime:
    return datetime.fromtimestamp(min(_LAST, max(_FIRST, value)), tz=timezone.utc)


def _grid(y: Axis, values: Iterable[float]) -> list[Label]:
    return [Label(at=y.place(value), text=_number(value)) for value in values]


def _tick(x: float, text: str) -> Label:
    anchor = "start" if x < LEFT + 40 else "end" if x > RIGHT - 40 else "middle"
    return Label(at=x, text=text, anchor=anchor)


def _number(value: float) -> str:
    return f"{value:,.4g}" if abs(value) < _LONG else f"{value:,.0f}"


# --- drawings -------------------------------------------------------------------------------------


def histogram(bins: Sequence[Bin], *, mean: float | None, title: str, description: str) -> Chart:
    """Draw the number of scores in each bin, and a vertical line at ``mean``.

    ``title`` and ``description`` are texts for screen readers.
    """
    x = Axis(low=bins[0].low, high=bins[-1].high, start=LEFT, end=RIGHT)
    y = Axis(low=0, high=max(1, *(each.count for each in bins)), start=BOTTOM, end=TOP)
    return Chart(
        title=title,
        description=description,
        grid=_grid(y, [n for n in ticks(0, y.high, most=4) if n == int(n)]),
        ticks=[_tick(x.place(value), _number(value)) for value in ticks(x.low, x.high)],
        boxes=[_bar(each, x, y) for each in bins if each.count],
        uprights=[] if mean is None else [Upright(x=x.place(mean), kind="mean", label="mean")],
    )


def _bar(each: Bin, x: Axis, y: Axis) -> Box:
    left, right, top = x.place(each.low), x.place(each.high), y.place(each.count)
    return Box(
        x=left + 1,
        y=top,
        width=max(1.0, right - left - 2),
        height=BOTTOM - top,
        kind="bar",
        title=f"{_number(each.low)} to {_number(each.high)}: {each.count:,}",
    )


def time_line(
    lines: Sequence[Line],
    marks: Sequence[DriftMark],
    *,
    scale: Range,
    unit: Unit,
    title: str,
    description: str,
    baseline: float | None = None,
    learned: float | None = None,
) -> Chart:
    """Draw scores over time, with a running mean for each version of the metric.

    Each `Line` in ``lines`` has the scores of one version of the metric. ``marks`` are the drift
    alarms. The drawing shows drift alarms and changes of the version as vertical lines.
    ``baseline`` is the mean with which the drift detector compares scores, drawn as a horizontal
    line. The detector learned the baseline from the scores up to the position ``learned``, and the
    area up to this position is coloured. ``scale`` has the ends of the vertical axis.
    """
    starts = [line.at[0] for line in lines if line.at]
    ends = [line.at[-1] for line in lines if line.at]
    x = Axis(low=min(starts, default=0), high=max(ends, default=0), start=LEFT, end=RIGHT)
    y = Axis(low=scale[0], high=scale[1], start=BOTTOM, end=TOP)
    named = (ticks if unit == "row" else time_ticks)(x.low, x.high)
    means = [running(line) for line in lines]
    areas = [_area(x, mark.onset, mark.at, "since") for mark in marks]
    if learned is not None:
        areas.append(_area(x, x.low, learned, "learned"))
    versions = [
        Upright(x=x.place(at), kind="version", label=f"v{n}")
        for n, at in enumerate(starts, 1)
        if n > 1
    ]
    return Chart(
        title=title,
        description=description,
        grid=_grid(y, ticks(*scale)),
        ticks=[_tick(x.place(at), tick_label(at, unit, all_ticks=named)) for at in named],
        boxes=areas,
        dots=[(x.place(at), y.place(value)) for line in lines for at, value in dots(line)],
        bands=[_band(each, x, y) for each in means],
        lines=[_path([(x.place(m.at), y.place(m.mean)) for m in each]) for each in means],
        baseline=None if baseline is None else y.place(baseline),
        uprights=[*_drift_uprights(marks, x), *versions],
    )


def _area(x: Axis, start: float, end: float, kind: str) -> Box:
    left, right = x.place(start), x.place(end)
    return Box(x=left, y=TOP, width=max(1.0, right - left), height=BOTTOM - TOP, kind=kind)


def _drift_uprights(marks: Sequence[DriftMark], x: Axis) -> list[Upright]:
    """Return two vertical lines for each drift alarm: at the onset of the change and at the alarm.

    If two equal labels of alarms would overlap, only the first alarm gets the label.
    """
    uprights: list[Upright] = []
    labelled: dict[str, float] = {}
    for mark in marks:
        at, label = x.place(mark.at), f"drift: {mark.alarm.direction}"
        is_free = abs(at - labelled.get(label, -math.inf)) > _LABEL_WIDTH
        labelled |= {label: at} if is_free else {}
        uprights += [
            Upright(x=x.place(mark.onset), kind="onset"),
            Upright(x=at, kind="alarm", label=label if is_free else None),
        ]
    return uprights


def _band(means: Sequence[Mean], x: Axis, y: Axis) -> str:
    high = [(x.place(m.at), y.place(m.interval[1])) for m in means if m.interval]
    low = [(x.place(m.at), y.place(m.interval[0])) for m in means if m.interval]
    return _path([*high, *reversed(low)])


def _path(places: Sequence[Place]) -> str:
    return "".join(f"{'L' if i else 'M'}{x:g} {y:g}" for i, (x, y) in enumerate(places))


def shares(counts: Sequence[int]) -> list[Box]:
    """Draw a horizontal bar that shows how many scores have each status.

    ``counts`` are the numbers of scores with the status ok, undefined and error, in this order.
    """
    whole, start, boxes = sum(counts) or 1, 0.0, []
    for count, kind in zip(counts, ("ok", "undefined", "error"), strict=True):
        width = round(SHARES_WIDTH * count / whole, 2)
        boxes.append(Box(x=round(start, 2), y=0, width=width, height=12, kind=kind))
        start += width
    return boxes
