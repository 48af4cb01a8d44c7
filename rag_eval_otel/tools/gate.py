"""Decide whether the scores of a run are good enough for a release."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import stdev
from typing import Any, Literal

from rag_eval_otel.errors import ConfigError
from rag_eval_otel.runtime.guard import require
from rag_eval_otel.tools.agreement import wilson
from rag_eval_otel.tools.compare import Pairs, ScoredRun, Versions, pair_scores, read_run
from rag_eval_otel.tools.rows import Row
from rag_eval_otel.tools.stats import (
    Range,
    Totals,
    aligned,
    interval,
    mean_of,
    number,
    signed,
    t_quantile,
)
from rag_eval_otel.types import Label

Kind = Literal["mean", "pass rate", "difference"]

LEVEL = 0.01
"""The share of runs that are no worse and fail nevertheless."""

ANY_RANGE: Range = (-math.inf, math.inf)
"""The range of a metric whose lowest and highest score are not known."""

_POWER = 0.95  # with which a drop is found that a remark names
_LOST = 0.1  # part of the level for the test on rows that lost their score
_MOST_LEVEL = 0.5
_ROUNDING = 1e-9  # of a mean that is the bound itself
_COLUMNS = ("condition", "found", "interval", "rows", "result")


@dataclass(frozen=True, slots=True, kw_only=True)
class Gate:
    """The conditions of a release; values out of range are a `ConfigError`.

    - ``means``: the lowest mean by metric, on its own scale. ``pass_rate``: the lowest share of
      rows with the label pass.
    - ``no_worse``: the drop of the mean that is tolerated, by metric, below ``baseline``, the score
      file of an earlier run; with ``versions`` "any" also of another judge, metric or prompt.
    - ``level``: the share of runs, above 0 and below 0.5, in which chance alone fails a comparison.
    """

    means: Mapping[str, float] = field(default_factory=dict)
    pass_rate: float | None = None
    no_worse: Mapping[str, float] = field(default_factory=dict)
    baseline: Path | None = None
    versions: Versions = "same"
    level: float = LEVEL

    def __post_init__(self) -> None:
        msg, drop = "", min(self.no_worse.values(), default=0)
        if not 0 < self.level < _MOST_LEVEL:
            msg = f"the level must be above 0 and below {_MOST_LEVEL}, not {self.level}"
        elif self.pass_rate is not None and not 0 <= self.pass_rate <= 1:
            msg = f"a pass rate must be from 0 to 1, not {self.pass_rate}"
        elif drop < 0:
            msg = f"a drop that is tolerated must be 0 or more, not {drop}"
        elif (self.baseline is None) != (not self.no_worse):
            msg = "a baseline (--baseline FILE) and no_worse (--no-worse METRIC) need each other"
        if msg:
            raise ConfigError(msg)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Whether one condition is met (``passed``), and why."""

    condition: str
    kind: Kind
    passed: bool
    metric: str | None = None
    found: float | None = None
    interval: Range | None = None
    confidence: float = 0.95
    rows: int
    why: tuple[str, ...] = ()

    def cells(self) -> tuple[str, ...]:
        found = signed(self.found) if self.kind == "difference" else number(self.found)
        shown = interval(self.interval)
        if self.interval is not None:
            shown += f" {100 * self.confidence:.4g} %"
        return (self.condition, found, shown, str(self.rows), "pass" if self.passed else "FAIL")


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class GateResult:
    """The verdicts on all conditions of a gate."""

    verdicts: tuple[Verdict, ...]

    @property
    def passed(self) -> bool:
        """Whether each condition is met."""
        return all(verdict.passed for verdict in self.verdicts)

    def __repr__(self) -> str:
        """Return the verdicts as a table, with remarks below."""
        missed = sum(not verdict.passed for verdict in self.verdicts)
        outcome = "failed" if missed else "passed"
        return "\n".join(
            [
                f"gate: {outcome}, {missed} of {len(self.verdicts)} conditions not met",
                aligned([_COLUMNS, *(verdict.cells() for verdict in self.verdicts)]),
                *(f"  {each.condition}: {text}" for each in self.verdicts for text in each.why),
            ]
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the fields for JSON."""
        return {"passed": self.passed, "conditions": [asdict(verdict) for verdict in self.verdicts]}


class GateCheck:
    """Check the conditions of ``gate`` on the rows of one run.

    ``metrics`` maps the metrics that are measured to their lowest and highest scores, or to
    `ANY_RANGE`. The baseline is read at once, so that a bad one costs no judge request.
    """

    def __init__(self, gate: Gate, metrics: Mapping[str, Range]) -> None:
        self._gate = gate
        self._labels: Counter[Label | None] = Counter()
        self._run = ScoredRun(name="this run")
        for name in (*gate.means, *gate.no_worse):
            if name not in metrics:
                raise ConfigError(
                    f"the gate names {name}, which is not among the metrics that are measured:"
                    f" {', '.join(metrics)}"
                )
        for name, mean in gate.means.items():
            low, high = metrics[name]
            if not low <= mean <= high:
                raise ConfigError(
                    f"the lowest mean of {name} must be from {low:g} to {high:g}, not {mean:g}"
                )
        self._baseline = _read_baseline(gate.baseline, gate.no_worse) if gate.baseline else None

    def add(self, row: Row) -> None:
        self._labels[row.evaluation.label] += 1
        if self._baseline is not None:
            self._run.add(row, row.own_question_id)

    def result(self, totals: Totals) -> GateResult:
        """Return the verdicts on the rows added so far, whose summary is ``totals``."""
        gate = self._gate
        verdicts = []
        for name, bound in gate.means.items():
            metric = totals[name]
            why = _without(metric.undefined + metric.error, "score")
            ends, rows = metric.interval, metric.ok
            verdicts.append(_bound_verdict("mean", name, bound, metric.mean, ends, rows, why))
        if gate.pass_rate is not None:
            passed, rows = self._labels["pass"], self._labels["pass"] + self._labels["fail"]
            found, ends = (passed / rows, wilson(passed, rows)) if rows else (None, None)
            why = _without(self._labels[None], "label")
            rate = gate.pass_rate
            verdicts.append(_bound_verdict("pass rate", None, rate, found, ends, rows, why))
        verdicts += [self._compare(name, drop) for name, drop in gate.no_worse.items()]
        return GateResult(verdicts=tuple(verdicts))

    def _compare(self, name: str, drop: float) -> Verdict:
        if self._baseline is None or name not in self._run.metrics:
            return Verdict(
                condition=f"{name} no worse",
                kind="difference",
                passed=False,
                metric=name,
                rows=0,
                why=("there are no rows",),
            )
        pairs = pair_scores(self._run, self._baseline, metric=name)
        pairs.require_one_version(self._gate.versions)
        level = self._gate.level / len(self._gate.no_worse)
        return difference_verdict(pairs, drop=drop, level=level)


def _read_baseline(path: Path, metrics: Mapping[str, float]) -> ScoredRun:
    if not path.is_file():
        raise ConfigError(
            f"there is no baseline {path}. Write it once with"
            f" `rag-eval-otel evaluate --output {path}`, and keep it with the questions"
        )
    baseline = read_run(path)
    missing = [name for name in metrics if name not in baseline.metrics]
    if missing:
        has = ", ".join(baseline.metrics)
        raise ConfigError(f"the baseline {path} has no scores of {missing[0]}; it has {has}")
    return baseline


def _bound_verdict(  # noqa: PLR0917  # of two kinds
    kind: Kind,
    metric: str | None,
    bound: float,
    found: float | None,
    ends: Range | None,
    rows: int,
    why: tuple[str, ...],
) -> Verdict:
    if ends is not None and ends[0] < bound <= ends[1]:
        why += (f"the interval contains {bound:g}: other rows may give the other result",)
    return Verdict(
        condition=f"{metric or kind} >= {bound:g}",
        kind=kind,
        metric=metric,
        passed=found is not None and found >= bound - _ROUNDING,
        found=found,
        interval=ends,
        rows=rows,
        why=why,
    )


def _without(count: int, what: str) -> tuple[str, ...]:
    return (f"{_rows(count)} without a {what}: not counted",) if count else ()


def _rows(count: int) -> str:
    return "1 row" if count == 1 else f"{count} rows"


def least_drop(deviation: float, rows: int, *, level: float) -> float:
    """Return the drop of a mean that the t test of `difference_verdict` finds in 95 of 100 runs."""
    share, freedom = level * (1 - _LOST), rows - 1
    quantiles = t_quantile(1 - share, freedom) + t_quantile(_POWER, freedom)
    return deviation / math.sqrt(rows) * quantiles


def difference_verdict(pairs: Pairs, *, drop: float, level: float) -> Verdict:
    """Return the verdict on the condition that a metric has not dropped by more than ``drop``.

    ``level`` is the highest probability with which it is not met although nothing has changed. A
    tenth of it is for a sign test: that no more questions have lost their score than gained one.
    The rest is for a one-sided t test of the mean difference: the upper end of the interval must be
    below ``-drop``, and so many rows must differ that not all would be lower by chance alone.
    """
    share = level * (1 - _LOST)
    confidence = 1 - 2 * share
    differences, ends = pairs.differences, pairs.interval(confidence)
    differing = sum(difference != 0 for difference in differences)
    is_lower = ends is not None and ends[1] < -drop and 0.5**differing <= share
    changed = pairs.lost + pairs.gained
    by_chance = require("scipy.special").bdtrc(pairs.lost - 1, changed, 0.5)  # that many or more
    is_lost = float(by_chance) <= level * _LOST
    tolerated = f" by more than {drop:g}" if drop else ""
    return Verdict(
        condition=f"{pairs.name} no worse{tolerated}",
        kind="difference",
        metric=pairs.name,
        passed=len(differences) > 0 and not (is_lower or is_lost),
        found=mean_of(differences),
        interval=ends,
        confidence=confidence,
        rows=len(differences),
        why=tuple(_reasons(pairs, drop=drop, level=level)),
    )


def _reasons(pairs: Pairs, *, drop: float, level: float) -> Iterator[str]:
    differences = pairs.differences
    lower, higher = sum(d < 0 for d in differences), sum(d > 0 for d in differences)
    yield f"lower in {_rows(lower)}, higher in {higher}"
    if len(set(differences)) > 1:
        least = drop + least_drop(stdev(differences), len(differences), level=level)
        yield f"a drop of {least:.2g} is found in {100 * _POWER:.0f} of 100 runs"
    if pairs.lost or pairs.gained:
        yield (
            f"{_rows(pairs.lost)} without a score that the baseline has, and {pairs.gained} the"
            " other way"
        )
    if pairs.only_b or pairs.only_a:
        yield (
            f"{_rows(pairs.only_b)} of this run not in the baseline, and {pairs.only_a} of"
            " the baseline not in this run: not counted"
        )
