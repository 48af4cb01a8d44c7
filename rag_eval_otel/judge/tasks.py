"""The typed questions that metrics put to a judge, and the replies they expect.

A task is data: a prompt file, what is shown with it, and the pydantic model of the reply. What a
task shows and what it must not see decide which tasks may share a request (`may_share`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Generic, Literal, TypeAlias, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, StrictStr


def _integer(value: object) -> object:
    """Let ``1`` and ``1.0`` pass as integers; refuse booleans, strings and null."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        msg = f"must be an integer, not {value!r}"
        raise ValueError(msg)  # noqa: TRY004  # pydantic reports no other kind
    whole = isinstance(value, float) and value.is_integer()  # which infinity and NaN are not
    return int(value) if whole else value


Flag: TypeAlias = Annotated[Literal[0, 1], BeforeValidator(_integer)]
Level: TypeAlias = Annotated[Literal[0, 1, 2], BeforeValidator(_integer)]
Index: TypeAlias = Annotated[int, BeforeValidator(_integer)]


class Reply(BaseModel):
    """What a judge returns for one task. Values off the scale are refused, never rounded."""

    model_config = ConfigDict(
        frozen=True, allow_inf_nan=False, json_schema_extra={"additionalProperties": False}
    )


class ReverseQuestion(Reply):
    """A question the answer would be the answer to, and whether the answer is evasive."""

    question: StrictStr
    noncommittal: Flag


class Statements(Reply):
    """The claims an answer makes, each understandable on its own."""

    statements: list[StrictStr]


class Verdict(Reply):
    """Whether statement number ``index`` (from 1) follows from the contexts."""

    index: Index
    reason: StrictStr = ""
    verdict: Flag


class Verdicts(Reply):
    """One verdict for each statement that was shown."""

    verdicts: list[Verdict]


class JudgedStatement(Reply):
    """A claim of the answer together with its verdict."""

    statement: StrictStr
    reason: StrictStr = ""
    verdict: Flag


class JudgedStatements(Reply):
    """The claims of the answer, extracted and judged in one step."""

    statements: list[JudgedStatement]


class Rating(Reply):
    """A rating on the scale 0, 1, 2."""

    reason: StrictStr = ""
    rating: Level


R = TypeVar("R", bound=Reply)
Input: TypeAlias = "tuple[str, str | tuple[str, ...]]"

_REFERENCE: frozenset[str] = frozenset({"reference"})
_ALL_BUT_ANSWER: frozenset[str] = frozenset({"question", "contexts", "reference"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Task(Generic[R]):
    """One typed question to a judge; equal tasks are the same question.

    ``inputs`` are the texts shown, by name. ``shows`` are the fields of the sample that can be
    read off them, ``blind_to`` those that must not be in sight of this question. Tasks of one
    prompt with different ``voice`` are two independent judges and never share a request; those
    with different ``draw`` are repeated drawings from one judge and may. ``complaint`` tells the
    judge what was wrong with its last reply.
    """

    prompt: str
    reply: type[R]
    inputs: tuple[Input, ...]
    shows: frozenset[str]
    blind_to: frozenset[str] = _REFERENCE
    voice: int = 0
    draw: int = 0
    complaint: str = ""

    def text(self, name: str) -> str:
        """Return the single text shown as ``name``."""
        value = dict(self.inputs)[name]
        return value if isinstance(value, str) else "\n".join(value)

    def texts(self, name: str) -> tuple[str, ...]:
        """Return the list of texts shown as ``name``."""
        value = dict(self.inputs)[name]
        return (value,) if isinstance(value, str) else value

    @property
    def family(self) -> str:
        """The prompt without its voice: two voices of a dual judge are one family."""
        return self.prompt.removesuffix(f"_{self.voice}")


def may_share(one: Task[Reply], other: Task[Reply]) -> bool:
    """Tell whether two tasks may travel in one request.

    Not where one is blind to what the other shows, not two voices of one dual judge, and not
    where the same name would stand for two different texts.
    """
    if one.blind_to & other.shows or other.blind_to & one.shows:
        return False
    if one.family == other.family and one.voice != other.voice:
        return False
    mine, theirs = dict(one.inputs), dict(other.inputs)
    return all(mine[name] == theirs[name] for name in mine.keys() & theirs.keys())


def reverse_question(answer: str, *, draw: int) -> Task[ReverseQuestion]:
    """Ask for a question that ``answer`` answers; sees nothing but the answer."""
    return Task(
        prompt="reverse_question",
        reply=ReverseQuestion,
        inputs=(("answer", answer),),
        shows=frozenset({"answer"}),
        blind_to=_ALL_BUT_ANSWER,
        draw=draw,
    )


def statements(question: str, answer: str) -> Task[Statements]:
    """Ask for the claims ``answer`` makes; the question resolves its pronouns."""
    return Task(
        prompt="statements",
        reply=Statements,
        inputs=(("question", question), ("answer", answer)),
        shows=frozenset({"question", "answer"}),
    )


def verdicts(contexts: Sequence[str], claims: Sequence[str], *, draw: int = 0) -> Task[Verdicts]:
    """Ask for each of ``claims`` whether it follows from ``contexts``."""
    return Task(
        prompt="verdicts",
        reply=Verdicts,
        inputs=(("contexts", tuple(contexts)), ("statements", tuple(claims))),
        shows=frozenset({"contexts", "answer"}),
        draw=draw,
    )


def judged_statements(
    question: str, answer: str, contexts: Sequence[str]
) -> Task[JudgedStatements]:
    """Ask for the claims of ``answer`` and their verdicts in one step."""
    return Task(
        prompt="judged_statements",
        reply=JudgedStatements,
        inputs=(("question", question), ("answer", answer), ("contexts", tuple(contexts))),
        shows=frozenset({"question", "answer", "contexts"}),
    )


def context_relevance(question: str, contexts: Sequence[str], *, voice: int) -> Task[Rating]:
    """Ask how far ``contexts`` taken together answer ``question``: 0, 1 or 2."""
    return Task(
        prompt=f"context_relevance_{voice}",
        reply=Rating,
        inputs=(("question", question), ("contexts", tuple(contexts))),
        shows=frozenset({"question", "contexts"}),
        voice=voice,
    )


def groundedness(answer: str, contexts: Sequence[str], *, voice: int) -> Task[Rating]:
    """Ask how far ``answer`` is backed by ``contexts``: 0, 1 or 2."""
    return Task(
        prompt=f"groundedness_{voice}",
        reply=Rating,
        inputs=(("answer", answer), ("contexts", tuple(contexts))),
        shows=frozenset({"answer", "contexts"}),
        voice=voice,
    )
