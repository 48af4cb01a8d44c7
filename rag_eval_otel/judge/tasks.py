"""What metrics ask: a `Task` is a `Kind` of question with the texts of one sample.

Pydantic checks the bounds of numbers in replies; schemas for servers have types and choices only.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Annotated, Any, Generic, Literal, Protocol, TypeAlias, TypeVar

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    PrivateAttr,
    StrictBool,
    StrictStr,
    TypeAdapter,
    ValidationError,
    WithJsonSchema,
    create_model,
)

from rag_eval_otel.errors import ConfigError
from rag_eval_otel.types import Replies

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
    """A judge's reply to one task; a number out of range is a `ValidationError` of pydantic."""

    model_config = ConfigDict(frozen=True, allow_inf_nan=False, json_schema_extra=_CLOSED)


class Judged(Reply):
    """A yes or no of a judge; offline judges also compute the ``probability`` of a yes."""

    if TYPE_CHECKING:  # subclasses declare it after their reason: judges write in this order

        @property
        def verdict(self) -> int:
            """1 for a yes, 0 for a no."""

    _probability: float | None = PrivateAttr(default=None)

    @property
    def probability(self) -> float:
        """The probability of a yes; if the judge gave only a verdict, 1 for a yes, 0 for a no."""
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


class StandaloneQuestion(Reply):
    question: StrictStr


class Statements(Reply):
    statements: list[StrictStr]


class Useful(Judged):
    """Whether one context was useful to arrive at the answer (or at the reference)."""

    reason: StrictStr = ""
    verdict: Flag


class Verdict(Useful):
    """Yes or no on text number ``index`` (from 1), as in: does a statement follow from contexts?"""

    index: Index


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
    """The numbers (from 1) of the contexts that have a sentence that the question needs."""

    numbers: list[Annotated[int, BeforeValidator(integer)]]


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
    """Two flags for an answer: it is on the subject; it takes the perspective asked for."""

    subject: Flag
    focus: Flag
    reason: StrictStr = ""


class TwoMarks(Reply):
    """Marks from 0 to 2 for the contexts: are they on the subject; do they allow a full answer?"""

    subject: Mark
    sufficiency: Mark
    reason: StrictStr = ""


class Decision(Reply):
    passing: StrictBool
    reason: StrictStr = ""


class Graded(Reply):
    """A rating; ``expected`` is the mean of the scale under the judge's probabilities, if known."""

    rating: float
    reason: StrictStr = ""
    _expected: float | None = PrivateAttr(default=None)

    @property
    def expected(self) -> float | None:
        return self._expected

    def expecting(self, value: float) -> Graded:
        self._expected = value
        return self


class Rating(Graded):
    rating: Level


class Accuracy(Graded):
    """A judge's rating of how far an answer agrees with the reference: 0, 2 or 4."""

    rating: Annotated[Literal[0, 2, 4], BeforeValidator(integer)]


class FivePoint(Graded):
    """A judge's grade of an answer: a number from 1 to 5, such as 3.5."""

    rating: Annotated[float, BeforeValidator(within(1, 5))]


@lru_cache(maxsize=1024)
def grade_on(*levels: float) -> type[Graded]:
    """Return the class of replies whose ``rating`` must be one of ``levels``."""
    return create_model("Grade", __base__=Graded, rating=(one_of(levels), ...))


R = TypeVar("R", bound=Reply)
Input: TypeAlias = "tuple[str, str | tuple[str, ...]]"
Rated: TypeAlias = Literal["integer", "logprobs"]
"""How a rating is read: as a number, or as the mean weighted by probabilities of tokens."""

_SHOWN: Mapping[str, str] = {
    **dict.fromkeys(("statements", "sentences", "questions", "claims"), "answer"),
    "context": "contexts",
    "sub_questions": "question",
    "intent": "question",
}
"""The field of the sample that a text made from it reveals, by the name of the text."""

_REPLY_TOKENS = 1024  # tokens of a reply, apart from its entries and the texts that it repeats
_ENTRY_TOKENS = 64
_WITH_REASONS = 3  # how many times longer a reply with reasons may be
_MOST_TOKENS = 16_384  # what many models can write at most

_CONVERSATION = ("history", "query")
"""Shown with the question, if there were messages before it."""
_OPEN: frozenset[str] = frozenset({"question", "contexts", "answer", *_CONVERSATION})
"""Fields of the sample that a request may show even if one of its tasks does not need them."""

_SHOWN_TEXTS = TypeAdapter(dict[str, StrictStr | tuple[StrictStr, ...]])


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """An example in a prompt: texts by name, and the right reply to them as JSON."""

    inputs: tuple[Input, ...]
    outputs: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind(Generic[R]):
    """A kind of question to a judge: its prompt, the texts it shows, and the type of the reply.

    - ``prompt``: the name of the prompt's file, whose text ``instructions`` replace.
    - ``blind_to``: fields of the sample that no question in the same request may show.
    - ``voice``: 1 or 2 if a metric asks the same question with two prompts of different wording.
    - ``each``: the name of the list of texts for each of which the reply has an entry.
    - ``repeats``: the names of the inputs whose texts the reply repeats, as in statements.
    """

    prompt: str
    reply: type[R]
    inputs: tuple[str, ...]
    blind_to: frozenset[str] = frozenset()
    voice: int = 0
    instructions: str = ""
    each: str = ""
    repeats: tuple[str, ...] = ()

    @property
    def family(self) -> str:
        return self.prompt.removesuffix(f"_{self.voice}")

    def inputs_of(self, shown: Mapping[str, str | Sequence[str]]) -> tuple[Input, ...]:
        names = (*self.inputs, *(_CONVERSATION if "question" in self.inputs else ()))
        texts = [(name, shown[name]) for name in names if name in shown]
        return tuple([(name, t if isinstance(t, str) else tuple(t)) for name, t in texts])

    def task(
        self,
        shown: Mapping[str, str | Sequence[str]],
        *,
        draw: int = 0,
        rated: Rated = "integer",
        examples: Iterable[Mapping[str, Any]] = (),
    ) -> Task[R]:
        kept = tuple(filter(None, (example_of(self, example) for example in examples)))
        inputs = self.inputs_of(shown)
        return Task(kind=self, inputs=inputs, draw=draw, rated=rated, examples=kept)


@dataclass(frozen=True, slots=True, kw_only=True)
class Task(Generic[R]):
    """One question to a judge, with the texts of one sample. Equal tasks are asked once.

    - ``draw``: the number of the repetition, if a question is asked several times.
    - ``rated``: how a rating is read from the reply.
    - ``complaint``: why the last reply did not parse, for the judge.
    - ``reasons``: whether the judge gives reasons, which are most of a reply's tokens.
    """

    kind: Kind[R]
    inputs: tuple[Input, ...]
    draw: int = 0
    rated: Rated = "integer"
    examples: tuple[Example, ...] = ()
    complaint: str = ""
    reasons: bool = False

    def text(self, name: str) -> str:
        value = dict(self.inputs)[name]
        return value if isinstance(value, str) else "\n".join(value)

    def texts(self, name: str) -> tuple[str, ...]:
        value = dict(self.inputs)[name]
        return (value,) if isinstance(value, str) else value

    @property
    def prompt(self) -> str:
        return self.kind.prompt

    @property
    def reply(self) -> type[R]:
        return self.kind.reply

    @property
    def shows(self) -> frozenset[str]:
        """The fields of the sample that the judge sees, directly or in texts made from them."""
        fields = {} if self.kind.instructions else _SHOWN  # a user's names reveal nothing
        return frozenset([fields.get(name, name) for name, _ in self.inputs])

    @property
    def length(self) -> int:
        """The number of characters of all texts."""
        values = [value for _, value in self.inputs]
        return sum([len(v) if isinstance(v, str) else sum(map(len, v)) for v in values])


def most_tokens(tasks: Sequence[Task[Any]]) -> int | None:
    """Return an ample limit for the tokens of a reply; None if a task has a prompt of the user."""
    total = 0
    for task in tasks:
        if task.kind.instructions:
            return None
        repeated = (text for name in task.kind.repeats for text in task.texts(name))
        # A token has about four bytes of English, and at least one of any text.
        copied = sum(len(text.encode("utf-8", "replace")) for text in repeated)
        entries = len(task.texts(task.kind.each)) if task.kind.each else 0
        plain = _REPLY_TOKENS + _ENTRY_TOKENS * entries + copied
        total += plain * _WITH_REASONS if task.reasons else plain
    return min(total, _MOST_TOKENS)


def may_share(one: Task[Reply], other: Task[Reply]) -> bool:
    shown, others = one.shows, other.shows
    if one.kind.blind_to & others or other.kind.blind_to & shown or (shown ^ others) - _OPEN:
        return False
    # Two prompts of one question are independent judges.
    is_same_question = one.kind.family == other.kind.family
    if is_same_question and (one.kind, one.examples) != (other.kind, other.examples):
        return False
    mine, theirs = dict(one.inputs), dict(other.inputs)
    shared = (mine.keys() & theirs.keys()) - {"context"}  # contexts become a list
    return all(mine[name] == theirs[name] for name in shared)


def example_of(kind: Kind[Any], example: Mapping[str, Any]) -> Example | None:
    try:
        shown, outputs = _SHOWN_TEXTS.validate_python(example["inputs"]), example["outputs"]
        kind.reply.model_validate(outputs)
        fits = set(shown) <= set(kind.inputs) and set(outputs) <= set(kind.reply.model_fields)
        reply = json.dumps(outputs, ensure_ascii=False)
    except (KeyError, TypeError, ValidationError):
        return None
    return Example(inputs=kind.inputs_of(shown), outputs=reply) if shown and fits else None


def fitting(examples: Iterable[Any], kinds: Sequence[Kind[Any]]) -> list[Mapping[str, Any]]:
    return [example for example in examples if any(example_of(kind, example) for kind in kinds)]


def check_examples(name: str, examples: Iterable[Any], kinds: Sequence[Kind[Any]]) -> None:
    for i, example in enumerate(examples):
        if fitting([example], kinds):
            continue
        fields = [(list(kind.inputs), list(kind.reply.model_fields)) for kind in kinds]
        forms = "; or ".join(f"inputs {one} with outputs {other}" for one, other in fields)
        form = "{'inputs': ..., 'outputs': ...}"
        raise ConfigError(f"examples[{i}] of {name} must be {form} with {forms}")


class AskLike(Protocol):
    """The argument ``ask`` of `Metric.measure`: puts questions about a sample to the judge."""

    async def __call__(self, task: Task[R]) -> R:
        """Return the judge's reply to ``task``; raise a `JudgeError` if there is no reply."""

    async def each(self, tasks: Sequence[Task[R]]) -> list[R | BaseException]:
        """Ask all ``tasks`` at once; return the reply or the exception for each of them."""


class Judge(Protocol):
    """Replies to the questions (tasks) of metrics: a model, or a set of rules."""

    @property
    def model(self) -> str:
        """The name of the model, which is a part of `Score.version`."""

    async def reply(self, tasks: Sequence[Task[Any]]) -> Replies:
        """Return a reply or an error for each of ``tasks``; raise `JudgeError` if all failed."""


def _kind(
    prompt: str, reply: type[R], inputs: str, *, repeats: str = "", **options: Any
) -> Kind[R]:
    options["repeats"] = tuple(repeats.split())
    return Kind(prompt=prompt, reply=reply, inputs=tuple(inputs.split()), **options)


def _two_voices(family: str, reply: type[R], inputs: str) -> tuple[Kind[R], ...]:
    return tuple(_kind(f"{family}_{voice}", reply, inputs, voice=voice) for voice in (1, 2))


_OTHERS = frozenset({"question", "contexts"})
REVERSE_QUESTION = _kind("reverse_question", ReverseQuestion, "answer", blind_to=_OTHERS)
STANDALONE_QUESTION = _kind("standalone_question", StandaloneQuestion, "question")
SIMILARITIES = _kind("similarities", Similarities, "question questions", each="questions")
DIRECT_RELEVANCY = _kind("direct_relevancy", UnitRating, "question answer")
SUB_QUESTIONS = _kind("sub_questions", SubQuestions, "question", repeats="question")
ADDRESSED = _kind("addressed", Verdicts, "sub_questions answer", each="sub_questions")
INTENT = _kind("intent", Intent, "question")
INTENT_FULFILMENT = _kind("intent_fulfilment", UnitRating, "intent answer")
ANSWER_RELEVANCY_RUBRIC = _kind("answer_relevancy_rubric", TwoFlags, "question answer")
GUIDELINE = _kind("guideline", Decision, "question answer guidelines")
CONTEXT_RELEVANCE = _two_voices("context_relevance", Rating, "question contexts")
RELEVANT_STATEMENTS = _kind(
    "relevant_statements", RelevantStatements, "question contexts", repeats="contexts"
)
RELEVANT_CONTEXTS = _kind("relevant_contexts", RelevantContexts, "question contexts")
CONTEXT_STATEMENTS = _kind(
    "context_statements", JudgedStatements, "question contexts", repeats="contexts"
)
CONTEXT_RELEVANCY_RUBRIC = _kind("context_relevancy_rubric", TwoMarks, "question contexts")
USEFUL_FOR_ANSWER = _kind("useful_for_answer", Useful, "question context answer")
USEFUL_FOR_REFERENCE = _kind("useful_for_reference", Useful, "question context reference")
STATEMENTS = _kind("statements", Statements, "question answer", repeats="answer")
VERDICTS = _kind("verdicts", Verdicts, "contexts statements", each="statements")
SUPPORTED = _kind("supported", SupportedSentences, "question contexts sentences", each="sentences")
CITATIONS = _kind("citations", Verdicts, "contexts claims", each="claims")
JUDGED_STATEMENTS = _kind(
    "judged_statements", JudgedStatements, "question answer contexts", repeats="answer"
)
GROUNDEDNESS = _two_voices("groundedness", Rating, "answer contexts")
RESPONSE_SUPPORTED = _kind("response_supported", Decision, "answer contexts")
CONTEXT_AGREEMENT = _kind("context_agreement", Decision, "question answer contexts")
REFERENCE_STATEMENTS = _kind(
    "reference_statements", JudgedStatements, "question contexts reference", repeats="reference"
)
COMPARED_STATEMENTS = _kind(
    "compared_statements",
    ComparedStatements,
    "question answer reference",
    repeats="answer reference",
)
ACCURACY = _two_voices("accuracy", Accuracy, "question answer reference")
CORRECTNESS = _kind("correctness", FivePoint, "question answer reference")
