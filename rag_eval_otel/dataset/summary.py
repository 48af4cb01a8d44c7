"""`Summary`: what the scores of many rows come to, in constant memory."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rag_eval_otel.dataset.table import metrics_table
from rag_eval_otel.dataset.tally import MetricSummary, Tally
from rag_eval_otel.types import Evaluation, Usage


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Totals:
    """What all rows of a dataset come to: ``totals["faithfulness"]`` is one metric's summary.

    ``failed`` counts the rows with a score that is an error, ``unscored`` those for which the judge
    answered and no metric could use what it said. ``usage`` is what this run asked of
    judge and embedder: scores from the cache took nothing. ``judge`` is the model that answered,
    all of them where there were several, None where none was asked.
    """

    rows: int
    failed: int
    unscored: int
    judge: str | None
    usage: Usage
    metrics: tuple[MetricSummary, ...]

    def __getitem__(self, name: str) -> MetricSummary:
        """Return the summary of the metric ``name``; `KeyError` names those there are."""
        for metric in self.metrics:
            if metric.name == name:
                return metric
        msg = f"no metric {name!r}; there are {[m.name for m in self.metrics]}"
        raise KeyError(msg)

    def __repr__(self) -> str:
        """Return the table."""
        usage, rows = self.usage, "1 row" if self.rows == 1 else f"{self.rows} rows"
        told = (
            f"{rows}, {self.failed} with failed scores{_without(self.unscored)};"
            f" judge {self.judge or '-'},"
            f" {usage.judge_requests} judge requests,"
            f" {usage.prompt_tokens + usage.completion_tokens} tokens,"
            f" {usage.embedding_requests} embedding requests"
        )
        return f"{told}\n{metrics_table(self.metrics)}"

    def to_dict(self) -> dict[str, Any]:
        """Return the fields, for JSON; metrics by name."""
        metrics = {metric.name: metric.to_dict() for metric in self.metrics}
        return {
            "row_count": self.rows,
            "failed_row_count": self.failed,
            "unscored_row_count": self.unscored,
            "judge": self.judge,
            "usage": asdict(self.usage),
            "metrics": metrics,
        }


def _without(unscored: int) -> str:
    return f", {unscored} without a score" if unscored else ""


class Summary:
    """Takes one evaluation after the other; values wait for their median in a file of SQLite's.

    Memory is bounded by SQLite's page cache (2 MB), whatever the number of rows. Close it.
    """

    def __init__(self, metrics: Sequence[str]) -> None:
        """Sum up ``metrics``, each by its name."""
        self._rows = 0
        self._failed = 0
        self._unscored = 0
        self._usage = Usage()
        self._judges: dict[str, None] = {}
        self._tallies = {name: Tally() for name in metrics}
        self._values = sqlite3.connect("")  # a temporary file, gone when closed
        self._values.execute("CREATE TABLE scores (metric TEXT, value REAL)")

    def add(self, evaluation: Evaluation) -> None:
        """Count the scores of one more row."""
        self._rows += 1
        self._failed += any(score.status == "error" for score in evaluation.scores)
        self._unscored += evaluation.is_useless
        self._usage += evaluation.usage
        if evaluation.judge is not None:
            self._judges[evaluation.judge] = None
        for score in evaluation.scores:
            self._tallies[score.name].add(score)
        values = [(score.name, score.value) for score in evaluation.scores if score.status == "ok"]
        self._values.executemany("INSERT INTO scores VALUES (?, ?)", values)

    def totals(self) -> Totals:
        """Return what there is so far."""
        return Totals(
            rows=self._rows,
            failed=self._failed,
            unscored=self._unscored,
            judge=", ".join(self._judges) or None,
            usage=self._usage,
            metrics=tuple(
                tally.summary(name, median=self._median(name, tally.ok))
                for name, tally in self._tallies.items()
            ),
        )

    def close(self) -> None:
        """Let the temporary file go."""
        self._values.close()

    def _median(self, name: str, count: int) -> float | None:
        middle = self._values.execute(
            "SELECT value FROM scores WHERE metric = ? ORDER BY value LIMIT ? OFFSET ?",
            (name, 2 - count % 2, max(0, count - 1) // 2),
        ).fetchall()
        return sum(value for (value,) in middle) / len(middle) if middle else None
