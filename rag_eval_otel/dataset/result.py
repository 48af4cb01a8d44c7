"""Define `DatasetResult`, the scored rows of a dataset, and compare two such results."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from rag_eval_otel.dataset.summary import MetricSummary, Moments, Totals, aligned, interval
from rag_eval_otel.errors import ConfigError
from rag_eval_otel.results.rows import Row, flat_columns
from rag_eval_otel.runtime.installed import require
from rag_eval_otel.types import Score, Usage

Versions = Literal["same", "any"]

_COLUMNS = ("metric", "difference", "95 % interval", "pairs", "unpaired", "higher", "lower")


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

    def to_dict(self) -> dict[str, Any]:
        """Return the fields for JSON."""
        return asdict(self)


def _cells(metric: Difference) -> tuple[str, ...]:
    counts = (metric.pairs, metric.unpaired, metric.higher, metric.lower)
    mean = "-" if metric.mean is None else f"{metric.mean:+.3f}"
    return (metric.name, mean, interval(metric.interval), *map(str, counts))


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
    scores = [(a[name], b[name]) for a, b in zip(here, there, strict=True)]
    if versions == "same":
        _require_one_version(name, (score for pair in scores for score in pair))
    differences = [
        a.value - b.value for a, b in scores if a.value is not None and b.value is not None
    ]
    moments = Moments()
    for difference in differences:
        moments.add(difference)
    return Difference(
        name=name,
        mean=moments.mean,
        interval=moments.interval,
        pairs=moments.count,
        unpaired=len(scores) - moments.count,
        higher=sum(d > 0 for d in differences),
        lower=sum(d < 0 for d in differences),
    )


def _require_one_version(name: str, scores: Iterable[Score]) -> None:
    found = {score.version for score in scores if score.status == "ok"}
    if len(found) > 1:
        msg = (
            f"{name} was measured in different ways: {', '.join(sorted(found))}."
            " Evaluate both with the same metric, fusion and judge, or pass versions='any'"
        )
        raise ConfigError(msg)


_PANDAS = {int: "int64", float: "float64", str: "object"}


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class DatasetResult:
    """The result of `evaluate_dataset`: the scored ``rows`` and their summary ``totals``.

    ``rows`` has the order of the dataset. ``result["faithfulness"]`` is the summary of the metric
    ``faithfulness``. The repr is a table. If a dataset has no rows, the means are None.
    """

    rows: tuple[Row, ...]
    totals: Totals

    @property
    def metrics(self) -> tuple[MetricSummary, ...]:
        """The summaries of the metrics, in the order in which the caller named the metrics."""
        return self.totals.metrics

    @property
    def usage(self) -> Usage:
        """The model requests and tokens of this run. Scores from the cache need none."""
        return self.totals.usage

    @property
    def judge(self) -> str | None:
        """The names of the judge models that answered; None if no judge was asked."""
        return self.totals.judge

    def __getitem__(self, name: str) -> MetricSummary:
        """Return the summary of the metric ``name``; a `KeyError` lists the known names."""
        return self.totals[name]

    def __repr__(self) -> str:
        """Return the summaries as a table."""
        return repr(self.totals)

    def to_dict(self) -> dict[str, Any]:
        """Return the result as a dict for JSON, without the texts of the samples."""
        return {**self.totals.to_dict(), "rows": [row.to_dict() for row in self.rows]}

    def to_pandas(self) -> Any:
        """Return the scored rows as a pandas ``DataFrame``, one line for each row.

        The columns are the same as in CSV and Parquet files. The column ``<metric>`` has the score,
        or NaN if there is no score. Further columns of a metric are ``<metric>.status``,
        ``<metric>.reason``, ``<metric>.label``, ``<metric>.normalized``, ``<metric>.explanation``
        and ``<metric>.version``. Raises `MissingDependencyError` if pandas is not installed.
        """
        pandas = require("pandas")
        columns = flat_columns([metric.name for metric in self.metrics])
        flat = [row.to_flat() for row in self.rows]
        return pandas.DataFrame(
            {
                name: pandas.Series([row[name] for row in flat], dtype=_PANDAS[kind])
                for name, kind in columns.items()
            }
        )

    def compare(self, other: DatasetResult, *, versions: Versions = "same") -> Comparison:
        """Return the change of each metric from ``other`` to this result, on the same rows.

        A difference is the score of this result minus the score of ``other``. Answers and contexts
        may differ. Questions and references must be the same, in the same order. Raises
        `ConfigError` if questions or references differ, if the results have no metric in common, or
        if the versions of a metric's scores differ.

        With ``versions="any"``, scores of different versions are compared too. Then a difference
        may come from other prompts, other fusion or another judge.
        """
        return compare_rows(self.rows, other.rows, versions=versions)
