"""Compare the scores of two runs over the same questions, row by row.

A is the earlier run, B the later one; a difference is the score in B minus that in A. The interval
of the mean difference (Student's t) is narrower than that of a mean score, because a question that
is hard in A is hard in B, too.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from textwrap import shorten
from typing import Any, Literal

import numpy as np

from rag_eval_otel.errors import ConfigError
from rag_eval_otel.runtime.guard import require
from rag_eval_otel.tools import stats
from rag_eval_otel.tools.rows import Row
from rag_eval_otel.tools.scores import MOST_SCORES, read_scores
from rag_eval_otel.types import Score

Versions = Literal["same", "any"]
"""Whether only scores of the same version are compared, or scores of any versions."""

Texts = Literal["on", "off"]
"""Whether the questions, answers and explanations in the files are shown."""

COLUMNS = ("metric", "A", "B", "B - A", "95 % interval", "pairs", "lower", "higher", "pass A", "pass B")  # fmt: skip  # noqa: E501
"""The columns of the table of metrics, as `MetricChange.cells` fills them."""

_VERSIONS = 3  # versions in a message
_LINE = 90  # characters of a text in a line of the terminal


@dataclass(frozen=True, slots=True)
class Entry:
    """One score of a run, with its row number, the id of its question and, if kept, its row."""

    index: int
    question: str
    score: Score
    row: Row | None = None


@dataclass(slots=True, kw_only=True)
class ScoredRun:
    """The scores of one run by metric. Rows with their texts are kept if ``texts`` is "on"."""

    name: str
    rows: int = 0
    metrics: dict[str, list[Entry]] = field(default_factory=dict)
    texts: Texts = "off"

    def add(self, row: Row, question_id: str) -> None:
        self.rows = max(self.rows, row.index + 1)
        kept = row if self.texts == "on" else None
        for score in row.scores:
            entry = Entry(row.index, question_id, score, kept)
            self.metrics.setdefault(score.name, []).append(entry)


def read_run(path: Path, *, metric: str | None = None, texts: Texts = "off") -> ScoredRun:
    run = ScoredRun(name=str(path), texts=texts)
    for row in read_scores(path, metric=metric, most=MOST_SCORES):
        run.add(row, row.question_id)
    return run


@dataclass(frozen=True, slots=True, kw_only=True)
class Pairs:
    """The scores of one metric in B and A, paired by question, and counts of unpaired rows."""

    name: str
    pairs: Sequence[tuple[Entry, Entry]]
    only_b: int = 0
    only_a: int = 0

    def changes(self) -> list[tuple[float, Entry, Entry]]:
        return [
            (b.score.value - a.score.value, b, a)
            for b, a in self.pairs
            if b.score.value is not None and a.score.value is not None
        ]

    @property
    def differences(self) -> list[float]:
        return [difference for difference, _, _ in self.changes()]

    @property
    def lost(self) -> int:
        return sum(b.score.value is None and a.score.value is not None for b, a in self.pairs)

    @property
    def gained(self) -> int:
        return sum(b.score.value is not None and a.score.value is None for b, a in self.pairs)

    def interval(self, confidence: float = 0.95) -> stats.Range | None:
        """Return the confidence interval of the mean difference B - A, or None for too few scores.

        It is clipped to [-1, 1] if all scores are in [0, 1].
        """
        ends = stats.mean_interval(self.differences, confidence=confidence)
        scores = [entry.score.value for pair in self.pairs for entry in pair]
        values = [value for value in scores if value is not None]
        if ends is None or stats.scale_of(values, ()) is None:
            return ends
        low, high = np.clip(ends, -1, 1).tolist()
        return low, high

    def require_one_version(self, versions: Versions) -> None:
        """Raise `ConfigError` if paired scores have two versions, unless ``versions`` is "any"."""
        if versions not in ("same", "any"):
            raise ConfigError(f"versions must be 'same' or 'any', not {versions!r}")
        mixed = Counter(
            f"{b.score.version or 'no version'} and {a.score.version or 'no version'}"
            for _, b, a in self.changes()
            if b.score.version != a.score.version
        )
        if mixed and versions == "same":
            counts = "; ".join(f"{pair} ({n} rows)" for pair, n in mixed.most_common(_VERSIONS))
            raise ConfigError(
                f"{self.name} was measured in different ways: {counts}. Evaluate both with the same"
                " metric, fusion and judge, or pass versions='any' (--versions any)"
            )


def pair_scores(b: ScoredRun, a: ScoredRun, *, metric: str) -> Pairs:
    """Pair the scores of ``metric`` by question. A repeated question is paired in row order."""
    in_b, in_a = (_keyed(run, metric) for run in (b, a))
    pairs = [(entry, in_a[key]) for key, entry in in_b.items() if key in in_a]
    if not pairs:
        raise ConfigError(
            f"no row of {a.name} is in {b.name}: they have other questions or references."
            " Evaluate the same questions to compare them"
        )
    only_b, only_a = (len(side) - len(pairs) for side in (in_b, in_a))
    return Pairs(name=metric, pairs=pairs, only_b=only_b, only_a=only_a)


def _keyed(run: ScoredRun, metric: str) -> dict[tuple[str, int], Entry]:
    counts: Counter[str] = Counter()
    keyed: dict[tuple[str, int], Entry] = {}
    for entry in run.metrics[metric]:
        if not entry.question:
            raise ConfigError(
                f"{run.name}: row {entry.index} does not say its question (column question_id,"
                " question or id), so that it cannot be paired. Evaluate the same questions with"
                " `rag-eval-otel evaluate --output`"
            )
        keyed[entry.question, counts[entry.question]] = entry
        counts[entry.question] += 1
    return keyed


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """A turn whose score differs between the runs, with its texts and B's explanation."""

    row_a: int
    row_b: int
    a: float
    b: float
    question: str = ""
    answer_a: str = ""
    answer_b: str = ""
    explanation: str = ""

    @property
    def place(self) -> str:
        return f"row {self.row_b}" + ("" if self.row_a == self.row_b else f" (A: row {self.row_a})")

    def __str__(self) -> str:
        text = f"  {shorten(self.question, _LINE, placeholder='...')}" if self.question else ""
        return f"{self.place}  {self.a:.3f} -> {self.b:.3f}  {stats.signed(self.b - self.a)}{text}"


def _turn(b: Entry, a: Entry) -> Turn:
    texts: dict[str, str] = {}
    if a.row is not None and b.row is not None:
        texts = {
            "question": b.row.sample.question or a.row.sample.question,
            "answer_a": a.row.sample.answer,
            "answer_b": b.row.sample.answer,
            "explanation": b.score.explanation or "",
        }
    before, after = a.score.value or 0.0, b.score.value or 0.0
    return Turn(row_a=a.index, row_b=b.index, a=before, b=after, **texts)


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricChange:
    """How one metric differs between the runs, with the turns that fell and rose the most.

    ``mean`` and ``interval`` (95 %) are of the difference B minus A over the ``pairs`` with a score
    in both runs; ``unpaired`` counts other rows. ``a`` and ``b`` summarise all rows of a run.
    """

    name: str
    mean: float | None
    interval: stats.Range | None
    pairs: int
    unpaired: int
    higher: int
    lower: int
    a: stats.MetricSummary
    b: stats.MetricSummary
    differences: Sequence[float]
    values: tuple[Sequence[float], Sequence[float]]
    remarks: Sequence[str] = ()
    worse: Sequence[Turn] = ()
    better: Sequence[Turn] = ()

    def cells(self) -> tuple[str, ...]:
        return (
            self.name,
            *(stats.number(self.a.mean), stats.number(self.b.mean)),
            *(stats.signed(self.mean), stats.interval(self.interval)),
            *map(str, (self.pairs, self.lower, self.higher)),
            *(stats.passes(side.passed, side.labelled) for side in (self.a, self.b)),
        )

    @property
    def is_clear(self) -> bool:
        """Whether the interval of the difference excludes 0."""
        return self.interval is not None and not self.interval[0] <= 0 <= self.interval[1]

    def gain(self) -> float:
        """Return the mean difference, positive if B is better; 0 if no row was compared."""
        return (self.mean or 0.0) * (-1 if stats.direction_named(self.name) == "low" else 1)

    def turns(self) -> list[tuple[str, Sequence[Turn]]]:
        """Return the turns that got worse, and those that got better, each with a title."""
        sides = (("turns that got worse", self.worse), ("turns that got better", self.better))
        return [(title, turns) for title, turns in sides if turns]

    def to_dict(self) -> dict[str, Any]:
        """Return a dict for JSON: the summary and the changed turns, not the scores of all rows."""
        fields = asdict(self)
        del fields["differences"], fields["values"]
        for side in ("worse", "better"):
            fields[side] = [{k: v for k, v in turn.items() if v != ""} for turn in fields[side]]
        return fields


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Comparison:
    """The comparison of two runs: what `compare_files` and `DatasetResult.compare` return.

    ``only_a`` and ``only_b`` name the metrics that only one run has.
    """

    name_a: str
    name_b: str
    rows_a: int
    rows_b: int
    metrics: tuple[MetricChange, ...]
    only_a: tuple[str, ...] = ()
    only_b: tuple[str, ...] = ()

    def __getitem__(self, name: str) -> MetricChange:
        """Return the change of the metric ``name``; a `KeyError` lists the known names."""
        metric: MetricChange = stats.named(self.metrics, name)
        return metric

    def __repr__(self) -> str:
        """Return the differences as a table, with the turns that changed the most below."""
        lines = [
            f"A: {self.name_a}, {self.rows_a} rows",
            f"B: {self.name_b}, {self.rows_b} rows",
            stats.aligned([COLUMNS, *(metric.cells() for metric in self.metrics)]),
            *(f"  {metric.name}: {text}" for metric in self.metrics for text in metric.remarks),
            *(f"  {name}: only in A" for name in self.only_a),
            *(f"  {name}: only in B" for name in self.only_b),
        ]
        for metric in self.metrics:
            for title, turns in metric.turns():
                lines += ["", f"{metric.name}, {title}:", *(f"  {turn}" for turn in turns)]
        return "\n".join(lines)

    def to_dict(self) -> dict[str, Any]:
        """Return a dict for JSON: the two runs and how each metric differs."""
        return {
            "a": {"file": self.name_a, "rows": self.rows_a},
            "b": {"file": self.name_b, "rows": self.rows_b},
            "metrics": {metric.name: metric.to_dict() for metric in self.metrics},
            "only_a": list(self.only_a),
            "only_b": list(self.only_b),
        }


def compare_files(
    a: str | Path,
    b: str | Path,
    *,
    metric: str | None = None,
    versions: Versions = "same",
    turns: int = 5,
    texts: Texts = "on",
) -> Comparison:
    """Compare the score files ``a`` and ``b``, which have scores of the same questions.

    ``turns`` is the highest number of turns that are listed as worse, and as better, for each
    metric. Raises `ConfigError` for files that cannot be read or paired by question and reference,
    and, unless ``versions`` is "any", for a metric that was measured in different versions.
    """
    run_a, run_b = (read_run(Path(file), metric=metric, texts=texts) for file in (a, b))
    return _comparison(run_b, run_a, versions=versions, turns=turns)


def compare_rows(b: Iterable[Row], a: Iterable[Row], *, versions: Versions) -> Comparison:
    """Compare the scored rows of two datasets, as `compare_files` compares those of files."""
    runs = ScoredRun(name="this result"), ScoredRun(name="the other")
    for run, rows in zip(runs, (b, a), strict=True):
        for row in rows:
            run.add(row, row.own_question_id)
    return _comparison(*runs, versions=versions, turns=0)


def _comparison(b: ScoredRun, a: ScoredRun, *, versions: Versions, turns: int) -> Comparison:
    common = [name for name in b.metrics if name in a.metrics]
    if not common and (a.rows or b.rows):
        raise ConfigError(
            f"no metric in common: {', '.join(b.metrics)} in {b.name},"
            f" {', '.join(a.metrics)} in {a.name}"
        )
    paired = [pair_scores(b, a, metric=name) for name in common]
    for pairs in paired:
        pairs.require_one_version(versions)
    return Comparison(
        name_a=a.name,
        name_b=b.name,
        rows_a=a.rows,
        rows_b=b.rows,
        metrics=tuple(_change(pairs, b, a, turns=turns) for pairs in paired),
        only_a=tuple(name for name in a.metrics if name not in b.metrics),
        only_b=tuple(name for name in b.metrics if name not in a.metrics),
    )


def _change(pairs: Pairs, b: ScoredRun, a: ScoredRun, *, turns: int) -> MetricChange:
    changes = sorted(pairs.changes(), key=lambda change: (-abs(change[0]), change[1].index))
    lower, higher = ([c for c in changes if c[0] * sign > 0] for sign in (-1, 1))
    tallies = stats.Tally(), stats.Tally()
    for tally, run in zip(tallies, (a, b), strict=True):
        for entry in run.metrics[pairs.name]:
            tally.add(entry.score)
    is_low = stats.direction_named(pairs.name) == "low"
    worse, better = (higher, lower) if is_low else (lower, higher)
    return MetricChange(
        name=pairs.name,
        mean=stats.mean_of(pairs.differences),
        interval=pairs.interval(),
        pairs=len(changes),
        unpaired=len(pairs.pairs) - len(changes) + pairs.only_b + pairs.only_a,
        higher=len(higher),
        lower=len(lower),
        a=tallies[0].summary(pairs.name),
        b=tallies[1].summary(pairs.name),
        differences=pairs.differences,
        values=(list(tallies[0].values), list(tallies[1].values)),
        remarks=tuple(_remarks(pairs, "A", "B")),
        worse=[_turn(b, a) for _, b, a in worse[:turns]],
        better=[_turn(b, a) for _, b, a in better[:turns]],
    )


def _remarks(pairs: Pairs, a: str, b: str) -> Iterator[str]:
    """Yield remarks on rows without a pair and on versions; ``a`` and ``b`` name the runs."""
    if pairs.only_b or pairs.only_a:
        yield f"rows only in {a}: {pairs.only_a}, only in {b}: {pairs.only_b}"
    if pairs.lost or pairs.gained:
        yield f"rows with a score only in {a}: {pairs.lost}, only in {b}: {pairs.gained}"
    changes = pairs.changes()
    versions = [{a.score.version for *_, a in changes}, {b.score.version for _, b, _ in changes}]
    if versions[0] != versions[1]:
        yield f"{a} and {b} were measured in different ways: " + " and ".join(
            ", ".join(sorted(version or "no version" for version in side)) for side in versions
        )


Kind = Literal["mean", "pass rate", "difference"]

LEVEL = 0.01
"""The share of runs that are no worse and fail nevertheless."""

ANY_RANGE: stats.Range = (-math.inf, math.inf)
"""The range of a metric whose lowest and highest score are not known."""

_LOST = 0.1  # part of the level for the test on rows that lost their score
_MOST_LEVEL = 0.5
_ROUNDING = 1e-9  # of a mean that is the bound itself
_COLUMNS = ("condition", "found", "interval", "rows", "result")


@dataclass(frozen=True, slots=True, kw_only=True)
class Gate:
    """The conditions of a release; a bad share or drop is a `ConfigError`.

    - ``means``: the lowest mean by metric, on its own scale. ``most``: the highest mean by metric,
      for metrics whose low scores are good. ``pass_rate``: the lowest share of labelled rows that
      pass.
    - ``no_worse``: the drop of the mean (the rise, if low scores are good) that is tolerated, by
      metric, against ``baseline``, the score file of an earlier run; with ``versions`` "any" also
      of another judge, metric or prompt.
    - ``level``: the share of runs, above 0 and below 0.5, in which chance alone fails a comparison.
    """

    means: Mapping[str, float] = field(default_factory=dict)
    most: Mapping[str, float] = field(default_factory=dict)
    pass_rate: float | None = None
    no_worse: Mapping[str, float] = field(default_factory=dict)
    baseline: Path | str | None = None
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
    interval: stats.Range | None = None
    confidence: float = 0.95
    rows: int
    why: tuple[str, ...] = ()

    def cells(self) -> tuple[str, ...]:
        found = stats.signed(self.found) if self.kind == "difference" else stats.number(self.found)
        shown = stats.interval(self.interval)
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
                stats.aligned([_COLUMNS, *(verdict.cells() for verdict in self.verdicts)]),
                *(f"  {each.condition}: {text}" for each in self.verdicts for text in each.why),
            ]
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the fields for JSON."""
        return {"passed": self.passed, "conditions": [asdict(verdict) for verdict in self.verdicts]}


class GateCheck:
    """Check the conditions of ``gate`` on the rows of one run.

    ``metrics`` maps the metrics that are measured to their lowest and highest scores, or to
    `ANY_RANGE`, and ``low`` has those whose low scores are good. The baseline is read at once, so
    that a bad one costs no judge request.
    """

    def __init__(
        self, gate: Gate, metrics: Mapping[str, stats.Range], low: frozenset[str] = frozenset()
    ) -> None:
        self._gate, self._low = gate, low
        self._run = ScoredRun(name="this run")
        for name in (*gate.means, *gate.most, *gate.no_worse):
            if name not in metrics:
                raise ConfigError(
                    f"the gate names {name}, which is not among the metrics that are measured:"
                    f" {', '.join(metrics)}"
                )
        for name, mean in (*gate.means.items(), *gate.most.items()):
            least, highest = metrics[name]
            if not least <= mean <= highest:
                end = "highest" if name in gate.most else "lowest"
                raise ConfigError(
                    f"the {end} mean of {name} must be from {least:g} to {highest:g}, not {mean:g}"
                )
        for name in gate.means.keys() & low:
            raise ConfigError(f"low scores of {name} are good: use --fail-over (most)")
        for name in gate.most.keys() - low:
            raise ConfigError(f"high scores of {name} are good: use --fail-under (means)")
        self._baseline = _read_baseline(gate.baseline, gate.no_worse) if gate.baseline else None

    def add(self, row: Row) -> None:
        if self._baseline is not None:
            self._run.add(row, row.own_question_id)

    def result(self, totals: stats.Totals) -> GateResult:
        """Return the verdicts on the rows added so far, whose summary is ``totals``."""
        gate = self._gate
        verdicts = []
        for name, bound in (*gate.means.items(), *gate.most.items()):
            metric = totals[name]
            why = _without(metric.undefined + metric.error, "score")
            sign, ends, rows = -1 if name in gate.most else 1, metric.interval, metric.ok
            verdicts.append(_bound_verdict("mean", name, bound, metric.mean, ends, rows, why, sign))
        if gate.pass_rate is not None:
            labels = totals.verdicts["label"]
            passed, rows = labels.get("pass", 0), sum(labels.values())
            found, ends = (passed / rows, stats.wilson(passed, rows)) if rows else (None, None)
            why = _without(totals.rows - rows, "label")
            rate = gate.pass_rate
            verdicts.append(_bound_verdict("pass rate", None, rate, found, ends, rows, why))
        verdicts += [self._compare(name, drop) for name, drop in gate.no_worse.items()]
        return GateResult(verdicts=tuple(verdicts))

    def _compare(self, name: str, drop: float) -> Verdict:
        if self._baseline is None or name not in self._run.metrics:
            condition, why = f"{name} no worse", ("there are no rows",)
            return Verdict(
                kind="difference", passed=False, metric=name, rows=0, condition=condition, why=why
            )
        pairs = pair_scores(self._run, self._baseline, metric=name)
        pairs.require_one_version(self._gate.versions)
        level = self._gate.level / len(self._gate.no_worse)
        return difference_verdict(pairs, drop=drop, level=level, is_low=name in self._low)


def _read_baseline(file: Path | str, metrics: Mapping[str, float]) -> ScoredRun:
    path = Path(file)
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
    ends: stats.Range | None,
    rows: int,
    why: tuple[str, ...],
    sign: int = 1,
) -> Verdict:
    if ends is not None and ends[0] < bound <= ends[1]:
        why += (f"the interval contains {bound:g}: other rows may give the other result",)
    return Verdict(
        condition=f"{metric or kind} {'<=' if sign < 0 else '>='} {bound:g}",
        kind=kind,
        metric=metric,
        passed=found is not None and sign * found >= sign * bound - _ROUNDING,
        found=found,
        interval=ends,
        rows=rows,
        why=why,
    )


def _without(count: int, what: str) -> tuple[str, ...]:
    return (f"{_rows(count)} without a {what}: not counted",) if count else ()


def _rows(count: int) -> str:
    return "1 row" if count == 1 else f"{count} rows"


def difference_verdict(pairs: Pairs, *, drop: float, level: float, is_low: bool = False) -> Verdict:
    """Return the verdict on the condition that a metric has not dropped by more than ``drop``.

    A metric whose low scores are good (``is_low``) must not have risen by more. Without a pair of
    scores, the condition is not met.

    ``level`` is the highest probability of failing although nothing has changed. Nine tenths of it
    are for a one-sided t test of the mean difference: it fails if the upper end of the interval is
    below ``-drop``, and so many rows differ that not all would be lower by chance alone. The rest
    is for a sign test of the questions that lost their score, against those that gained one.
    """
    share = level * (1 - _LOST)
    confidence = 1 - 2 * share
    differences, ends = pairs.differences, pairs.interval(confidence)
    lower, higher = (sum(sign * each > 0 for each in differences) for sign in (-1, 1))
    is_beyond = ends is not None and (ends[0] > drop if is_low else ends[1] < -drop)
    is_worse = is_beyond and 0.5 ** (lower + higher) <= share
    changed = pairs.lost + pairs.gained
    by_chance = require("scipy.special").bdtrc(pairs.lost - 1, changed, 0.5)  # that many or more
    is_lost = float(by_chance) <= level * _LOST
    remarks = _remarks(pairs, "the baseline", "this run")
    tolerated = f" by more than {drop:g}" if drop else ""
    return Verdict(
        condition=f"{pairs.name} no worse{tolerated}",
        kind="difference",
        metric=pairs.name,
        passed=len(differences) > 0 and not (is_worse or is_lost),
        found=stats.mean_of(differences),
        interval=ends,
        confidence=confidence,
        rows=len(differences),
        why=(f"lower in {_rows(lower)}, higher in {higher}", *remarks),
    )
