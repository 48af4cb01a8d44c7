"""Compare the scores of two runs over the same questions, row by row.

A *run* is one evaluation of a dataset, in memory or in a score file. The rows of two runs are
paired by their question and reference, because the answers and contexts differ. A difference is the
score of one run minus the score of the other run for the same question. Intervals of the mean
difference are by Student's t on these differences: they are much narrower than the interval of each
mean, because what makes a question hard is the same in both runs.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeAlias

from rag_eval_otel.dataset.summary import Moments, aligned, interval, mean_interval
from rag_eval_otel.errors import ConfigError
from rag_eval_otel.notebook import html_text
from rag_eval_otel.results.read import read_scores
from rag_eval_otel.results.rows import Row, question_id_of
from rag_eval_otel.types import Label, Score

Versions = Literal["same", "any"]
"""Whether only scores of the same version are compared, or scores of any versions."""

Range: TypeAlias = tuple[float, float]

_COLUMNS = ("metric", "difference", "95 % interval", "pairs", "unpaired", "higher", "lower")
_MIN = 2  # the fewest pairs with an interval
_SHOWN = 3  # versions in a message


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """The difference of one metric between two results for the same dataset.

    A difference is the score of the first result minus the score of the second result. ``pairs`` is
    the number of rows with a score in both results, and ``unpaired`` the number of other rows.
    ``mean`` is the mean difference over the pairs, None without pairs. ``interval`` is the 95 %
    confidence interval of ``mean`` by Student's t, None for fewer than two pairs. ``higher`` is the
    number of pairs with a higher score in the first result, ``lower`` the number with a lower
    score.
    """

    name: str
    mean: float | None
    interval: tuple[float, float] | None
    pairs: int
    unpaired: int
    higher: int
    lower: int


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Comparison:
    """The differences between two results, for each metric that both results have.

    ``only_here`` names the metrics that only the first result has, ``only_there`` the metrics that
    only the second result has.
    """

    metrics: tuple[Difference, ...]
    only_here: tuple[str, ...] = ()
    only_there: tuple[str, ...] = ()

    def __getitem__(self, name: str) -> Difference:
        """Return the difference in the metric ``name``; a `KeyError` lists the known names."""
        for metric in self.metrics:
            if metric.name == name:
                return metric
        msg = f"no metric {name!r} in both; there are {[m.name for m in self.metrics]}"
        raise KeyError(msg)

    def __repr__(self) -> str:
        """Return the differences as a table."""
        remarks = [
            f"  {name}: only in {where}"
            for where, names in (("this result", self.only_here), ("the other", self.only_there))
            for name in names
        ]
        return "\n".join([aligned([_COLUMNS, *map(_cells, self.metrics)]), *remarks])

    def _repr_html_(self) -> str:
        """Return the differences as a table for notebooks."""
        return html_text(repr(self))

    def to_dict(self) -> dict[str, Any]:
        """Return the fields for JSON."""
        return asdict(self)


def _cells(metric: Difference) -> tuple[str, ...]:
    counts = (metric.pairs, metric.unpaired, metric.higher, metric.lower)
    return (metric.name, signed(metric.mean), interval(metric.interval), *map(str, counts))


def signed(value: float | None) -> str:
    """Return the difference ``value`` as text with its sign, or a dash for None."""
    return "-" if value is None else f"{value:+.3f}"


# --- the scores of a run --------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Entry:
    """One score of a run: the number of its row from 0, what identifies its question, its value."""

    index: int
    question: str
    value: float | None
    label: Label | None
    version: str


@dataclass(slots=True, kw_only=True)
class ScoredRun:
    """The scores of one run by metric, without texts: about 300 bytes a score.

    ``name`` names the run in messages, such as the path of its file. ``rows`` is the number of
    rows. ``live`` is the number of scores of live traces, which say no question.
    """

    name: str
    rows: int = 0
    live: int = 0
    metrics: dict[str, list[Entry]] = field(default_factory=dict)

    def add(self, row: Row, *, question: str | None = None) -> None:
        """Add the scores of ``row``. ``question`` identifies its question if the row does not."""
        self.rows = max(self.rows, row.index + 1)
        key = row.question_id if question is None else question
        self.live += bool(row.trace and not key)
        for score in row.scores:
            self.metrics.setdefault(score.name, []).append(_entry(row, score, key))

    def add_sample(self, row: Row) -> None:
        """Add the scores of ``row``, whose sample has the texts of the question and reference."""
        self.add(row, question=question_id_of(row.sample))

    def is_named(self, metric: str) -> bool:
        """Return whether each score of ``metric`` has what identifies its question."""
        return all(entry.question for entry in self.metrics[metric])


def _entry(row: Row, score: Score, key: str) -> Entry:
    return Entry(row.index, key, score.value, score.label, score.version)


def read_run(path: Path, *, metric: str | None = None) -> ScoredRun:
    """Read the scores in the file ``path``; only those of ``metric`` if it is given.

    Raises `ConfigError` for a file that cannot be read or has no scores.
    """
    run = ScoredRun(name=str(path))
    for record in read_scores(path, metric=metric):
        if isinstance(record, Row):
            run.add(record)
    return run


# --- pairs ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Pairs:
    """The scores of one metric in two runs, paired by question.

    ``pairs`` has the scores of each question that is in both runs, in the order of the first run.
    ``only_here`` is the number of rows that are in the first run alone, ``only_there`` the number
    of rows that are in the second run alone.
    """

    name: str
    pairs: Sequence[tuple[Entry, Entry]]
    only_here: int = 0
    only_there: int = 0

    @property
    def differences(self) -> list[float]:
        """The score of the first run minus the score of the second, where both have a number."""
        return [difference for difference, _, _ in self.changes()]

    def changes(self) -> list[tuple[float, Entry, Entry]]:
        """Return the differences with the scores of both runs, where both have a number."""
        return [
            (here.value - there.value, here, there)
            for here, there in self.pairs
            if here.value is not None and there.value is not None
        ]

    @property
    def lost(self) -> int:
        """The number of questions with a number in the second run and none in the first."""
        return sum(a.value is None and b.value is not None for a, b in self.pairs)

    @property
    def gained(self) -> int:
        """The number of questions with a number in the first run and none in the second."""
        return sum(a.value is not None and b.value is None for a, b in self.pairs)

    def moments(self) -> Moments:
        """Return the mean and the variance of the differences."""
        moments = Moments()
        for difference in self.differences:
            moments.add(difference)
        return moments

    def interval(self, confidence: float = 0.95) -> Range | None:
        """Return the confidence interval of the mean difference; None for fewer than two pairs.

        If all scores are in [0, 1], the ends of the interval are in [-1, 1].
        """
        moments = self.moments()
        deviation = math.sqrt(moments.squares / max(1, moments.count - 1))
        found = mean_interval(moments.centre, deviation, n=moments.count, confidence=confidence)
        if found is None or not self._has_unit_scale():
            return found
        return max(-1.0, found[0]), min(1.0, found[1])

    def _has_unit_scale(self) -> bool:
        values = (one.value for pair in self.pairs for one in pair)
        return all(value is None or 0 <= value <= 1 for value in values)

    def difference(self) -> Difference:
        """Return the summary of the differences."""
        moments, differences = self.moments(), self.differences
        return Difference(
            name=self.name,
            mean=moments.mean,
            interval=self.interval(),
            pairs=moments.count,
            unpaired=len(self.pairs) - moments.count + self.only_here + self.only_there,
            higher=sum(d > 0 for d in differences),
            lower=sum(d < 0 for d in differences),
        )

    def require_one_version(self, way_out: str) -> None:
        """Raise `ConfigError` if the scores of a pair have different versions.

        The version of a score changes with metric, prompts, fusion and judge. The message of the
        error ends in ``way_out``.
        """
        mixed = Counter(
            (here.version, there.version)
            for _, here, there in self.changes()
            if here.version != there.version
        )
        if mixed:
            shown = "; ".join(
                f"{here or 'no version'} and {there or 'no version'} ({count} rows)"
                for (here, there), count in mixed.most_common(_SHOWN)
            )
            msg = (
                f"{self.name} was measured in different ways: {shown}."
                f" Evaluate both with the same metric, fusion and judge, or {way_out}"
            )
            raise ConfigError(msg)


def pair_scores(here: ScoredRun, there: ScoredRun, *, metric: str) -> Pairs:
    """Pair the scores of ``metric`` in two runs that both have it.

    Rows are paired by question and reference; if a question is repeated, in their order. If a file
    does not say the question of each row, rows are paired by their number. Raises `ConfigError` if
    the runs have no row in common, if rows without a question differ in number, and for live
    traces.
    """
    ours, theirs = here.metrics[metric], there.metrics[metric]
    identity = _question
    if not (here.is_named(metric) and there.is_named(metric)):
        _require_same_rows(here, there)
        identity = _row_number
    first, second = _keyed(ours, identity), _keyed(theirs, identity)
    pairs = [(entry, second[key]) for key, entry in first.items() if key in second]
    if not pairs:
        msg = (
            f"no row of {there.name} is in {here.name}: they have other questions or references."
            " Evaluate the same questions to compare them"
        )
        raise ConfigError(msg)
    return Pairs(
        name=metric,
        pairs=pairs,
        only_here=len(first) - len(pairs),
        only_there=len(second) - len(pairs),
    )


def _question(entry: Entry) -> str:
    return entry.question


def _row_number(entry: Entry) -> str:
    return str(entry.index)


def _keyed(
    entries: Iterable[Entry], identity: Callable[[Entry], str]
) -> dict[tuple[str, int], Entry]:
    """Return ``entries`` by their identity and the number of earlier entries with the same one."""
    seen: Counter[str] = Counter()
    found: dict[tuple[str, int], Entry] = {}
    for entry in entries:
        key = identity(entry)
        found[key, seen[key]] = entry
        seen[key] += 1
    return found


def _require_same_rows(here: ScoredRun, there: ScoredRun) -> None:
    """Raise `ConfigError` if rows cannot be paired by their number."""
    for run in (here, there):
        if run.live:
            msg = (
                f"{run.name} has scores of live traces, whose rows cannot be paired: evaluate the"
                " same questions with `rag-eval-otel evaluate --output`"
            )
            raise ConfigError(msg)
    if here.rows != there.rows:
        msg = (
            f"{here.name} has {here.rows} rows and {there.name} has {there.rows}, and the rows do"
            " not say their questions (column question_id, question or id). Evaluate both again"
            " with `rag-eval-otel evaluate --output`"
        )
        raise ConfigError(msg)


def common_metrics(here: ScoredRun, there: ScoredRun) -> tuple[str, ...]:
    """Return the names of the metrics that both runs have; raise `ConfigError` if there is none."""
    common = tuple(name for name in here.metrics if name in there.metrics)
    if not common:
        msg = (
            f"no metric in common: {', '.join(here.metrics)} in {here.name},"
            f" {', '.join(there.metrics)} in {there.name}"
        )
        raise ConfigError(msg)
    return common


# --- two results in memory ------------------------------------------------------------------------


def compare_rows(here: Sequence[Row], there: Sequence[Row], *, versions: Versions) -> Comparison:
    """Compare the scores of two results for the same questions, metric by metric.

    A difference is the score in ``here`` minus the score in ``there``. ``versions`` is "same" or
    "any". Raises `ConfigError` if the questions or references of the rows differ, if there is no
    common metric, or, with "same", if a metric was measured in different versions.
    """
    if versions not in ("same", "any"):
        msg = f"versions must be 'same' or 'any', not {versions!r}"
        raise ConfigError(msg)
    _require_same_questions(here, there)
    ours, theirs = _names(here), _names(there)
    common = [name for name in ours if name in theirs]
    if here and not common:
        msg = f"no metric in common: {', '.join(ours)} here, {', '.join(theirs)} there"
        raise ConfigError(msg)
    return Comparison(
        metrics=tuple(_difference(name, here, there, versions) for name in common),
        only_here=tuple(name for name in ours if name not in common),
        only_there=tuple(name for name in theirs if name not in common),
    )


def _names(rows: Sequence[Row]) -> tuple[str, ...]:
    return tuple(score.name for score in rows[0].scores) if rows else ()


def _require_same_questions(here: Sequence[Row], there: Sequence[Row]) -> None:
    if len(here) != len(there):
        msg = f"{len(here)} rows here, {len(there)} there; evaluate the same rows to compare them"
        raise ConfigError(msg)
    for ours, theirs in zip(here, there, strict=True):
        for part in ("question", "reference"):
            if getattr(ours.sample, part) != getattr(theirs.sample, part):
                msg = f"row {ours.index} has another {part} here than there; rows must match"
                raise ConfigError(msg)


def _difference(
    name: str, here: Sequence[Row], there: Sequence[Row], versions: Versions
) -> Difference:
    pairs = Pairs(
        name=name,
        pairs=[
            (_entry(a, a[name], ""), _entry(b, b[name], ""))
            for a, b in zip(here, there, strict=True)
        ],
    )
    if versions == "same":
        pairs.require_one_version("pass versions='any'")
    return pairs.difference()
