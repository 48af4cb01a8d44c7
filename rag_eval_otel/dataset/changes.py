"""Show how the scores of two files differ, and which turns got better or worse.

The files have the scores of two runs over the same questions: *A* is the earlier run and *B* the
later run. A difference is B minus A, so a negative number says that B is worse.
`rag_eval_otel.dataset.page` has the HTML page about the differences.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from textwrap import shorten
from typing import Any, Literal, TypeAlias

from rag_eval_otel.dataset.comparison import (
    Entry,
    Pairs,
    ScoredRun,
    Versions,
    common_metrics,
    pair_scores,
    read_run,
    signed,
)
from rag_eval_otel.dataset.summary import Moments, Range, aligned, interval, number
from rag_eval_otel.notebook import html_lines, html_table
from rag_eval_otel.results.read import read_scores
from rag_eval_otel.results.rows import Row

Texts = Literal["on", "off"]
"""Whether the questions, answers and explanations in the files are shown."""

COLUMNS = ("metric", "A", "B", "B - A", "95 % interval", "pairs", "lower", "higher", "pass A", "pass B")  # fmt: skip  # noqa: E501
"""The columns of the table of metrics, as `MetricChange.cells` fills them."""

_LINE = 90  # characters of a text in a line of the terminal


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """The scores of one metric in one run, over all rows of its file."""

    values: Sequence[float]
    mean: float | None
    interval: Range | None
    passed: int
    labelled: int

    @property
    def passes(self) -> str:
        """The number of scores with the label pass among those with a label, as text."""
        return f"{self.passed}/{self.labelled}" if self.labelled else "-"


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """A turn whose score differs: its rows in both files, its scores, and texts of the files.

    A text is empty if its file does not have it, or if texts are not shown. ``explanation`` is the
    explanation of the judge in B.
    """

    row_a: int
    row_b: int
    a: float
    b: float
    question: str = ""
    answer_a: str = ""
    answer_b: str = ""
    explanation: str = ""

    @property
    def place(self) -> str:
        """The row of the turn, or both rows if they differ."""
        where = "" if self.row_a == self.row_b else f" (A: row {self.row_a})"
        return f"row {self.row_b}{where}"

    def __str__(self) -> str:
        """Return the turn as a line of text."""
        text = f"  {shorten(self.question, _LINE, placeholder='...')}" if self.question else ""
        return f"{self.place}  {self.a:.3f} -> {self.b:.3f}  {signed(self.b - self.a)}{text}"


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricChange:
    """How one metric differs between the runs, with the turns that fell and rose the most."""

    pairs: Pairs
    a: Side
    b: Side
    worse: Sequence[Turn]
    better: Sequence[Turn]

    def cells(self) -> tuple[str, ...]:
        """Return the line of the metric in the table with `COLUMNS`."""
        found = self.pairs.difference()
        return (
            self.pairs.name,
            number(self.a.mean),
            number(self.b.mean),
            signed(found.mean),
            interval(found.interval),
            *map(str, (found.pairs, found.lower, found.higher)),
            self.a.passes,
            self.b.passes,
        )

    def turns(self) -> Iterator[tuple[str, Sequence[Turn]]]:
        """Yield the turns that got worse and those that got better, with a title; none if empty."""
        for word, turns in (("worse", self.worse), ("better", self.better)):
            if turns:
                yield f"turns that got {word}", turns

    def remarks(self) -> Iterator[str]:
        """Yield sentences on rows that are not in the difference, and on versions."""
        pairs = self.pairs
        if pairs.only_b or pairs.only_a:
            yield f"rows only in A: {pairs.only_a}, only in B: {pairs.only_b}"
        if pairs.lost or pairs.gained:
            yield f"rows with a score only in A: {pairs.lost}, only in B: {pairs.gained}"
        changes = pairs.changes()
        versions = [{a.version for _, _, a in changes}, {b.version for _, b, _ in changes}]
        if versions[0] != versions[1]:
            yield "A and B were measured in different ways: " + " and ".join(
                ", ".join(sorted(one or "no version" for one in side)) for side in versions
            )


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class FileComparison:
    """The comparison of two score files: what `compare_files` returns.

    ``name_a`` and ``name_b`` are the names of the files, ``rows_a`` and ``rows_b`` their numbers of
    rows. ``only_a`` and ``only_b`` name the metrics that only one file has.
    """

    name_a: str
    name_b: str
    rows_a: int
    rows_b: int
    metrics: tuple[MetricChange, ...]
    only_a: tuple[str, ...] = ()
    only_b: tuple[str, ...] = ()

    def __repr__(self) -> str:
        """Return the differences as a table, with the turns that changed the most below."""
        lines = [
            f"A: {self.name_a}, {self.rows_a} rows",
            f"B: {self.name_b}, {self.rows_b} rows",
            aligned([COLUMNS, *(metric.cells() for metric in self.metrics)]),
            *self._remarks(),
        ]
        for metric in self.metrics:
            for title, turns in metric.turns():
                lines += ["", f"{metric.pairs.name}, {title}:"]
                lines += [f"  {turn}" for turn in turns]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        """Return the differences and the turns as tables for notebooks."""
        head = f"A: {self.name_a}, {self.rows_a} rows; B: {self.name_b}, {self.rows_b} rows"
        metrics = html_table(COLUMNS, (each.cells() for each in self.metrics), caption=head)
        turns = (
            html_table(*turn_table(turns), caption=f"{metric.pairs.name}, {title}")
            for metric in self.metrics
            for title, turns in metric.turns()
        )
        return metrics + html_lines(self._remarks()) + "".join(turns)

    def _remarks(self) -> list[str]:
        return [
            *(f"  {m.pairs.name}: {text}" for m in self.metrics for text in m.remarks()),
            *(f"  {name}: only in A" for name in self.only_a),
            *(f"  {name}: only in B" for name in self.only_b),
        ]

    def to_dict(self) -> dict[str, Any]:
        """Return the fields for JSON, without the single scores."""
        return {
            "a": {"file": self.name_a, "rows": self.rows_a},
            "b": {"file": self.name_b, "rows": self.rows_b},
            "metrics": {metric.pairs.name: _metric_dict(metric) for metric in self.metrics},
            "only_a": list(self.only_a),
            "only_b": list(self.only_b),
        }


def turn_table(turns: Sequence[Turn]) -> tuple[list[str], list[list[str]]]:
    """Return the columns and the rows of a table of ``turns``, without columns that are empty."""
    cells = [
        {
            "row": turn.place,
            "A": number(turn.a),
            "B": number(turn.b),
            "B - A": signed(turn.b - turn.a),
            "question": turn.question,
            "answer in A": turn.answer_a,
            "answer in B": turn.answer_b,
            "explanation in B": turn.explanation,
        }
        for turn in turns
    ]
    columns = [name for name in cells[0] if any(each[name] for each in cells)]
    return columns, [[each[name] for name in columns] for each in cells]


def _metric_dict(metric: MetricChange) -> dict[str, Any]:
    sides = {"a": metric.a, "b": metric.b}
    return {
        "difference": asdict(metric.pairs.difference()),
        **{
            name: {key: value for key, value in asdict(side).items() if key != "values"}
            for name, side in sides.items()
        },
        "remarks": list(metric.remarks()),
        "worse": [_turn_dict(turn) for turn in metric.worse],
        "better": [_turn_dict(turn) for turn in metric.better],
    }


def _turn_dict(turn: Turn) -> dict[str, Any]:
    return {name: value for name, value in asdict(turn).items() if value != ""}


# --- reading --------------------------------------------------------------------------------------


def compare_files(
    a: str | Path,
    b: str | Path,
    *,
    metric: str | None = None,
    versions: Versions = "same",
    turns: int = 5,
    texts: Texts = "on",
) -> FileComparison:
    """Compare the score files ``a`` and ``b``, which have scores of the same questions.

    Rows are paired as `pair_scores` says. With ``metric``, only this metric is compared. ``turns``
    is the highest number of turns that are listed as worse, and as better, for each metric. Raises
    `ConfigError` for files that cannot be read or paired, and, unless ``versions`` is "any", for a
    metric that was measured in different versions.
    """
    in_a, in_b = (read_run(Path(file), metric=metric) for file in (a, b))
    names = common_metrics(in_b, in_a)
    paired = [pair_scores(in_b, in_a, metric=name) for name in names]
    for pairs in paired:
        pairs.require_one_version("pass versions='any' (--versions any)", versions=versions)
    most = [_most_changed(pairs, turns) for pairs in paired]
    texts_a, texts_b = (
        _Texts.of(file, {entries[side].index for lists in most for one in lists for entries in one})
        if texts == "on"
        else _Texts({})
        for file, side in ((Path(a), 1), (Path(b), 0))
    )
    return FileComparison(
        name_a=str(a),
        name_b=str(b),
        rows_a=in_a.rows,
        rows_b=in_b.rows,
        metrics=tuple(
            MetricChange(
                pairs=pairs,
                a=_side(in_a, pairs.name),
                b=_side(in_b, pairs.name),
                worse=[_turn(pair, pairs.name, texts_a, texts_b) for pair in worse],
                better=[_turn(pair, pairs.name, texts_a, texts_b) for pair in better],
            )
            for pairs, (worse, better) in zip(paired, most, strict=True)
        ),
        only_a=tuple(name for name in in_a.metrics if name not in names),
        only_b=tuple(name for name in in_b.metrics if name not in names),
    )


Pair: TypeAlias = "tuple[Entry, Entry]"


def _most_changed(pairs: Pairs, count: int) -> tuple[list[Pair], list[Pair]]:
    """Return the pairs that fell the most and the pairs that rose the most, the largest first."""
    changes = [change for change in pairs.changes() if change[0] != 0]
    worse = heapq.nsmallest(count, (one for one in changes if one[0] < 0), key=_by_size)
    better = heapq.nsmallest(count, (one for one in changes if one[0] > 0), key=_by_size)
    return [(b, a) for _, b, a in worse], [(b, a) for _, b, a in better]


def _by_size(change: tuple[float, Entry, Entry]) -> tuple[float, int]:
    return -abs(change[0]), change[1].index


def _side(run: ScoredRun, name: str) -> Side:
    entries, moments = run.metrics[name], Moments()
    values = [entry.value for entry in entries if entry.value is not None]
    for value in values:
        moments.add(value)
    return Side(
        values=values,
        mean=moments.mean,
        interval=moments.interval_on(moments.scale),
        passed=sum(entry.label == "pass" for entry in entries),
        labelled=sum(entry.label is not None for entry in entries),
    )


@dataclass(frozen=True, slots=True)
class _Texts:
    """The rows of a file by their number, for their texts."""

    rows: dict[int, list[Row]]

    @classmethod
    def of(cls, path: Path, wanted: set[int]) -> _Texts:
        rows: dict[int, list[Row]] = {}
        for record in read_scores(path) if wanted else ():
            if isinstance(record, Row) and record.index in wanted:
                rows.setdefault(record.index, []).append(record)
        return cls(rows)

    def question(self, index: int) -> str:
        return next((q for row in self.rows.get(index, ()) if (q := row.sample.question)), "")

    def answer(self, index: int) -> str:
        return next((a for row in self.rows.get(index, ()) if (a := row.sample.answer)), "")

    def explanation(self, index: int, metric: str) -> str:
        scores = (score for row in self.rows.get(index, ()) for score in row.scores)
        return next((s.explanation or "" for s in scores if s.name == metric), "")


def _turn(pair: Pair, metric: str, texts_a: _Texts, texts_b: _Texts) -> Turn:
    b, a = pair
    return Turn(
        row_a=a.index,
        row_b=b.index,
        a=a.value or 0.0,
        b=b.value or 0.0,
        question=texts_b.question(b.index) or texts_a.question(a.index),
        answer_a=texts_a.answer(a.index),
        answer_b=texts_b.answer(b.index),
        explanation=texts_b.explanation(b.index, metric),
    )
