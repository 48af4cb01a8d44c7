"""The replies that judges give, as pydantic models. Values off the scale are refused, not rounded.

The bounds of numbers are checked here and stated in the prompt. The JSON Schema has the types and,
for short scales, the values, because servers differ in the other keywords they accept.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
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

_QUOTED = 50  # characters of a refused value that are shown to the judge again
_EVEN = 0.5  # from which a yes is likelier than a no


def integer(value: object) -> object:
    """Let ``1`` and ``1.0`` pass as integers; refuse booleans, strings and null."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        msg = f"must be an integer, not {repr(value)[:_QUOTED]}"
        raise ValueError(msg)  # noqa: TRY004  # pydantic reports no other kind
    whole = isinstance(value, float) and value.is_integer()  # which infinity and NaN are not
    return int(value) if whole else value


def number(value: object) -> float:
    """Let numbers pass; refuse booleans, strings, null, NaN and infinity."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not _fits(value):
        msg = f"must be a number, not {repr(value)[:_QUOTED]}"
        raise ValueError(msg)
    return float(value)


def _fits(value: float) -> bool:
    """Tell whether ``value`` is finite, also as a float; JSON's integers know no bounds."""
    try:
        return math.isfinite(value)
    except OverflowError:
        return False


def _within(value: object, *, low: float, high: float) -> float:
    found = number(value)
    if not low <= found <= high:
        msg = f"must be from {low:g} to {high:g}, not {value!r}"
        raise ValueError(msg)
    return found


def _one_of(value: object, *, levels: Sequence[float]) -> float:
    found = number(value)
    if found not in levels:
        msg = f"must be one of {', '.join(f'{level:g}' for level in levels)}, not {value!r}"
        raise ValueError(msg)
    return found


def within(low: float, high: float) -> Callable[[object], float]:
    """Return a check that lets numbers from ``low`` to ``high`` pass, and nothing else."""
    return partial(_within, low=low, high=high)


def one_of(levels: Sequence[float]) -> Any:
    """Return the type of a number that is one of ``levels``."""
    plain = [int(level) if float(level).is_integer() else level for level in levels]
    kind = "integer" if all(isinstance(level, int) for level in plain) else "number"
    check = BeforeValidator(partial(_one_of, levels=tuple(levels)))
    return Annotated[float, check, WithJsonSchema({"type": kind, "enum": plain})]


Flag: TypeAlias = Annotated[Literal[0, 1], BeforeValidator(integer)]
Level: TypeAlias = Annotated[Literal[0, 1, 2], BeforeValidator(integer)]
Index: TypeAlias = Annotated[
    int, BeforeValidator(integer), WithJsonSchema({"type": "integer", "position": True})
]
"""The number, from 1, of the text an entry is about; judges reply in order and leave it out."""
Unit: TypeAlias = Annotated[float, BeforeValidator(within(0, 1))]
Mark: TypeAlias = Annotated[float, BeforeValidator(within(0, 2))]


class Reply(BaseModel):
    """The reply to one task. Values off the scale are refused, never rounded."""

    model_config = ConfigDict(
        frozen=True, allow_inf_nan=False, json_schema_extra={"additionalProperties": False}
    )


class Judged(Reply):
    """A yes or no, with the probability of a yes if the judge gives one."""

    if TYPE_CHECKING:  # each kind has it at its own place, because judges write in that order

        @property
        def verdict(self) -> int:
            """1 for a yes, 0 for a no."""

    _probability: float | None = PrivateAttr(default=None)

    @property
    def probability(self) -> float:
        """The probability of a yes, from 0 to 1; without one from the judge, 0 or 1."""
        return float(self.verdict) if self._probability is None else self._probability

    @property
    def is_graded(self) -> bool:
        """Whether the judge gave a probability."""
        return self._probability is not None

    @classmethod
    def graded(cls, probability: float, **said: Any) -> Self:
        """Return a verdict with the ``probability`` of a yes; it is 1 from one half."""
        verdict = cls(**{"verdict": 1 if probability >= _EVEN else 0, **said})
        verdict._probability = within(0, 1)(probability)
        return verdict


class ReverseQuestion(Reply):
    """A question that the answer would answer, and whether the answer is evasive."""

    question: StrictStr
    noncommittal: Flag


class Statements(Reply):
    """The claims an answer makes, each understandable on its own."""

    statements: list[StrictStr]


class Verdict(Judged):
    """Whether statement number ``index`` (from 1) follows from the contexts."""

    index: Index
    reason: StrictStr = ""
    verdict: Flag


class Verdicts(Reply):
    """One verdict for each statement that was shown."""

    verdicts: list[Verdict]


class Sentence(Judged):
    """The verdict on sentence number ``index`` (from 1) of an answer: 2 if it claims nothing."""

    index: Index
    reason: StrictStr = ""
    verdict: Level


class SupportedSentences(Reply):
    """One entry for each sentence that was shown."""

    verdicts: list[Sentence]


class JudgedStatement(Judged):
    """A claim together with its verdict."""

    statement: StrictStr
    reason: StrictStr = ""
    verdict: Flag


class JudgedStatements(Reply):
    """Claims, extracted and judged in one step."""

    statements: list[JudgedStatement]


class ComparedStatements(Reply):
    """The claims of answer and reference, each with whether the other side says it too."""

    answer_statements: list[JudgedStatement]
    reference_statements: list[JudgedStatement]


class RelevantStatements(Reply):
    """The sentences of the contexts that are needed to answer the question."""

    relevant_statements: list[StrictStr]


class RelevantContexts(Reply):
    """The numbers, from 1, of the contexts that hold a sentence needed to answer the question."""

    numbers: list[Annotated[int, BeforeValidator(integer)]]


class Useful(Judged):
    """Whether one context was of use."""

    reason: StrictStr = ""
    verdict: Flag


class Similarity(Reply):
    """How close question number ``index`` (from 1) is to the question asked, in [0, 1]."""

    index: Index
    similarity: Unit


class Similarities(Reply):
    """One similarity for each question that was shown."""

    similarities: list[Similarity]


class SubQuestions(Reply):
    """What a question asks, part by part."""

    sub_questions: list[StrictStr]


class Intent(Reply):
    """What the person who asks wants, in a sentence."""

    intent: StrictStr


class UnitRating(Reply):
    """A rating from 0 to 1."""

    rating: Unit
    reason: StrictStr = ""


class TwoFlags(Reply):
    """The points of a rubric of two yes-or-no questions."""

    subject: Flag
    focus: Flag
    reason: StrictStr = ""


class TwoMarks(Reply):
    """The marks of a rubric of two questions, from 0 to 2 each."""

    subject: Mark
    sufficiency: Mark
    reason: StrictStr = ""


class Decision(Reply):
    """Yes or no, and why."""

    passing: StrictBool
    reason: StrictStr = ""


class Graded(Reply):
    """A rating on a scale of few numbers.

    The rating comes before its reason: asked for reasons first, judges agree less with people.
    """

    rating: float
    reason: StrictStr = ""
    _expected: float | None = PrivateAttr(default=None)

    @property
    def expected(self) -> float | None:
        """The mean of the scale under the judge's own probabilities, where they are known."""
        return self._expected

    def expecting(self, value: float) -> Graded:
        """Return this rating with ``value`` as its `expected`."""
        copy = self.model_copy()
        copy._expected = value  # noqa: SLF001  # its own class
        return copy


class Rating(Graded):
    """A rating on the scale 0, 1, 2."""

    rating: Level


class Accuracy(Graded):
    """A rating on the scale 0, 2, 4."""

    rating: Annotated[Literal[0, 2, 4], BeforeValidator(integer)]


class FivePoint(Graded):
    """A rating from 1 to 5, in any steps."""

    rating: Annotated[float, BeforeValidator(within(1, 5))]


def grade_on(*levels: float) -> type[Graded]:
    """Return the reply that rates by one of ``levels``; one class for the same levels."""
    return _grade_on(tuple(float(level) for level in levels))


@lru_cache(maxsize=1024)
def _grade_on(levels: tuple[float, ...]) -> type[Graded]:
    return create_model("Grade", __base__=Graded, rating=(one_of(levels), ...))
