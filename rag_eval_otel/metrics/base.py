"""What metrics share: the protocol `Metric`, scores of blank fields, and scores from replies."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import (
    Any,
    ClassVar,
    Literal,
    Protocol,
    TypeAlias,
    TypeVar,
    get_args,
    get_origin,
    get_type_hints,
)

from rag_eval_otel.errors import ConfigError
from rag_eval_otel.judge import tasks as say
from rag_eval_otel.judge.tasks import AskLike, Kind, Rated, Task, check_examples
from rag_eval_otel.types import EmbedFn, Label, Reason, Sample, Score
from rag_eval_otel.untrusted import says_nothing

Examples: TypeAlias = Sequence[Mapping[str, Any]]
"""Worked examples that the judge sees: each is ``{"inputs": {...}, "outputs": {...}}``."""
Claim: TypeAlias = say.JudgedStatement
Direction: TypeAlias = Literal["high", "low"]
"""Whether high or low scores are good."""
Explanation: TypeAlias = Callable[[Sequence[str]], str | None]
"""Explains a score by the claims with the verdict no."""

R = TypeVar("R", bound=say.Reply)
G = TypeVar("G", bound=say.Graded)
E = TypeVar("E", say.Verdict, say.Sentence, say.Similarity)

MISSING: Mapping[str, Reason] = {
    "question": "missing_question",
    "contexts": "no_context",
    "answer": "empty_answer",
    "reference": "missing_reference",
}
"""The reason of a score if a field of the sample is blank or absent, by the name of the field."""


class Metric(Protocol):
    """Computes one `Score` of a sample from replies of the judge and embeddings.

    `measure` itself sets label, threshold and normalized value of the score. Reports and options
    also read these attributes, if a metric has them: ``threshold``, the lowest score that passes (a
    dataclass field, if ``thresholds=`` is to set it), ``scale``, the lowest and the highest score,
    ``direction``, ``"low"`` if low scores are good (those below ``threshold`` then pass), and
    ``asks``, the kinds of question (`Kind`), whose prompts become a part of `Score.version`.
    """

    @property
    def name(self) -> str:
        """The metric's name, in snake case: ``[a-z][a-z0-9_]*``."""

    @property
    def needs(self) -> frozenset[str]:
        """The fields of `Sample`, or keys of ``Sample.extra``, that a sample must have."""

    async def measure(self, sample: Sample, ask: AskLike, embed: EmbedFn) -> Score:
        """Return the score of ``sample``. A `JudgeError` raised here becomes a failed score.

        ``ask`` puts a question to the judge, and ``embed`` returns the vectors of texts.
        """


def kinds_of(metric: Metric) -> tuple[Kind[Any], ...]:
    kinds: tuple[Kind[Any], ...] = getattr(metric, "asks", ())
    return kinds


def direction_of(metric: object) -> Direction:
    direction: Direction = getattr(metric, "direction", "high")
    return direction


def label_of(
    value: float | None, threshold: float | None, direction: Direction = "high"
) -> Label | None:
    if value is None or threshold is None:
        return None
    is_good = value >= threshold if direction == "high" else value < threshold
    return "pass" if is_good else "fail"


@cache
def _choices(kind: Any) -> Mapping[str, tuple[object, ...]]:
    hints = get_type_hints(kind).items()
    return {name: get_args(hint) for name, hint in hints if get_origin(hint) is Literal}


@dataclass(frozen=True, slots=True, kw_only=True)
class BaseMetric:
    """The base class of the built-in metrics: their options, and methods that build scores.

    ``blank`` maps each field that a sample must have to the score if it is blank; None: undefined.
    """

    name: str = ""
    threshold: float | None = 0.5
    examples: Examples = ()
    direction: ClassVar[Direction] = "high"

    @property
    def asks(self) -> tuple[Kind[Any], ...]:
        return ()

    @property
    def blank(self) -> Mapping[str, float | None]:
        return {}

    @property
    def needs(self) -> frozenset[str]:
        return frozenset(self.blank)

    @property
    def scale(self) -> tuple[float, float]:
        return 0.0, 1.0

    def __post_init__(self) -> None:
        if getattr(self, "definition", None) == "":
            object.__setattr__(self, "definition", self.name)
        kind: Any = type(self)
        for name, choices in _choices(kind).items():
            value = getattr(self, name)
            if value not in choices:
                place = f"{name} of {kind.__name__}"
                raise ConfigError(f"{place} must be one of {choices}, not {value!r}")
        check_examples(self.name, self.examples, self.asks)

    async def measure(self, sample: Sample, ask: AskLike, embed: EmbedFn) -> Score:
        return self.blank_score(sample, self.blank) or await self.compute(sample, ask, embed)

    async def compute(self, sample: Sample, ask: AskLike, embed: EmbedFn) -> Score:
        raise NotImplementedError

    def blank_score(self, sample: Sample, blank: Mapping[str, float | None]) -> Score | None:
        """Return the score if a field of ``blank`` is empty (to a judge: says nothing), or None."""
        for name, value in blank.items():
            if shown_text(sample, name) if self.asks else text_of(sample, name):
                continue
            reason = MISSING[name]
            if text_of(sample, name):
                reason = "no_claims" if value is None else "noncommittal"
            return self.undefined(reason) if value is None else self.score_of(value, reason=reason)
        return None

    def score_of(
        self,
        value: float,
        *,
        normalized: float | None = None,
        reason: Reason | None = None,
        explanation: str | None = None,
        detail: Mapping[str, Any] | None = None,
    ) -> Score:
        return Score(
            name=self.name,
            value=value,
            normalized=normalized,
            label=label_of(value, self.threshold, self.direction),
            threshold=self.threshold,
            reason=reason,
            explanation=explanation or None,
            detail=detail or {},
        )

    def undefined(self, reason: Reason, *, detail: Mapping[str, Any] | None = None) -> Score:
        return Score(name=self.name, status="undefined", reason=reason, detail=detail or {})

    def claims_score(
        self, claims: Sequence[str], verdicts: Sequence[say.Judged], explanation: Explanation
    ) -> Score:
        if not claims:
            return self.undefined("no_claims")
        refused = [
            f"{claim} ({reason})" if (reason := getattr(verdict, "reason", "")) else claim
            for claim, verdict in zip(claims, verdicts, strict=True)
            if not verdict.verdict
        ]
        detail = {"statements": list(claims), **verdicts_of(verdicts)}
        return self.score_of(share_of(verdicts), explanation=explanation(refused), detail=detail)

    def statements_score(self, judged: Iterable[Claim], explanation: Explanation) -> Score:
        claims = claims_in(judged)
        return self.claims_score([claim.statement for claim in claims], claims, explanation)

    async def graded(self, task: Task[G], ask: AskLike, *, low: float, high: float) -> Score:
        grade = await ask(task)
        (value,), rated, remark = read_ratings([grade], task.rated)
        normalized = (value - low) / (high - low) if low < high else None
        said, detail = grade.reason, {"rated": rated}
        return self.score_of(
            value, normalized=normalized, reason=remark, explanation=said, detail=detail
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskMetric(BaseMetric):
    """A metric that asks the judge one question, whose reply ``formula`` turns into the score."""

    about: str = field(compare=False, repr=False)
    kind: Kind[Any] = field(compare=False, repr=False)
    blank: Mapping[str, float | None] = field(compare=False, repr=False)
    formula: Callable[[BaseMetric, Any], Score] = field(compare=False, repr=False)
    definition: str = ""

    @property
    def asks(self) -> tuple[Kind[Any], ...]:
        return (self.kind,)

    async def compute(self, sample: Sample, ask: AskLike, embed: EmbedFn) -> Score:  # noqa: ARG002
        return self.formula(self, await ask(task_about(sample, self.kind, self.examples)))


@dataclass(frozen=True, slots=True, kw_only=True)
class RatedMetric(BaseMetric):
    """A judge's rating divided by ``top``, the highest; with ``judges=2``, the mean of two prompts.

    If ``swaps``, the second prompt has answer and reference exchanged.
    """

    judges: Literal[1, 2] = 1
    rating: Rated = "integer"
    about: str = field(compare=False, repr=False)
    kinds: tuple[Kind[Any], ...] = field(compare=False, repr=False)
    blank: Mapping[str, float | None] = field(compare=False, repr=False)
    top: int = field(compare=False, repr=False)
    swaps: bool = field(default=False, compare=False, repr=False)
    definition: str = ""

    @property
    def needs(self) -> frozenset[str]:
        return frozenset(self.kinds[0].inputs)

    @property
    def asks(self) -> tuple[Kind[Any], ...]:
        return self.kinds[: self.judges]

    async def compute(self, sample: Sample, ask: AskLike, embed: EmbedFn) -> Score:  # noqa: ARG002
        swapped = {"answer": sample.reference or "", "reference": sample.answer}
        tasks = [
            task_about(sample, kind, self.examples, rated=self.rating, **texts)
            for kind, texts in zip(self.asks, ({}, swapped if self.swaps else {}), strict=False)
        ]
        ratings = await valid_replies(tasks, ask)
        values, rated, remark = read_ratings(ratings, self.rating)
        detail = {"ratings": values, "rated": rated, "judges_used": len(values)}
        detail["disagreement"] = (max(values) - min(values)) / self.top
        return self.score_of(
            sum(values) / len(values) / self.top,
            reason="partial" if len(ratings) < len(tasks) else remark,
            explanation=" / ".join(rating.reason for rating in ratings if rating.reason),
            detail=detail,
        )


def text_of(sample: Sample, name: str) -> str | tuple[str, ...]:
    if name == "contexts":
        return sample.context_texts
    text = getattr(sample, name) if name in MISSING else sample.extra.get(name)
    return text if text and text.strip() else ""


def shown_text(sample: Sample, name: str) -> str | tuple[str, ...]:
    return "" if name == "answer" and says_nothing(sample.answer) else text_of(sample, name)


def shown_texts(sample: Sample, names: Iterable[str]) -> dict[str, str | Sequence[str]]:
    return {name: text for name in names if (text := shown_text(sample, name))}


def task_about(
    sample: Sample,
    kind: Kind[R],
    examples: Examples = (),
    *,
    rated: Rated = "integer",
    **texts: str | Sequence[str],
) -> Task[R]:
    shown: dict[str, str | Sequence[str]] = {"question": sample.question, "answer": sample.answer}
    shown |= {"contexts": sample.context_texts, "reference": sample.reference or ""}
    shown |= conversation(sample) | texts
    return kind.task(shown, rated=rated, examples=examples)


def conversation(sample: Sample) -> dict[str, str | Sequence[str]]:
    """Return the inputs ``history`` and ``query`` for a judge; without earlier messages, none."""
    if not sample.history:
        return {}
    history = [f"{message.role}: {message.text}" for message in sample.history]
    return {"history": history, **({"query": sample.query} if sample.query else {})}


async def valid_replies(tasks: Sequence[Task[R]], ask: AskLike) -> list[R]:
    """Return the replies to ``tasks`` that are no errors; raise the first error if all are."""
    replies = await ask.each(tasks)
    valid = [reply for reply in replies if not isinstance(reply, BaseException)]
    if not valid:
        raise next(reply for reply in replies if isinstance(reply, BaseException))
    return valid


def in_order(entries: Sequence[E], count: int) -> list[E] | None:
    by_number = {entry.index: entry for entry in reversed(entries)}
    numbers = range(1, count + 1)
    return [by_number[i] for i in numbers] if all(i in by_number for i in numbers) else None


def claims_in(judged: Iterable[Claim]) -> list[Claim]:
    return [claim for claim in judged if claim.statement.strip()]


def share_of(judged: Sequence[say.Judged]) -> float:
    return sum(verdict.probability for verdict in judged) / len(judged)


def verdicts_of(judged: Sequence[say.Judged]) -> dict[str, Any]:
    detail: dict[str, Any] = {"verdicts": [verdict.verdict for verdict in judged]}
    if any(verdict.is_graded for verdict in judged):
        detail["probabilities"] = [verdict.probability for verdict in judged]
    return detail


def read_ratings(ratings: Sequence[G], wanted: Rated) -> tuple[list[float], str, Reason | None]:
    """Return the numbers, how they were read, and ``no_logprobs`` if wanted but missing."""
    values = [rating.rating if rating.expected is None else rating.expected for rating in ratings]
    if any(rating.expected is None for rating in ratings):
        return values, "integer", "no_logprobs" if wanted == "logprobs" else None
    return values, "logprobs" if wanted == "logprobs" else "graded", None
