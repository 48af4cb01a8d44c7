"""The section of one metric: its figures, distribution, time line, drift, and worst turns."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from rag_eval_otel.dataset.tally import MetricSummary
from rag_eval_otel.report import charts
from rag_eval_otel.report.figures import (
    Line,
    Range,
    bins,
    lines,
    median,
    parts,
    range_of,
    unit_of,
    window_of,
)
from rag_eval_otel.report.markup import Child, Html, quoted, tag
from rag_eval_otel.report.scale import Unit, told
from rag_eval_otel.report.series import Low, Series
from rag_eval_otel.report.tables import interval, means_table, number, table, unfolded
from rag_eval_otel.report.watch import Mark, Watch, watch

_NAME = 120  # characters of a name
_JUDGES = 5  # of a version
_TOLD = 2000  # of an explanation
_WAYS = {"down": "fell", "up": "rose", "spread": "scattered more widely"}

Explanations = Literal["off", "on"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """A series and everything that is drawn of it."""

    anchor: str
    series: Series
    summary: MetricSummary
    within: Range
    unit: Unit
    lines: tuple[Line, ...]
    watches: tuple[Watch, ...]

    @property
    def marks(self) -> list[Mark]:
        """What was found of drift, in all versions."""
        return [mark for one in self.watches for mark in one.marks]

    @property
    def alarms(self) -> int:
        """How many alarms there were."""
        return sum(one.alarms for one in self.watches)


def shown(series: Series, *, anchor: str) -> Shown:
    """Work out what is drawn of ``series``."""
    found = tuple(lines(series))
    return Shown(
        anchor=anchor,
        series=series,
        summary=series.tally.summary(series.name, median=median(series.values)),
        within=range_of(series),
        unit=unit_of(series),
        lines=found,
        watches=tuple(map(watch, found)),
    )


def name_of(series: Series, *, services: int) -> Html:
    """Return what the series is called: the metric, and its service where there are several."""
    name = quoted(series.name, most=_NAME)
    if services < 2:  # noqa: PLR2004
        return name
    return tag("span", name, " of ", quoted(series.service or "unknown service", most=_NAME))


def section(one: Shown, *, services: int, explanations: Explanations) -> Html:
    """Return the section of one metric; it has a name for readers that go from one to the next."""
    heading = tag("h2", name_of(one.series, services=services), id=f"{one.anchor}-name")
    body = _drawn(one, explanations) if one.series.values else [_without(one)]
    return tag("section", heading, *body, id=one.anchor, aria_labelledby=f"{one.anchor}-name")


def _without(one: Shown) -> Html:
    count = one.summary.undefined + one.summary.error
    return tag("p", f"None of {count:,} evaluations gave a score; the reasons are under Coverage.")


def _drawn(one: Shown, explanations: Explanations) -> Iterator[Child]:
    yield tag("p", _figures(one))
    yield tag("h3", "Distribution")
    yield from _distribution(one)
    yield tag("h3", "Time line")
    yield from _time_line(one)
    yield from _drift(one)
    yield tag("h3", "Worst turns")
    yield _worst(list(one.series.lows()), explanations)


def _figures(one: Shown) -> str:
    found = one.summary
    passed = f", {found.passed:,} of {found.labelled:,} passed" if found.labelled else ""
    return (
        f"Mean {number(found.mean)}, 95 % interval {interval(found.interval)}, median"
        f" {number(found.median)}, of {found.ok:,} scores{passed}."
    )


# --- drawings -------------------------------------------------------------------------------------


def _distribution(one: Shown) -> Iterator[Child]:
    found = bins(one.series.values, one.within)
    most = max(found, key=lambda each: each.count)
    story = charts.Story(
        title=f"Distribution of {one.series.name[:_NAME]}",
        told=(
            f"{one.summary.ok:,} scores; most of them, {most.count:,}, from {most.low:.3g} to"
            f" {most.high:.3g}; mean {number(one.summary.mean)}"
        ),
    )
    yield charts.histogram(found, mean=one.summary.mean, story=story)
    rows = [(f"{each.low:.4g}", f"{each.high:.4g}", f"{each.count:,}") for each in found]
    yield unfolded("The numbers", table("Scores by range", ("from", "to", "scores"), rows))


def _time_line(one: Shown) -> Iterator[Child]:
    story = charts.Story(
        title=f"Time line of {one.series.name[:_NAME]}",
        told=f"drift alarms: {one.alarms}, versions: {len(one.lines)}; both in words below",
    )
    drawn = charts.time_line(one.lines, one.marks, within=one.within, unit=one.unit, story=story)
    yield drawn
    yield tag("p", _legend(one), class_="note")
    names = [(f"v{i}", parts(line)) for i, line in enumerate(one.lines, 1)]
    yield unfolded("The numbers", means_table("Means of parts", names, one.unit))
    if len(one.lines) > 1 or any(line.version for line in one.lines):
        yield _versions(one)


def _legend(one: Shown) -> str:
    windows = {window_of(len(line.at)) for line in one.lines}
    lasted = " or ".join(f"{n:,}" for n in sorted(windows))
    axis = "row of the file" if one.unit == "row" else "time, UTC"
    return (
        f"Line: mean of the last {lasted} scores of the same version; band: its 95 % interval;"
        f" dots: scores, at most some hundred of them; below: {axis}. Shaded: from the estimated"
        " onset of a change (dashed) to its alarm."
    )


def _versions(one: Shown) -> Child:
    rows = [
        (
            f"v{i}",
            quoted(line.version or "not told"),
            _judges(one.series, line.version),
            f"{len(line.at):,}",
            told(line.at[0], one.unit),
        )
        for i, line in enumerate(one.lines, 1)
    ]
    head = ("mark", "version", "judge", "scores", "first at")
    several = tag(
        "p",
        "Several versions are different measurements: the figures above are of a mixture.",
        class_="note",
    )
    made = table("Versions", head, rows)
    left = len(one.series.versions) - len(rows)
    few = f"{left:,} versions with fewer scores are in the figures alone."
    return [several if len(rows) > 1 else None, made, tag("p", few) if left else None]


def _judges(series: Series, version: str) -> Child:
    found = [judge for (known, judge) in series.judges if known == version and judge]
    found = [*found[:_JUDGES], *(["..."] if len(found) > _JUDGES else [])]
    return [[", " if i else None, quoted(judge)] for i, judge in enumerate(found)] or "-"


# --- drift ----------------------------------------------------------------------------------------


def _drift(one: Shown) -> Iterator[Html]:
    yield tag("h3", "Drift")
    told_of = [tag("li", _alarm(mark, one)) for mark in one.marks]
    yield tag("ul", told_of) if told_of else tag("p", "No alarm.")
    yield tag("p", " ".join(_watched(one.watches)), class_="note")


def _alarm(mark: Mark, one: Shown) -> list[Child]:
    alarm = mark.alarm
    low, high = alarm.interval
    scale = " on the scale 0 to 1" if one.series.values != one.series.units else ""
    last = told(mark.until, one.unit)
    again = f" The alarm came again {mark.again:,} times, last at {last}." if mark.again else ""
    since = (
        f" from about {told(mark.onset, one.unit)} on; alarm at {told(mark.at, one.unit)}."
        f" Mean {alarm.before:.3f} before, {alarm.after:.3f} since{scale}: a change of"
        f" {alarm.change:+.3f} [{low:+.3f}, {high:+.3f}] over {alarm.n:,} scores.{again}"
    )
    return [tag("strong", f"The scores {_WAYS[alarm.direction]}"), since]


def _watched(watches: Sequence[Watch]) -> Iterator[str]:
    for i, one in enumerate(watches, 1):
        name = f"v{i}: what" if len(watches) > 1 else "What"
        if one.learned:
            yield f"{name} is normal was learned from the first {one.learn:,} scores."
        else:
            few = f"{one.count:,} scores are too few to learn what is normal: it takes more than"
            yield f"{f'v{i}: ' if len(watches) > 1 else ''}{few} {one.learn:,}."
        if one.outside:
            yield f"{one.outside:,} scores are not in [0, 1], where drift is looked for."


# --- worst turns ----------------------------------------------------------------------------------


def _worst(lows: Sequence[Low], explanations: Explanations) -> Html:
    """Return the table of ``lows``, with those columns that some of them has something for."""
    columns = {**_COLUMNS, **(_QUOTES if explanations == "on" else {})}
    there = {name: of for name, of in columns.items() if any(of(low) for low in lows)}
    rows = ([number(low[1].value), *(of(low) or "-" for of in there.values())] for low in lows)
    return table("The lowest scores", ("score", *there), rows)


def _short(text: str | None) -> Html | None:
    return quoted(text) if text else None


def _long(text: str | None) -> Html | None:
    return quoted(text, most=_TOLD) if text else None


_COLUMNS: Mapping[str, Callable[[Low], Child]] = {
    "turn": lambda low: _short(low[0].place),
    "time": lambda low: None if low[0].time is None else told(low[0].time, "time"),
    "judge": lambda low: _short(low[0].evaluation.judge),
    "label": lambda low: _short(low[1].label),
}
_QUOTES: Mapping[str, Callable[[Low], Child]] = {
    "question": lambda low: _long(low[0].sample.question),
    "explanation": lambda low: _long(low[1].explanation),
}
