"""Compare the scores of two runs over the same questions, row by row.

A *run* is one evaluation of a dataset, in memory or in a score file. *A* is the earlier run, or the
baseline, and *B* the later run. The rows of two runs are paired by their question and reference,
because the answers and contexts differ. A difference is the score in B minus the score in A for the
same question. Intervals of the mean difference are by Student's t on these differences: they are
much narrower than the interval of each mean, because a hard question is hard in both runs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from rag_eval_otel.dataset.summary import Moments, Range, aligned, interval, mean_interval
from rag_eval_otel.errors import ConfigError
from rag_eval_otel.notebook import html_lines, html_table
from rag_eval_otel.results.read import read_scores
from rag_eval_otel.results.rows import Row
from rag_eval_otel.types import Label, Score

Versions = Literal["same", "any"]
"""Whether only scores of the same version are compared, or scores of any versions."""

_COLUMNS = ("metric", "difference", "95 % interval", "pairs", "unpaired", "higher", "lower")
_SHOWN = 3  # versions in a message


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """The difference B minus A of one metric between two runs on the same dataset.

    ``pairs`` is the number of rows with a score in both runs, and ``unpaired`` the number of other
    rows. ``mean`` is the mean difference over the pairs, None without pairs. ``interval`` is the
    95 % confidence interval of ``mean`` by Student's t, None for fewer than two pairs. ``higher``
    is the number of pairs with a higher score in B, ``lower`` the number with a lower score.
    """

    name: str
    mean: float | None
    interval: Range | None
    pairs: int
    unpaired: int
    higher: int
    lower: int


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Comparison:
    """The differences between two results, for each metric that both results have.

    For ``b.compare(a)``, a difference is the score in ``b`` minus the score in ``a``. ``only_a``
    and ``only_b`` name the metrics that only one result has.
    """

    metrics: tuple[Difference, ...]
    only_a: tuple[str, ...] = ()
    only_b: tuple[str, ...] = ()

    def __getitem__(self, name: str) -> Difference:
        """Return the difference in the metric ``name``; a `KeyError` lists the known names."""
        for metric in self.metrics:
            if metric.name == name:
                return metric
        msg = f"no metric {name!r} in both; there are {[m.name for m in self.metrics]}"
        raise KeyError(msg)

    def __repr__(self) -> str:
        """Return the differences as a table."""
        return "\n".join([aligned([_COLUMNS, *map(_cells, self.metrics)]), *self._remarks()])

    def _repr_html_(self) -> str:
        """Return the differences as a table for notebooks, with remarks below."""
        return html_table(_COLUMNS, map(_cells, self.metrics)) + html_lines(self._remarks())

    def _remarks(self) -> list[str]:
        sides = (("this result", self.only_b), ("the other", self.only_a))
        return [f"  {name}: only in {side}" for side, names in sides for name in names]

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
    """One score of a run, with the number of its row from 0 and the id of its question."""

    index: int
    question: str
    value: float | None
    label: Label | None
    version: str


@dataclass(slots=True, kw_only=True)
class ScoredRun:
    """The scores of one run by metric, without texts: about 300 bytes a score.

    ``name`` names the run in messages, such as the path of its file. ``rows`` is the number of
    rows. ``live`` is the number of rows of live traces, which have no question.
    """

    name: str
    rows: int = 0
    live: int = 0
    metrics: dict[str, list[Entry]] = field(default_factory=dict)

    def add(self, row: Row) -> None:
        """Add the scores of ``row``, which was read from a file."""
        self._add(row, row.question_id)

    def add_sample(self, row: Row) -> None:
        """Add the scores of ``row``, whose sample has the texts of the question and reference."""
        self._add(row, row.own_question_id)

    def _add(self, row: Row, question: str) -> None:
        self.rows = max(self.rows, row.index + 1)
        self.live += bool(row.trace and not question)
        for score in row.scores:
            self.metrics.setdefault(score.name, []).append(_entry(row, score, question))

    def is_named(self, metric: str) -> bool:
        """Return whether each score of ``metric`` has the id of its question."""
        return all(entry.question for entry in self.metrics[metric])


def _entry(row: Row, score: Score, question: str) -> Entry:
    return Entry(row.index, question, score.value, score.label, score.version)


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

    ``pairs`` has the scores in B and in A of each question that is in both runs, in the order of B.
    ``only_b`` is the number of rows that are in B alone, ``only_a`` the number of rows that
    are in A alone.
    """

    name: str
    pairs: Sequence[tuple[Entry, Entry]]
    only_b: int = 0
    only_a: int = 0

    @property
    def differences(self) -> list[float]:
        """The score in B minus the score in A, where both have a number."""
        return [difference for difference, _, _ in self.changes()]

    def changes(self) -> list[tuple[float, Entry, Entry]]:
        """Return the differences with the scores in B and in A, where both have a number."""
        return [
            (b.value - a.value, b, a)
            for b, a in self.pairs
            if b.value is not None and a.value is not None
        ]

    @property
    def lost(self) -> int:
        """The number of questions with a number in A and none in B."""
        return sum(b.value is None and a.value is not None for b, a in self.pairs)

    @property
    def gained(self) -> int:
        """The number of questions with a number in B and none in A."""
        return sum(b.value is not None and a.value is None for b, a in self.pairs)

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
        moments, scores = self.moments(), Moments()
        for entry in (one for pair in self.pairs for one in pair):
            if entry.value is not None:
                scores.add(entry.value)
        n = moments.count
        found = mean_interval(moments.centre, moments.deviation, n=n, confidence=confidence)
        if found is None or scores.scale is None:
            return found
        return max(-1.0, found[0]), min(1.0, found[1])

    def difference(self) -> Difference:
        """Return the summary of the differences."""
        moments, differences = self.moments(), self.differences
        return Difference(
            name=self.name,
            mean=moments.mean,
            interval=self.interval(),
            pairs=moments.count,
            unpaired=len(self.pairs) - moments.count + self.only_b + self.only_a,
            higher=sum(d > 0 for d in differences),
            lower=sum(d < 0 for d in differences),
        )

    def require_one_version(self, way_out: str, *, versions: Versions = "same") -> None:
        """Raise `ConfigError` if the scores of a pair have different versions.

        The version of a score changes with metric, prompts, fusion and judge. The message of the
        error ends in ``way_out``. If ``versions`` is "any", nothing is required. Raises
        `ConfigError` also if ``versions`` has another value.
        """
        if versions not in ("same", "any"):
            msg = f"versions must be 'same' or 'any', not {versions!r}"
            raise ConfigError(msg)
        if versions == "any":
            return
        mixed = Counter(
            (b.version, a.version) for _, b, a in self.changes() if b.version != a.version
        )
        if mixed:
            shown = "; ".join(
                f"{b or 'no version'} and {a or 'no version'} ({count} rows)"
                for (b, a), count in mixed.most_common(_SHOWN)
            )
            msg = (
                f"{self.name} was measured in different ways: {shown}."
                f" Evaluate both with the same metric, fusion and judge, or {way_out}"
            )
            raise ConfigError(msg)


def pair_scores(b: ScoredRun, a: ScoredRun, *, metric: str) -> Pairs:
    """Pair the scores of ``metric`` in two runs that both have it.

    Rows are paired by question and reference; if a question is repeated, in their order. If a file
    does not say the question of each row, rows are paired by their number. Raises `ConfigError` if
    the runs have no row in common, if rows without a question differ in number, and for live
    traces.
    """
    identity = _question
    if not (b.is_named(metric) and a.is_named(metric)):
        _require_same_rows(b, a)
        identity = _row_number
    in_b, in_a = (_keyed(run.metrics[metric], identity) for run in (b, a))
    pairs = [(entry, in_a[key]) for key, entry in in_b.items() if key in in_a]
    if not pairs:
        msg = (
            f"no row of {a.name} is in {b.name}: they have other questions or references."
            " Evaluate the same questions to compare them"
        )
        raise ConfigError(msg)
    return Pairs(
        name=metric,
        pairs=pairs,
        only_b=len(in_b) - len(pairs),
        only_a=len(in_a) - len(pairs),
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


def _require_same_rows(b: ScoredRun, a: ScoredRun) -> None:
    """Raise `ConfigError` if rows cannot be paired by their number."""
    for run in (b, a):
        if run.live:
            msg = (
                f"{run.name} has scores of live traces, whose rows cannot be paired: evaluate the"
                " same questions with `rag-eval-otel evaluate --output`"
            )
            raise ConfigError(msg)
    if b.rows != a.rows:
        msg = (
            f"{b.name} has {b.rows} rows and {a.name} has {a.rows}, and the rows do"
            " not say their questions (column question_id, question or id). Evaluate both again"
            " with `rag-eval-otel evaluate --output`"
        )
        raise ConfigError(msg)


def common_metrics(b: ScoredRun, a: ScoredRun) -> tuple[str, ...]:
    """Return the names of the metrics that both runs have; raise `ConfigError` if there is none."""
    common = tuple(name for name in b.metrics if name in a.metrics)
    if not common:
        msg = (
            f"no metric in common: {', '.join(b.metrics)} in {b.name},"
            f" {', '.join(a.metrics)} in {a.name}"
        )
        raise ConfigError(msg)
    return common


# --- two results in memory ------------------------------------------------------------------------


def compare_rows(b: Sequence[Row], a: Sequence[Row], *, versions: Versions) -> Comparison:
    """Compare the scores of two results for the same questions, metric by metric.

    ``versions`` is "same" or "any". Raises `ConfigError` if the questions or references of the rows
    differ, if there is no common metric, or, with "same", if a metric was measured in different
    versions.
    """
    _require_same_questions(b, a)
    in_b, in_a = _names(b), _names(a)
    common = [name for name in in_b if name in in_a]
    if b and not common:
        msg = (
            f"no metric in common: {', '.join(in_b)} in this result, {', '.join(in_a)} in the other"
        )
        raise ConfigError(msg)
    return Comparison(
        metrics=tuple(_difference(name, b, a, versions) for name in common),
        only_a=tuple(name for name in in_a if name not in common),
        only_b=tuple(name for name in in_b if name not in common),
    )


def _names(rows: Sequence[Row]) -> tuple[str, ...]:
    return tuple(score.name for score in rows[0].scores) if rows else ()


def _require_same_questions(b: Sequence[Row], a: Sequence[Row]) -> None:
    if len(b) != len(a):
        msg = (
            f"{len(b)} rows in this result, {len(a)} in the other; evaluate the same rows to"
            " compare them"
        )
        raise ConfigError(msg)
    for in_b, in_a in zip(b, a, strict=True):
        for part in ("question", "reference"):
            if getattr(in_b.sample, part) != getattr(in_a.sample, part):
                msg = f"row {in_b.index} has another {part} in the other result; rows must match"
                raise ConfigError(msg)


def _difference(name: str, b: Sequence[Row], a: Sequence[Row], versions: Versions) -> Difference:
    pairs = Pairs(
        name=name,
        pairs=[
            (_entry(in_b, in_b[name], ""), _entry(in_a, in_a[name], ""))
            for in_b, in_a in zip(b, a, strict=True)
        ],
    )
    pairs.require_one_version("pass versions='any'", versions=versions)
    return pairs.difference()
