"""Compare the scores of a metric with human labels, and a judge with known verdicts."""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from importlib.resources import files
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from rag_eval_otel.config import Config
from rag_eval_otel.embed import HashingEmbedder
from rag_eval_otel.errors import ConfigError
from rag_eval_otel.evaluation import aevaluate
from rag_eval_otel.judge.models import build_plain_judge
from rag_eval_otel.judge.tasks import Judge
from rag_eval_otel.metrics import METRICS
from rag_eval_otel.metrics.base import Direction
from rag_eval_otel.tools.cli.options import print_result, say
from rag_eval_otel.tools.read import source_of, write_whole
from rag_eval_otel.tools.rows import number, score_from_cells
from rag_eval_otel.tools.scores import metric_cells, metric_names
from rag_eval_otel.tools.stats import Numbers, Range, Z, direction_named, interval, wilson
from rag_eval_otel.types import Evaluation, Form, Sample, Usage

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
        """Cohen's kappa of the metric and the human, with a 95 % interval.

        The standard error is that of Fleiss, Cohen and Everitt (1969). The interval is computed on
        Fisher's scale, arctanh(kappa), so that it ends between -1 and 1.
        """
        if not (self.passes and self.fails):
            return Figure(reason=_one_class(self.passes, self.fails))
        cells = [[self.true_pass, self.false_fail], [self.false_pass, self.true_fail]]
        shares = np.array(cells) / (self.passes + self.fails)
        human, metric = shares.sum(axis=1), shares.sum(axis=0)
        chance = float(human @ metric)
        kappa = (float(np.trace(shares)) - chance) / (1 - chance)
        if abs(kappa) >= 1:
            return Figure(value=kappa)
        pulls = np.eye(2) - np.add.outer(metric, human) * (1 - kappa)
        spread = float(np.sum(shares * pulls**2)) - (kappa - chance * (1 - kappa)) ** 2
        error = math.sqrt(max(0.0, spread) / (self.passes + self.fails)) / (1 - chance)
        return Figure(value=kappa, interval=_on_fishers_scale(kappa, error / (1 - kappa**2)))


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


_BOUNDS = 100_001  # on the unit interval, of which those of an interval are taken


def _on_fishers_scale(value: float, error: float) -> Range:
    centre, half = math.atanh(value), Z * error
    return math.tanh(centre - half), math.tanh(centre + half)


def spearman(x: Numbers, y: Numbers) -> Figure:
    """Return Spearman's rank correlation, with the interval of Bonett and Wright (2000)."""
    if len(x) < 2:  # noqa: PLR2004  # one row has no order
        return Figure(reason="fewer than two rows with both a score and a label")
    first, second = (_ranks(values) - (len(values) + 1) / 2 for values in (x, y))
    spreads = float(first @ first), float(second @ second)
    if 0 in spreads:
        return Figure(
            reason="scores are all the same" if spreads[0] == 0 else "labels are all the same"
        )
    rho = float(first @ second) / math.sqrt(math.prod(spreads))
    if len(x) < 4 or math.isclose(abs(rho), 1):  # noqa: PLR2004  # the formula divides by n - 3
        return Figure(value=rho)
    error = math.sqrt((1 + rho**2 / 2) / (len(x) - 3))
    return Figure(value=rho, interval=_on_fishers_scale(rho, error))


def _ranks(values: Numbers) -> Numbers:
    """Return the ranks of ``values``, from 1. Equal values get the mean of their ranks."""
    _, codes, counts = np.unique(values, return_inverse=True, return_counts=True)
    return (np.cumsum(counts) - (counts - 1) / 2)[codes]


def auroc(scores: Numbers, truths: Truths) -> Figure:
    """Return the area under the ROC curve; equal scores count one half (Mann-Whitney).

    The interval is Newcombe's fifth (2006), with the variance of Hanley and McNeil (1982) at the
    bound and not at the estimate, so that it also has a width if the area is 1.
    """
    passes = int(np.sum(truths))
    fails = len(truths) - passes
    if not passes or not fails:
        return Figure(reason=_one_class(passes, fails))
    above = float(np.sum(_ranks(scores)[truths])) - passes * (passes + 1) / 2
    area = above / (passes * fails)
    half = (passes + fails) / 2 - 1

    bounds = np.linspace(0, 1, _BOUNDS)
    spread = 1 + half * (1 - bounds) / (2 - bounds) + half * bounds / (1 + bounds)
    variance = bounds * (1 - bounds) * spread / (passes * fails)
    near = bounds[(area - bounds) ** 2 <= Z * Z * variance]
    return Figure(
        value=area,
        interval=(min(area, float(near.min(initial=1.0))), max(area, float(near.max(initial=0.0)))),
    )


def _one_class(passes: int, fails: int) -> str:
    if not (passes or fails):
        return "no rows with both a score and a label"
    return f"all labels are {'pass' if passes else 'fail'}; both are needed"


def fit_threshold(scores: Numbers, truths: Truths) -> tuple[Figure, Figure]:
    """Return the threshold whose passes agree best with ``truths``, and its Youden's J."""
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
        if labels is not None and not isinstance(labels, Mapping | str | float):
            raise ConfigError(f"{where}: labels must be an object of labels, not {labels!r:.40}")
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
    """Convert ``value``, a number or pass or fail, to a number; None if it is empty or NaN."""
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
_SHOWN = ("kappa", "spearman", "auroc", "accuracy", "sensitivity", "specificity", "human_rate")
_NO_THRESHOLD = Figure(reason="give the threshold that a score passes from")


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Calibration:
    """The agreement of a metric's scores with human labels. The repr is a table.

    ``labelled`` rows have a score and a human label, ``unlabelled`` rows only a score, and
    ``without_score`` rows have none. ``kappa``, ``accuracy``, ``sensitivity``, ``specificity`` and
    ``confusion`` compare the pass or fail at ``threshold`` with the human's. ``spearman`` and
    ``auroc`` need no threshold. ``human_rate`` is the fraction of labelled rows that the human
    passes. ``fitting_threshold`` fits the labels best, with Youden's J ``youden`` on these rows.
    """

    metric: str
    threshold: float | None
    label_threshold: float | None
    labelled: int
    unlabelled: int
    without_score: int
    kappa: Figure
    spearman: Figure
    auroc: Figure
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
        reasons: set[str] = set()
        for name in (*_SHOWN, "fitting_threshold", "youden"):
            figure: Figure = getattr(self, name)
            # A reason is written once.
            yield name.replace("_", " "), "-" if figure.reason in reasons else str(figure)
            reasons |= {figure.reason} - {""}
        if (c := self.confusion) is not None:
            yield "", f"{'human pass':>12}{'human fail':>12}"
            yield "metric pass", f"{c.true_pass:>12}{c.false_pass:>12}"
            yield "metric fail", f"{c.false_fail:>12}{c.true_fail:>12}"

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
    """Compare ``scores`` with the human ``labels`` of the same rows; None is a missing one.

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
        names = (*_BINARY, "auroc", "human_rate", "fitting_threshold", "youden")
        figures = dict.fromkeys(names, Figure(reason=unknown))
    else:
        label_threshold = 1.0 if label_threshold is None else label_threshold
        truths = given >= label_threshold
        figures = dict.fromkeys(_BINARY, _NO_THRESHOLD)
        if threshold is not None:
            passed = values < threshold if direction == "low" else values >= threshold
            confusion = confusion_of(passed, truths)
            figures = {name: getattr(confusion, name) for name in _BINARY}
            figures["confusion"] = confusion
        figures["auroc"] = auroc(sign * values, truths)
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
        spearman=spearman(sign * values, given),
        **figures,
    )


SETS: Mapping[Form, str] = {"short": "default", "full": "dual"}
"""The name of the set of metrics with which a judge is checked, for each form of the metrics.

The short form takes each sentence of the answer as one claim. In the full form, the judge breaks up
the answer into claims.
"""

_LEVELS = {"all": 2, "some": 1, "none": 0}
_HALF_A_STEP = 0.25  # half the distance of two ratings, on the scale of scores


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A test case for a judge: a sample with the correct verdicts.

    ``verdicts`` has a number for each sentence of the answer: 1 if the contexts support the
    sentence, 0 if not, 2 if the sentence claims nothing. ``relevance`` is the correct rating of the
    contexts, from 0 to 2; it is None if an earlier case has the same question and contexts.
    """

    about: str
    language: str
    sample: Sample
    verdicts: tuple[int, ...]
    relevance: int | None

    @property
    def backed(self) -> str:
        """Which claims of the answer the contexts support: "all", "some", "none" or "no claim"."""
        claims = tuple({verdict for verdict in self.verdicts if verdict in {0, 1}})
        return {(): "no claim", (1,): "all", (0,): "none"}.get(claims, "some")


def built_in_cases() -> tuple[Case, ...]:
    text = (files("rag_eval_otel.tools") / "judge_cases.json").read_text(encoding="utf-8")
    seen: set[tuple[str, Sequence[str]]] = set()
    cases = []
    topics = json.loads(text)["topics"]
    for cells in ({**topic, **case} for topic in topics for case in topic["cases"]):
        retrieval = (cells["question"], tuple(cells["contexts"]))
        cases.append(
            Case(
                about=cells["about"],
                language=cells["language"],
                sample=Sample(question=retrieval[0], contexts=retrieval[1], answer=cells["answer"]),
                verdicts=tuple(cells["verdicts"]),
                relevance=None if retrieval in seen else cells["relevance"],
            )
        )
        seen.add(retrieval)
    return tuple(cases)


def outcomes(case: Case, evaluation: Evaluation) -> Iterator[tuple[str, bool]]:
    """Yield the name of each task in ``case``, and True if the judge's score is the correct one."""

    def is_near(name: str, rating: int) -> bool:  # to no other rating: 0, 1 and 2 are 0, 0.5 and 1
        value = evaluation[name].value
        return value is not None and abs(value - rating / 2) < _HALF_A_STEP

    faithfulness = evaluation["faithfulness"]
    if faithfulness.value is None:
        backed = "no claim" if faithfulness.reason == "no_claims" else None
    else:
        verdicts = tuple(set(faithfulness.detail["verdicts"]))
        backed = {(1,): "all", (0,): "none"}.get(verdicts, "some")
    yield "faithfulness", backed == case.backed
    if case.backed in _LEVELS:
        yield "groundedness", is_near("response_groundedness", _LEVELS[case.backed])
    if case.relevance is not None:
        yield "context relevance", is_near("context_relevance", case.relevance)
    evasive = evaluation["answer_relevancy"].detail.get("noncommittal_fraction")
    is_refusal = case.backed == "no claim"
    yield "evasion", evasive is not None and (evasive >= 0.5) == is_refusal  # noqa: PLR2004  # half


_ABOUT = {
    "evasion": {"refusals"},
    "context relevance": {"contexts without content", "injected instructions"},
}
"""The subjects to which the replies of a task belong, if not to all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """The accuracy of a judge on test cases, by task, subject and language.

    ``errors`` counts the scores that failed and those for which the judge gave no usable reply.
    """

    form: Form
    model: str
    cases: int
    tasks: Mapping[str, Figure]
    subjects: Mapping[str, Figure]
    languages: Mapping[str, Figure]
    usage: Usage
    errors: Mapping[str, int] = field(default_factory=dict)

    def below(self, bound: float) -> list[str]:
        return [task for task, share in self.tasks.items() if not (share.value or 0) >= bound]

    def weak(self, bound: float) -> list[str]:
        """Return the subjects and languages in which the judge's accuracy is below ``bound``."""
        shares = {**self.subjects, **self.languages}
        return [name for name, share in shares.items() if (share.value or 0) < bound]

    def to_dict(self) -> dict[str, Any]:
        fields = {name: getattr(self, name) for name in self.__slots__ if name != "usage"}
        for name in ("tasks", "subjects", "languages"):
            fields[name] = {key: share.to_dict() for key, share in fields[name].items()}
        return {**fields, **asdict(self.usage)}


async def check_judge(
    judge: Judge,
    *,
    form: Form,
    cases: Sequence[Case] = (),
    concurrency: int = 8,
    timeout: float | None = 120.0,
) -> Check:
    """Score ``cases``, by default the built-in ones, with ``judge``, and return its accuracy."""
    asked, semaphore = cases or built_in_cases(), asyncio.Semaphore(concurrency)

    async def scored(case: Case) -> Evaluation:
        async with semaphore:
            return await aevaluate(
                case.sample, [SETS[form]], judge=judge, embedder=HashingEmbedder(), timeout=timeout
            )

    evaluations = await asyncio.gather(*map(scored, asked))
    usage = sum((each.usage for each in evaluations), Usage())
    model = next((each.judge for each in evaluations if each.judge), judge.model)
    replies = [
        (case, task, is_right)
        for case, evaluation in zip(asked, evaluations, strict=True)
        for task, is_right in outcomes(case, evaluation)
    ]
    relevant = [
        (case, right)
        for case, task, right in replies
        if task not in _ABOUT or case.about in _ABOUT[task]
    ]
    lacking = (score for each in evaluations for score in each.scores if score.value is None)
    failed = Counter(score.reason or "" for score in lacking if score.reason != "no_claims")
    return Check(
        form=form,
        model=model,
        cases=len(asked),
        tasks=_shares((task, right) for _, task, right in replies),
        subjects=_shares((case.about, right) for case, right in relevant),
        languages=_shares((case.language, right) for case, right in relevant),
        usage=usage,
        errors=dict(sorted(failed.items())),
    )


def _shares(replies: Iterable[tuple[str, bool]]) -> dict[str, Figure]:
    counts: dict[str, list[bool]] = {}
    for name, is_right in replies:
        counts.setdefault(name, []).append(is_right)
    return {name: proportion(sum(flags), len(flags)) for name, flags in counts.items()}


def check_table(checks: Sequence[Check], *, bound: float) -> str:
    first = checks[0]
    rows = [("right, with 95 % interval", *(check.form for check in checks))]
    for part in ("tasks", "subjects", "languages"):
        columns = [getattr(check, part) for check in checks]
        rows += [(f"  {name}", *(str(column[name]) for column in columns)) for name in columns[0]]
        rows.append(("",))
    for name, text in {
        "requests": "{0.usage.judge_requests}",
        "prompt tokens (cached)": "{0.usage.prompt_tokens} ({0.usage.cached_tokens})",
        "reply tokens": "{0.usage.completion_tokens}",
    }.items():
        rows.append((name, *(text.format(check) for check in checks)))
    lines = [f"{first.model}: {first.cases} cases, {len(first.languages)} languages", ""]
    for name, *cells in rows:
        lines.append(f"{name:<28}{''.join(f'{cell:<26}' for cell in cells)}".rstrip())
    lines.append("")
    for check in checks:
        if check.errors:
            errors = ", ".join(f"{n} {reason}" for reason, n in check.errors.items())
            lines.append(f"{check.form}: failed scores: {errors}")
        if weak := check.weak(bound):
            lines.append(f"{check.form}: weak in {', '.join(weak)}")
        below = check.below(bound)
        verdict = f"below {bound:g} in {', '.join(below)}"
        lines.append(f"{check.form}: {verdict if below else f'at least {bound:g} in every task'}")
    return "\n".join(lines)


_BARE = re.compile("[A-Za-z0-9_-]+")  # the keys that TOML has without quotes
_HEAD = """\
# From which score on each metric passes. Read by `rag-eval-otel evaluate --thresholds FILE`, by
# `rag-eval-otel rules --thresholds FILE`, by the option `thresholds` and RAG_EVAL_THRESHOLDS.
[thresholds]
"""
_BOUND = 0.8
_OF_JUDGE = ("judge", "concurrency")


def run(options: argparse.Namespace) -> int:
    _check_usage(options)
    if options.built_in:
        return _run_on_built_in_cases(options)
    seen = observations(source_of(options.file).rows(), metric=options.metric)
    calibrations = [
        calibrate(
            *zip(*observed, strict=True),
            threshold=_threshold(name, options),
            label_threshold=options.label_threshold,
            metric=name,
            direction=direction_named(name),
        )
        for name, observed in seen.items()
    ]
    results = [calibration.to_dict() for calibration in calibrations]
    print_result(options, results, "\n\n".join(map(repr, calibrations)))
    if options.output is not None:
        _write(options.output, calibrations)
    return 0


def _run_on_built_in_cases(options: argparse.Namespace) -> int:
    settings = {name: getattr(options, name) for name in _OF_JUDGE}
    config = Config.from_env(**{name: v for name, v in settings.items() if v is not None})
    bound = _BOUND if options.bound is None else options.bound
    judge = build_plain_judge(config)

    async def check() -> list[Check]:
        return [await check_judge(judge, form=f, concurrency=config.concurrency) for f in SETS]

    checks = asyncio.run(check())
    results = [
        {**each.to_dict(), "below": each.below(bound), "weak": each.weak(bound)} for each in checks
    ]
    print_result(options, {"bound": bound, "checks": results}, check_table(checks, bound=bound))
    return 1 if any(each.below(bound) for each in checks) else 0


def _check_usage(options: argparse.Namespace) -> None:
    of_judge = [name for name in (*_OF_JUDGE, "bound") if getattr(options, name) is not None]
    msg = ""
    if options.built_in == (options.file is not None):
        msg = "name a FILE with human labels, or --built-in to check a judge"
    elif of_judge and not options.built_in:
        msg = f"--{of_judge[0]} needs --built-in"
    if msg:
        raise ConfigError(msg)


def _threshold(name: str, options: argparse.Namespace) -> float | None:
    metric = METRICS[name]() if options.threshold is None and name in METRICS else None
    threshold: float | None = getattr(metric, "threshold", options.threshold)
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
    write_whole(path, _HEAD + "".join(lines), option="--write")
