"""The replies of judges to tasks, as pydantic models. Values off the scale are refused.

The bounds of numbers are checked here and stated in the prompt. The JSON Schema has the types and,
for short scales, the allowed values. It has no other keywords, because servers differ in the
keywords that they accept.
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

_QUOTED = 50  # characters of a refused value that an error message quotes
_EVEN = 0.5  # the least probability of a yes


def integer(value: object) -> object:
    """Return ``value`` if it is an integer, such as ``1`` or ``1.0``; refuse other types.

    Booleans, strings and null raise `ValueError`. A number that is not whole is returned unchanged,
    for pydantic to refuse.
    """
    if isinstance(value, bool) or not isinstance(value, int | float):
        msg = f"must be an integer, not {repr(value)[:_QUOTED]}"
        raise ValueError(msg)  # noqa: TRY004  # pydantic reports no other kind
    whole = isinstance(value, float) and value.is_integer()  # False for infinity and NaN
    return int(value) if whole else value


def number(value: object) -> float:
    """Return ``value`` as a float; refuse booleans, strings, null, NaN and infinity."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not _fits(value):
        msg = f"must be a number, not {repr(value)[:_QUOTED]}"
        raise ValueError(msg)
    return float(value)


def _fits(value: float) -> bool:
    """Tell whether ``value`` is finite as a float; integers in JSON may be too large."""
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
    """Return a validator that accepts numbers from ``low`` to ``high`` and refuses the rest."""
    return partial(_within, low=low, high=high)


def one_of(levels: Sequence[float]) -> Any:
    """Return the type annotation of a number that must be one of ``levels``."""
    plain = [int(level) if float(level).is_integer() else level for level in levels]
    kind = "integer" if all(isinstance(level, int) for level in plain) else "number"
    check = BeforeValidator(partial(_one_of, levels=tuple(levels)))
    return Annotated[float, check, WithJsonSchema({"type": kind, "enum": plain})]


Flag: TypeAlias = Annotated[Literal[0, 1], BeforeValidator(integer)]
Level: TypeAlias = Annotated[Literal[0, 1, 2], BeforeValidator(integer)]
Index: TypeAlias = Annotated[
    int, BeforeValidator(integer), WithJsonSchema({"type": "integer", "position": True})
]
"""The number of the text that an entry judges, from 1.

Judges are not asked for it: they write the entries in the order of the texts.
"""
Unit: TypeAlias = Annotated[float, BeforeValidator(within(0, 1))]
Mark: TypeAlias = Annotated[float, BeforeValidator(within(0, 2))]


class Reply(BaseModel):
    """The reply to one task. Values off the scale are refused, not rounded."""

    model_config = ConfigDict(
        frozen=True, allow_inf_nan=False, json_schema_extra={"additionalProperties": False}
    )


class Judged(Reply):
    """A verdict, yes or no, with the probability of a yes if the judge gives one."""

    if TYPE_CHECKING:  # subclasses declare it after their reason: judges write in this order

        @property
        def verdict(self) -> int:
            """1 for a yes, 0 for a no."""

    _probability: float | None = PrivateAttr(default=None)

    @property
    def probability(self) -> float:
        """The probability of a yes; 0 or 1 if the judge gave a verdict only."""
        return float(self.verdict) if self._probability is None else self._probability

    @property
    def is_graded(self) -> bool:
        """Whether the judge gave a probability."""
        return self._probability is not None

    @classmethod
    def graded(cls, probability: float, **said: Any) -> Self:
        """Return a verdict with the ``probability`` of a yes; from one half, it is a yes.

        ``said`` are the other members of the reply.
        """
        verdict = cls(**{"verdict": 1 if probability >= _EVEN else 0, **said})
        verdict._probability = within(0, 1)(probability)
        return verdict


class ReverseQuestion(Reply):
    """A question to which the answer would be a reply, and whether the answer is evasive."""

    question: StrictStr
    noncommittal: Flag


class Statements(Reply):
    """The claims that an answer makes, each understandable on its own."""

    statements: list[StrictStr]


class Verdict(Judged):
    """Whether statement number ``index`` (from 1) follows from the contexts."""

    index: Index
    reason: StrictStr = ""
    verdict: Flag


class Verdicts(Reply):
    """One verdict for each statement that the judge was shown."""

    verdicts: list[Verdict]


class Sentence(Judged):
    """The verdict on sentence number ``index`` (from 1) of an answer; 2: it claims nothing."""

    index: Index
    reason: StrictStr = ""
    verdict: Level


class SupportedSentences(Reply):
    """One verdict for each sentence of the answer that the judge was shown."""

    verdicts: list[Sentence]


class JudgedStatement(Judged):
    """A claim that the judge extracted, with its verdict."""

    statement: StrictStr
    reason: StrictStr = ""
    verdict: Flag


class JudgedStatements(Reply):
    """Claims that the judge extracted and judged in one step."""

    statements: list[JudgedStatement]


class ComparedStatements(Reply):
    """The claims of answer and reference; the verdict says whether the other text has the claim."""

    answer_statements: list[JudgedStatement]
    reference_statements: list[JudgedStatement]


class RelevantStatements(Reply):
    """The sentences of the contexts that are needed to answer the question."""

    relevant_statements: list[StrictStr]


class RelevantContexts(Reply):
    """The numbers (from 1) of the contexts that hold a sentence needed to answer the question."""

    numbers: list[Annotated[int, BeforeValidator(integer)]]


class Useful(Judged):
    """Whether one context was useful to arrive at the answer or the reference."""

    reason: StrictStr = ""
    verdict: Flag


class Similarity(Reply):
    """How close generated question ``index`` (from 1) is to the user's question, in [0, 1]."""

    index: Index
    similarity: Unit


class Similarities(Reply):
    """One similarity for each generated question that the judge was shown."""

    similarities: list[Similarity]


class SubQuestions(Reply):
    """The parts of a question, each as a question of its own."""

    sub_questions: list[StrictStr]


class Intent(Reply):
    """What the person who asks the question wants, in one sentence."""

    intent: StrictStr


class UnitRating(Reply):
    """A rating from 0 to 1."""

    rating: Unit
    reason: StrictStr = ""


class TwoFlags(Reply):
    """The points of an answer: is it on the subject, and does it take the perspective asked for?"""

    subject: Flag
    focus: Flag
    reason: StrictStr = ""


class TwoMarks(Reply):
    """The marks of contexts, from 0 to 2 each: are they on the subject, and do they suffice?"""

    subject: Mark
    sufficiency: Mark
    reason: StrictStr = ""


class Decision(Reply):
    """Yes or no, with the reason."""

    passing: StrictBool
    reason: StrictStr = ""


class Graded(Reply):
    """A rating on a scale of few numbers.

    The judge writes the rating before its reason. Judges that write the reason first agree less
    with people.
    """

    rating: float
    reason: StrictStr = ""
    _expected: float | None = PrivateAttr(default=None)

    @property
    def expected(self) -> float | None:
        """The mean of the scale under the judge's probabilities, or None if they are not known."""
        return self._expected

    def expecting(self, value: float) -> Graded:
        """Return a copy of this rating whose `expected` is ``value``."""
        copy = self.model_copy()
        copy._expected = value  # noqa: SLF001  # its own class
        return copy


class Rating(Graded):
    """A rating of 0, 1 or 2."""

    rating: Level


class Accuracy(Graded):
    """A rating of 0, 2 or 4."""

    rating: Annotated[Literal[0, 2, 4], BeforeValidator(integer)]


class FivePoint(Graded):
    """A rating from 1 to 5; it need not be whole."""

    rating: Annotated[float, BeforeValidator(within(1, 5))]


def grade_on(*levels: float) -> type[Graded]:
    """Return the type of a reply that rates by one of ``levels``; equal levels give one class."""
    return _grade_on(tuple(float(level) for level in levels))


@lru_cache(maxsize=1024)
def _grade_on(levels: tuple[float, ...]) -> type[Graded]:
    return create_model("Grade", __base__=Graded, rating=(one_of(levels), ...))
