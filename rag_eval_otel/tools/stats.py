"""Summarise scores: means with confidence intervals (SciPy), drift alarms, and text tables."""

from __future__ import annotations

import math
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from textwrap import shorten
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rag_eval_otel.drift.detector import Alarm, BettingDetector
from rag_eval_otel.errors import MissingDependencyError
from rag_eval_otel.metrics import METRICS
from rag_eval_otel.metrics.base import Direction, direction_of
from rag_eval_otel.runtime.guard import EXTRA, require
from rag_eval_otel.tools.rows import VERDICT
from rag_eval_otel.types import Evaluation, Score, Usage

Numbers: TypeAlias = NDArray[np.float64]
Range: TypeAlias = tuple[float, float]
"""The lowest and the highest value of a scale, or the ends of an interval."""

Z: Final = 1.959963984540054
"""The quantile of the normal distribution for a 95 % interval."""

_NARROW, _LARGEST = 1e-6, 1e12  # limits of the scales that can be computed from scores
_MESSAGE = 300  # characters of an error message
_TWO = 2  # the fewest values with a deviation
_any_size = np.errstate(over="ignore", invalid="ignore")  # scores of a user's metric may be huge


def t_quantile(p: float, freedom: float) -> float:
    return float(require("scipy.special").stdtrit(freedom, p))


@_any_size
def mean_interval(values: ArrayLike, *, confidence: float = 0.95) -> Range | None:
    numbers = np.asarray(values, dtype=np.float64)
    if len(numbers) < _TWO:
        return None
    half = float(numbers.std(ddof=1)) / math.sqrt(len(numbers))
    half *= t_quantile((1 + confidence) / 2, len(numbers) - 1)
    mean = float(numbers.mean())
    return (mean - half, mean + half) if math.isfinite(mean) and math.isfinite(half) else None


@_any_size
def score_interval(values: ArrayLike, scale: Range | None) -> Range | None:
    """Return the 95 % confidence interval of the mean of scores, within their ``scale``.

    It is Wilson's interval for as many yes-or-no scores as would have the same variance, so that it
    has a width even if all scores are equal. If ``scale`` is None, the result is `mean_interval`,
    and None for fewer than two scores or without SciPy.
    """
    scores = np.asarray(values, dtype=np.float64)
    if len(scores) < _TWO:
        return None
    try:
        if scale is None:
            return mean_interval(scores)
        quantile = t_quantile(0.975, len(scores) - 1)
    except MissingDependencyError:
        return None
    low, width = scale[0], scale[1] - scale[0]
    units = (scores - low) / width
    start, end = unit_interval(
        min(1.0, max(0.0, float(units.mean()))),
        float(units.var(ddof=1)) / len(units),
        quantile=quantile,
        effective=len(units),
    )
    return low + width * start, low + width * end


def unit_interval(value: float, variance: float, *, quantile: float, effective: float) -> Range:
    """Return the interval of a mean of scores in [0, 1], by Wilson's formula.

    The sample size in the formula is the number of yes-or-no scores whose mean has the same
    ``variance`` (Korn and Graubard 1998), or ``effective`` if all scores are equal.
    """
    spread = value * (1 - value)
    count = spread / variance if variance > 0 and spread > 0 else effective
    square = quantile * quantile / count
    middle = (value + square / 2) / (1 + square)
    half = math.sqrt(square * (spread + square / 4)) / (1 + square)
    return max(0.0, middle - half), min(1.0, middle + half)


def wilson(successes: int, n: int) -> Range:
    """Return Wilson's 95 % score interval (1927) of the proportion ``successes / n``."""
    low, high = unit_interval(successes / n, 0.0, quantile=Z, effective=n)
    return low if successes else 0.0, high if successes < n else 1.0


def scale_of(values: ArrayLike, units: ArrayLike) -> Range | None:
    """Return the scale of ``values``; ``units``: the same on [0, 1], or empty. None: unknown."""
    own, normalized = np.asarray(values, np.float64), np.asarray(units, np.float64)
    if not len(own):
        return None
    low, high = float(own.min()), float(own.max())
    if len(normalized) != len(own) or np.array_equal(own, normalized):
        return (0.0, 1.0) if low >= 0 and high <= 1 else None
    first, last = float(normalized.min()), float(normalized.max())
    if last - first < _NARROW:
        return None
    per_unit = (high - low) / (last - first)
    start, end = low - first * per_unit, low + (1 - first) * per_unit
    fits = end - start > _NARROW and max(abs(start), abs(end)) < _LARGEST
    return (round(start, 6), round(end, 6)) if fits else None


def alarms_in(scores: Iterable[float | None], **options: Any) -> list[Alarm]:
    """Return the alarms that a `BettingDetector` with ``options`` raises on ``scores``."""
    detector = BettingDetector(**options)
    return [detector.alarm for score in scores if detector.update(score) and detector.alarm]


def weighted_mean(scores: Numbers, weights: Numbers) -> tuple[float, Range | None]:
    """Return the mean of all turns, from the ``scores`` of a sample of them, and its interval.

    Each score has as its weight the inverse of its turn's probability (Hájek). The interval is None
    for fewer than two scores.
    """
    total, value = float(weights.sum()), float(weights @ scores / weights.sum())
    if len(scores) < _TWO:
        return value, None
    effective = total**2 / float(weights @ weights)
    freedom = max(1.0, effective - 1)
    rest = weights * (scores - value) / total
    variance, quantile = float(rest @ rest) * effective / freedom, t_quantile(0.975, freedom)
    if scores.min() >= 0 and scores.max() <= 1:
        value = min(1.0, max(0.0, value))
        return value, unit_interval(value, variance, quantile=quantile, effective=effective)
    half = quantile * math.sqrt(variance)
    return value, (value - half, value + half) if half else None


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricSummary:
    """The summary of one metric's scores over a dataset.

    ``mean``, ``median`` and ``interval`` (95 %, see `score_interval`) cover only the ``ok`` scores,
    on the metric's own scale: read them with the counts ``undefined`` and ``error``.
    ``normalized_mean`` is on the scale 0 to 1. ``passed`` of the ``labelled`` scores have the label
    pass. If there are several ``versions``, the mean mixes different measurements. If
    ``direction`` is ``"low"``, low scores are good.
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
    direction: Direction = "high"

    def to_dict(self) -> dict[str, Any]:
        return {n: list(v) if isinstance(v, tuple) else v for n, v in asdict(self).items()}

    def cells(self) -> tuple[str, ...]:
        numbers = (number(self.mean), interval(self.interval), number(self.median))
        counts = map(str, (self.ok, self.undefined, self.error))
        return (self.name, *numbers, *counts, passes(self.passed, self.labelled))

    def remarks(self) -> Iterator[str]:
        if self.normalized_mean is not None:
            yield f"  {self.name}: mean on the scale 0 to 1: {number(self.normalized_mean)}"
        if self.reasons:
            counts = ", ".join(f"{n} {reason}" for reason, n in sorted(self.reasons.items()))
            yield f"  {self.name}: {counts}"
        # Follow-up questions have prompts, and so versions, of their own.
        follow_ups = ["-history/" in version for version in self.versions]
        if max(map(follow_ups.count, (True, False))) > 1:
            yield f"  {self.name}: a mixture of versions: {', '.join(self.versions)}"


@dataclass(slots=True)
class Tally:
    """The numbers of a metric's scores, 8 bytes each; counts of statuses, labels, reasons."""

    values: array[float] = field(default_factory=lambda: array("d"))
    normalized: array[float] = field(default_factory=lambda: array("d"))
    statuses: Counter[str] = field(default_factory=Counter)
    labels: Counter[str] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)
    first_failure: str | None = None
    versions: dict[str, None] = field(default_factory=dict)

    def add(self, score: Score) -> None:
        self.statuses[score.status] += 1
        if score.label is not None:
            self.labels[score.label] += 1
        if score.reason is not None:
            self.reasons[score.reason] += 1
        if score.value is None:
            self.first_failure = self.first_failure or score.detail.get("error")
            return
        self.values.append(score.value)
        self.versions[score.version] = None
        if score.normalized is not None:
            self.normalized.append(score.normalized)

    def summary(self, name: str, low: frozenset[str] = frozenset()) -> MetricSummary:
        values, normalized = np.array(self.values), np.array(self.normalized)
        return MetricSummary(
            name=name,
            mean=mean_of(values),
            median=float(np.median(values)) if len(values) else None,
            interval=score_interval(values, scale_of(values, normalized)),
            normalized_mean=mean_of(normalized),
            ok=self.statuses["ok"],
            undefined=self.statuses["undefined"],
            error=self.statuses["error"],
            passed=self.labels["pass"],
            labelled=self.labels.total(),
            reasons=dict(self.reasons),
            first_failure=self.first_failure,
            versions=tuple(self.versions),
            direction="low" if name in low else "high",
        )


def direction_named(name: str) -> Direction:
    return direction_of(METRICS[name]()) if name in METRICS else "high"


@_any_size
def mean_of(values: ArrayLike) -> float | None:
    numbers = np.asarray(values, np.float64)
    return float(numbers.mean()) if len(numbers) else None


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Totals:
    """The summary of a dataset over all rows and metrics.

    ``totals["faithfulness"]`` is the summary of a metric. ``failed`` is the number of rows with an
    error, ``unscored`` of rows for which no metric could use the judge's replies. ``usage`` and
    ``cost`` (in ``currency``, None if no price is known) are of this run, in which scores from the
    cache need none. ``stopped`` says why the run stopped before the last row. ``verdicts`` maps
    ``label``, ``outcome`` and ``cause`` to the number of rows for each value.
    """

    rows: int
    failed: int
    unscored: int
    judge: str | None
    usage: Usage
    metrics: tuple[MetricSummary, ...]
    cost: float | None = None
    currency: str = "USD"
    stopped: str | None = None
    verdicts: Mapping[str, Mapping[str, int]] = field(default_factory=dict)

    def __getitem__(self, name: str) -> MetricSummary:
        """Return the summary of the metric ``name``; a `KeyError` lists the known names."""
        metric: MetricSummary = named(self.metrics, name)
        return metric

    def __repr__(self) -> str:
        """Return the summaries as a table, with remarks below."""
        usage, rows = self.usage, "1 row" if self.rows == 1 else f"{self.rows} rows"
        unscored = f", {self.unscored} without a score" if self.unscored else ""
        price = "" if self.cost is None else f"; tokens for {self.cost:.4f} {self.currency}"
        head = (
            f"{rows}, {self.failed} with errors{unscored}; judge {self.judge or '-'},"
            f" {usage.judge_requests} judge requests,"
            f" {usage.prompt_tokens + usage.completion_tokens} tokens,"
            f" {usage.embedding_requests} embedding requests{price}"
        )
        counts = "; ".join(
            f"{name}s: {', '.join(f'{n} {value}' for value, n in found.items())}"
            for name, found in self.verdicts.items()
            if found
        )
        lines = [head, *filter(None, [counts]), table(self.metrics)]
        messages: set[str | None] = {None}
        for metric in self.metrics:
            lines += metric.remarks()
            if metric.first_failure not in messages:
                lines.append(f"    the first: {shorten(metric.first_failure or '', _MESSAGE)}")
            messages.add(metric.first_failure)
        if any(metric.ok >= _TWO and metric.interval is None for metric in self.metrics):
            lines.append(f"  intervals need SciPy: install the extra {EXTRA!r}")
        if self.stopped:
            lines.append(f"stopped: {self.stopped}")
        return "\n".join(lines)

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as a dict for JSON, with the metrics by name."""
        return {
            "row_count": self.rows,
            "failed_row_count": self.failed,
            "unscored_row_count": self.unscored,
            "judge": self.judge,
            "usage": asdict(self.usage),
            "cost": self.cost,
            "currency": self.currency,
            "stopped": self.stopped,
            **{f"{name}_counts": found for name, found in self.verdicts.items()},
            "metrics": {metric.name: metric.to_dict() for metric in self.metrics},
        }


def named(metrics: Sequence[Any], name: str) -> Any:
    for metric in metrics:
        if metric.name == name:
            return metric
    raise KeyError(f"no metric {name!r}; there are {[m.name for m in metrics]}")


class Summary:
    """Adds up the evaluations of many rows, and returns counts, means and medians."""

    def __init__(self, metrics: Sequence[str], low: frozenset[str] = frozenset()) -> None:
        self._rows = self._failed = self._unscored = 0
        self._usage = Usage()
        self._cost: float | None = None
        self._currency = "USD"
        self._judges: dict[str, None] = {}
        self._tallies = {name: Tally() for name in metrics}
        self._low = low
        self._verdicts = {name: Counter[str]() for name in VERDICT}

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
        for name in VERDICT:
            self._verdicts[name].update(filter(None, [getattr(evaluation, name)]))
        for score in evaluation.scores:
            self._tallies[score.name].add(score)

    def totals(self, *, stopped: str | None = None) -> Totals:
        return Totals(
            rows=self._rows,
            failed=self._failed,
            unscored=self._unscored,
            judge=", ".join(self._judges) or None,
            usage=self._usage,
            cost=self._cost,
            currency=self._currency,
            stopped=stopped,
            verdicts={name: dict(found.most_common()) for name, found in self._verdicts.items()},
            metrics=tuple(tally.summary(name, self._low) for name, tally in self._tallies.items()),
        )


def aligned(rows: Sequence[Sequence[str]], *, left: int = 1) -> str:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    form = "  ".join(f"{{:{'<' if i < left else '>'}{width}}}" for i, width in enumerate(widths))
    return "\n".join(form.format(*row).rstrip() for row in rows)


def table(metrics: Iterable[MetricSummary]) -> str:
    columns = ("metric", "mean", "95 % interval", "median", "ok", "undefined", "error", "pass")
    return aligned([columns, *(metric.cells() for metric in metrics)])


def number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def passes(passed: int, labelled: int) -> str:
    return f"{passed}/{labelled}" if labelled else "-"


def percent(part: int, whole: int) -> str:
    """Return a share as text, such as ``63 %``: only nothing is 0 %, and only all is 100 %."""
    if not whole:
        return "-"
    share = f"{100 * part / whole:.0f} %"
    return {"0 %": "< 1 %", "100 %": "> 99 %"}.get(share, share) if 0 < part < whole else share


def signed(value: float | None) -> str:
    return "-" if value is None else f"{value:+.3f}"


def interval(value: Range | None) -> str:
    return "-" if value is None else f"[{value[0]:.3f}, {value[1]:.3f}]"
