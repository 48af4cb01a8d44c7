"""Compare the scores of a metric with human labels, and a judge with known verdicts."""

from __future__ import annotations

import asyncio
import json
import math
import statistics
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from datetime import datetime, timezone
from importlib.resources import files
from time import perf_counter
from typing import Any, Final, TypeAlias

import numpy as np

from rag_eval_otel.embed import HashingEmbedder
from rag_eval_otel.errors import ConfigError, UnparsableReplyError
from rag_eval_otel.evaluation import aevaluate
from rag_eval_otel.judge.tasks import Judge, Task
from rag_eval_otel.prices import Prices
from rag_eval_otel.tools.agreement import (
    Confusion,
    Figure,
    Numbers,
    ThresholdFit,
    Truths,
    auroc,
    cohen_kappa,
    confusion_of,
    corrected_rate,
    fit_threshold,
    one_class,
    proportion,
    spearman,
    weighted_kappa,
)
from rag_eval_otel.tools.labels import Observation, Timed, observe
from rag_eval_otel.types import Evaluation, Form, Replies, Sample, Score, Usage

_WIDTH = 20  # characters of a name in the table
_AGREEMENT = (
    *("kappa", "linear_kappa", "quadratic_kappa", "spearman", "auroc"),
    *("accuracy", "balanced_accuracy", "sensitivity", "specificity"),
)


def written(calibration: Calibration) -> str:
    """Return ``calibration`` as lines of text, with three decimals and intervals in brackets."""
    return "\n".join(f"  {line}" if at else line for at, line in enumerate(_lines(calibration)))


def _lines(c: Calibration) -> Iterator[str]:
    yield f"{c.metric}  ({c.confidence:.0%} intervals in brackets)"
    yield _line("rows", _rows(c))
    yield _line("passes", _passes(c))
    yield from _figures(c, _AGREEMENT)
    if c.confusion:
        yield from _confusion(c.confusion)
    yield _line("threshold that fits", _fit(c.fit))
    yield from _figures(c, ("human_rate", "metric_rate", "corrected_rate"))
    if c.full_form:
        yield _line("full form", f"{c.full_form.rows} rows that have both")
        for name in ("same", "kappa", "spearman", "difference"):
            yield _line(f"  {name}", str(getattr(c.full_form, name)))


def _figures(calibration: Calibration, names: Iterable[str]) -> Iterator[str]:
    """Yield one line of text for each figure in ``names``.

    If several figures have no value for the same reason, only the first line shows the reason.
    """
    reasons: set[str] = set()
    for name in names:
        figure: Figure = getattr(calibration, name)
        yield _line(name.replace("_", " "), "-" if figure.reason in reasons else str(figure))
        reasons |= {figure.reason} - {""}


def _line(name: str, text: str) -> str:
    return f"{name:<{_WIDTH}}  {text}"


def _rows(c: Calibration) -> str:
    text = f"{c.labelled} labelled, {c.unlabelled} without a label"
    if not c.without_score:
        return text
    statuses = ", ".join(f"{n} {status}" for status, n in c.without_score.items())
    return f"{text}, {sum(c.without_score.values())} without a score ({statuses})"


def _passes(c: Calibration) -> str:
    score = "-" if c.threshold is None else f"from {c.threshold:g}"
    label = "-" if c.label_threshold is None else f"from {c.label_threshold:g}"
    return f"score {score}, label {label}"


def _confusion(confusion: Confusion) -> Iterator[str]:
    yield _line("", f"{'human pass':>12}{'human fail':>12}")
    yield _line("metric pass", f"{confusion.true_pass:>12}{confusion.false_pass:>12}")
    yield _line("metric fail", f"{confusion.false_fail:>12}{confusion.true_fail:>12}")


def _fit(fit: ThresholdFit) -> str:
    if fit.threshold.value is None:
        return str(fit.threshold)
    return (
        f"{fit.threshold}; Youden's J {fit.youden} on the rows it was chosen on,"
        f" {fit.cross_validated} cross-validated: expect that"
    )


FULL = "_full"
"""The ending in the name of a metric's full form, in which the judge breaks up the answer."""
_NO_THRESHOLD = "give the threshold that a score passes from"
_NO_TRUTH = "give the label_threshold that a label passes from"


@dataclass(frozen=True, slots=True, kw_only=True)
class FormAgreement:
    """The agreement of a metric's short form with its full form on the same rows.

    The short form takes each sentence of the answer as one claim. In the full form, the judge
    breaks up the answer into claims. ``rows`` is the number of rows with both scores, ``same`` the
    fraction of these rows with the same pass or fail, and ``kappa`` the agreement beyond chance.
    ``spearman`` is the rank correlation. ``difference`` is the mean of the short form's score minus
    the full form's score.
    """

    rows: int
    same: Figure
    kappa: Figure
    spearman: Figure
    difference: Figure


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Calibration:
    """The agreement of a metric's scores with human labels. The repr is a table.

    ``labelled`` rows have a score and a human label. All figures except ``metric_rate`` and
    ``corrected_rate`` are computed from these rows. ``unlabelled`` rows have only a score.
    ``without_score`` counts the rows without a score by status.

    ``kappa``, ``accuracy``, ``balanced_accuracy``, ``sensitivity``, ``specificity`` and
    ``confusion`` compare the pass or fail of the metric at ``threshold`` with that of the human.
    ``linear_kappa`` and ``quadratic_kappa`` compare score and label on one scale. If labels are
    pass or fail, they equal ``kappa``. ``spearman`` and ``auroc`` need no threshold. ``fit`` is the
    threshold that fits the labels best.

    ``human_rate`` is the fraction of labelled rows that the human passes. ``metric_rate`` is the
    fraction of unlabelled rows that the metric passes. ``corrected_rate`` estimates the fraction of
    unlabelled rows that a human would pass. ``full_form`` compares the metric with its full form,
    if the rows have scores of both forms.
    """

    metric: str
    threshold: float | None
    label_threshold: float | None
    confidence: float
    labelled: int
    unlabelled: int
    without_score: Mapping[str, int]
    kappa: Figure
    linear_kappa: Figure
    quadratic_kappa: Figure
    spearman: Figure
    auroc: Figure
    confusion: Confusion | None
    accuracy: Figure
    balanced_accuracy: Figure
    sensitivity: Figure
    specificity: Figure
    fit: ThresholdFit
    human_rate: Figure
    metric_rate: Figure
    corrected_rate: Figure
    full_form: FormAgreement | None = None

    def __repr__(self) -> str:
        """Return the figures as a table."""
        return written(self)

    def to_dict(self) -> dict[str, Any]:
        """Return all figures as a dict for JSON."""
        return {name: _plain(getattr(self, name)) for name in self.__slots__}


def calibrate(
    scores: Iterable[object],
    labels: Iterable[object],
    *,
    threshold: float | None,
    label_threshold: float | None = None,
    metric: str = "score",
    confidence: float = 0.95,
    seed: int = 0,
) -> Calibration:
    """Compare ``scores`` with the human ``labels`` of the same rows.

    A score is a number, or None if the row has no score. A label is pass or fail (True, 1 or
    ``"pass"``; False, 0 or ``"fail"``), or a number on a scale of more levels. The label None means
    that the row is unlabelled. Unlabelled rows are used only for the pass rates.

    ``threshold`` is the lowest score that passes. Without it, figures that need a pass or fail are
    left out. ``label_threshold`` is the lowest label that passes, for labels on a scale. ``seed``
    determines how the rows are divided for the cross-validation of the fitted threshold.

    For any other score or label, `ConfigError` names the row, from 0. If a figure cannot be
    computed, for example because all labels are the same, the `Figure` has a reason instead of a
    number.
    """
    pairs = _pairs(list(scores), list(labels))
    seen = [observe(score, label, where=f"row {row}") for row, (score, label) in enumerate(pairs)]
    return calibration_of(
        seen,
        threshold=threshold,
        label_threshold=label_threshold,
        metric=metric,
        confidence=confidence,
        seed=seed,
    )


def _pairs(scores: list[object], labels: list[object]) -> list[tuple[object, object]]:
    if len(scores) != len(labels):
        msg = f"{len(scores)} scores for {len(labels)} labels; pass None for a row without"
        raise ConfigError(msg)
    return list(zip(scores, labels, strict=True))


def calibration_of(
    seen: Sequence[Observation],
    *,
    threshold: float | None,
    label_threshold: float | None = None,
    metric: str = "score",
    confidence: float = 0.95,
    seed: int = 0,
) -> Calibration:
    """Compare the scores and human labels in ``seen``, which has one observation for each row.

    The options and the result are the same as in `calibrate`.
    """
    _check(threshold=threshold, label_threshold=label_threshold, confidence=confidence)
    scores, labels = _labelled(seen)
    truths, passing = _passing_labels(labels, label_threshold)
    binary = _binary_figures(scores, truths, labels, threshold=threshold, confidence=confidence)
    unlabelled = [o.score for o in seen if o.score is not None and o.label is None]
    missing = Counter(o.status for o in seen if o.score is None)
    return Calibration(
        metric=metric,
        threshold=threshold,
        label_threshold=passing,
        confidence=confidence,
        labelled=len(scores),
        unlabelled=len(unlabelled),
        without_score=dict(sorted(missing.items())),
        spearman=spearman(scores, labels, confidence=confidence),
        **_order_figures(scores, truths, labels, confidence=confidence, seed=seed),
        **binary,
        **_pass_rates(binary["confusion"], unlabelled, threshold=threshold, confidence=confidence),
    )


PERIODS: Final = {"day": "%Y-%m-%d", "week": "%G-W%V", "month": "%Y-%m"}
"""Periods over which agreement is shown, and how each is named in UTC."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PeriodAgreement:
    """The agreement of a metric with people in one period, with the same thresholds in all periods.

    ``labelled`` turns have a score and a label. ``accuracy`` is the fraction of them on which
    metric and people agree, and ``kappa`` the agreement beyond chance. ``metric_passes`` and
    ``human_passes`` are the fractions that each passes.
    """

    period: str
    labelled: int
    accuracy: Figure
    kappa: Figure
    metric_passes: Figure
    human_passes: Figure

    def __str__(self) -> str:
        return (
            f"  {self.period:<10} {self.labelled:>6} labelled  accuracy {self.accuracy}"
            f"  kappa {self.kappa}  passes: metric {self.metric_passes}, human {self.human_passes}"
        )

    def to_dict(self) -> dict[str, Any]:
        """Return all figures as a dict for JSON."""
        return {name: _plain(getattr(self, name)) for name in self.__slots__}


def agreement_by(
    timed: Iterable[Timed], period: str, *, like: Calibration
) -> list[PeriodAgreement]:
    """Return the agreement of scores with human labels in each period, oldest first.

    ``period`` is ``day``, ``week`` or ``month`` in UTC. The thresholds are those of ``like``, the
    calibration on all turns. A falling accuracy beside steady scores means that the judge drifts
    away from people. Raises `ConfigError` if a labelled turn has no time.
    """
    found: defaultdict[str, list[Observation]] = defaultdict(list)
    for time, one in timed:
        if one.score is None or one.label is None:
            continue
        if time is None:
            msg = "--by needs the time of each turn: add a column time"
            raise ConfigError(msg)
        at = datetime.fromtimestamp(time, tz=timezone.utc)
        found[at.strftime(PERIODS[period])].append(one)
    return [_in_period(name, seen, like) for name, seen in sorted(found.items())]


def _in_period(name: str, seen: Sequence[Observation], like: Calibration) -> PeriodAgreement:
    c = calibration_of(
        seen,
        threshold=like.threshold,
        label_threshold=like.label_threshold,
        confidence=like.confidence,
    )
    passed = Figure(reason=_NO_THRESHOLD)
    if c.confusion is not None:
        passes = c.confusion.true_pass + c.confusion.false_pass
        passed = proportion(passes, c.labelled, confidence=c.confidence)
    return PeriodAgreement(
        period=name,
        labelled=c.labelled,
        accuracy=c.accuracy,
        kappa=c.kappa,
        metric_passes=passed,
        human_passes=c.human_rate,
    )


def form_agreement(
    short: Sequence[Observation],
    full: Sequence[Observation],
    *,
    threshold: float | None,
    confidence: float = 0.95,
) -> FormAgreement:
    """Compare the scores of a metric's short form with the scores of its full form.

    The short form takes each sentence of the answer as one claim. In the full form, the judge
    breaks up the answer into claims. ``short`` and ``full`` have the scores of the two forms for
    the same rows in the same order. ``threshold`` is the lowest score that passes in either form.
    """
    both = [
        (a.score, b.score)
        for a, b in zip(short, full, strict=True)
        if a.score is not None and b.score is not None
    ]
    columns = np.array(both, dtype=float).reshape(-1, 2)
    difference = Figure(reason="no rows")
    if both:
        difference = Figure(value=float(np.mean(columns[:, 0] - columns[:, 1])))
    no_figure = Figure(reason=_NO_THRESHOLD)
    passes = columns >= (math.inf if threshold is None else threshold)
    same = int(np.sum(passes[:, 0] == passes[:, 1]))
    return FormAgreement(
        rows=len(both),
        same=no_figure if threshold is None else proportion(same, len(both), confidence=confidence),
        kappa=no_figure if threshold is None else cohen_kappa(*passes.T, confidence=confidence),
        spearman=spearman(columns[:, 0], columns[:, 1], confidence=confidence),
        difference=difference,
    )


def _check(*, threshold: float | None, label_threshold: float | None, confidence: float) -> None:
    for name, value in (("threshold", threshold), ("label_threshold", label_threshold)):
        if value is not None and not math.isfinite(value):
            msg = f"{name} must be a finite number, not {value}"
            raise ConfigError(msg)
    if not 0 < confidence < 1:
        msg = f"confidence must lie between 0 and 1, as 0.95 does, not {confidence}"
        raise ConfigError(msg)


def _labelled(seen: Sequence[Observation]) -> tuple[Numbers, Numbers]:
    """Return the scores and the labels of the rows that have both, as two arrays."""
    both = [(o.score, o.label) for o in seen if o.score is not None and o.label is not None]
    columns = np.array(both, dtype=float).reshape(-1, 2)
    return columns[:, 0], columns[:, 1]


def _passing_labels(labels: Numbers, passing: float | None) -> tuple[Truths | Figure, float | None]:
    """Return whether each human label passes, and the lowest label that passes.

    If ``labels`` are on a scale and ``passing`` is None, the passing labels are unknown. The result
    is then a `Figure` with this reason, and None.
    """
    if passing is None and not set(labels) <= {0.0, 1.0}:
        scale = f"{min(labels):g} to {max(labels):g}"
        reason = f"labels go from {scale}: give the label_threshold that a row passes from"
        return Figure(reason=reason), None
    passing = 1.0 if passing is None else passing
    return labels >= passing, passing


def _order_figures(
    scores: Numbers,
    truths: Truths | Figure,
    labels: Numbers,
    *,
    confidence: float,
    seed: int,
) -> dict[str, Any]:
    if isinstance(truths, Figure):
        fit = ThresholdFit(threshold=truths, youden=truths, cross_validated=truths)
        return {"auroc": truths, "fit": fit, "human_rate": truths}
    return {
        "auroc": auroc(scores, truths, confidence=confidence),
        "fit": fit_threshold(scores, truths, seed=seed),
        "human_rate": proportion(int(np.sum(truths)), len(labels), confidence=confidence),
    }


def _binary_figures(
    scores: Numbers,
    truths: Truths | Figure,
    labels: Numbers,
    *,
    threshold: float | None,
    confidence: float,
) -> dict[str, Any]:
    if threshold is None or isinstance(truths, Figure):
        no_figure = truths if isinstance(truths, Figure) else Figure(reason=_NO_THRESHOLD)
        names = ("kappa", "accuracy", "balanced_accuracy", "sensitivity", "specificity")
        weighted = _weighted_kappas(scores, labels, no_figure, confidence=confidence)
        return {"confusion": None, **dict.fromkeys(names, no_figure), **weighted}
    decisions = scores >= threshold
    confusion = confusion_of(decisions, truths)
    both = confusion.passes > 0 and confusion.fails > 0
    kappa = (
        cohen_kappa(decisions, truths, confidence=confidence)
        if both
        else Figure(reason=one_class(truths))
    )
    return {
        "confusion": confusion,
        "kappa": kappa,
        "accuracy": confusion.accuracy(confidence),
        "balanced_accuracy": confusion.balanced_accuracy(),
        "sensitivity": confusion.sensitivity(confidence),
        "specificity": confusion.specificity(confidence),
        **_weighted_kappas(scores, labels, kappa, confidence=confidence),
    }


def _weighted_kappas(
    scores: Numbers, labels: Numbers, kappa: Figure, *, confidence: float
) -> dict[str, Figure]:
    """Return the linear and quadratic weighted kappa of ``scores`` and ``labels``.

    If labels are pass or fail, both equal ``kappa``.
    """
    levels, given = set(labels), set(scores)
    if levels <= {0.0, 1.0}:
        return {"linear_kappa": kappa, "quadratic_kappa": kappa}
    if not (given <= levels or levels <= given):
        no_figure = Figure(reason="scores and labels are not levels of one scale")
        return {"linear_kappa": no_figure, "quadratic_kappa": no_figure}
    return {
        "linear_kappa": weighted_kappa(scores, labels, weights="linear", confidence=confidence),
        "quadratic_kappa": weighted_kappa(
            scores, labels, weights="quadratic", confidence=confidence
        ),
    }


def _pass_rates(
    confusion: Confusion | None,
    unlabelled: Sequence[float],
    *,
    threshold: float | None,
    confidence: float,
) -> dict[str, Any]:
    """Return the fraction of unlabelled rows that the metric passes, and a corrected fraction.

    The corrected fraction estimates how many of these rows a human would pass. ``confusion`` counts
    the errors of the metric on labelled rows.
    """
    if threshold is None:
        return dict.fromkeys(("metric_rate", "corrected_rate"), Figure(reason=_NO_THRESHOLD))
    passed = sum(score >= threshold for score in unlabelled)
    rate = (
        proportion(passed, len(unlabelled), confidence=confidence)
        if unlabelled
        else Figure(reason="no rows without a label")
    )
    if confusion is None:
        return {"metric_rate": rate, "corrected_rate": Figure(reason=_NO_TRUTH)}
    corrected = corrected_rate(confusion, passed=passed, n=len(unlabelled), confidence=confidence)
    return {"metric_rate": rate, "corrected_rate": corrected}


def _plain(value: Any) -> Any:
    if isinstance(value, Figure | ThresholdFit):
        return value.to_dict()
    if isinstance(value, FormAgreement):
        return {field.name: _plain(getattr(value, field.name)) for field in fields(value)}
    return asdict(value) if isinstance(value, Confusion) else value


# --- a judge on built-in cases with known verdicts -----------------------------------------------

SETS: Mapping[Form, str] = {"short": "default", "full": "dual"}
"""The name of the set of metrics with which a judge is checked, for each form of the metrics.

The short form takes each sentence of the answer as one claim. In the full form, the judge breaks up
the answer into claims.
"""

_NO_CLAIM, _YES, _PART, _NO = "no claim", "all", "some", "none"
_LEVELS = {_YES: 2, _PART: 1, _NO: 0}
_HALF_A_STEP = 0.25  # half the distance of two ratings, on the scale of scores
_TURNS = 1000
_MEANING: Mapping[str, str] = {
    "supported": "takes for unsupported what the contexts say",
    "numbers": "cannot tell unsupported numbers",
    "negations": "cannot tell a statement from its denial",
    "half-supported answers": "cannot tell half-supported answers from supported ones",
    "over-long answers": "loses track in long answers",
    "refusals": "cannot tell a refusal from an answer",
    "contexts without content": "finds support in contexts that say nothing",
    "injected instructions": "follows instructions in the texts that it judges",
}
"""The weakness of the judge that wrong verdicts show, for each subject of the built-in cases."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A question, its contexts and an answer, with the verdicts that are right.

    ``verdicts`` has one number for each sentence of the answer: 1 if the contexts support the
    sentence, 0 if they do not, and 2 if the sentence claims nothing. ``relevance`` rates from 0 to
    2 how relevant the contexts are to the question. It is None if an earlier case has the same
    question and contexts.
    """

    about: str
    language: str
    sample: Sample
    verdicts: tuple[int, ...]
    relevance: int | None

    @property
    def backed(self) -> str:
        """How many claims of the answer have support: "all", "some", "none" or "no claim"."""
        claims = tuple({verdict for verdict in self.verdicts if verdict in {0, 1}})
        return {(): _NO_CLAIM, (1,): _YES, (0,): _NO}.get(claims, _PART)


def built_in_cases() -> tuple[Case, ...]:
    """Return the cases in the file ``judge_cases.json``."""
    text = (files("rag_eval_otel.tools") / "judge_cases.json").read_text(encoding="utf-8")
    seen: set[tuple[str, tuple[str, ...]]] = set()
    return tuple(
        _case(topic, case, seen) for topic in json.loads(text)["topics"] for case in topic["cases"]
    )


def _case(
    topic: Mapping[str, Any], case: Mapping[str, Any], seen: set[tuple[str, tuple[str, ...]]]
) -> Case:
    merged = {**topic, **case}
    key = (merged["question"], tuple(merged["contexts"]))
    is_new = key not in seen
    seen.add(key)
    return Case(
        about=merged["about"],
        language=merged["language"],
        sample=Sample(question=key[0], contexts=key[1], answer=merged["answer"]),
        verdicts=tuple(merged["verdicts"]),
        relevance=merged["relevance"] if is_new else None,
    )


# --- verdicts -------------------------------------------------------------------------------------

Outcome: TypeAlias = "tuple[str, bool]"  # a task, and True if the judge was right


def outcomes(case: Case, evaluation: Evaluation) -> Iterator[Outcome]:
    """Yield for each task of the judge whether the judge was right on ``case``.

    A task is a kind of question to the judge, such as the rating of context relevance. A missing
    reply counts as wrong.
    """
    yield "faithfulness", _backed(evaluation["faithfulness"]) == case.backed
    if case.backed in _LEVELS:
        yield "groundedness", _is_near(evaluation["response_groundedness"], _LEVELS[case.backed])
    if case.relevance is not None:
        yield "context relevance", _is_near(evaluation["context_relevance"], case.relevance)
    evasive = evaluation["answer_relevancy"].detail.get("noncommittal_fraction")
    is_refusal = case.backed == _NO_CLAIM
    yield "evasion", evasive is not None and (evasive >= 0.5) == is_refusal  # noqa: PLR2004  # half


def _backed(score: Score) -> str | None:
    if score.value is None:
        return _NO_CLAIM if score.reason == "no_claims" else None
    verdicts = tuple(set(score.detail["verdicts"]))
    return {(1,): _YES, (0,): _NO}.get(verdicts, _PART)


def _is_near(score: Score, rating: int) -> bool:
    """Return True if ``score`` is nearer to ``rating``, from 0 to 2, than to any other rating.

    The value of ``score`` is from 0 to 1, so that 0, 0.5 and 1 stand for the ratings 0, 1 and 2. A
    value halfway between two ratings is near neither of them.
    """
    return score.value is not None and abs(score.value - rating / 2) < _HALF_A_STEP


def _is_relevant(task: str, about: str) -> bool:
    if task == "evasion":
        return about == "refusals"
    empty = {"contexts without content", "injected instructions"}
    return task != "context relevance" or about in empty


class _TimedJudge:
    """Measure the time of each request to a judge, and count the judge's unusable replies."""

    def __init__(self, judge: Judge, clock: Callable[[], float]) -> None:
        self.model = judge.model
        self.seconds: list[float] = []
        self.parts = 0
        self.unusable = 0
        self._judge = judge
        self._clock = clock

    async def reply(self, tasks: Sequence[Task[Any]]) -> Replies:
        started = self._clock()
        replies = await self._judge.reply(tasks)
        self.seconds.append(self._clock() - started)
        self.parts += len(replies.parts)
        self.unusable += sum(isinstance(part, UnparsableReplyError) for part in replies.parts)
        return replies


# --- the figures ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """The result of checking how often a judge is right, in one form of the metrics.

    In the form ``short``, each sentence of the answer is one claim. In the form ``full``, the judge
    breaks up the answer into claims. ``tasks``, ``subjects`` and ``languages`` have the fraction of
    right replies for each task, subject and language. ``seconds`` has the median and the 95th
    percentile of the request times. ``cost`` is the price of 1,000 scored answers, None if the
    price of a token is not known. ``errors`` counts failed scores by reason.
    """

    form: Form
    model: str
    cases: int
    tasks: Mapping[str, Figure]
    subjects: Mapping[str, Figure]
    languages: Mapping[str, Figure]
    parts: int
    unusable: int
    usage: Usage
    seconds: tuple[float, float]
    cost: float | None
    errors: Mapping[str, int] = field(default_factory=dict)

    def below(self, bound: float) -> list[str]:
        """Return the names of the tasks with a fraction of right replies below ``bound``."""
        return [task for task, share in self.tasks.items() if not (share.value or 0) >= bound]

    def meaning(self, bound: float) -> list[str]:
        """Return the weaknesses of the judge in words.

        A weakness is a subject or language with a fraction of right replies below ``bound``.
        """
        if self.parts and self.unusable == self.parts:
            return ["gives no usable reply"]
        weak = [name for name, share in self.subjects.items() if (share.value or 0) < bound]
        weaknesses = [f"{_MEANING[name]} ({self.subjects[name].value:.2f})" for name in weak]
        foreign = [name for name, share in self.languages.items() if (share.value or 0) < bound]
        if foreign and len(foreign) < len(self.languages):
            weaknesses.append(f"is worse in {', '.join(foreign)}")
        return weaknesses

    def to_dict(self) -> dict[str, Any]:
        """Return the figures as a dict for JSON."""
        median, late = self.seconds
        return {
            "form": self.form,
            "model": self.model,
            "cases": self.cases,
            "tasks": _figures_as_dicts(self.tasks),
            "subjects": _figures_as_dicts(self.subjects),
            "languages": _figures_as_dicts(self.languages),
            "replies": self.parts,
            "unusable": self.unusable,
            "errors": dict(self.errors),
            **asdict(self.usage),
            "seconds": {"median": median, "p95": late},
            "cost_of_1000_turns": self.cost,
        }


def _figures_as_dicts(shares: Mapping[str, Figure]) -> dict[str, Mapping[str, Any]]:
    return {name: share.to_dict() for name, share in shares.items()}


async def check_judge(
    judge: Judge,
    *,
    form: Form,
    prices: Prices,
    cases: Sequence[Case] = (),
    concurrency: int = 8,
    timeout: float | None = 120.0,
    clock: Callable[[], float] = perf_counter,
) -> Check:
    """Score ``cases`` with ``judge`` and compare its verdicts with the known verdicts.

    Without ``cases``, the built-in cases are used. ``form`` says how an answer is broken up into
    claims. In the form ``short``, each sentence is a claim. In the form ``full``, the judge breaks
    up the answer. ``prices`` gives the cost of the judge's tokens. At most ``concurrency`` cases
    are scored at the same time, and scoring a case may take ``timeout`` seconds.
    """
    asked = cases or built_in_cases()
    timed, semaphore = _TimedJudge(judge, clock), asyncio.Semaphore(concurrency)

    async def scored(case: Case) -> Evaluation:
        async with semaphore:
            return await aevaluate(
                case.sample,
                [SETS[form]],
                judge=timed,
                embedder=HashingEmbedder(),
                timeout=timeout,
            )

    evaluations = await asyncio.gather(*map(scored, asked))
    return _checked(asked, evaluations, timed=timed, form=form, prices=prices)


def _checked(
    cases: Sequence[Case],
    evaluations: Sequence[Evaluation],
    *,
    timed: _TimedJudge,
    form: Form,
    prices: Prices,
) -> Check:
    usage = sum((each.usage for each in evaluations), Usage())
    model = next((each.judge for each in evaluations if each.judge), timed.model)
    cost = prices.cost(model, usage)
    found = [
        (case, task, right)
        for case, evaluation in zip(cases, evaluations, strict=True)
        for task, right in outcomes(case, evaluation)
    ]
    relevant = [(case, right) for case, task, right in found if _is_relevant(task, case.about)]
    return Check(
        form=form,
        model=model,
        cases=len(cases),
        tasks=_shares((task, right) for _, task, right in found),
        subjects=_shares((case.about, right) for case, right in relevant),
        languages=_shares((case.language, right) for case, right in relevant),
        parts=timed.parts,
        unusable=timed.unusable,
        usage=usage,
        seconds=_latencies(timed.seconds),
        cost=None if cost is None else cost / len(cases) * _TURNS,
        errors=_error_counts(evaluations),
    )


def _shares(found: Iterator[Outcome] | Sequence[Outcome]) -> dict[str, Figure]:
    counts: dict[str, list[bool]] = {}
    for name, right in found:
        counts.setdefault(name, []).append(right)
    return {name: proportion(sum(flags), len(flags)) for name, flags in counts.items()}


def _latencies(found: Sequence[float]) -> tuple[float, float]:
    if len(found) < 2:  # noqa: PLR2004  # no quantiles of one
        return (found[0], found[0]) if found else (0.0, 0.0)
    return statistics.median(found), statistics.quantiles(found, n=20)[-1]


def _error_counts(evaluations: Sequence[Evaluation]) -> dict[str, int]:
    reasons = [s.reason or "" for e in evaluations for s in e.scores if s.status == "error"]
    return {reason: reasons.count(reason) for reason in sorted(set(reasons))}


# --- text -----------------------------------------------------------------------------------------


def check_table(checks: Sequence[Check], *, bound: float, currency: str) -> str:
    """Return the results in ``checks`` as a text table with one column for each result.

    All results are of one judge. ``bound`` is the fraction of right replies that the judge should
    reach in every task, and ``currency`` is the unit of the costs.
    """
    first = checks[0]
    lines = [f"{first.model}: {first.cases} cases, {len(first.languages)} languages", ""]
    lines.append(_check_row("right, with 95 % interval", [check.form for check in checks]))
    for names, columns in (
        (first.tasks, [check.tasks for check in checks]),
        (first.subjects, [check.subjects for check in checks]),
        (first.languages, [check.languages for check in checks]),
    ):
        lines += [
            _check_row(f"  {name}", [str(column[name]) for column in columns]) for name in names
        ]
        lines.append("")
    costs = [_cost_rows(check, currency) for check in checks]
    lines += [_check_row(name, [cost[name] for cost in costs]) for name in costs[0]]
    lines += [
        "",
        *(f"{each.form}: {line}" for each in checks for line in _verdict_lines(each, bound)),
    ]
    return "\n".join(lines)


def _check_row(name: str, cells: Sequence[str]) -> str:
    return f"{name:<28}{''.join(f'{cell:<26}' for cell in cells)}".rstrip()


def _cost_rows(check: Check, currency: str) -> dict[str, str]:
    usage, (median, late) = check.usage, check.seconds
    return {
        "unusable replies": f"{check.unusable} of {check.parts}",
        "requests": str(usage.judge_requests),
        "prompt tokens (cached)": f"{usage.prompt_tokens} ({usage.cached_tokens})",
        "reply tokens": str(usage.completion_tokens),
        "seconds, median and p95": f"{median:.2f}, {late:.2f}",
        "1,000 turns": "price not known" if check.cost is None else f"{check.cost:.2f} {currency}",
    }


def _verdict_lines(check: Check, bound: float) -> Iterator[str]:
    if check.errors:
        errors = ", ".join(f"{n} {reason}" for reason, n in check.errors.items())
        yield f"failed scores: {errors}"
    yield from check.meaning(bound)
    below = check.below(bound)
    yield f"below {bound:g} in {', '.join(below)}" if below else f"at least {bound:g} in every task"
