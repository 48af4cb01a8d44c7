"""Measure how often a judge is right on built-in cases with known verdicts.

A case is a question, its contexts and an answer, in one of six languages. The cases go through the
real prompts and metrics, once in the short form and once in the full form. The short form takes
each sentence of the answer as one claim. In the full form, the judge breaks up the answer into
claims.
"""

from __future__ import annotations

import asyncio
import json
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib.resources import files
from time import perf_counter
from typing import Any, TypeAlias

from rag_eval_otel.calibration.agreement import Figure, proportion
from rag_eval_otel.embed import HashingEmbedder
from rag_eval_otel.errors import UnparsableReplyError
from rag_eval_otel.evaluation import evaluate
from rag_eval_otel.judge.tasks import Judge, Task
from rag_eval_otel.prices import Prices
from rag_eval_otel.types import Evaluation, Form, Replies, Sample, Score, Usage

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
    """Return the cases in the file ``checkup.json`` of this package."""
    text = (files("rag_eval_otel.calibration") / "checkup.json").read_text(encoding="utf-8")
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
            "tasks": _plain(self.tasks),
            "subjects": _plain(self.subjects),
            "languages": _plain(self.languages),
            "replies": self.parts,
            "unusable": self.unusable,
            "errors": dict(self.errors),
            **asdict(self.usage),
            "seconds": {"median": median, "p95": late},
            "cost_of_1000_turns": self.cost,
        }


def _plain(shares: Mapping[str, Figure]) -> dict[str, Mapping[str, Any]]:
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
            return await evaluate(
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
        seconds=_seconds(timed.seconds),
        cost=None if cost is None else cost / len(cases) * _TURNS,
        errors=_errors(evaluations),
    )


def _shares(found: Iterator[Outcome] | Sequence[Outcome]) -> dict[str, Figure]:
    counts: dict[str, list[bool]] = {}
    for name, right in found:
        counts.setdefault(name, []).append(right)
    return {name: proportion(sum(flags), len(flags)) for name, flags in counts.items()}


def _seconds(found: Sequence[float]) -> tuple[float, float]:
    if len(found) < 2:  # noqa: PLR2004  # no quantiles of one
        return (found[0], found[0]) if found else (0.0, 0.0)
    return statistics.median(found), statistics.quantiles(found, n=20)[-1]


def _errors(evaluations: Sequence[Evaluation]) -> dict[str, int]:
    reasons = [s.reason or "" for e in evaluations for s in e.scores if s.status == "error"]
    return {reason: reasons.count(reason) for reason in sorted(set(reasons))}


# --- text -----------------------------------------------------------------------------------------


def written(checks: Sequence[Check], *, bound: float, currency: str) -> str:
    """Return the results in ``checks`` as a text table with one column for each result.

    All results are of one judge. ``bound`` is the fraction of right replies that the judge should
    reach in every task, and ``currency`` is the unit of the costs.
    """
    first = checks[0]
    lines = [f"{first.model}: {first.cases} cases, {len(first.languages)} languages", ""]
    lines.append(_row("right, with 95 % interval", [check.form for check in checks]))
    for names, columns in (
        (first.tasks, [check.tasks for check in checks]),
        (first.subjects, [check.subjects for check in checks]),
        (first.languages, [check.languages for check in checks]),
    ):
        lines += [_row(f"  {name}", [str(column[name]) for column in columns]) for name in names]
        lines.append("")
    costs = [_costs(check, currency) for check in checks]
    lines += [_row(name, [cost[name] for cost in costs]) for name in costs[0]]
    lines += ["", *(f"{each.form}: {line}" for each in checks for line in _verdict(each, bound))]
    return "\n".join(lines)


def _row(name: str, cells: Sequence[str]) -> str:
    return f"{name:<28}{''.join(f'{cell:<26}' for cell in cells)}".rstrip()


def _costs(check: Check, currency: str) -> dict[str, str]:
    usage, (median, late) = check.usage, check.seconds
    return {
        "unusable replies": f"{check.unusable} of {check.parts}",
        "requests": str(usage.judge_requests),
        "prompt tokens (cached)": f"{usage.prompt_tokens} ({usage.cached_tokens})",
        "reply tokens": str(usage.completion_tokens),
        "seconds, median and p95": f"{median:.2f}, {late:.2f}",
        "1,000 turns": "price not known" if check.cost is None else f"{check.cost:.2f} {currency}",
    }


def _verdict(check: Check, bound: float) -> Iterator[str]:
    if check.errors:
        errors = ", ".join(f"{n} {reason}" for reason, n in check.errors.items())
        yield f"failed scores: {errors}"
    yield from check.meaning(bound)
    below = check.below(bound)
    yield f"below {bound:g} in {', '.join(below)}" if below else f"at least {bound:g} in every task"
