"""Report on the scores in a file, or on the change between two, as HTML pages without network."""

from __future__ import annotations

import argparse
import hashlib
import heapq
import math
import operator
import re
import sys
from base64 import b64encode
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import Any, Final, NamedTuple, TypeAlias
from urllib.parse import quote

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from rag_eval_otel import semconv
from rag_eval_otel.config import Config
from rag_eval_otel.drift.detector import Alarm, default_learn, valid_score
from rag_eval_otel.errors import ConfigError
from rag_eval_otel.tools import drawing, stats
from rag_eval_otel.tools.cli.options import print_result, require_another_file
from rag_eval_otel.tools.compare import COLUMNS, Comparison, MetricChange, Texts, compare_files
from rag_eval_otel.tools.drawing import Upright
from rag_eval_otel.tools.read import write_whole
from rag_eval_otel.tools.rows import CAUSES, VERDICT, Row, is_offline, unit_value
from rag_eval_otel.tools.scores import MOST_SCORES, read_scores
from rag_eval_otel.types import Score

MAX_VERSIONS: Final = 12
"""The highest number of versions of one metric that a drawing shows."""

_TEXT = 2000  # characters of a question, an answer, a context or an explanation
_CONTEXTS = 50  # contexts of a turn
_POINTS = 240  # points of a running mean: a screen shows no more

_CHANGES = 3  # drift alarms that the headline names
VERBS: Final = {"down": "fell", "up": "rose", "spread": "scattered more widely"}

_LARGEST = 1e12  # scores beyond this are not drawn to scale
_UNPRINTABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")
"""Control characters, surrogates and noncharacters, which HTML or UTF-8 does not allow."""


Low: TypeAlias = tuple[Row, Score]
"""A row of a score file and one of its scores, which is among the lowest of a metric."""


class Point(NamedTuple):
    """A score; ``unit`` is its value on [0, 1], ``weight`` the number of turns it stands for."""

    row: int
    time: float
    value: float
    unit: float
    version: str
    weight: float


@dataclass(slots=True, kw_only=True)
class Series:
    """The scores of one metric of one service, in the order of the file."""

    service: str
    name: str
    worst: int
    points: list[Point] = field(default_factory=list)
    tally: stats.Tally = field(default_factory=stats.Tally)
    failed: Counter[tuple[str, str]] = field(default_factory=Counter)  # by status and reason
    thresholds: Counter[float] = field(default_factory=Counter)
    _lows: defaultdict[bool, list[tuple[float, int, Low]]] = field(
        default_factory=lambda: defaultdict(list)
    )

    def add(self, row: Row, score: Score) -> None:
        self.tally.add(score)
        unit = unit_value(score)
        if score.value is None or unit is None:
            self.failed[score.status, score.reason or ""] += 1
            return
        if score.threshold is not None:
            self.thresholds[score.threshold] += 1
        time = math.nan if row.time is None else row.time
        sampling = row.evaluation.sampling
        weight = math.nan if sampling is None else 1 / sampling.probability
        self.points.append(Point(row.index, time, score.value, unit, score.version, weight))
        lows = self._lows[row.verdict["outcome"] == "declined" and not self.is_low]
        add = heapq.heappush if len(lows) < self.worst else heapq.heappushpop
        add(lows, (unit if self.is_low else -unit, len(self.points), (row, score)))

    @property
    def is_low(self) -> bool:
        """Whether low scores are good."""
        return stats.direction_named(self.name) == "low"

    @property
    def units(self) -> list[float]:
        return [point.unit for point in self.points]

    def worst_scores(self, *, declined: bool) -> list[Low]:
        """Return the worst scores of answers, or of refusals (``declined``), the latest first.

        If low scores are good, all count as scores of answers.
        """
        lows = sorted(self._lows[declined], key=lambda entry: entry[:2], reverse=True)
        return [low for *_, low in lows]

    def estimated(self) -> tuple[float, stats.Range | None] | None:
        """Return mean and interval of all turns if these were sampled at several rates."""
        points = [point for point in self.points if not is_offline(point.version)]
        weights = np.array([point.weight for point in points])
        if len({point.version for point in points}) != 1 or np.isnan(weights).any():
            return None
        if weights.max() == weights.min():
            return None
        return stats.weighted_mean(np.array([point.unit for point in points]), weights)


@dataclass(slots=True, kw_only=True)
class FileScores:
    """The scores in a file: one `Series` for each service and metric, and totals."""

    worst: int = 10
    turns: int = 0
    first: float | None = None
    last: float | None = None
    judges: dict[str, None] = field(default_factory=dict)
    series: dict[tuple[str, str], Series] = field(default_factory=dict)
    unscored: Counter[str] = field(default_factory=Counter)
    """The number of turns whose spans were exported without scores, by evaluation status."""
    verdicts: Counter[tuple[str, ...]] = field(default_factory=Counter)
    """The number of turns by outcome, label and cause, of those with an outcome."""
    labels: Counter[str] = field(default_factory=Counter)

    def add(self, row: Row) -> None:
        if not row.scores:
            self.unscored[row.stored["status"]] += 1
            return
        for score in row.scores:
            key = row.service, score.name
            if key not in self.series:
                self.series[key] = Series(service=key[0], name=key[1], worst=self.worst)
            self.series[key].add(row, score)
        if row.index < self.turns:  # turns are numbered in the order in which they are read
            return
        self.turns = row.index + 1
        label, outcome, cause = (row.verdict[name] or "" for name in VERDICT)
        self.verdicts.update([(outcome, label, cause)] if outcome else [])
        self.labels.update([label] if label else [])
        if row.evaluation.judge is not None:
            self.judges[row.evaluation.judge] = None
        if row.time is not None:
            self.first = row.time if self.first is None else min(self.first, row.time)
            self.last = row.time if self.last is None else max(self.last, row.time)

    @property
    def services(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(service for service, _ in self.series))

    def __str__(self) -> str:
        named = {" of ".join(filter(None, key[::-1])): s for key, s in self.series.items()}
        lines = [stats.table(series.tally.summary(name) for name, series in named.items())]
        for name, series in named.items():
            if estimate := series.estimated():
                mean, ends = stats.number(estimate[0]), stats.interval(estimate[1])
                lines.append(f"  {name}: mean of all turns {mean} {ends}")
        return "\n".join(lines)


def collect_scores(records: Iterable[Row], *, worst: int = 10) -> FileScores:
    """Collect ``records`` of a score file; keep the rows of a metric's ``worst`` worst scores."""
    scores = FileScores(worst=worst)
    for row in records:
        scores.add(row)
    return scores


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """The scores of one version of a metric, in the order of ``at``: row numbers or times."""

    version: str
    at: stats.Numbers
    values: stats.Numbers
    units: stats.Numbers

    @property
    def window(self) -> int:
        return max(20, len(self.at) // 40)

    def curve(self) -> drawing.Curve:
        """Return the running mean at about 240 evenly spaced scores."""
        count, scale = len(self.at), stats.scale_of(self.values, self.units)
        first = min(count, self.window // 2)
        step = math.ceil((count - first + 1) / _POINTS)
        windows = [
            (float(self.at[end - 1]), self.values[max(0, end - self.window) : end])
            for end in [*range(first, count, step), count]
        ]
        intervals = [(at, stats.score_interval(values, scale)) for at, values in windows]
        return drawing.Curve(
            points=[(at, stats.mean_of(values) or 0.0) for at, values in windows],
            band=[(at, ends) for at, ends in intervals if ends],
        )


def unit_of(series: Series) -> drawing.Unit:
    times = {point.time for point in series.points}
    return "time" if len(times) > 1 and not any(map(math.isnan, times)) else "row"


def lines_of(series: Series) -> list[Line]:
    unit = unit_of(series)
    versions: defaultdict[str, list[Point]] = defaultdict(list)
    for point in sorted(series.points, key=operator.attrgetter(unit)):
        versions[point.version].append(point)
    lines = [
        Line(
            version=version,
            at=np.array([getattr(point, unit) for point in points], np.float64),
            values=np.array([point.value for point in points]),
            units=np.array([point.unit for point in points]),
        )
        for version, points in sorted(versions.items(), key=lambda item: -len(item[1]))
    ]
    return sorted(lines[:MAX_VERSIONS], key=lambda line: float(line.at[0]))


class DriftMark(NamedTuple):
    """A drift alarm, and where it was raised (``at``) and began (``onset``): row or time."""

    alarm: Alarm
    at: float
    onset: float


class VersionDrift(NamedTuple):
    """The drift alarms of a version, and counts of its ``scores`` within and outside [0, 1]."""

    marks: Sequence[DriftMark]
    scores: int
    learn: int
    outside: int


def find_drift(line: Line) -> VersionDrift:
    """Return the drift alarms in ``line``. Its first half is the baseline, at most 2,000 scores."""
    used = [i for i, unit in enumerate(line.units.tolist()) if valid_score(unit) is not None]
    learn = default_learn(len(used))
    marks: list[DriftMark] = []
    for alarm in stats.alarms_in(line.units[used].tolist(), learn=learn):
        at, onset = float(line.at[used[alarm.index]]), float(line.at[used[alarm.onset]])
        if not marks or marks[-1].alarm.direction != alarm.direction:
            marks.append(DriftMark(alarm, at, onset))
    return VersionDrift(marks, len(used), learn, outside=len(line.units) - len(used))


def axis_of(values: Iterable[float]) -> stats.Range:
    """Return the ends of an axis for ``values``: 0 and 1, or else a little beyond the values."""
    scores = [max(-_LARGEST, min(_LARGEST, value)) for value in values]
    low, high = min(scores, default=0.0), max(scores, default=1.0)
    width = max(high - low, 1e-6 * max(1.0, abs(low)))
    return (0.0, 1.0) if low >= 0 and high <= 1 else (low - 0.05 * width, high + 0.05 * width)


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("rag_eval_otel.tools"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "commas": "{:,}".format,
        "interval": stats.interval,
        "number": stats.number,
        "percent": stats.percent,
        "place_name": drawing.place_name,
        "signed": stats.signed,
    }
    folder = files("rag_eval_otel.tools") / "templates"
    for name, file in {"style": "style.css", "script": "tables.js"}.items():
        content = (folder / file).read_bytes()
        # The content security policy of a page knows its style and script by their hashes.
        environment.globals |= {
            name: Markup(content.decode()),  # noqa: S704  # our own file
            f"{name}_hash": b64encode(hashlib.sha256(content).digest()).decode(),
        }
    environment.globals |= {
        "causes": CAUSES,
        "release": semconv.VERSION,
        "verbs": VERBS,
        "width": drawing.WIDTH,
        "height": drawing.HEIGHT,
    }
    return environment


def _render(template: str, **values: Any) -> str:
    page = _environment().get_template(template).render(values)
    return _UNPRINTABLE.sub("\ufffd", page)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """Whether the page shows the texts of the worst turns, which are user data, and links them.

    ``trace_url`` is the address of a trace, with ``{trace_id}`` and ``{span_id}``.
    """

    texts: Texts = "off"
    trace_url: str | None = None

    def __post_init__(self) -> None:
        url = self.trace_url
        form = r"https?://(\{(trace|span)_id\}|[^{}])*"
        if url is not None and not ("{trace_id}" in url and re.fullmatch(form, url)):
            example = "http://localhost:16686/trace/{trace_id}, perhaps with {span_id}"
            raise ConfigError(f"the address of a trace must be such as {example}, not {url!r}")

    def url_of(self, row: Row) -> str | None:
        if self.trace_url is None or not row.trace:
            return None
        trace, span = (quote(each, "", errors="replace") for each in (row.trace, row.span))
        return self.trace_url.replace("{trace_id}", trace).replace("{span_id}", span)


def scores_page(scores: FileScores, *, name: str, shown: Shown = Shown()) -> str:  # frozen
    series = enumerate(scores.series.values())
    sections = (_section(each, anchor=f"m{i}", shown=shown) for i, each in series)
    metrics = sorted(sections, key=_trouble)
    return _render(
        "scores.html",
        title=f"Scores of {name}",
        headline=_headline(scores, metrics),
        name=name,
        scores=scores,
        metrics=metrics,
    )


def _trouble(metric: Mapping[str, Any]) -> tuple[float, ...]:
    """Return a sort key that puts the worst metric first: drift, fails, errors, scores."""
    summary, series = metric["summary"], metric["series"]
    bad = "up" if series.is_low else "down"
    has_drift = any(mark.alarm.direction == bad for mark in metric["marks"][-1:])
    failing = 1 - summary.passed / summary.labelled if summary.labelled else 0
    mean = stats.mean_of(series.units) or 0.0
    return (-has_drift, -failing, -summary.error, -mean if series.is_low else mean)


def _headline(scores: FileScores, metrics: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return in words which metrics drifted, and the share of turns that pass; nothing else."""
    has_one = len(scores.services) == 1
    changes = [
        f"{series.name[:60]}{of} {VERBS[mark.alarm.direction]}"
        f" around {drawing.day_name(mark.onset, metric['unit'])}"
        for metric in metrics
        for series in [metric["series"]]
        for of in ["" if has_one else f" of {series.service[:60] or 'unknown service'}"]
        for mark in metric["marks"][-1:]
    ]
    parts = changes[:_CHANGES]
    if labelled := scores.labels.total():
        share = stats.percent(scores.labels["pass"], labelled)
        parts.append(f"{share} of {labelled:,} turns pass")
    if not changes and any(each.scores > each.learn for m in metrics for each in m["drift"]):
        parts.append("no drift was found")
    return parts or ["nothing says which of them are good"]


class _Cell(NamedTuple):
    """A table cell: ``items``, or a text with a link, or with places (``marks``) to mark in it."""

    text: str | None = None
    marks: Sequence[tuple[int, int]] = ()
    items: Sequence[str] = ()
    url: str | None = None

    def __bool__(self) -> bool:
        return bool(self.text or self.items)

    def pieces(self) -> Iterator[tuple[str, bool]]:
        """Yield the pieces of the text, each with whether it is unsupported."""
        text, at = (self.text or "")[:_TEXT], 0
        for start, end in self.marks:
            yield from ((text[at:start], False), (text[start:end], True))
            at = end
        yield text[at:] + "\u2026" * (len(self.text or "") > _TEXT), False


def _section(series: Series, *, anchor: str, shown: Shown) -> dict[str, Any]:
    values, units = series.tally.values, series.units
    summary, unit, name = series.tally.summary(series.name), unit_of(series), series.name[:120]
    lines = lines_of(series)
    drift = [find_drift(line) for line in lines]
    marks = [mark for each in drift for mark in each.marks]
    scale = (stats.scale_of(values, units) if units else None) or axis_of(values)
    uprights = [
        *(Upright(mark.onset, "onset") for mark in marks),
        *(Upright(mark.at, "alarm", f"drift: {mark.alarm.direction}") for mark in marks),
        *(Upright(float(line.at[0]), "version", f"v{n}") for n, line in enumerate(lines[1:], 2)),
    ]
    starts, ends = ([float(line.at[i]) for line in lines] or [0.0] for i in (0, -1))
    turns = []
    for title, declined in (("Worst turns", False), ("Refusals", True)):
        lows = series.worst_scores(declined=declined)
        columns, rows = _filled([_low_cells(low, shown) for low in lows])
        scored = [(score.value, row) for (_, score), row in zip(lows, rows, strict=True)]
        is_marked = shown.texts == "on" and any(row.unsupported for row, _ in lows)
        turns.append((title, columns, scored, is_marked))
    return {
        "anchor": anchor,
        "series": series,
        "summary": summary,
        "estimate": series.estimated(),
        "unit": unit,
        "lines": lines,
        "hidden": len({point.version for point in series.points}) - len(lines),
        "windows": [f"{n:,}" for n in sorted({line.window for line in lines})],
        "drift": drift,
        "marks": marks,
        "histogram": drawing.histogram(
            values,
            scale,
            mean=summary.mean,
            thresholds=[each for each, _ in series.thresholds.most_common(3)],
            title=f"Distribution of {name}",
        ),
        "time_line": drawing.time_line(
            [line.curve() for line in lines],
            ends=(min(starts), max(ends)),
            scale=scale,
            unit=unit,
            areas=[(mark.onset, mark.at) for mark in marks],
            uprights=uprights,
            title=f"Time line of {name}",
            description=f"drift alarms: {len(marks)}, versions: {len(lines)}; in words below",
        ),
        "turns": turns,
    }


def _low_cells(low: Low, shown: Shown) -> dict[str, _Cell]:
    row, score = low
    cells = {
        "turn": _Cell(row.place[:200], url=shown.url_of(row)),
        "time": _Cell(None if row.time is None else drawing.place_name(row.time, "time")),
        "label": _Cell(score.label),
        "cause": _Cell((row.verdict["cause"] or "")[:200]),
    }
    sample = row.sample
    if shown.texts == "on":
        contexts = [passage.text[:_TEXT] for passage in sample.contexts]
        cells |= {
            "question": _Cell(sample.question),
            "answer": _Cell(sample.answer, marks=row.unsupported),
            "contexts": _Cell(items=contexts[:_CONTEXTS]),
            "history": _Cell(items=[f"{role}: {said}" for role, said in sample.history]),
            "reference": _Cell(sample.reference),
            "explanation": _Cell(score.explanation),
        }
    return cells


def comparison_page(comparison: Comparison) -> str:
    metrics = sorted(comparison.metrics, key=MetricChange.gain)
    return _render(
        "compare.html",
        title=f"Scores of {comparison.name_a} and {comparison.name_b}",
        headline=_change_headline(metrics),
        found=comparison,
        columns=COLUMNS,
        metrics=[_change_section(metric, anchor=f"m{i}") for i, metric in enumerate(metrics)],
    )


def _change_headline(metrics: Sequence[MetricChange]) -> list[str]:
    """Return in words which means differ clearly: by intervals that exclude 0."""
    clear = [each for each in metrics if each.is_clear]
    changes = [(each.name[:120], each.mean or 0.0) for each in clear]
    parts = [f"{name} {'rose' if d > 0 else 'fell'} by {abs(d):.3f}" for name, d in changes]
    if len(clear) < len(metrics):
        parts.append("no other clear difference" if clear else "no clear difference")
    return parts


def _change_section(metric: MetricChange, *, anchor: str) -> tuple[Any, ...]:
    scale = axis_of([*metric.values[0], *metric.values[1]])
    drawings = [
        (title, drawing.histogram(values, scale, mean=side.mean, title=f"{title}: {metric.name}"))
        for title, values, side in (
            ("Scores in A", metric.values[0], metric.a),
            ("Scores in B", metric.values[1], metric.b),
        )
    ]
    tables = []
    for title, turns in metric.turns():
        cells = [
            {
                "row": turn.place,
                "A": stats.number(turn.a),
                "B": stats.number(turn.b),
                "B - A": stats.signed(turn.b - turn.a),
                "question": turn.question,
                "answer in A": turn.answer_a,
                "answer in B": turn.answer_b,
                "explanation in B": turn.explanation,
            }
            for turn in turns
        ]
        tables.append((title.capitalize(), *_filled(cells)))
    return anchor, metric, drawings, tables


def _filled(cells: Sequence[Mapping[str, Any]]) -> tuple[list[str], list[list[Any]]]:
    """Return column names and rows of the table ``cells``, except columns without any value."""
    names = [name for name in (cells[0] if cells else ()) if any(each[name] for each in cells)]
    return names, [[each[name] for name in names] for each in cells]


def run(options: argparse.Namespace) -> int:
    if (page := options.output) is not None:
        if page.suffix.lower() not in {".html", ".htm"}:
            raise ConfigError(f"--output {page} must end in .html")
        require_another_file(page, *filter(None, (options.file, options.other)), option="--output")
    if options.other is not None:
        return _compare(options)
    if options.versions is not None or options.json:
        raise ConfigError("--versions and --json need a second file: rag-eval-otel report A B")
    has_content = Config.from_env().export_content == "all"
    texts: Texts = options.texts or ("on" if has_content else "off")
    shown = Shown(texts=texts, trace_url=options.trace_url)
    records = read_scores(options.file, metric=options.metric, most=MOST_SCORES)
    scores = collect_scores(records, worst=options.worst)
    sys.stdout.write(f"{options.file}: {scores.turns} turns, {len(scores.series)} metrics\n")
    sys.stdout.write(f"{scores}\n")
    if options.output is not None:
        page = scores_page(scores, name=options.file.name, shown=shown)
        write_whole(options.output, page, option="--output")
    return 0


def _compare(options: argparse.Namespace) -> int:
    comparison = compare_files(
        options.file,
        options.other,
        metric=options.metric,
        versions=options.versions or "same",
        turns=options.worst,
        texts=options.texts or "on",
    )
    print_result(options, comparison.to_dict(), repr(comparison))
    if options.output is not None:
        write_whole(options.output, comparison_page(comparison), option="--output")
    return 0
