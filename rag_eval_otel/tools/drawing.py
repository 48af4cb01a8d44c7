"""Draw scores as SVG: histograms and time lines, in the colours of ``templates/style.css``."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from datetime import datetime, timezone
from html import escape
from typing import Final, Literal, NamedTuple, TypeAlias

import numpy as np
from markupsafe import Markup

from rag_eval_otel.tools.stats import Range

WIDTH: Final = 720
HEIGHT: Final = 240
LEFT, RIGHT, TOP, BOTTOM = 56, 708, 36, 206  # of the area between the axes

Unit = Literal["row", "time"]
"""What a horizontal axis counts: rows of a file, or seconds since the epoch."""

Place: TypeAlias = tuple[float, float]

_BINS = 20
_LETTER = 7  # about the width of a letter in a label above an upright
_TICKS = 6
_DAY = 86_400.0
_LAST = 253402300799.0  # the year 9999, the last that datetime can write


class Drawing(NamedTuple):
    """A drawing: its shapes as SVG, and a title and a description for screen readers."""

    title: str
    description: str
    shapes: Markup


class Curve(NamedTuple):
    """A running mean (``points``) and its confidence interval (``band``)."""

    points: Sequence[Place]
    band: Sequence[tuple[float, Range]]


class Upright(NamedTuple):
    """A vertical line with a label above it. Its ``kind`` is a class in ``style.css``."""

    at: float
    kind: str
    label: str = ""


class Axis(NamedTuple):
    """Maps values from ``low`` to ``high`` to coordinates from ``start`` to ``end``."""

    low: float
    high: float
    start: float
    end: float

    def place(self, value: float) -> float:
        share = (value - self.low) / ((self.high - self.low) or 1.0)
        return round(self.start + min(1.0, max(0.0, share)) * (self.end - self.start), 1)


def ticks(low: float, high: float, *, most: int = _TICKS) -> list[float]:
    if not high > low:
        return [low]
    least = (high - low) / (most - 1)
    power = 10.0 ** math.floor(math.log10(least))
    step = next((s * power for s in (1, 2, 5, 10) if s * power >= least), least)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [n * step for n in range(first, last + 1)]


def place_name(value: float, unit: Unit) -> str:
    """Return ``value`` as text: "row 7", or the date and time in UTC, as ``unit`` says."""
    return f"row {value:,.0f}" if unit == "row" else f"{_utc(value):%Y-%m-%d %H:%M:%S} UTC"


def day_name(value: float, unit: Unit) -> str:
    return place_name(value, unit) if unit == "row" else f"{_utc(value):%d %B %Y}".lstrip("0")


def _utc(value: float) -> datetime:
    return datetime.fromtimestamp(min(_LAST, max(0.0, value)), tz=timezone.utc)


def _number(value: float) -> str:
    return f"{value:,.4g}" if abs(value) < 10_000 else f"{value:,.0f}"  # noqa: PLR2004


def _shape(tag: str, kind: str, inner: str = "", **attributes: object) -> str:
    shown = "".join(
        f' {name.replace("_", "-")}="{round(value, 1) if isinstance(value, float) else value}"'
        for name, value in attributes.items()
    )
    return f'<{tag} class="{kind}"{shown}>{inner}</{tag}>'


def _text(x: float, y: float, text: str, *, anchor: str, kind: str = "label") -> str:
    return _shape("text", kind, escape(text), x=x, y=y, text_anchor=anchor)


def _path(places: Sequence[Place], kind: str) -> str:
    steps = "".join(f"{'L' if i else 'M'}{x:g} {y:g}" for i, (x, y) in enumerate(places))
    return _shape("path", kind, d=steps)


def _frame(y: Axis, rows: Iterable[float], x: Axis, columns: Iterable[tuple[float, str]]) -> str:
    parts = []
    for value in rows:
        at = y.place(value)
        parts.append(_shape("line", "grid", x1=LEFT, x2=RIGHT, y1=at, y2=at))
        parts.append(_text(LEFT - 6, at + 4, _number(value), anchor="end"))
    for value, name in columns:
        at = x.place(value)
        anchor = "start" if at < LEFT + 40 else "end" if at > RIGHT - 40 else "middle"
        parts.append(_text(at, BOTTOM + 20, name, anchor=anchor))
    return "".join(parts)


def _uprights(uprights: Iterable[Upright], x: Axis) -> str:
    """Draw vertical lines, with labels in two rows. Labels without room are left out."""
    parts, ends = [], [-math.inf, -math.inf]
    for upright in sorted(uprights):
        at, width = x.place(upright.at), _LETTER * len(upright.label)
        parts.append(_shape("line", upright.kind, x1=at, x2=at, y1=TOP, y2=BOTTOM))
        left, anchor = (at - width, "end") if at > (LEFT + RIGHT) / 2 else (at, "start")
        row = next((number for number, end in enumerate(ends) if end < left), None)
        if upright.label and row is not None:
            ends[row] = left + width
            y = TOP - 7 - 14 * row
            parts.append(_text(at, y, upright.label, anchor=anchor, kind=upright.kind))
    return "".join(parts)


def bin_counts(values: Sequence[float], scale: Range) -> list[int]:
    """Count ``values`` in twenty equal bins of ``scale``. Values outside count in the end bins."""
    low, high = scale
    places = (np.asarray(values, np.float64) - low) / (high - low) * _BINS + 1e-9
    numbers = np.clip(places, 0, _BINS - 1).astype(np.intp)
    counts: list[int] = np.bincount(numbers, minlength=_BINS).tolist()
    return counts


def histogram(
    values: Sequence[float],
    scale: Range,
    *,
    mean: float | None,
    thresholds: Sequence[float] = (),
    title: str,
) -> Drawing:
    """Draw the number of ``values`` in each bin of ``scale``, and the mean and thresholds."""
    counts = bin_counts(values, scale)
    edges = np.linspace(*scale, _BINS + 1).tolist()
    x, y = Axis(*scale, LEFT, RIGHT), Axis(0, max(1, *counts), BOTTOM, TOP)
    bars = []
    for low, high, count in zip(edges, edges[1:], counts, strict=False):
        left, top = x.place(low) + 1, y.place(count)
        width, height = max(1.0, x.place(high) - left - 1), BOTTOM - top
        name = f"<title>{_number(low)} to {_number(high)}: {count:,}</title>"
        if count:
            bars.append(_shape("rect", "bar", name, x=left, y=top, width=width, height=height))
    whole = [n for n in ticks(0, y.high, most=4) if n == int(n)]
    named = [(value, _number(value)) for value in ticks(*scale)]
    lines = [Upright(each, "threshold", f"threshold {_number(each)}") for each in thresholds]
    lines += [] if mean is None else [Upright(mean, "mean", "mean")]
    most = int(np.argmax(counts))
    return Drawing(
        title=title,
        description=f"{sum(counts):,} scores; {counts[most]:,} of them {edges[most]:.3g} to"
        f" {edges[most + 1]:.3g}" + "".join(f"; {line.label}" for line in lines),
        shapes=Markup(_frame(y, whole, x, named) + "".join(bars) + _uprights(lines, x)),  # noqa: S704
    )


def time_line(
    curves: Sequence[Curve],
    *,
    ends: Range,
    scale: Range,
    unit: Unit,
    areas: Iterable[Range] = (),
    uprights: Iterable[Upright] = (),
    title: str,
    description: str,
) -> Drawing:
    """Draw ``curves`` over the range ``ends`` of rows or times, with ``areas`` of it shaded."""
    x, y = Axis(*ends, LEFT, RIGHT), Axis(*scale, BOTTOM, TOP)
    names = [(at, f"{at:,.0f}") for at in ticks(*ends)]
    if unit == "time":
        width = ends[1] - ends[0]
        form = "%H:%M:%S" if width < _DAY else "%m-%d %H:%M" if width < 5 * _DAY else "%Y-%m-%d"
        places = np.linspace(*ends, _TICKS).tolist() if width > 0 else ends[:1]
        names = [(at, _utc(at).strftime(form)) for at in places]
    parts = [_frame(y, ticks(*scale), x, names)]
    for start, end in areas:
        left, width = x.place(start), max(1.0, x.place(end) - x.place(start))
        parts.append(_shape("rect", "since", x=left, y=TOP, width=width, height=BOTTOM - TOP))
    for curve in curves:
        low, high = ([(x.place(at), y.place(p[i])) for at, p in curve.band] for i in (0, 1))
        parts.append(_path([*high, *reversed(low)], "band"))
        parts.append(_path([(x.place(at), y.place(value)) for at, value in curve.points], "line"))
    parts.append(_uprights(uprights, x))
    return Drawing(title=title, description=description, shapes=Markup("".join(parts)))  # noqa: S704
