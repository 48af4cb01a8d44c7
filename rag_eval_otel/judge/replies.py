"""The pydantic models of a judge's replies, which check the bounds of numbers.

Servers get only types and, for short scales, the allowed values, because they differ in the rest.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import lru_cache
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    PrivateAttr,
    StrictBool,
    StrictStr,
    WithJsonSchema,
    create_model,
)

if TYPE_CHECKING:
    from typing_extensions import Self

_QUOTED = 50  # characters of a refused value that an error message quotes
_EVEN = 0.5  # the least probability of a yes


def integer(value: object) -> object:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"must be an integer, not {repr(value)[:_QUOTED]}")  # noqa: TRY004
    whole = isinstance(value, float) and value.is_integer()  # False for infinity and NaN
    return int(value) if whole else value


def number(value: object) -> float:
    with suppress(OverflowError):  # a large integer in JSON
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
            return float(value)
    raise ValueError(f"must be a number, not {repr(value)[:_QUOTED]}")


def within(low: float, high: float) -> Callable[[object], float]:
    def check(value: object) -> float:
        rating = number(value)
        if not low <= rating <= high:
            raise ValueError(f"must be from {low:g} to {high:g}, not {value!r}")
        return rating

    return check


def one_of(levels: Sequence[float]) -> Any:
    def check(value: object) -> float:
        rating = number(value)
        if rating not in levels:
            allowed = ", ".join(f"{level:g}" for level in levels)
            raise ValueError(f"must be one of {allowed}, not {value!r}")
        return rating

    plain = [int(level) if float(level).is_integer() else level for level in levels]
    kind = "integer" if all(isinstance(level, int) for level in plain) else "number"
    return Annotated[float, BeforeValidator(check), WithJsonSchema({"type": kind, "enum": plain})]


Flag: TypeAlias = Annotated[Literal[0, 1], BeforeValidator(integer)]
Level: TypeAlias = Annotated[Literal[0, 1, 2], BeforeValidator(integer)]
_POSITION = WithJsonSchema({"type": "integer", "position": True})
Index: TypeAlias = Annotated[int, BeforeValidator(integer), _POSITION]
"""The number (from 1) of the text that an entry of a reply judges; judges are not asked for it."""
Unit: TypeAlias = Annotated[float, BeforeValidator(within(0, 1))]
Mark: TypeAlias = Annotated[float, BeforeValidator(within(0, 2))]


_CLOSED: dict[str, Any] = {"additionalProperties": False}


class Reply(BaseModel):
    """A judge's reply to one task. A number outside the allowed range is refused."""

    model_config = ConfigDict(frozen=True, allow_inf_nan=False, json_schema_extra=_CLOSED)


class Judged(Reply):
    """A verdict, yes or no, of a judge, with the probability of a yes if the judge computes it."""

    if TYPE_CHECKING:  # subclasses declare it after their reason: judges write in this order

        @property
        def verdict(self) -> int:
            """1 for a yes, 0 for a no."""

    _probability: float | None = PrivateAttr(default=None)

    @property
    def probability(self) -> float:
        """The probability that the verdict is yes; 0 or 1 if the judge gave only a verdict."""
        return float(self.verdict) if self._probability is None else self._probability

    @property
    def is_graded(self) -> bool:
        return self._probability is not None

    @classmethod
    def graded(cls, probability: float, **said: Any) -> Self:
        verdict = cls(**{"verdict": 1 if probability >= _EVEN else 0, **said})
        verdict._probability = within(0, 1)(probability)
        return verdict


class ReverseQuestion(Reply):
    """A question that the judge generated from an answer, and whether the answer is evasive."""

    question: StrictStr
    noncommittal: Flag


class Statements(Reply):
    statements: list[StrictStr]


class Verdict(Judged):
    """Whether statement number ``index`` (from 1) follows from the contexts."""

    index: Index
    reason: StrictStr = ""
    verdict: Flag


class Verdicts(Reply):
    verdicts: list[Verdict]


class Sentence(Judged):
    """The verdict on sentence number ``index`` of an answer: 1 supported, 0 not, 2 no claim."""

    index: Index
    reason: StrictStr = ""
    verdict: Level


class SupportedSentences(Reply):
    verdicts: list[Sentence]


class JudgedStatement(Judged):
    statement: StrictStr
    reason: StrictStr = ""
    verdict: Flag


class JudgedStatements(Reply):
    statements: list[JudgedStatement]


class ComparedStatements(Reply):
    """Claims of answer and reference; each verdict says if the other text states the claim too."""

    answer_statements: list[JudgedStatement]
    reference_statements: list[JudgedStatement]


class RelevantStatements(Reply):
    """Sentences that the judge copied from the contexts because the question needs them."""

    relevant_statements: list[StrictStr]


class RelevantContexts(Reply):
    """The numbers (from 1) of the contexts with a sentence that is needed for the answer."""

    numbers: list[Annotated[int, BeforeValidator(integer)]]


class Useful(Judged):
    """Verdict: was one context useful to arrive at the answer (or at the reference)?"""

    reason: StrictStr = ""
    verdict: Flag


class Similarity(Reply):
    """How similar generated question number ``index`` is to the user's question, from 0 to 1."""

    index: Index
    similarity: Unit


class Similarities(Reply):
    similarities: list[Similarity]


class SubQuestions(Reply):
    sub_questions: list[StrictStr]


class Intent(Reply):
    intent: StrictStr


class UnitRating(Reply):
    rating: Unit
    reason: StrictStr = ""


class TwoFlags(Reply):
    """Two flags, 0 or 1, for an answer: it is on the subject; it has the perspective asked for."""

    subject: Flag
    focus: Flag
    reason: StrictStr = ""


class TwoMarks(Reply):
    """Two marks, 0 to 2, for contexts: they are on the subject; they suffice for an answer."""

    subject: Mark
    sufficiency: Mark
    reason: StrictStr = ""


class Decision(Reply):
    passing: StrictBool
    reason: StrictStr = ""


class Graded(Reply):
    """A judge's rating, before the reason, because judges then agree more with people."""

    rating: float
    reason: StrictStr = ""
    _expected: float | None = PrivateAttr(default=None)

    @property
    def expected(self) -> float | None:
        return self._expected

    def expecting(self, value: float) -> Graded:
        copy = self.model_copy()
        copy._expected = value  # noqa: SLF001  # its own class
        return copy


class Rating(Graded):
    rating: Level


class Accuracy(Graded):
    """A judge's rating of how far an answer agrees with the reference: 0, 2 or 4."""

    rating: Annotated[Literal[0, 2, 4], BeforeValidator(integer)]


class FivePoint(Graded):
    """A judge's grade of an answer from 1 to 5, which need not be a whole number."""

    rating: Annotated[float, BeforeValidator(within(1, 5))]


@lru_cache(maxsize=1024)
def grade_on(*levels: float) -> type[Graded]:
    """Return a subclass of `Graded` for ratings out of ``levels``; equal levels give one class."""
    return create_model("Grade", __base__=Graded, rating=(one_of(levels), ...))
