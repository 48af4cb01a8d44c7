"""Compare the scores of a metric with human labels, and a judge with known verdicts."""

from __future__ import annotations

import asyncio
import json
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib.resources import files
from typing import Any

import numpy as np

from rag_eval_otel.embed import HashingEmbedder
from rag_eval_otel.errors import ConfigError
from rag_eval_otel.evaluation import aevaluate
from rag_eval_otel.judge.tasks import Judge
from rag_eval_otel.prices import Prices
from rag_eval_otel.tools.agreement import (
    Confusion,
    Figure,
    auroc,
    confusion_of,
    fit_threshold,
    proportion,
    spearman,
)
from rag_eval_otel.tools.labels import parsed
from rag_eval_otel.types import Evaluation, Form, Sample, Usage

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
) -> Calibration:
    """Compare ``scores`` with the human ``labels`` of the same rows; None stands for none.

    A label is pass or fail (True, 1 or ``"pass"``; False, 0 or ``"fail"``), or a number on a scale,
    of which ``label_threshold`` is the lowest that passes. ``threshold`` is the lowest score that
    passes; without it, figures that need a pass or fail are left out. A figure that cannot be
    computed has a reason instead of a number. For any other score or label, `ConfigError` names the
    row, from 0.
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
            confusion = confusion_of(values >= threshold, truths)
            figures = {name: getattr(confusion, name) for name in _BINARY}
            figures["confusion"] = confusion
        figures["auroc"] = auroc(values, truths)
        figures["human_rate"] = proportion(int(np.sum(truths)), len(truths))
        figures["fitting_threshold"], figures["youden"] = fit_threshold(values, truths)
    return Calibration(
        metric=metric,
        threshold=threshold,
        label_threshold=label_threshold,
        labelled=len(both),
        unlabelled=len(rows) - len(both),
        without_score=len(columns[0]) - len(rows),
        spearman=spearman(values, given),
        **figures,
    )


SETS: Mapping[Form, str] = {"short": "default", "full": "dual"}
"""The name of the set of metrics with which a judge is checked, for each form of the metrics.

The short form takes each sentence of the answer as one claim. In the full form, the judge breaks up
the answer into claims.
"""

_LEVELS = {"all": 2, "some": 1, "none": 0}
_HALF_A_STEP = 0.25  # half the distance of two ratings, on the scale of scores
_TURNS = 1000


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

    ``cost_of_1000_turns`` is None if the price is not known. ``errors`` counts the scores that
    failed and those for which the judge gave no usable reply.
    """

    form: Form
    model: str
    cases: int
    tasks: Mapping[str, Figure]
    subjects: Mapping[str, Figure]
    languages: Mapping[str, Figure]
    usage: Usage
    cost_of_1000_turns: float | None
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
    prices: Prices,
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
    cost = prices.cost(model, usage)
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
        cost_of_1000_turns=None if cost is None else cost / len(asked) * _TURNS,
        errors=dict(sorted(failed.items())),
    )


def _shares(replies: Iterable[tuple[str, bool]]) -> dict[str, Figure]:
    counts: dict[str, list[bool]] = {}
    for name, is_right in replies:
        counts.setdefault(name, []).append(is_right)
    return {name: proportion(sum(flags), len(flags)) for name, flags in counts.items()}


def check_table(checks: Sequence[Check], *, bound: float, currency: str) -> str:
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
    costs = [check.cost_of_1000_turns for check in checks]
    priced = ["price not known" if cost is None else f"{cost:.2f} {currency}" for cost in costs]
    rows.append(("1,000 turns", *priced))
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
