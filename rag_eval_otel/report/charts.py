"""The drawings, as SVG that is readable without a stylesheet, too, and printed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rag_eval_otel.report.figures import Bin, Line, Mean, Range, dots, running
from rag_eval_otel.report.markup import Html, joined, tag
from rag_eval_otel.report.scale import Axis, Unit, tick_label, ticks, time_ticks
from rag_eval_otel.report.watch import Mark

_WIDTH, _HEIGHT = 720, 240
_LEFT, _RIGHT, _TOP, _BOTTOM = 56, 708, 22, 206
_BAR = 160
_LONG = 10_000  # from here on numbers have no decimals

Place = tuple[float, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Story:
    """What a drawing is called, and what it shows, for those who do not see it."""

    title: str
    told: str


# --- the distribution -----------------------------------------------------------------------------


def histogram(bins: Sequence[Bin], *, mean: float | None, story: Story) -> Html:
    """Draw how many scores lie in each bin, and a line at their mean."""
    x = Axis(low=bins[0].low, high=bins[-1].high, start=_LEFT, end=_RIGHT)
    y = Axis(low=0, high=max(1, *(one.count for one in bins)), start=_BOTTOM, end=_TOP)
    named = ticks(x.low, x.high)
    return _drawing(
        story,
        _horizontals(y, [n for n in ticks(0, y.high, most=4) if n == int(n)]),
        [_bar(one, x, y) for one in bins if one.count],
        _upright(x.place(mean), "mean", "mean") if mean is not None else None,
        [_below(x.place(value), _number(value)) for value in named],
    )


def _bar(one: Bin, x: Axis, y: Axis) -> Html:
    left, right, top = x.place(one.low), x.place(one.high), y.place(one.count)
    return tag(
        "rect",
        tag("title", f"{_number(one.low)} to {_number(one.high)}: {one.count:,}"),
        class_="bar",
        x=left + 1,
        y=top,
        width=max(1.0, right - left - 2),
        height=_BOTTOM - top,
        fill="currentColor",
        fill_opacity="0.6",
    )


# --- the time line --------------------------------------------------------------------------------


def time_line(
    lines: Sequence[Line], marks: Iterable[Mark], *, within: Range, unit: Unit, story: Story
) -> Html:
    """Draw each version's scores and running mean, with the alarms and the changes of version."""
    starts = [line.at[0] for line in lines if line.at]
    ends = [line.at[-1] for line in lines if line.at]
    x = Axis(low=min(starts), high=max(ends), start=_LEFT, end=_RIGHT)
    y = Axis(low=within[0], high=within[1], start=_BOTTOM, end=_TOP)
    named = (ticks if unit == "row" else time_ticks)(x.low, x.high)
    return _drawing(
        story,
        _horizontals(y, ticks(*within)),
        [_mark(mark, x) for mark in marks],
        [_dot(x.place(at), y.place(value)) for line in lines for at, value in dots(line)],
        [_running(running(line), x, y) for line in lines],
        [_change(x.place(at), n) for n, at in enumerate(starts, 1) if n > 1],
        [_below(x.place(at), tick_label(at, unit, all_of_them=named)) for at in named],
    )


def _running(means: Sequence[Mean], x: Axis, y: Axis) -> Html:
    high = [(x.place(m.at), y.place(m.interval[1])) for m in means if m.interval]
    low = [(x.place(m.at), y.place(m.interval[0])) for m in means if m.interval]
    line = [(x.place(m.at), y.place(m.mean)) for m in means]
    return joined(
        tag(
            "path",
            class_="band",
            d=_path([*high, *reversed(low)]),
            fill="currentColor",
            fill_opacity="0.15",
        ),
        tag("path", class_="line", d=_path(line), fill="none", stroke="currentColor"),
    )


def _path(places: Sequence[Place]) -> str:
    return "".join(f"{'L' if i else 'M'}{x:g} {y:g}" for i, (x, y) in enumerate(places))


def _dot(x: float, y: float) -> Html:
    return tag("circle", class_="dot", cx=x, cy=y, r="1.6", fill="currentColor", fill_opacity="0.3")


def _mark(mark: Mark, x: Axis) -> Html:
    onset, alarm = x.place(mark.onset), x.place(mark.at)
    return joined(
        tag(
            "rect",
            class_="since",
            x=onset,
            y=_TOP,
            width=max(1.0, alarm - onset),
            height=_BOTTOM - _TOP,
            fill="currentColor",
            fill_opacity="0.12",
        ),
        _upright(onset, "onset", None),
        _upright(alarm, "alarm", f"drift: {mark.alarm.direction}"),
    )


def _change(x: float, number: int) -> Html:
    return _upright(x, "version", f"v{number}")


# --- parts ----------------------------------------------------------------------------------------


def _drawing(story: Story, *parts: Html | list[Html] | None) -> Html:
    """Return the parts as one picture; its words are in it, so that they need no names to meet."""
    drawn = tag(
        "svg",
        tag("title", story.title),
        tag("desc", story.told),
        *parts,
        role="img",
        aria_label=f"{story.title}. {story.told}",
        viewBox=f"0 0 {_WIDTH} {_HEIGHT}",
        width=_WIDTH,
        height=_HEIGHT,
    )
    # On a narrow screen it scrolls: shrunk, its letters would be too small to read.
    return tag("div", drawn, class_="wide", tabindex=0, role="group", aria_label=story.title)


def _horizontals(y: Axis, values: Sequence[float]) -> list[Html]:
    return [_horizontal(y.place(value), _number(value)) for value in values]


def _horizontal(y: float, label: str) -> Html:
    line = tag(
        "line",
        class_="grid",
        x1=_LEFT,
        x2=_RIGHT,
        y1=y,
        y2=y,
        stroke="currentColor",
        stroke_opacity="0.2",
    )
    return joined(line, _label(_LEFT - 6, y + 4, label, anchor="end"))


def _below(x: float, label: str) -> Html:
    anchor = "start" if x < _LEFT + 40 else "end" if x > _RIGHT - 40 else "middle"
    return _label(x, _BOTTOM + 20, label, anchor=anchor)


def _upright(x: float, kind: str, label: str | None) -> Html:
    line = tag(
        "line",
        class_=kind,
        x1=x,
        x2=x,
        y1=_TOP,
        y2=_BOTTOM,
        stroke="currentColor",
        stroke_dasharray=None if kind == "alarm" else "4 3",
    )
    if label is None:
        return line
    anchor = "end" if x > (_LEFT + _RIGHT) / 2 else "start"
    return joined(line, _label(x, _TOP - 7, label, anchor=anchor, kind=kind))


def _label(x: float, y: float, text: str, *, anchor: str, kind: str | None = None) -> Html:
    return tag(
        "text", text, class_=kind, x=x, y=y, text_anchor=anchor, fill="currentColor", font_size=12
    )


def _number(value: float) -> str:
    return f"{value:,.4g}" if abs(value) < _LONG else f"{value:,.0f}"


# --- shares ---------------------------------------------------------------------------------------


def shares(counts: Sequence[int]) -> Html:
    """Draw shares of a whole as one bar; the table around it has them as numbers."""
    whole, start, parts = sum(counts) or 1, 0.0, []
    for count, kind in zip(counts, ("ok", "undefined", "error"), strict=True):
        width = round(_BAR * count / whole, 2)
        parts.append(_part(start, width, kind))
        start += width
    return tag("svg", *parts, aria_hidden="true", viewBox=f"0 0 {_BAR} 12", width=_BAR, height=12)


def _part(start: float, width: float, kind: str) -> Html:
    opacity = {"ok": "0.3", "undefined": "0.6", "error": "1"}[kind]
    return tag(
        "rect",
        class_=kind,
        x=start,
        y=0,
        width=width,
        height=12,
        fill="currentColor",
        fill_opacity=opacity,
    )
