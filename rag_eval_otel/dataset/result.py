"""Define `DatasetResult`, the scored rows of a dataset."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rag_eval_otel.dataset.comparison import Comparison, Versions, compare_rows
from rag_eval_otel.dataset.gate import ANY_RANGE, Gate, GateCheck, GateResult
from rag_eval_otel.dataset.summary import MetricSummary, Totals
from rag_eval_otel.results.rows import Row, flat_columns
from rag_eval_otel.runtime.installed import require
from rag_eval_otel.types import Usage

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

    def _repr_html_(self) -> str:
        """Return the summaries as a table for notebooks."""
        return self.totals._repr_html_()  # the protocol of notebooks

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

    def check(self, gate: Gate) -> GateResult:
        """Return whether this result meets each condition of ``gate``, with the reasons.

        Raises `ConfigError` if the gate names a metric that was not measured, or if its baseline
        cannot be read or compared.
        """
        check = GateCheck(gate, dict.fromkeys((one.name for one in self.metrics), ANY_RANGE))
        for row in self.rows:
            check.add(row)
        return check.result(self.totals)
