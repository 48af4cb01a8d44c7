"""Functions that all metrics use, and the protocol `Metric`.

The functions check the options of a metric, return the score of a sample that lacks a field, put
questions to the judge, and build scores from the judge's replies.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Any, Literal, Protocol, TypeAlias, TypeVar, get_args, get_origin, get_type_hints

from rag_eval_otel.errors import ConfigError
from rag_eval_otel.judge.replies import Decision, Graded, Judged, JudgedStatement, Reply
from rag_eval_otel.judge.tasks import AskLike, Kind, Rated, Task, check_examples
from rag_eval_otel.types import EmbedFn, Label, Reason, Sample, Score
from rag_eval_otel.untrusted import says_nothing

Examples: TypeAlias = Sequence[Mapping[str, Any]]
"""Worked examples that the judge sees: each is ``{"inputs": {...}, "outputs": {...}}``."""

R = TypeVar("R", bound=Reply)
G = TypeVar("G", bound=Graded)

MISSING: Mapping[str, Reason] = {
    "question": "missing_question",
    "contexts": "no_context",
    "answer": "empty_answer",
    "reference": "missing_reference",
}
"""The reason of a score if a field of the sample is blank or absent, by the name of the field."""


class Metric(Protocol):
    """Computes one `Score` of a sample from replies of the judge and embeddings."""

    @property
    def name(self) -> str:
        """The metric's name, in snake case: ``[a-z][a-z0-9_]*``."""

    @property
    def needs(self) -> frozenset[str]:
        """The fields of `Sample`, or keys of ``Sample.extra``, that a sample must have."""

    @property
    def asks(self) -> tuple[Kind[Any], ...]:
        """The kinds of question that the metric puts to the judge; empty if it asks no judge."""

    async def measure(self, sample: Sample, ask: AskLike, embed: EmbedFn) -> Score:
        """Return the score of ``sample``. A `JudgeError` raised here becomes a failed score.

        ``ask`` puts a question to the judge, and ``embed`` returns the vectors of texts.
        """


class Labelled(Protocol):
    """A metric that labels its scores pass or fail by a threshold."""

    @property
    def name(self) -> str: ...

    @property
    def threshold(self) -> float | None:
        """The lowest score that passes, or None if scores get no label."""


class Indexed(Protocol):
    """An entry of a judge's reply about one of several texts; ``index`` is the text's number."""

    @property
    def index(self) -> int: ...


E = TypeVar("E", bound=Indexed)


def check_options(metric: Metric) -> None:
    """Raise `ConfigError` for an option or an example of ``metric`` that cannot be used.

    An option must have one of its allowed values. The inputs and outputs of an example must fit a
    question that ``metric`` puts to the judge.
    """
    kind = type(metric)
    for name, choices in _choices(kind).items():
        given = getattr(metric, name)
        if given not in choices:
            msg = f"{name} of {kind.__name__} must be one of {choices}, not {given!r}"
            raise ConfigError(msg)
    check_examples(metric.name, getattr(metric, "examples", ()), metric.asks)


@cache
def _choices(kind: type[Metric]) -> Mapping[str, tuple[object, ...]]:
    """Return the allowed values of options of the metric class ``kind``, from ``Literal`` types."""
    hints = get_type_hints(kind).items()
    return {name: get_args(hint) for name, hint in hints if get_origin(hint) is Literal}


# --- edge cases -----------------------------------------------------------------------------------


def edge_score(metric: Labelled, sample: Sample, **scores: float | None) -> Score | None:
    """Return the score of a sample that lacks a field named in ``scores``, or None if it has all.

    ``scores`` maps the name of a field to the score of a sample without this field, or to None if
    the score is then undefined. The fields are checked in the order of ``scores``.

    If ``metric`` asks a judge, an answer without content (":", "Thought process:") gets the score
    of a missing answer, for the reason ``noncommittal``, or ``no_claims`` if there is no number.
    """
    for name, value in scores.items():
        text = _text_of(sample, name)
        if name == "answer" and text and _asks(metric) and says_nothing(sample.answer):
            if value is None:
                return undefined(metric.name, "no_claims")
            return measured(metric, value, reason="noncommittal")
        if not text:
            reason = MISSING[name]
            if value is None:
                return undefined(metric.name, reason)
            return measured(metric, value, reason=reason)
    return None


def _asks(metric: Labelled) -> bool:
    return bool(getattr(metric, "asks", ()))


def shown_text(sample: Sample, name: str) -> str | tuple[str, ...]:
    """Return the field ``name`` of ``sample`` as the judge sees it; empty if it is blank or absent.

    ``name`` is a key of `MISSING` or of ``sample.extra``. An answer without content is empty.
    """
    text = _text_of(sample, name)
    return "" if name == "answer" and says_nothing(sample.answer) else text


def _text_of(sample: Sample, name: str) -> str | tuple[str, ...]:
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
    """Return the score ``value``, with a pass or fail label by the threshold of ``metric``."""
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
    """Return "pass" if ``value`` reaches ``threshold``, else "fail"; None if either is None."""
    if value is None or threshold is None:
        return None
    return "pass" if value >= threshold else "fail"


def undefined(name: str, reason: Reason, *, detail: Mapping[str, Any] | None = None) -> Score:
    """Return an undefined score of the metric ``name``: it has a ``reason`` and no number."""
    return Score(name=name, status="undefined", reason=reason, detail=detail or {})


def decided(metric: Labelled, decision: Decision) -> Score:
    """Return the score of ``metric``: 1 if the judge decided yes, and 0 if it decided no."""
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
    """Return a task that puts a question of ``kind`` about ``sample`` to the judge.

    The judge sees the fields of ``sample`` that ``kind`` names. ``texts`` are further texts for the
    judge, by name; they replace fields of the same name. ``examples`` are worked examples.
    """
    shown: dict[str, str | Sequence[str]] = {
        "question": sample.question,
        "contexts": sample.context_texts,
        "answer": sample.answer,
        "reference": sample.reference or "",
    }
    return kind.task({**shown, **texts}, rated=rated, examples=examples)


async def valid_replies(tasks: Sequence[Task[R]], ask: AskLike) -> list[R]:
    """Put ``tasks`` to the judge at once and return the replies that are valid.

    If no reply is valid, raises the error of the first task.
    """
    replies = await ask.each(tasks)
    valid = [reply for reply in replies if not isinstance(reply, BaseException)]
    if not valid:
        raise next(reply for reply in replies if isinstance(reply, BaseException))
    return valid


def in_order(entries: Sequence[E], count: int) -> list[E] | None:
    """Return ``entries`` of a reply sorted by number; None if a number up to ``count`` is missing.

    If several entries have the same number, the first one counts.
    """
    found = {entry.index: entry for entry in reversed(entries)}
    numbers = range(1, count + 1)
    return [found[i] for i in numbers] if all(i in found for i in numbers) else None


def claims_in(judged: Iterable[JudgedStatement]) -> list[JudgedStatement]:
    """Return the claims in ``judged``, without claims that have a blank text."""
    return [claim for claim in judged if claim.statement.strip()]


def share_of(judged: Sequence[Judged]) -> float:
    """Return the mean probability of yes; without probabilities, the share of yes verdicts."""
    return sum(one.probability for one in judged) / len(judged)


def verdicts_of(judged: Sequence[Judged]) -> dict[str, Any]:
    """Return the verdicts in ``judged`` for ``Score.detail``, with probabilities if known."""
    found: dict[str, Any] = {"verdicts": [one.verdict for one in judged]}
    if any(one.is_graded for one in judged):
        found["probabilities"] = [one.probability for one in judged]
    return found


def rating_of(rating: Graded) -> float:
    """Return the mean rating under the judge's probabilities if known, else the plain rating."""
    return rating.rating if rating.expected is None else rating.expected


def how_rated(wanted: Rated, ratings: Sequence[Graded]) -> Literal[Rated, "graded"]:
    """Return the string "integer", "logprobs" or "graded", which says how ``ratings`` were made.

    - "integer": ``ratings`` are plain numbers, because at least one has no probabilities.
    - "logprobs": ``ratings`` are means weighted by probabilities, as ``wanted`` says.
    - "graded": ``ratings`` are means weighted by probabilities that the judge gave unasked.
    """
    if any(rating.expected is None for rating in ratings):
        return "integer"
    return "logprobs" if wanted == "logprobs" else "graded"


def _rating_remark(wanted: Rated, ratings: Sequence[Graded]) -> Reason | None:
    """Return "no_logprobs" if probabilities were ``wanted``, but a rating has none; else None."""
    return "no_logprobs" if wanted == "logprobs" != how_rated(wanted, ratings) else None


def grade_score(
    metric: Labelled, grade: Graded, *, scale: tuple[float, float], rated: Rated
) -> Score:
    """Return ``grade``, the judge's rating on ``scale`` (lowest, highest), as the score.

    ``normalized`` is the grade brought to [0, 1].
    """
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
    """Put ``tasks`` (one or two prompts) to the judge; score the mean rating divided by ``top``.

    ``top`` is the highest possible rating. If only one of two replies is a valid rating, the score
    has the remark ``partial``. If no reply is valid, raises the error of the first task.
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
