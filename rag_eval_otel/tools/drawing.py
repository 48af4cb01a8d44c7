"""Draw scores as SVG: histograms and time lines.

Colours come from CSS. Each shape has a fallback, so that a drawing is also readable without a
stylesheet.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from html import escape
from itertools import pairwise
from typing import Final, Literal, TypeAlias

from markupsafe import Markup

from rag_eval_otel.tools.stats import Range

WIDTH: Final = 720
HEIGHT: Final = 240
LEFT, RIGHT, TOP, BOTTOM = 56, 708, 22, 206  # of the area between the axes

Unit = Literal["row", "time"]
"""What a horizontal axis counts: rows of a file, or seconds since the epoch."""

Place: TypeAlias = tuple[float, float]

_BINS = 20
_LABEL_WIDTH = 80  # of a label above an upright
_TICKS = 6
_DAY = 86_400.0
_LAST = 253402300799.0  # the year 9999, the last that datetime can write


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawing:
    """A drawing: its shapes as SVG, and a title and a description for screen readers."""

    title: str
    description: str
    shapes: Markup


@dataclass(frozen=True, slots=True, kw_only=True)
class Bin:
    """One bin of a histogram: the number of scores from ``low`` up to ``high``.

    A score equal to ``high`` counts in the next bin. The last bin includes its upper end.
    """

    low: float
    high: float
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """A running mean: its points, the ends of its interval at them, and single scores as dots."""

    points: Sequence[Place]
    band: Sequence[tuple[float, Range]]
    dots: Sequence[Place]


@dataclass(frozen=True, slots=True, kw_only=True)
class Upright:
    """A vertical line, with an optional label above it.

    ``kind`` is its CSS class: mean, onset, alarm or version.
    """

    at: float
    kind: str
    label: str = ""


# --- axes -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Axis:
    """Map values from ``low`` to ``high`` to coordinates from ``start`` to ``end``."""

    low: float
    high: float
    start: float
    end: float

    def place(self, value: float) -> float:
        """Return the coordinate of ``value``, at most that of the nearer end of the axis."""
        share = (value - self.low) / ((self.high - self.low) or 1.0)
        return round(self.start + min(1.0, max(0.0, share)) * (self.end - self.start), 1)


def ticks(low: float, high: float, *, most: int = _TICKS) -> list[float]:
    """Return at most ``most`` round numbers from ``low`` to ``high``."""
    if not high > low:
        return [low]
    least = (high - low) / (most - 1)
    power = 10.0 ** math.floor(math.log10(least))
    step = next((s * power for s in (1, 2, 5, 10) if s * power >= least), least)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [n * step for n in range(first, last + 1)]


def place_name(value: float, unit: Unit) -> str:
    """Return ``value`` as text: "row 7", or the date and time in UTC, as ``unit`` says."""
    if unit == "row":
        return f"row {value:,.0f}"
    return f"{_utc(value):%Y-%m-%d %H:%M:%S} UTC"


def _utc(value: float) -> datetime:
    return datetime.fromtimestamp(min(_LAST, max(0.0, value)), tz=timezone.utc)


def _named_places(low: float, high: float, unit: Unit) -> list[tuple[float, str]]:
    """Return the labels of a horizontal axis: round rows, or times at equal distances."""
    if unit == "row":
        return [(at, f"{at:,.0f}") for at in ticks(low, high)]
    width = high - low
    form = "%H:%M:%S" if width < _DAY else "%m-%d %H:%M" if width < 5 * _DAY else "%Y-%m-%d"
    places = [low + width * i / (_TICKS - 1) for i in range(_TICKS)] if width > 0 else [low]
    return [(at, _utc(at).strftime(form)) for at in places]


def _number(value: float) -> str:
    return f"{value:,.4g}" if abs(value) < 10_000 else f"{value:,.0f}"  # noqa: PLR2004


# --- shapes ---------------------------------------------------------------------------------------


def _text(x: float, y: float, text: str, *, anchor: str = "end", kind: str = "") -> str:
    css = f' class="{kind}"' if kind else ""
    return (
        f'<text{css} x="{x}" y="{y}" text-anchor="{anchor}" fill="currentColor" font-size="12">'
        f"{escape(text)}</text>"
    )


def _box(x: float, y: float, size: Place, kind: str, *, opacity: float, title: str = "") -> str:
    inner = f"<title>{escape(title)}</title>" if title else ""
    return (
        f'<rect class="{kind}" x="{x}" y="{y}" width="{round(size[0], 2)}" height="{size[1]}"'
        f' fill="currentColor" fill-opacity="{opacity}">{inner}</rect>'
    )


def _across(y: float, kind: str, style: str) -> str:
    return (
        f'<line class="{kind}" x1="{LEFT}" x2="{RIGHT}" y1="{y}" y2="{y}" stroke="currentColor"'
        f" {style}/>"
    )


def _path(places: Sequence[Place], kind: str, style: str) -> str:
    steps = "".join(f"{'L' if i else 'M'}{x:g} {y:g}" for i, (x, y) in enumerate(places))
    return f'<path class="{kind}" d="{steps}" {style}/>'


def _frame(y: Axis, rows: Iterable[float], x: Axis, columns: Iterable[tuple[float, str]]) -> str:
    """Return the horizontal lines of the grid, and the labels of both axes."""
    parts = []
    for value in rows:
        at = y.place(value)
        parts += [
            _across(at, "grid", 'stroke-opacity="0.2"'),
            _text(LEFT - 6, at + 4, _number(value)),
        ]
    for value, name in columns:
        at = x.place(value)
        anchor = "start" if at < LEFT + 40 else "end" if at > RIGHT - 40 else "middle"
        parts.append(_text(at, BOTTOM + 20, name, anchor=anchor))
    return "".join(parts)


def _uprights(uprights: Iterable[Upright], x: Axis) -> str:
    """Return vertical lines; of equal labels that would overlap, only the first is written."""
    parts, labels = [], dict[str, float]()
    for upright in uprights:
        at = x.place(upright.at)
        dashes = "" if upright.kind == "alarm" else ' stroke-dasharray="4 3"'
        parts.append(
            f'<line class="{upright.kind}" x1="{at}" x2="{at}" y1="{TOP}" y2="{BOTTOM}"'
            f' stroke="currentColor"{dashes}/>'
        )
        if upright.label and abs(at - labels.get(upright.label, -math.inf)) > _LABEL_WIDTH:
            labels[upright.label] = at
            anchor = "end" if at > (LEFT + RIGHT) / 2 else "start"
            parts.append(_text(at, TOP - 7, upright.label, anchor=anchor, kind=upright.kind))
    return "".join(parts)


# --- drawings -------------------------------------------------------------------------------------


def bins(values: Iterable[float], scale: Range) -> list[Bin]:
    """Count ``values`` in twenty bins of equal width over ``scale``; those outside at its ends."""
    low, high = scale
    counts = [0] * _BINS
    for value in values:
        counts[max(0, min(_BINS - 1, int((value - low) / (high - low) * _BINS + 1e-9)))] += 1
    edges = [low + (high - low) * i / _BINS for i in range(_BINS + 1)]
    return [
        Bin(low=start, high=end, count=count)
        for (start, end), count in zip(pairwise(edges), counts, strict=True)
    ]


def histogram(counts: Sequence[Bin], *, mean: float | None, title: str) -> Drawing:
    """Draw the number of scores in each bin, and a vertical line at ``mean``."""
    x = Axis(counts[0].low, counts[-1].high, LEFT, RIGHT)
    y = Axis(0, max(1, *(each.count for each in counts)), BOTTOM, TOP)
    bars = []
    for each in counts:
        left, right, top = x.place(each.low), x.place(each.high), y.place(each.count)
        if each.count:
            size = (max(1.0, right - left - 2), BOTTOM - top)
            name = f"{_number(each.low)} to {_number(each.high)}: {each.count:,}"
            bars.append(_box(left + 1, top, size, "bar", opacity=0.6, title=name))
    whole = [n for n in ticks(0, y.high, most=4) if n == int(n)]
    named = [(value, _number(value)) for value in ticks(x.low, x.high)]
    lines = [] if mean is None else [Upright(at=mean, kind="mean", label="mean")]
    most = max(counts, key=lambda each: each.count)
    total = sum(each.count for each in counts)
    return Drawing(
        title=title,
        description=f"{total:,} scores; {most.count:,} of them {most.low:.3g} to {most.high:.3g}",
        shapes=Markup(_frame(y, whole, x, named) + "".join(bars) + _uprights(lines, x)),  # noqa: S704
    )


def time_line(
    curves: Sequence[Curve],
    *,
    ends: Range,
    scale: Range,
    unit: Unit,
    areas: Iterable[tuple[Range, str]] = (),
    uprights: Iterable[Upright] = (),
    baseline: float | None = None,
    title: str,
    description: str,
) -> Drawing:
    """Draw scores over time, with a running mean for each of ``curves``.

    ``ends`` are the ends of the horizontal axis, ``scale`` those of the vertical axis. ``areas``
    are the ends of coloured areas on the horizontal axis, and their CSS classes. ``baseline`` is
    the mean with which the drift detector compares scores, a horizontal line.
    """
    x, y = Axis(*ends, LEFT, RIGHT), Axis(*scale, BOTTOM, TOP)
    parts = [_frame(y, ticks(*scale), x, _named_places(*ends, unit))]
    for (start, end), kind in areas:
        size = (max(1.0, x.place(end) - x.place(start)), BOTTOM - TOP)
        parts.append(_box(x.place(start), TOP, size, kind, opacity=0.12))
    for curve in curves:
        parts += [
            f'<circle class="dot" cx="{x.place(at)}" cy="{y.place(value)}" r="1.6"'
            ' fill="currentColor" fill-opacity="0.3"/>'
            for at, value in curve.dots
        ]
        low = [(x.place(at), y.place(interval[0])) for at, interval in curve.band]
        high = [(x.place(at), y.place(interval[1])) for at, interval in curve.band]
        fill = 'fill="currentColor" fill-opacity="0.15"'
        parts.append(_path([*high, *reversed(low)], "band", fill))
        points = [(x.place(at), y.place(value)) for at, value in curve.points]
        parts.append(_path(points, "line", 'fill="none" stroke="currentColor"'))
    if baseline is not None:
        parts.append(_across(y.place(baseline), "baseline", 'stroke-dasharray="2 3"'))
    parts.append(_uprights(uprights, x))
    return Drawing(title=title, description=description, shapes=Markup("".join(parts)))  # noqa: S704
