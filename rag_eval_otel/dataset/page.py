"""Write HTML and SVG from templates: the pages about score files, and the plot of drift alarms."""

from __future__ import annotations

import hashlib
import re
import statistics
from base64 import b64encode
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, Literal
from urllib.parse import quote

from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup

from rag_eval_otel.dataset import charts
from rag_eval_otel.dataset.changes import COLUMNS, FileComparison, MetricChange, turn_table
from rag_eval_otel.dataset.charts import Chart, place_name
from rag_eval_otel.dataset.figures import (
    Bin,
    DriftMark,
    Line,
    Unit,
    VersionDrift,
    bins,
    find_drift,
    lines,
    parts,
    range_of,
    scale_of,
    unit_of,
    window_of,
)
from rag_eval_otel.dataset.series import FileScores, Low, Series
from rag_eval_otel.dataset.summary import MetricSummary, Range, interval, number
from rag_eval_otel.drift.records import Alarm
from rag_eval_otel.errors import ConfigError
from rag_eval_otel.results.rows import Row
from rag_eval_otel.semconv import (
    EMBEDDING_CALLS,
    EMBEDDING_TOKENS,
    GEN_AI_TOKEN_TYPE,
    JUDGE_CALLS,
    JUDGE_COST,
    JUDGE_TOKENS,
    VERSION,
)

MAX_SECTIONS = 60
"""The highest number of metrics with their own section. The tables at the top show all metrics."""

_NAME = 120  # characters of a name
_LONG_TEXT = 2000  # characters of a question, an answer, a context or an explanation
_CONTEXTS = 50  # contexts of a turn
_PLOT_ROW = 270  # height of one drawing in a drift plot, in SVG units
_UNPRINTABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")
"""Control characters, surrogates and noncharacters, which HTML or UTF-8 does not allow."""

_COUNTERS: tuple[tuple[str, str, Mapping[str, str]], ...] = (
    ("judge requests", JUDGE_CALLS, {}),
    ("input tokens of the judge", JUDGE_TOKENS, {GEN_AI_TOKEN_TYPE: "input"}),
    ("output tokens of the judge", JUDGE_TOKENS, {GEN_AI_TOKEN_TYPE: "output"}),
    ("embedding requests", EMBEDDING_CALLS, {}),
    ("embedded tokens", EMBEDDING_TOKENS, {}),
    ("money for tokens, in the currency of the prices", JUDGE_COST, {}),
)


def _template(name: str) -> str:
    return (files("rag_eval_otel.dataset") / "templates" / name).read_text(encoding="utf-8")


def _hash(content: str) -> str:
    """Return the hash by which the content security policy of a page knows ``content``."""
    return b64encode(hashlib.sha256(content.encode()).digest()).decode()


@cache
def _environment() -> Environment:
    """Return the Jinja environment of all templates. Texts are escaped as HTML."""
    environment = Environment(
        loader=FunctionLoader(_template),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "commas": "{:,}".format,
        "interval": interval,
        "number": number,
        "parts": parts,
        "place_name": place_name,
        "shares": charts.shares,
    }
    style, script = _template("style.css"), _template("tables.js")
    environment.globals |= {
        "style": Markup(style),  # noqa: S704  # our own file
        "style_hash": _hash(style),
        "script": Markup(script),  # noqa: S704  # our own file
        "script_hash": _hash(script),
        "release": VERSION,
        "width": charts.WIDTH,
        "height": charts.HEIGHT,
        "left": charts.LEFT,
        "right": charts.RIGHT,
        "top": charts.TOP,
        "bottom": charts.BOTTOM,
        "shares_width": charts.SHARES_WIDTH,
    }
    return environment


def render(template: str, **values: Any) -> str:
    """Fill ``template`` with ``values`` and return the page. Texts in ``values`` are escaped."""
    page = _environment().get_template(template).render(values)
    return _UNPRINTABLE.sub("\ufffd", page)


# --- the page on a score file ---------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """Say what the page shows of the turns with the lowest scores.

    ``texts``: question, contexts, answer and reference. ``explanations``: questions, and the
    judge's explanations. Both quote user data. ``trace_url`` is the address of a trace in a
    backend, in which ``{trace_id}`` and ``{span_id}`` are replaced by the ids of the turn.
    """

    texts: Literal["off", "on"] = "off"
    explanations: Literal["off", "on"] = "off"
    trace_url: str | None = None

    def __post_init__(self) -> None:
        """Raise `ConfigError` if ``trace_url`` is not an address with a place for the trace id."""
        url = self.trace_url
        if url is None:
            return
        rest = url.replace("{trace_id}", "").replace("{span_id}", "")
        is_web = url.startswith(("http://", "https://"))
        if not is_web or "{trace_id}" not in url or set(rest) & set("{}"):
            msg = (
                "the address of a trace must begin with http:// or https:// and have a place for"
                " the id, as in http://localhost:16686/trace/{trace_id}; {span_id} is possible,"
                f" too. Not {url!r}"
            )
            raise ConfigError(msg)

    def url_of(self, row: Row) -> str | None:
        """Return the address of the trace of ``row``; None if it is not known."""
        if self.trace_url is None or not row.trace:
            return None
        ids = {"{trace_id}": row.trace, "{span_id}": row.span}
        return re.sub(
            r"\{(?:trace|span)_id\}", lambda m: quote(ids[m.group()], safe=""), self.trace_url
        )


def scores_page(scores: FileScores, *, name: str, shown: Shown = Shown()) -> str:  # frozen
    """Return the HTML page about ``scores``, which were read from the file ``name``.

    Texts of users are on the page only as ``shown`` says.
    """
    found = [
        (text, counter, scores.counters.total(counter, attributes))
        for text, counter, attributes in _COUNTERS
    ]
    return render(
        "scores.html",
        title=f"Scores of {name}",
        name=name,
        scores=scores,
        metrics=[
            _section(series, anchor=f"m{i}", shown=shown)
            for i, series in enumerate(scores.series.values())
        ],
        counters=[
            (text, f"{total:,.{4 if counter == JUDGE_COST else 0}f}")
            for text, counter, total in found
            if total is not None
        ],
        max_sections=MAX_SECTIONS,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _LowestScores:
    """The table of the lowest scores of a metric.

    Each row has a score and the cells of ``columns``. A cell may be empty.
    """

    columns: list[str]
    rows: list[tuple[float | None, list[_Cell]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Cell:
    """A cell: ``text``, of which ``most`` characters are shown, or ``items``, a list of texts.

    ``url`` is the address behind the text. ``value`` is the number by which cells are sorted.
    """

    text: str | None = None
    most: int = 200
    items: Sequence[str] = ()
    url: str | None = None
    value: float | None = None

    def __bool__(self) -> bool:
        return bool(self.text or self.items)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Section:
    """One section of the page: the scores of one metric, and the drawings and tables about them."""

    anchor: str
    series: Series
    summary: MetricSummary
    unit: Unit
    lines: Sequence[Line]
    drift: Sequence[VersionDrift]
    bins: Sequence[Bin]
    histogram: Chart
    time_line: Chart
    lowest: _LowestScores

    @property
    def marks(self) -> list[DriftMark]:
        return [mark for each in self.drift for mark in each.marks]

    @property
    def alarms(self) -> int:
        return sum(each.alarms for each in self.drift)

    @property
    def windows(self) -> list[str]:
        """The number of scores that each running mean covers, as text, without repetition.

        The versions of the metric may have different numbers.
        """
        return [f"{n:,}" for n in sorted({window_of(len(line.at)) for line in self.lines})]

    def judges(self, version: str) -> list[str]:
        return [judge for known, judge in self.series.judges if known == version and judge]


def _section(series: Series, *, anchor: str, shown: Shown) -> _Section:
    values, scale, unit = series.values, scale_of(series), unit_of(series)
    middle = statistics.median(values) if values else None
    summary = series.tally.summary(series.name, median=middle)
    versions = lines(series)
    drift = [find_drift(line) for line in versions]
    counted = bins(values, scale)
    most = max(counted, key=lambda each: each.count)
    alarms = sum(each.alarms for each in drift)
    return _Section(
        anchor=anchor,
        series=series,
        summary=summary,
        unit=unit,
        lines=versions,
        drift=drift,
        bins=counted,
        histogram=charts.histogram(
            counted,
            mean=summary.mean,
            title=f"Distribution of {series.name[:_NAME]}",
            description=(
                f"{summary.ok:,} scores; most of them, {most.count:,}, from {most.low:.3g} to"
                f" {most.high:.3g}; mean {number(summary.mean)}"
            ),
        ),
        time_line=charts.time_line(
            versions,
            [mark for each in drift for mark in each.marks],
            scale=scale,
            unit=unit,
            title=f"Time line of {series.name[:_NAME]}",
            description=f"drift alarms: {alarms}, versions: {len(versions)}; both in words below",
        ),
        lowest=_lowest(series.lowest(), shown),
    )


def _lowest(lows: Sequence[Low], shown: Shown) -> _LowestScores:
    """Return the table of the lowest scores. Columns without any content are left out."""
    cells = [_low_cells(low, shown) for low in lows]
    columns = [name for name in (cells[0] if cells else ()) if any(each[name] for each in cells)]
    return _LowestScores(
        columns=columns,
        rows=[
            (score.value, [each[name] for name in columns])
            for (_, score), each in zip(lows, cells, strict=True)
        ],
    )


def _low_cells(low: Low, shown: Shown) -> dict[str, _Cell]:
    row, score = low
    cells = {
        "turn": _Cell(text=row.place, url=shown.url_of(row)),
        "time": _Cell(
            text=None if row.time is None else place_name(row.time, "time"), value=row.time
        ),
        "judge": _Cell(text=row.evaluation.judge),
        "label": _Cell(text=score.label),
    }
    sample = row.sample
    if "on" in {shown.texts, shown.explanations}:
        cells["question"] = _Cell(text=sample.question, most=_LONG_TEXT)
    if shown.texts == "on":
        contexts = [passage.text[:_LONG_TEXT] for passage in sample.contexts]
        cells |= {
            "answer": _Cell(text=sample.answer, most=_LONG_TEXT),
            "contexts": _Cell(items=contexts[:_CONTEXTS]),
            "reference": _Cell(text=sample.reference, most=_LONG_TEXT),
        }
    if shown.explanations == "on":
        cells["explanation"] = _Cell(text=score.explanation, most=_LONG_TEXT)
    return cells


# --- the page on two score files ------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class _Change:
    """One section of the page: the change of one metric, its drawings, and the tables of turns."""

    anchor: str
    change: MetricChange
    charts: Sequence[tuple[str, Chart, Sequence[Bin]]]
    tables: Sequence[tuple[str, Sequence[str], Sequence[Sequence[str]]]]


def comparison_page(found: FileComparison) -> str:
    """Return the HTML page on ``found``: distributions, paired differences, and turns."""
    return render(
        "compare.html",
        title=f"Scores of {found.name_a} and {found.name_b}",
        found=found,
        columns=COLUMNS,
        metrics=[_change(metric, f"m{i}") for i, metric in enumerate(found.metrics)],
    )


def _change(change: MetricChange, anchor: str) -> _Change:
    name, scale = change.pairs.name, range_of([*change.a.values, *change.b.values])
    differences = [difference for difference in change.pairs.differences if difference]
    widest = max(map(abs, differences), default=1.0)
    drawn = [
        ("Scores in A", change.a.values, change.a.mean, scale),
        ("Scores in B", change.b.values, change.b.mean, scale),
        ("Differences B - A that are not 0", differences, None, (-widest, widest)),
    ]
    return _Change(
        anchor=anchor,
        change=change,
        charts=[
            (title, *_histogram(values, limits, mean=mean, title=f"{title}: {name}"))
            for title, values, mean, limits in drawn
        ],
        tables=[(title.capitalize(), *turn_table(turns)) for title, turns in change.turns()],
    )


def _histogram(
    values: Sequence[float], scale: Range, *, mean: float | None, title: str
) -> tuple[Chart, Sequence[Bin]]:
    counted = bins(values, scale)
    most = max(counted, key=lambda each: each.count)
    text = f"{len(values):,}; most of them, {most.count:,}, from {most.low:.3g} to {most.high:.3g}"
    return charts.histogram(counted, mean=mean, title=title, description=text), counted


# --- the drift plot -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class DriftPlot:
    """The scores of one metric of one service, and the drift alarms in these scores.

    ``baseline`` is the mean with which the drift detector compares scores. The detector learned the
    baseline from the first ``learned`` scores.
    """

    title: str
    values: Sequence[float]
    alarms: Sequence[Alarm]
    baseline: float | None
    learned: int


_LEGEND = (
    "Line: running mean of the last scores; band: its 95 % interval; dots: scores; dashed across:",
    "baseline. Green: learned from; red: from the estimated onset of a change to its alarm.",
)


def drift_page(plots: Sequence[DriftPlot], *, name: str, form: Literal["html", "svg"]) -> str:
    """Return ``plots`` as an HTML page or an SVG picture (``form``), one plot below the other.

    ``name`` is the name of the score file, for the title.
    """
    return render(
        f"drift.{form}",
        title=f"Drift in {name}",
        name=name,
        charts=list(map(_drift_chart, plots)),
        legend=_LEGEND,
        row=_PLOT_ROW,
    )


def _drift_chart(plot: DriftPlot) -> Chart:
    at = [float(i) for i in range(len(plot.values))]
    normal = "" if plot.baseline is None else f"baseline {plot.baseline:.3f}; "
    return charts.time_line(
        [Line(version="", at=at, values=plot.values, units=plot.values)],
        list(_marks(plot.alarms)),
        scale=(0.0, 1.0),
        unit="row",
        title=plot.title,
        description=f"{len(at):,} scores; {normal}drift alarms: {len(plot.alarms)}",
        baseline=plot.baseline,
        learned=plot.learned or None,
    )


def _marks(alarms: Sequence[Alarm]) -> Iterator[DriftMark]:
    for alarm in alarms:
        at = float(alarm.index)
        yield DriftMark(alarm=alarm, at=at, onset=float(alarm.onset), until=at)
