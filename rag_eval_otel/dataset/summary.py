"""Sum up the scores of many rows: counts, means, medians and confidence intervals.

Memory does not grow with the number of rows.
"""

from __future__ import annotations

import math
import sqlite3
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from textwrap import shorten
from typing import Any, TypeAlias

from rag_eval_otel.calibration.means import student, unit_interval
from rag_eval_otel.notebook import html_lines, html_table
from rag_eval_otel.types import Evaluation, Score, Usage

Range: TypeAlias = tuple[float, float]
"""The lowest and the highest value of a scale, or the ends of an interval."""

_EXACT_TO = 200  # degrees of freedom; above, the expansion is off by less than 1e-10
_STEPS = 80  # steps of bisection
_UPPER = 0.975  # the two ends of an interval of 95 % are at this quantile
_NARROW, _LARGEST = 1e-6, 1e12  # limits of the scales that can be computed from scores


def unit_scale(low: float, high: float) -> Range | None:
    """Return the scale 0 to 1 if ``low`` and ``high``, the ends of all scores, are on it."""
    return (0.0, 1.0) if low >= 0 and high <= 1 else None


def mean_interval(
    mean: float, deviation: float, *, n: int, confidence: float = 0.95
) -> Range | None:
    """Return the confidence interval of a mean of ``n`` values.

    ``deviation`` is the sample standard deviation of the values. The ends of the interval are
    ``mean`` plus and minus ``t(n - 1) * deviation / sqrt(n)``, where t is the quantile of Student's
    t. They may lie outside the range of the values, so use `score_interval` for scores. For fewer
    than two values the result is None. If all values are equal, the interval has width 0, although
    the true mean is not known that precisely.
    """
    if n < 2:  # noqa: PLR2004  # one value has no deviation
        return None
    half = t_quantile((1 + confidence) / 2, n - 1) * deviation / math.sqrt(n)
    return mean - half, mean + half


def score_interval(mean: float, deviation: float, *, n: int, scale: Range | None) -> Range | None:
    """Return the 95 % confidence interval of the mean of ``n`` scores, within their ``scale``.

    The interval is Wilson's, for the number of yes-or-no scores that would have the same variance.
    If all scores are equal, it still has a width, because a few equal scores do not prove that all
    are equal. If ``scale`` is None, the scale is unknown, and the result is `mean_interval`.
    """
    if scale is None or n < 2:  # noqa: PLR2004  # one value has no deviation
        return mean_interval(mean, deviation, n=n)
    low, width = scale[0], scale[1] - scale[0]
    found = unit_interval(
        min(1.0, max(0.0, (mean - low) / width)),
        (deviation / width) ** 2 / n,
        quantile=t_quantile(_UPPER, n - 1),
        effective=n,
    )
    return low + width * found[0], low + width * found[1]


def linear_scale(values: Sequence[float], units: Sequence[float]) -> Range | None:
    """Return the ends of the scale on which ``values`` are measured, such as 1 and 5, or None.

    ``units`` are the same scores on the scale 0 to 1. Two different scores are enough.
    """
    pairs = list(zip(units, values, strict=True))
    (u0, low), (u1, high) = min(pairs), max(pairs)
    if u1 - u0 < _NARROW:
        return None
    per_unit = (high - low) / (u1 - u0)
    start, end = low - u0 * per_unit, low + (1 - u0) * per_unit
    fits = end - start > _NARROW and max(abs(start), abs(end)) < _LARGEST
    return (round(start, 6), round(end, 6)) if fits else None


def t_quantile(p: float, df: int) -> float:
    """Return the quantile of Student's t at probability ``p``, which must be above 0.5.

    ``df`` is the number of degrees of freedom.
    """
    return student(p, df) if df > _EXACT_TO else _bisected(p, df)


def _bisected(p: float, df: int) -> float:
    """Find the quantile of Student's t at probability ``p`` by bisection.

    The search is over the angle with the tangent t / sqrt(df), because the distribution function is
    a finite sum in this angle.
    """
    low, high = 0.0, math.pi / 2
    for _ in range(_STEPS):
        middle = (low + high) / 2
        if (1 + _two_sided(middle, df)) / 2 < p:
            low = middle
        else:
            high = middle
    return math.tan(low) * math.sqrt(df)


def _two_sided(angle: float, df: int) -> float:
    """Return P(-t < T < t) for Student's t, where ``angle`` is arctan(t / sqrt(df)).

    The sums are Abramowitz & Stegun 26.7.3 (odd ``df``) and 26.7.4 (even ``df``).
    """
    sine, square = math.sin(angle), math.cos(angle) ** 2
    odd = df % 2
    term = math.cos(angle) if odd else 1.0
    total = 0.0 if df == 1 else term
    for k in range(2 + odd, df - 1, 2):
        term *= (k - 1) / k * square
        total += term
    return 2 / math.pi * (angle + sine * total) if odd else sine * total


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricSummary:
    """The summary of one metric's scores over a dataset.

    ``mean``, ``median`` and ``interval`` cover only the scores with status ``ok``, on the metric's
    own scale. Scores with status ``undefined`` or ``error`` are left out, so read the counts
    ``ok``, ``undefined`` and ``error`` with the mean. A value that cannot be computed is None,
    never NaN. ``median`` is exact. ``interval`` is the 95 % confidence interval of the mean, within
    the scale of the metric (`score_interval`). It is None for fewer than two scores.
    ``normalized_mean`` is the mean on the scale 0 to 1, for metrics with another scale.

    ``labelled`` is the number of scores with the label pass or fail, and ``passed`` the number with
    the label pass. ``reasons`` counts the reasons of the scores. ``first_failure`` is the first
    error message. If there are several ``versions``, the mean mixes different measurements.
    """

    name: str
    mean: float | None = None
    median: float | None = None
    interval: Range | None = None
    normalized_mean: float | None = None
    ok: int = 0
    undefined: int = 0
    error: int = 0
    passed: int = 0
    labelled: int = 0
    reasons: Mapping[str, int] = field(default_factory=dict)
    first_failure: str | None = None
    versions: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as a dict for JSON."""
        found = asdict(self)
        lists = {name: value for name, value in found.items() if isinstance(value, tuple)}
        return {**found, **{name: list(value) for name, value in lists.items()}}


@dataclass(slots=True)
class Moments:
    """Compute the mean and variance of numbers that are added one by one, by Welford's method."""

    count: int = 0
    centre: float = 0.0
    squares: float = 0.0
    low: float = math.inf
    high: float = -math.inf

    def add(self, value: float) -> None:
        self.count += 1
        self.low, self.high = min(self.low, value), max(self.high, value)
        away = value - self.centre
        self.centre += away / self.count
        self.squares += away * (value - self.centre)

    @property
    def mean(self) -> float | None:
        """The mean of the numbers so far; None if there are none."""
        return self.centre if self.count else None

    @property
    def deviation(self) -> float:
        """The sample standard deviation of the numbers; 0 for fewer than two numbers."""
        return math.sqrt(self.squares / max(1, self.count - 1))

    @property
    def interval(self) -> Range | None:
        """The 95 % confidence interval of the mean; None for fewer than two numbers."""
        return self.interval_on(None)

    @property
    def scale(self) -> Range | None:
        """The scale 0 to 1 if all numbers are on it, else None."""
        return unit_scale(self.low, self.high)

    def interval_on(self, scale: Range | None) -> Range | None:
        """Return the 95 % interval of the mean of scores on ``scale`` (see `score_interval`)."""
        return score_interval(self.centre, self.deviation, n=self.count, scale=scale)


@dataclass(slots=True)
class Tally:
    """Count and add up the scores of one metric."""

    values: Moments = field(default_factory=Moments)
    normalized: Moments = field(default_factory=Moments)
    counts: Counter[str] = field(default_factory=Counter)
    labels: Counter[str] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)
    first_failure: str | None = None
    versions: dict[str, None] = field(default_factory=dict)

    @property
    def ok(self) -> int:
        """The number of scores with status ``ok``."""
        return self.counts["ok"]

    def add(self, score: Score) -> None:
        self.counts[score.status] += 1
        if score.label is not None:
            self.labels[score.label] += 1
        if score.reason is not None:
            self.reasons[score.reason] += 1
        if score.value is None:
            self.first_failure = self.first_failure or score.detail.get("error")
        else:
            self.values.add(score.value)
            self.versions[score.version] = None
        if score.value is not None and score.normalized is not None:
            self.normalized.add(score.normalized)

    def _scale(self) -> Range | None:
        """Return the ends of the metric's scale; None if they cannot be told from its scores.

        Without another scale, scores that are all from 0 to 1 are on the scale 0 to 1.
        """
        values, units = self.values, self.normalized
        if units.count == values.count > 0:
            return linear_scale((values.low, values.high), (units.low, units.high))
        return values.scale

    def summary(self, name: str, *, median: float | None) -> MetricSummary:
        """Return the summary of the scores so far, with ``name`` as the name of the metric.

        The caller computes ``median``, because a tally keeps no single scores.
        """
        return MetricSummary(
            name=name,
            mean=self.values.mean,
            median=median,
            interval=self.values.interval_on(self._scale()),
            normalized_mean=self.normalized.mean,
            ok=self.ok,
            undefined=self.counts["undefined"],
            error=self.counts["error"],
            passed=self.labels["pass"],
            labelled=self.labels.total(),
            reasons=dict(self.reasons),
            first_failure=self.first_failure,
            versions=tuple(self.versions),
        )


_COLUMNS = ("metric", "mean", "95 % interval", "median", "ok", "undefined", "error", "pass")
_MAX_MESSAGE = 300  # characters of an error message


def aligned(rows: Sequence[Sequence[str]], *, left: int = 1) -> str:
    """Return ``rows`` of cells as lines of text with aligned columns.

    The first ``left`` columns are aligned to the left, all other columns to the right.
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(_line(row, widths, left=left) for row in rows)


def _line(row: Sequence[str], widths: Sequence[int], *, left: int) -> str:
    cells = [
        cell.ljust(width) if i < left else cell.rjust(width)
        for i, (cell, width) in enumerate(zip(row, widths, strict=True))
    ]
    return "  ".join(cells).rstrip()


def metrics_table(metrics: Sequence[MetricSummary]) -> str:
    """Return ``metrics`` as a text table with one line for each metric.

    A missing number is a dash. Below the table are remarks, such as the reasons of scores without a
    value.
    """
    lines = [aligned([_COLUMNS, *map(_cells, metrics)])]
    printed: set[str | None] = {None}
    for metric in metrics:
        lines += _remarks(metric)
        if metric.first_failure not in printed:
            lines.append(f"    the first: {shorten(metric.first_failure or '', _MAX_MESSAGE)}")
        printed.add(metric.first_failure)
    return "\n".join(lines)


def _cells(metric: MetricSummary) -> tuple[str, ...]:
    return (
        metric.name,
        number(metric.mean),
        interval(metric.interval),
        number(metric.median),
        str(metric.ok),
        str(metric.undefined),
        str(metric.error),
        f"{metric.passed}/{metric.labelled}" if metric.labelled else "-",
    )


def _remarks(metric: MetricSummary) -> Iterator[str]:
    if metric.normalized_mean is not None:
        yield f"  {metric.name}: mean on the scale 0 to 1: {number(metric.normalized_mean)}"
    if metric.reasons:
        counted = ", ".join(f"{n} {reason}" for reason, n in sorted(metric.reasons.items()))
        yield f"  {metric.name}: {counted}"
    if len(metric.versions) > 1:
        yield f"  {metric.name}: a mixture of versions: {', '.join(metric.versions)}"


def number(value: float | None) -> str:
    """Return ``value`` as text with three decimals, or a dash for None."""
    return "-" if value is None else f"{value:.3f}"


def interval(value: Range | None) -> str:
    """Return the confidence interval ``value`` as text, or a dash for None."""
    return "-" if value is None else f"[{value[0]:.3f}, {value[1]:.3f}]"


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Totals:
    """The summary of a dataset over all rows and metrics.

    ``totals["faithfulness"]`` is the summary of the metric ``faithfulness``. ``rows`` is the number
    of rows, and ``failed`` the number of rows with a score of the status ``error``. ``unscored`` is
    the number of rows for which no metric could use the judge's replies. ``usage`` has the model
    requests and tokens of this run, in which scores from the cache need none. ``cost`` is the money
    for these tokens in ``currency``, without tokens of unknown price; None if no price is known.
    ``judge`` names the judge models that answered, None if no judge was asked.
    """

    rows: int
    failed: int
    unscored: int
    judge: str | None
    usage: Usage
    metrics: tuple[MetricSummary, ...]
    cost: float | None = None
    currency: str = "USD"

    def __getitem__(self, name: str) -> MetricSummary:
        """Return the summary of the metric ``name``; a `KeyError` lists the known names."""
        for metric in self.metrics:
            if metric.name == name:
                return metric
        msg = f"no metric {name!r}; there are {[m.name for m in self.metrics]}"
        raise KeyError(msg)

    def __repr__(self) -> str:
        """Return the summaries as a table."""
        usage, rows = self.usage, "1 row" if self.rows == 1 else f"{self.rows} rows"
        unscored = f", {self.unscored} without a score" if self.unscored else ""
        head = (
            f"{rows}, {self.failed} with errors{unscored};"
            f" judge {self.judge or '-'},"
            f" {usage.judge_requests} judge requests,"
            f" {usage.prompt_tokens + usage.completion_tokens} tokens,"
            f" {usage.embedding_requests} embedding requests"
        )
        if self.cost is not None:
            head += f"; tokens for {self.cost:.4f} {self.currency}"
        return f"{head}\n{metrics_table(self.metrics)}"

    def _repr_html_(self) -> str:
        """Return the table for notebooks, with the remarks below it."""
        head, *_ = repr(self).partition("\n")
        remarks = [text for metric in self.metrics for text in _remarks(metric)]
        return html_table(_COLUMNS, map(_cells, self.metrics), caption=head) + html_lines(remarks)

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as a dict for JSON, with the metrics by name."""
        metrics = {metric.name: metric.to_dict() for metric in self.metrics}
        return {
            "row_count": self.rows,
            "failed_row_count": self.failed,
            "unscored_row_count": self.unscored,
            "judge": self.judge,
            "usage": asdict(self.usage),
            "cost": self.cost,
            "currency": self.currency,
            "metrics": metrics,
        }


class Summary:
    """Add up the evaluations of many rows, and return counts, means and medians.

    The values of the scores are kept in a temporary SQLite file, from which the medians are
    computed. Memory is bounded by the page cache of SQLite (2 MB) for any number of rows. Call
    `close` at the end.
    """

    def __init__(self, metrics: Sequence[str]) -> None:
        self._rows = 0
        self._failed = 0
        self._unscored = 0
        self._usage = Usage()
        self._cost: float | None = None
        self._currency = "USD"
        self._judges: dict[str, None] = {}
        self._tallies = {name: Tally() for name in metrics}
        self._values = sqlite3.connect("")  # a temporary file, gone when closed
        self._values.execute("CREATE TABLE scores (metric TEXT, value REAL)")

    def add(self, evaluation: Evaluation) -> None:
        self._rows += 1
        self._failed += any(score.status == "error" for score in evaluation.scores)
        self._unscored += evaluation.is_useless
        self._usage += evaluation.usage
        if evaluation.cost is not None:
            self._cost = (self._cost or 0.0) + evaluation.cost
            self._currency = evaluation.currency
        if evaluation.judge is not None:
            self._judges[evaluation.judge] = None
        for score in evaluation.scores:
            self._tallies[score.name].add(score)
        values = [(score.name, score.value) for score in evaluation.scores if score.status == "ok"]
        self._values.executemany("INSERT INTO scores VALUES (?, ?)", values)

    def totals(self) -> Totals:
        """Return the summary of all evaluations added so far."""
        return Totals(
            rows=self._rows,
            failed=self._failed,
            unscored=self._unscored,
            judge=", ".join(self._judges) or None,
            usage=self._usage,
            cost=self._cost,
            currency=self._currency,
            metrics=tuple(
                tally.summary(name, median=self._median(name, tally.ok))
                for name, tally in self._tallies.items()
            ),
        )

    def close(self) -> None:
        """Delete the temporary file of score values."""
        self._values.close()

    def _median(self, name: str, count: int) -> float | None:
        middle = self._values.execute(
            "SELECT value FROM scores WHERE metric = ? ORDER BY value LIMIT ? OFFSET ?",
            (name, 2 - count % 2, max(0, count - 1) // 2),
        ).fetchall()
        return sum(value for (value,) in middle) / len(middle) if middle else None
