"""The questions that metrics put to a judge; `wire` writes them and reads the replies."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Literal, Protocol, TypeAlias, TypeVar

from pydantic import ValidationError

from rag_eval_otel.errors import ConfigError
from rag_eval_otel.judge.replies import (
    Accuracy,
    ComparedStatements,
    Decision,
    FivePoint,
    Intent,
    JudgedStatements,
    Rating,
    RelevantContexts,
    RelevantStatements,
    Reply,
    ReverseQuestion,
    Similarities,
    Statements,
    SubQuestions,
    SupportedSentences,
    TwoFlags,
    TwoMarks,
    UnitRating,
    Useful,
    Verdicts,
)
from rag_eval_otel.types import Reasons, Replies

R = TypeVar("R", bound=Reply)
Input: TypeAlias = "tuple[str, str | tuple[str, ...]]"
Rated: TypeAlias = Literal["integer", "logprobs"]
"""How a rating is read: as the number replied, or as the mean under the judge's probabilities."""

_SHOWN: Mapping[str, str] = {
    "context": "contexts",
    "statements": "answer",
    "sentences": "answer",
    "questions": "answer",
    "sub_questions": "question",
    "intent": "question",
}
"""The field of the sample that can be read off an input of another name."""

_OPEN: frozenset[str] = frozenset({"question", "contexts", "answer"})
"""What a question may see without showing it. All else might give the right answer away."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """A worked example: what was shown, and the reply as JSON."""

    inputs: tuple[Input, ...]
    outputs: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind(Generic[R]):
    """A sort of question: ``prompt`` names its file, ``inputs`` what may be shown with it.

    ``blind_to`` are those of question, contexts and answer that must not be in sight of it; what
    else there is, as a reference or a rubric, no question sees that does not show it. Kinds that
    differ in ``voice`` alone are two independent judges. ``instructions`` take the place of the
    prompt file. ``each`` names the input of several texts where the reply has an entry for each of
    them, in their order.
    """

    prompt: str
    reply: type[R]
    inputs: tuple[str, ...]
    blind_to: frozenset[str] = frozenset()
    voice: int = 0
    instructions: str = ""
    each: str = ""

    @property
    def family(self) -> str:
        """The prompt without its voice: two voices of a dual judge are one family."""
        return self.prompt.removesuffix(f"_{self.voice}")

    def task(
        self,
        shown: Mapping[str, str | Sequence[str]],
        *,
        draw: int = 0,
        rated: Rated = "integer",
        examples: Iterable[Mapping[str, Any]] = (),
    ) -> Task[R]:
        """Return the question about the texts ``shown``, with those ``examples`` that fit it."""
        inputs = ((name, shown[name]) for name in self.inputs if name in shown)
        fitting = (example_of(self, example) for example in examples)
        return Task(
            kind=self,
            inputs=tuple((name, t if isinstance(t, str) else tuple(t)) for name, t in inputs),
            draw=draw,
            rated=rated,
            examples=tuple(example for example in fitting if example),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Task(Generic[R]):
    """One typed question to a judge; equal tasks are the same question.

    ``inputs`` are the texts shown, by name. Tasks that differ in ``draw`` alone are repeated
    drawings from one judge. ``complaint`` tells the judge what was wrong with its last reply.
    ``reasons`` says whether the judge is to give reasons, which cost most of a reply's tokens.
    """

    kind: Kind[R]
    inputs: tuple[Input, ...]
    draw: int = 0
    rated: Rated = "integer"
    examples: tuple[Example, ...] = ()
    complaint: str = ""
    reasons: Reasons = "off"

    def text(self, name: str) -> str:
        """Return the single text shown as ``name``."""
        value = dict(self.inputs)[name]
        return value if isinstance(value, str) else "\n".join(value)

    def texts(self, name: str) -> tuple[str, ...]:
        """Return the list of texts shown as ``name``."""
        value = dict(self.inputs)[name]
        return (value,) if isinstance(value, str) else value

    @property
    def prompt(self) -> str:
        """The name of its prompt."""
        return self.kind.prompt

    @property
    def reply(self) -> type[R]:
        """The model of its reply."""
        return self.kind.reply

    @property
    def shows(self) -> frozenset[str]:
        """The fields of the sample that can be read off its inputs."""
        fields = {} if self.kind.instructions else _SHOWN  # a user's own names say nothing
        return frozenset(fields.get(name, name) for name, _ in self.inputs)


def may_share(one: Task[Reply], other: Task[Reply]) -> bool:
    """Tell whether two tasks may travel in one request.

    Not where one is blind to what the other shows, not where one alone shows more than question,
    contexts and answer, not two voices of one dual judge, not with differing examples of one kind,
    and not where a name would stand for two different texts.
    """
    if one.kind.blind_to & other.shows or other.kind.blind_to & one.shows:
        return False
    if (one.shows ^ other.shows) - _OPEN:
        return False
    if one.kind.family == other.kind.family and (
        one.kind != other.kind or one.examples != other.examples
    ):
        return False
    mine, theirs = dict(one.inputs), dict(other.inputs)
    shared = (mine.keys() & theirs.keys()) - {"context"}  # each is one of a list
    return all(mine[name] == theirs[name] for name in shared)


def example_of(kind: Kind[Any], example: Mapping[str, Any]) -> Example | None:
    """Return ``example`` as ``kind`` shows it; None where it is none of that kind."""
    try:
        shown, outputs = example["inputs"], example["outputs"]
        kind.reply.model_validate(outputs)
        reply = json.dumps(outputs, ensure_ascii=False)
    except (KeyError, TypeError, ValidationError):
        return None
    if not isinstance(shown, Mapping) or not shown or not all(map(_is_shown, shown.values())):
        return None
    if not (set(shown) <= set(kind.inputs) and set(outputs) <= set(kind.reply.model_fields)):
        return None
    inputs = ((name, shown[name]) for name in kind.inputs if name in shown)
    return Example(
        inputs=tuple((name, t if isinstance(t, str) else tuple(t)) for name, t in inputs),
        outputs=reply,
    )


def _is_shown(value: object) -> bool:
    """Tell whether ``value`` is a text or a list of texts."""
    texts = value if isinstance(value, list | tuple) else [value]
    return all(isinstance(text, str) for text in texts)


def fitting(
    examples: Iterable[Mapping[str, Any]], kinds: Sequence[Kind[Any]]
) -> list[Mapping[str, Any]]:
    """Return those of ``examples`` that are examples of one of ``kinds``."""
    return [example for example in examples if any(example_of(kind, example) for kind in kinds)]


def check_examples(
    name: str, examples: Iterable[Mapping[str, Any]], kinds: Sequence[Kind[Any]]
) -> None:
    """Raise `ConfigError` unless each of ``examples`` of metric ``name`` fits one of ``kinds``."""
    for i, example in enumerate(examples):
        if fitting([example], kinds):
            continue
        forms = "; or ".join(
            f"inputs {list(kind.inputs)} with outputs {list(kind.reply.model_fields)}"
            for kind in kinds
        )
        msg = f"examples[{i}] of {name} must be {{'inputs': ..., 'outputs': ...}} with {forms}"
        raise ConfigError(msg)


class AskLike(Protocol):
    """The judge as a metric sees it: send a task, get its reply."""

    async def __call__(self, task: Task[R]) -> R:
        """Return the reply to ``task``; raise `JudgeError` if there is none."""

    async def each(self, tasks: Sequence[Task[R]]) -> list[R | BaseException]:
        """Send all ``tasks`` at once and return a reply, or the error, for each."""


class Judge(Protocol):
    """Answers typed questions, with one request for the tasks it is given."""

    @property
    def model(self) -> str:
        """The model's name; part of the version of every score."""

    async def reply(self, tasks: Sequence[Task[Any]]) -> Replies:
        """Answer ``tasks`` in one request; raise `JudgeError` if none could be answered."""


REVERSE_QUESTION = Kind(
    prompt="reverse_question",
    reply=ReverseQuestion,
    inputs=("answer",),
    blind_to=frozenset({"question", "contexts"}),
)

# --- question and answer --------------------------------------------------------------------------

SIMILARITIES = Kind(
    prompt="similarities",
    reply=Similarities,
    inputs=("question", "questions"),
    each="questions",
)
DIRECT_RELEVANCY = Kind(prompt="direct_relevancy", reply=UnitRating, inputs=("question", "answer"))
SUB_QUESTIONS = Kind(prompt="sub_questions", reply=SubQuestions, inputs=("question",))
ADDRESSED = Kind(
    prompt="addressed",
    reply=Verdicts,
    inputs=("sub_questions", "answer"),
    each="sub_questions",
)
INTENT = Kind(prompt="intent", reply=Intent, inputs=("question",))
INTENT_FULFILMENT = Kind(prompt="intent_fulfilment", reply=UnitRating, inputs=("intent", "answer"))
ANSWER_RELEVANCY_RUBRIC = Kind(
    prompt="answer_relevancy_rubric", reply=TwoFlags, inputs=("question", "answer")
)
GUIDELINE = Kind(prompt="guideline", reply=Decision, inputs=("question", "answer", "guidelines"))

# --- the contexts ---------------------------------------------------------------------------------

CONTEXT_RELEVANCE = tuple(
    Kind(
        prompt=f"context_relevance_{voice}",
        reply=Rating,
        inputs=("question", "contexts"),
        voice=voice,
    )
    for voice in (1, 2)
)
RELEVANT_STATEMENTS = Kind(
    prompt="relevant_statements", reply=RelevantStatements, inputs=("question", "contexts")
)
RELEVANT_CONTEXTS = Kind(
    prompt="relevant_contexts", reply=RelevantContexts, inputs=("question", "contexts")
)
CONTEXT_STATEMENTS = Kind(
    prompt="context_statements", reply=JudgedStatements, inputs=("question", "contexts")
)
CONTEXT_RELEVANCY_RUBRIC = Kind(
    prompt="context_relevancy_rubric", reply=TwoMarks, inputs=("question", "contexts")
)
USEFUL_FOR_ANSWER = Kind(
    prompt="useful_for_answer", reply=Useful, inputs=("question", "context", "answer")
)
USEFUL_FOR_REFERENCE = Kind(
    prompt="useful_for_reference", reply=Useful, inputs=("question", "context", "reference")
)

# --- the answer against the contexts --------------------------------------------------------------

STATEMENTS = Kind(prompt="statements", reply=Statements, inputs=("question", "answer"))
VERDICTS = Kind(
    prompt="verdicts", reply=Verdicts, inputs=("contexts", "statements"), each="statements"
)
SUPPORTED = Kind(
    prompt="supported",
    reply=SupportedSentences,
    inputs=("question", "contexts", "sentences"),
    each="sentences",
)
JUDGED_STATEMENTS = Kind(
    prompt="judged_statements", reply=JudgedStatements, inputs=("question", "answer", "contexts")
)
GROUNDEDNESS = tuple(
    Kind(
        prompt=f"groundedness_{voice}",
        reply=Rating,
        inputs=("answer", "contexts"),
        voice=voice,
    )
    for voice in (1, 2)
)
RESPONSE_SUPPORTED = Kind(
    prompt="response_supported", reply=Decision, inputs=("answer", "contexts")
)
RESPONSE_RELEVANCY = Kind(
    prompt="response_relevancy", reply=Decision, inputs=("question", "answer", "contexts")
)

# --- against a reference --------------------------------------------------------------------------

REFERENCE_STATEMENTS = Kind(
    prompt="reference_statements",
    reply=JudgedStatements,
    inputs=("question", "contexts", "reference"),
)
COMPARED_STATEMENTS = Kind(
    prompt="compared_statements",
    reply=ComparedStatements,
    inputs=("question", "answer", "reference"),
)
ACCURACY = tuple(
    Kind(
        prompt=f"accuracy_{voice}",
        reply=Accuracy,
        inputs=("question", "answer", "reference"),
        voice=voice,
    )
    for voice in (1, 2)
)
CORRECTNESS = Kind(
    prompt="correctness", reply=FivePoint, inputs=("question", "answer", "reference")
)
