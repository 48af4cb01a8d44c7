"""What the scores of one metric come to: counts, mean, interval."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from rag_eval_otel.dataset.student import mean_interval
from rag_eval_otel.types import Score


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricSummary:
    """One metric over a dataset.

    ``mean``, ``median`` and ``interval`` are over the ``ok`` scores alone, on the metric's own
    scale; None where there are none (the interval: fewer than two), never NaN. A mean means little
    without the counts beside it: ``undefined`` and ``error`` scores are in neither.

    ``interval`` is the 95 % confidence interval of the mean by Student's t; it is not cut off at
    the ends of the metric's range. ``median`` is exact; of an even number, the mean of the middle
    two. ``normalized_mean`` is on [0, 1], for metrics whose own scale is another. ``passed`` and
    ``labelled`` count scores against the metric's threshold; ``reasons`` says why scores are
    undefined or failed, and what was remarked of others; ``first_failure`` is what the first of
    those without a number said of it, where it said more. Scores of several ``versions`` are
    different measurements: their mean is of a mixture.
    """

    name: str
    mean: float | None = None
    median: float | None = None
    interval: tuple[float, float] | None = None
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
        """Return the fields, for JSON."""
        found = asdict(self)
        lists = {name: value for name, value in found.items() if isinstance(value, tuple)}
        return {**found, **{name: list(value) for name, value in lists.items()}}


@dataclass(slots=True)
class Moments:
    """Mean and deviation of numbers that come one by one (Welford)."""

    count: int = 0
    centre: float = 0.0
    squares: float = 0.0

    def add(self, value: float) -> None:
        """Count one more."""
        self.count += 1
        away = value - self.centre
        self.centre += away / self.count
        self.squares += away * (value - self.centre)

    @property
    def mean(self) -> float | None:
        """The mean; None of nothing."""
        return self.centre if self.count else None

    @property
    def interval(self) -> tuple[float, float] | None:
        """The 95 % confidence interval of the mean; None of fewer than two."""
        deviation = math.sqrt(self.squares / max(1, self.count - 1))
        return mean_interval(self.centre, deviation, n=self.count)


@dataclass(slots=True)
class Tally:
    """Takes the scores of one metric, one after the other."""

    values: Moments = field(default_factory=Moments)
    normalized: Moments = field(default_factory=Moments)
    counts: Counter[str] = field(default_factory=Counter)
    labels: Counter[str] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)
    first_failure: str | None = None
    versions: dict[str, None] = field(default_factory=dict)

    @property
    def ok(self) -> int:
        """How many are ok."""
        return self.counts["ok"]

    def add(self, score: Score) -> None:
        """Count one more."""
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

    def summary(self, name: str, *, median: float | None) -> MetricSummary:
        """Return what there is so far; the median is found elsewhere."""
        return MetricSummary(
            name=name,
            mean=self.values.mean,
            median=median,
            interval=self.values.interval,
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
