"""What metrics share: the protocol, checks of options, edge cases, and how scores are built."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Any, Literal, Protocol, TypeAlias, TypeVar, get_args, get_origin, get_type_hints

from rag_eval_otel.errors import ConfigError
from rag_eval_otel.judge.replies import Decision, Graded, Judged, JudgedStatement, Reply
from rag_eval_otel.judge.tasks import AskLike, Kind, Rated, Task, check_examples
from rag_eval_otel.types import EmbedFn, Label, Reason, Sample, Score

Examples: TypeAlias = Sequence[Mapping[str, Any]]
"""Worked examples shown to the judge: each ``{"inputs": {...}, "outputs": {...}}``."""

R = TypeVar("R", bound=Reply)
G = TypeVar("G", bound=Graded)

MISSING: Mapping[str, Reason] = {
    "question": "missing_question",
    "contexts": "no_context",
    "answer": "empty_answer",
    "reference": "missing_reference",
}
"""The reason of a score by the field of the sample that is blank or absent."""


class Metric(Protocol):
    """A definition: computes one `Score` from a sample, judge replies and embeddings."""

    @property
    def name(self) -> str:
        """The metric's name, snake case: ``[a-z][a-z0-9_]*``."""

    @property
    def needs(self) -> frozenset[str]:
        """The required fields of `Sample`, or keys of its ``extra``."""

    @property
    def asks(self) -> tuple[Kind[Any], ...]:
        """The kinds of question it puts to the judge; part of its definition."""

    async def measure(self, sample: Sample, ask: AskLike, embed: EmbedFn) -> Score:
        """Return the score. A `JudgeError` that it raises becomes a failed score."""


class Labelled(Protocol):
    """A metric that labels its scores pass or fail by a threshold."""

    @property
    def name(self) -> str: ...

    @property
    def threshold(self) -> float | None:
        """The lowest score that passes; None: no label."""


class Indexed(Protocol):
    """An entry of a reply that names, by number from 1, the text it is about."""

    @property
    def index(self) -> int: ...


E = TypeVar("E", bound=Indexed)


def check_options(metric: Metric) -> None:
    """Raise `ConfigError` for an option outside its choices, and for examples that do not fit."""
    kind = type(metric)
    for name, choices in _choices(kind).items():
        given = getattr(metric, name)
        if given not in choices:
            msg = f"{name} of {kind.__name__} must be one of {choices}, not {given!r}"
            raise ConfigError(msg)
    check_examples(metric.name, getattr(metric, "examples", ()), metric.asks)


@cache
def _choices(kind: type[Metric]) -> Mapping[str, tuple[object, ...]]:
    """Return the allowed values of the options that are typed as a ``Literal``."""
    hints = get_type_hints(kind).items()
    return {name: get_args(hint) for name, hint in hints if get_origin(hint) is Literal}


# --- edge cases -----------------------------------------------------------------------------------


def edge_score(metric: Labelled, sample: Sample, **scores: float | None) -> Score | None:
    """Return the score of a sample without one of the fields named; None if it has them all.

    ``scores`` maps fields, which are checked in this order, to the score of a sample without that
    field; None: undefined.
    """
    for name, value in scores.items():
        if not shown_text(sample, name):
            reason = MISSING[name]
            if value is None:
                return undefined(metric.name, reason)
            return measured(metric, value, reason=reason)
    return None


def shown_text(sample: Sample, name: str) -> str | tuple[str, ...]:
    """Return a field of ``sample`` as a judge is shown it; empty if it is blank or absent.

    ``name`` is a key of `MISSING`, or of ``sample.extra``.
    """
    if name == "contexts":
        return sample.context_texts
    text = getattr(sample, name) if name in MISSING else sample.extra.get(name)
    return text if text and text.strip() else ""


# --- scores ---------------------------------------------------------------------------------------


def measured(
    metric: Labelled,
    value: float,
    *,
    normalized: float | None = None,
    reason: Reason | None = None,
    explanation: str | None = None,
    detail: Mapping[str, Any] | None = None,
) -> Score:
    """Return an ok score, labelled pass if ``value`` reaches the metric's threshold."""
    return Score(
        name=metric.name,
        value=value,
        normalized=normalized,
        label=label_of(value, metric.threshold),
        threshold=metric.threshold,
        reason=reason,
        explanation=explanation or None,
        detail=detail or {},
    )


def label_of(value: float | None, threshold: float | None) -> Label | None:
    """Return pass from ``threshold`` on, fail below; None without a threshold or a value."""
    if value is None or threshold is None:
        return None
    return "pass" if value >= threshold else "fail"


def undefined(name: str, reason: Reason, *, detail: Mapping[str, Any] | None = None) -> Score:
    """Return a score without a number, which the definition does not give here."""
    return Score(name=name, status="undefined", reason=reason, detail=detail or {})


def decided(metric: Labelled, decision: Decision) -> Score:
    """Return 1 for a yes of the judge and 0 for a no."""
    return measured(metric, float(decision.passing), explanation=decision.reason)


# --- questions and replies ------------------------------------------------------------------------


def task_about(
    sample: Sample,
    kind: Kind[R],
    *,
    examples: Examples,
    rated: Rated = "integer",
    **texts: str | Sequence[str],
) -> Task[R]:
    """Return the question of ``kind`` about the fields of ``sample``, and about other ``texts``."""
    shown: dict[str, str | Sequence[str]] = {
        "question": sample.question,
        "contexts": sample.context_texts,
        "answer": sample.answer,
        "reference": sample.reference or "",
    }
    return kind.task({**shown, **texts}, rated=rated, examples=examples)


async def valid_replies(tasks: Sequence[Task[R]], ask: AskLike) -> list[R]:
    """Put ``tasks`` at once and return the valid replies; raise the first error if none is."""
    replies = await ask.each(tasks)
    valid = [reply for reply in replies if not isinstance(reply, BaseException)]
    if not valid:
        raise next(reply for reply in replies if isinstance(reply, BaseException))
    return valid


def in_order(entries: Sequence[E], count: int) -> list[E] | None:
    """Return the entries about texts 1 to ``count``; None if one is missing.

    The first entry about a text counts.
    """
    found = {entry.index: entry for entry in reversed(entries)}
    numbers = range(1, count + 1)
    return [found[i] for i in numbers] if all(i in found for i in numbers) else None


def claims_in(judged: Iterable[JudgedStatement]) -> list[JudgedStatement]:
    """Return the claims that are not blank."""
    return [claim for claim in judged if claim.statement.strip()]


def share_of(judged: Sequence[Judged]) -> float:
    """Return the mean probability of a yes: the share of yeses, where each is 0 or 1."""
    return sum(one.probability for one in judged) / len(judged)


def verdicts_of(judged: Sequence[Judged]) -> dict[str, Any]:
    """Return the verdicts for the detail of a score, with their probabilities if any is known."""
    found: dict[str, Any] = {"verdicts": [one.verdict for one in judged]}
    if any(one.is_graded for one in judged):
        found["probabilities"] = [one.probability for one in judged]
    return found


def rating_of(rating: Graded) -> float:
    """Return the mean under the judge's probabilities if they are known, else the number."""
    return rating.rating if rating.expected is None else rating.expected


def how_rated(wanted: Rated, ratings: Sequence[Graded]) -> Literal[Rated, "graded"]:
    """Return how ``ratings`` were read: ``integer`` as soon as one had no probabilities.

    ``graded``: by the probabilities of a judge that gives them without being asked to.
    """
    if any(rating.expected is None for rating in ratings):
        return "integer"
    return "logprobs" if wanted == "logprobs" else "graded"


def _rating_remark(wanted: Rated, ratings: Sequence[Graded]) -> Reason | None:
    """Return ``no_logprobs`` if probabilities were wanted and the server gave none."""
    return "no_logprobs" if wanted == "logprobs" != how_rated(wanted, ratings) else None


def grade_score(
    metric: Labelled, grade: Graded, *, scale: tuple[float, float], rated: Rated
) -> Score:
    """Return a grade as the score; ``normalized`` is its place between the ends of ``scale``."""
    value, (low, high) = rating_of(grade), scale
    return measured(
        metric,
        value,
        normalized=(value - low) / (high - low) if low < high else None,
        reason=_rating_remark(rated, [grade]),
        explanation=grade.reason,
        detail={"rated": how_rated(rated, [grade])},
    )


async def dual_score(
    metric: Labelled, tasks: Sequence[Task[G]], ask: AskLike, *, top: float
) -> Score:
    """Return the mean rating of one or two judges over ``top``, the highest rating, in [0, 1].

    The score is ``partial`` if one of two judges gave no valid rating. If none did, the first
    judge's error is raised.
    """
    ratings = await valid_replies(tasks, ask)
    values = [rating_of(rating) for rating in ratings]
    remark = _rating_remark(tasks[0].rated, ratings)
    return measured(
        metric,
        sum(values) / len(values) / top,
        reason="partial" if len(ratings) < len(tasks) else remark,
        explanation=" / ".join(rating.reason for rating in ratings if rating.reason),
        detail={
            "ratings": values,
            "rated": how_rated(tasks[0].rated, ratings),
            "judges_used": len(values),
            "disagreement": (max(values) - min(values)) / top,
        },
    )
