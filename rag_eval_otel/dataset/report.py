"""`Report`: all rows of an evaluated dataset, and what they come to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rag_eval_otel.dataset.compare import Comparison, Versions, compare_rows
from rag_eval_otel.dataset.summary import Totals
from rag_eval_otel.dataset.tally import MetricSummary
from rag_eval_otel.results.rows import Row, flat_columns
from rag_eval_otel.runtime.installed import require
from rag_eval_otel.types import Usage

_PANDAS = {int: "int64", float: "float64", str: "object"}


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Report:
    """What `evaluate_dataset` returns: ``rows`` in the order of the dataset, and their ``totals``.

    ``report["faithfulness"]`` is the summary of that metric. In a terminal or a notebook the report
    shows itself as a table. A dataset without rows has a report without means.
    """

    rows: tuple[Row, ...]
    totals: Totals

    @property
    def metrics(self) -> tuple[MetricSummary, ...]:
        """The summaries of the metrics, in the order asked for."""
        return self.totals.metrics

    @property
    def usage(self) -> Usage:
        """What this run asked of judge and embedder."""
        return self.totals.usage

    @property
    def judge(self) -> str | None:
        """The model that answered."""
        return self.totals.judge

    def __getitem__(self, name: str) -> MetricSummary:
        """Return the summary of the metric ``name``; `KeyError` names those there are."""
        return self.totals[name]

    def __repr__(self) -> str:
        """Return the table."""
        return repr(self.totals)

    def to_dict(self) -> dict[str, Any]:
        """Return everything but the texts of the samples, for JSON."""
        return {**self.totals.to_dict(), "rows": [row.to_dict() for row in self.rows]}

    def to_pandas(self) -> Any:
        """Return a ``DataFrame`` with one line per row; columns as in CSV and Parquet files.

        ``<metric>`` is the value (NaN, which is how pandas writes nothing, where there is none),
        ``<metric>.status``, ``.reason``, ``.label``, ``.normalized``, ``.explanation`` and
        ``.version`` the rest. Raises `MissingDependencyError` without pandas.
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

    def compare(self, other: Report, *, versions: Versions = "same") -> Comparison:
        """Return what changed from ``other`` to this report, metric by metric, on the same rows.

        Differences are this report's score minus the other's: positive is higher here. Answers and
        contexts may differ, they are what is compared; questions and references may not. Raises
        `ConfigError` where the reports are not of the same questions in the same order, have no
        metric in common, or hold scores of different versions; ``versions="any"`` compares these
        too: the difference is then also one of prompts, fusion or judge.
        """
        return compare_rows(self.rows, other.rows, versions=versions)
