"""Compare the scores of a metric with human labels, or those of a judge with known verdicts."""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from importlib.resources import files
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from rag_eval_otel.config import Config
from rag_eval_otel.embed import HashingEmbedder
from rag_eval_otel.errors import ConfigError
from rag_eval_otel.evaluation import aevaluate
from rag_eval_otel.judge.tasks import Judge
from rag_eval_otel.metrics import METRICS
from rag_eval_otel.metrics.base import Direction
from rag_eval_otel.models import build_plain_judge
from rag_eval_otel.tools.cli.options import print_result, say
from rag_eval_otel.tools.read import source_of, write_whole
from rag_eval_otel.tools.rows import number, score_from_cells
from rag_eval_otel.tools.scores import metric_cells, metric_names
from rag_eval_otel.tools.stats import Numbers, Range, direction_named, interval, wilson
from rag_eval_otel.types import Evaluation, Sample

Truths: TypeAlias = NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """A statistic with its 95 % interval, or no ``value`` and the ``reason`` why there is none."""

    value: float | None = None
    interval: Range | None = None
    reason: str = ""

    def __str__(self) -> str:
        """Return the figure as text: ``0.812  [0.701, 0.889]``, or ``-  (reason)``."""
        if self.value is None:
            return f"-  ({self.reason})"
        return f"{self.value:.3f}" + (f"  {interval(self.interval)}" if self.interval else "")

    def to_dict(self) -> Mapping[str, Any]:
        """Return ``value`` as a dict for JSON, with ``low``, ``high`` and ``reason`` if set."""
        low, high = self.interval or (None, None)
        parts = {"low": low, "high": high, "reason": self.reason or None}
        return {"value": self.value, **{k: v for k, v in parts.items() if v is not None}}


@dataclass(frozen=True, slots=True, kw_only=True)
class Confusion:
    """A confusion matrix. ``false_pass`` counts rows that the metric passes and the human fails."""

    true_pass: int
    false_pass: int
    true_fail: int
    false_fail: int

    @property
    def passes(self) -> int:
        return self.true_pass + self.false_fail

    @property
    def fails(self) -> int:
        return self.true_fail + self.false_pass

    @property
    def sensitivity(self) -> Figure:
        return proportion(self.true_pass, self.passes, none="no row is labelled pass")

    @property
    def specificity(self) -> Figure:
        return proportion(self.true_fail, self.fails, none="no row is labelled fail")

    @property
    def accuracy(self) -> Figure:
        return proportion(self.true_pass + self.true_fail, self.passes + self.fails)

    @property
    def kappa(self) -> Figure:
        """Cohen's kappa of the metric and the human."""
        if not (self.passes and self.fails):
            return Figure(reason=_one_class(self.passes, self.fails))
        cells = [[self.true_pass, self.false_fail], [self.false_pass, self.true_fail]]
        shares = np.array(cells) / (self.passes + self.fails)
        chance = float(shares.sum(axis=1) @ shares.sum(axis=0))
        return Figure(value=(float(np.trace(shares)) - chance) / (1 - chance))


def confusion_of(decisions: Truths, truths: Truths) -> Confusion:
    return Confusion(
        true_pass=int(np.sum(decisions & truths)),
        false_pass=int(np.sum(decisions & ~truths)),
        true_fail=int(np.sum(~decisions & ~truths)),
        false_fail=int(np.sum(~decisions & truths)),
    )


def proportion(successes: int, n: int, *, none: str = "no rows") -> Figure:
    if not n:
        return Figure(reason=none)
    return Figure(value=successes / n, interval=wilson(successes, n))


def _one_class(passes: int, fails: int) -> str:
    if not (passes or fails):
        return "no rows with both a score and a label"
    return f"all labels are {'pass' if passes else 'fail'}; both are needed"


def fit_threshold(scores: Numbers, truths: Truths) -> tuple[Figure, Figure]:
    """Return the lowest score to pass for the best agreement with ``truths``, and its Youden's J.

    Both lack a value if all truths are equal; the threshold also if no J is above 0.
    """
    passes = int(np.sum(truths))
    fails = len(truths) - passes
    if not passes or not fails:
        none = Figure(reason=_one_class(passes, fails))
        return none, none
    chosen, best = _best(scores, truths)
    if best <= 0:
        return Figure(reason="no threshold is better than passing all rows"), Figure(value=0.0)
    return Figure(value=chosen), Figure(value=best)


def _best(scores: Numbers, truths: Truths) -> tuple[float, float]:
    """Return the threshold with the highest Youden's J, midway between two scores, and this J."""
    levels, codes = np.unique(scores, return_inverse=True)
    passes, fails = (np.bincount(codes[part], minlength=len(levels)) for part in (truths, ~truths))
    lost, spared = (np.cumsum(c) - c for c in (passes, fails))  # rows with lower scores
    gain = spared * int(passes.sum()) - lost * int(fails.sum())  # in integers: equal J are equal
    at = int(len(gain) - 1 - np.argmax(gain[::-1]))
    lower, upper = (float(levels[max(0, i)]) for i in (at - 1, at))
    middle = lower / 2 + upper / 2
    threshold = middle if lower < middle <= upper else upper
    return threshold, float(gain[at] / (passes.sum() * fails.sum()))


Cells: TypeAlias = Mapping[str, Any]
Observation: TypeAlias = "tuple[float | None, float | None]"
"""The score of a row for one metric, and its human label."""

_WORDS: Mapping[str, float] = {
    **dict.fromkeys(("pass", "true", "yes"), 1.0),
    **dict.fromkeys(("fail", "false", "no"), 0.0),
}
_EVALUATED = frozenset({"sample", "judge"})  # columns of a file that `evaluate` wrote


def observations(
    rows: Iterable[tuple[str, Cells]], *, metric: str | None = None
) -> Mapping[str, Sequence[Observation]]:
    """Read the scores and human labels in ``rows``, for each metric or for ``metric`` only.

    ``rows`` has pairs of a row's name and its cells, in one of the forms of ``docs/calibrate.md``.
    Raises `ConfigError` for a label that cannot be read, and for rows without a metric or a label.
    """
    observed: defaultdict[str, list[Observation]] = defaultdict(list)
    columns: dict[str, None] = {}
    for where, row in rows:
        columns |= dict.fromkeys(map(str, row))
        labels = row.get("labels")
        labels = labels if isinstance(labels, Mapping) else {}
        known = METRICS if "human" in row and "score" not in row else ()
        names = [*metric_names(row, metric=metric, default=metric or "score"), *labels]
        # The label that `evaluate` writes is the metric's own.
        common = row.get("human", None if row.keys() >= _EVALUATED else row.get("label"))
        for name in dict.fromkeys([*names, *(column for column in row if column in known)]):
            if metric in {None, name}:
                cells = metric_cells(row, name)
                score = score_from_cells(name, cells)
                if score.value is None:
                    parsed(cells.get("value"), where=f"{where}, {name}: the score")
                label = labels.get(name, row.get(f"{name}.human", common))
                read = parsed(label, where=f"{where}, {name}: the label")
                observed[name].append((score.value, read))
    if not observed:
        raise ConfigError(
            f"no scores of {metric or 'any metric'} found; use score and label, scores and labels,"
            " or columns <metric> and <metric>.human; or name the column of the scores (--metric)."
            f" Columns found: {', '.join(columns) or 'none'}"
        )
    if all(label is None for seen in observed.values() for _, label in seen):
        raise ConfigError(
            "no row has a human label: add label (beside score), labels, human or <metric>.human;"
            " the label that evaluate writes is the metric's own"
        )
    return observed


def parsed(value: object, *, where: str) -> float | None:
    """Return the number, or 1 for pass and 0 for fail; None if empty. Errors name ``where``."""
    plain = value.item() if hasattr(value, "item") else value  # of numpy
    if isinstance(plain, str):
        plain = _WORDS.get(plain.strip().lower(), plain.strip())
    if plain in (None, "") or plain != plain:  # noqa: PLR0124  # NaN
        return None
    read = number(plain)
    if read is None:
        accepted = "pass or fail, true or false, yes or no, or a number"
        raise ConfigError(f"{where} must be {accepted}, not {value!r:.40}")
    return read


_BINARY = ("kappa", "accuracy", "sensitivity", "specificity")
_SHOWN = (*_BINARY, "human_rate", "fitting_threshold", "youden")
_NO_THRESHOLD = Figure(reason="give the threshold that a score passes from")


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Calibration:
    """The agreement of a metric's scores with human labels. The repr is a table.

    ``labelled`` rows have a score and a human label, ``unlabelled`` rows only a score, and
    ``without_score`` rows have none. ``kappa``, ``accuracy``, ``sensitivity``, ``specificity`` and
    ``confusion`` compare the pass or fail at ``threshold`` with the human's. ``human_rate`` is the
    fraction of labelled rows that the human passes. ``fitting_threshold`` fits the labels best,
    with Youden's J ``youden`` on these rows.
    """

    metric: str
    threshold: float | None
    label_threshold: float | None
    labelled: int
    unlabelled: int
    without_score: int
    kappa: Figure
    confusion: Confusion | None = None
    accuracy: Figure
    sensitivity: Figure
    specificity: Figure
    human_rate: Figure
    fitting_threshold: Figure
    youden: Figure

    def __repr__(self) -> str:
        return "\n  ".join(
            [
                f"{self.metric}  (95% intervals in brackets)",
                *(f"{name:<20}  {text}" for name, text in self._lines()),
            ]
        )

    def _lines(self) -> Iterator[tuple[str, str]]:
        rows = f"{self.labelled} labelled, {self.unlabelled} without a label"
        without = f", {self.without_score} without a score" if self.without_score else ""
        yield "rows", rows + without
        score, label = (
            "-" if lowest is None else f"from {lowest:g}"
            for lowest in (self.threshold, self.label_threshold)
        )
        yield "passes", f"score {score}, label {label}"
        yield from ((name.replace("_", " "), str(getattr(self, name))) for name in _SHOWN)
        if (c := self.confusion) is not None:
            yield "", f"{'human pass':>12}{'human fail':>12}"
            yield "metric pass", f"{c.true_pass:>12}{c.false_pass:>12}"
            yield "metric fail", f"{c.false_fail:>12}{c.true_fail:>12}"

    @property
    def right(self) -> float:
        """The fraction of the rows on which metric and human agree; a missing score is wrong."""
        agreed = self.confusion.true_pass + self.confusion.true_fail if self.confusion else 0
        return agreed / max(1, self.labelled + self.without_score)

    def to_dict(self) -> dict[str, Any]:
        values = {name: getattr(self, name) for name in self.__slots__}
        values["confusion"] = None if self.confusion is None else asdict(self.confusion)
        return {n: v.to_dict() if hasattr(v, "to_dict") else v for n, v in values.items()}


def calibrate(
    scores: Iterable[object],
    labels: Iterable[object],
    *,
    threshold: float | None,
    label_threshold: float | None = None,
    metric: str = "score",
    direction: Direction = "high",
) -> Calibration:
    """Compare ``scores`` with the human ``labels`` of the same rows; None if one is missing.

    A label is pass or fail (True, 1 or ``"pass"``; False, 0 or ``"fail"``), or a number on a scale,
    of which ``label_threshold`` is the lowest that passes. ``threshold`` is the lowest score that
    passes; without it, figures that need a pass or fail are left out. With the ``direction``
    ``"low"``, scores below the threshold pass. A figure that cannot be computed has a reason
    instead of a number. For any other score or label, `ConfigError` names the row, from 0.
    """
    for name, value in {"threshold": threshold, "label_threshold": label_threshold}.items():
        if value is not None and not math.isfinite(value):
            raise ConfigError(f"{name} must be a finite number, not {value}")
    columns = [
        [parsed(value, where=f"row {row}: the {what}") for row, value in enumerate(column)]
        for what, column in (("score", scores), ("label", labels))
    ]
    if len(columns[0]) != len(columns[1]):
        raise ConfigError(
            f"{len(columns[0])} scores for {len(columns[1])} labels; pass None for a row without"
        )
    rows = [(score, label) for score, label in zip(*columns, strict=True) if score is not None]
    both = [row for row in rows if row[1] is not None]
    values, given = np.array(both, dtype=float).reshape(-1, 2).T
    sign = -1 if direction == "low" else 1
    figures: dict[str, Any]
    if label_threshold is None and not set(given) <= {0.0, 1.0}:
        scale = f"{min(given):g} to {max(given):g}"
        unknown = f"labels go from {scale}: give the label_threshold that a row passes from"
        figures = dict.fromkeys(_SHOWN, Figure(reason=unknown))
    else:
        label_threshold = 1.0 if label_threshold is None else label_threshold
        truths = given >= label_threshold
        figures = dict.fromkeys(_BINARY, _NO_THRESHOLD)
        if threshold is not None:
            passed = values < threshold if direction == "low" else values >= threshold
            confusion = confusion_of(passed, truths)
            figures = {name: getattr(confusion, name) for name in _BINARY}
            figures["confusion"] = confusion
        figures["human_rate"] = proportion(int(np.sum(truths)), len(truths))
        best, figures["youden"] = fit_threshold(sign * values, truths)
        figures["fitting_threshold"] = replace(best, value=best.value and sign * best.value)
    return Calibration(
        metric=metric,
        threshold=threshold,
        label_threshold=label_threshold,
        labelled=len(both),
        unlabelled=len(rows) - len(both),
        without_score=len(columns[0]) - len(rows),
        **figures,
    )


_DECLINES = "declines"  # beside the metrics: whether the answer is told to decline
_HALF = 0.5  # the threshold on the built-in cases
_SECONDS = 120.0  # the time limit of a built-in case


def built_in_cases() -> Iterator[tuple[Sample, Mapping[str, float]]]:
    """Yield samples, each with the correct labels by metric.

    The labels follow from the verdicts on the sentences of the answer: 1 if the contexts support
    the sentence, 0 if not, 2 if the sentence claims nothing.
    """
    text = (files("rag_eval_otel.tools") / "judge_cases.json").read_text(encoding="utf-8")
    topics = json.loads(text)["topics"]
    for cells in ({**topic, **case} for topic in topics for case in topic["cases"]):
        claims = [verdict for verdict in cells["verdicts"] if verdict in {0, 1}]
        labels = {"context_relevance": cells["relevance"] / 2, _DECLINES: float(not claims)}
        if claims:
            share = sum(claims) / len(claims)
            labels["faithfulness"] = share
            labels["response_groundedness"] = (share > 0) / 2 + (share == 1) / 2
        yield Sample(**{name: cells[name] for name in ("question", "contexts", "answer")}), labels


async def observed_of(judge: Judge, *, concurrency: int) -> Mapping[str, Sequence[Observation]]:
    """Score the built-in cases, and return the scores with the correct labels by metric."""
    semaphore, embedder = asyncio.Semaphore(concurrency), HashingEmbedder()

    async def scored(sample: Sample) -> Evaluation:
        async with semaphore:
            return await aevaluate(sample, judge=judge, embedder=embedder, timeout=_SECONDS)

    cases = [*built_in_cases()]
    evaluations = await asyncio.gather(*(scored(sample) for sample, _ in cases))
    observed: defaultdict[str, list[Observation]] = defaultdict(list)
    for (_, labels), evaluation in zip(cases, evaluations, strict=True):
        values = {score.name: score.value for score in evaluation.scores}
        if evaluation.outcome is not None:
            values[_DECLINES] = float(evaluation.outcome == "declined")
        for name, label in labels.items():
            observed[name].append((values.get(name), label))
    return observed


_BARE = re.compile("[A-Za-z0-9_-]+")  # the keys that TOML has without quotes
_HEAD = """\
# From which score on each metric passes. Read by `rag-eval-otel evaluate --thresholds FILE`, by
# `rag-eval-otel rules --thresholds FILE`, by the option `thresholds` and RAG_EVAL_THRESHOLDS.
[thresholds]
"""
_BOUND = 0.8
_OF_JUDGE = ("judge", "concurrency")
_OF = (("metric", "threshold", "label_threshold"), (*_OF_JUDGE, "bound"))  # without, with built-in


def run(options: argparse.Namespace) -> int:
    if options.built_in == (options.file is not None):
        raise ConfigError("name a FILE with human labels, or --built-in to check a judge")
    if wrong := [name for name in _OF[not options.built_in] if getattr(options, name) is not None]:
        part = "with" if not options.built_in else "without"
        raise ConfigError(f"--{wrong[0].replace('_', '-')} can only be used {part} --built-in")
    if options.built_in:
        seen = _observed_of_judge(options)
    else:
        seen = observations(source_of(options.file).rows(), metric=options.metric)
    calibrations = [
        calibrate(
            *zip(*observed, strict=True),
            threshold=_threshold(name, options),
            label_threshold=_HALF if options.built_in else options.label_threshold,
            metric=name,
            direction=direction_named(name),
        )
        for name, observed in seen.items()
    ]
    results = [calibration.to_dict() for calibration in calibrations]
    print_result(options, results, "\n\n".join(map(repr, calibrations)))
    if options.output is not None:
        _write(options.output, calibrations)
    bound = _BOUND if options.bound is None else options.bound
    below = [each.metric for each in calibrations if options.built_in and each.right < bound]
    if below:
        say(f"the judge is right in less than {bound:g} of the cases: {', '.join(below)}")
    return 1 if below else 0


def _observed_of_judge(options: argparse.Namespace) -> Mapping[str, Sequence[Observation]]:
    settings = {name: getattr(options, name) for name in _OF_JUDGE}
    config = Config.from_env(**{name: v for name, v in settings.items() if v is not None})
    return asyncio.run(observed_of(build_plain_judge(config), concurrency=config.concurrency))


def _threshold(name: str, options: argparse.Namespace) -> float | None:
    metric = METRICS[name]() if options.threshold is None and name in METRICS else None
    usual = _HALF if options.built_in else options.threshold
    threshold: float | None = getattr(metric, "threshold", usual)
    return threshold


def _write(path: Path, calibrations: Iterable[Calibration]) -> None:
    lines = []
    for each in calibrations:
        name, chosen = each.metric, each.fitting_threshold
        if chosen.value is None:
            say(f"no threshold for {name}: {chosen.reason}")
            continue
        key = name if _BARE.fullmatch(name) else json.dumps(name)
        remark = f"chosen on {each.labelled} labelled rows, Youden's J {each.youden}"
        lines.append(f"{key} = {chosen.value:.6g}  # {remark}\n")
    if not lines:
        raise ConfigError(f"nothing was written to {path}: no threshold fits")
    write_whole(path, _HEAD + "".join(lines), option="--output")
