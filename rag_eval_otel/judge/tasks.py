"""The questions of metrics, as typed tasks: a `Task` is a `Kind` with the texts of one sample."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Literal, Protocol, TypeAlias, TypeVar

from pydantic import ValidationError

from rag_eval_otel.errors import ConfigError
from rag_eval_otel.judge import replies as say
from rag_eval_otel.types import Replies

R = TypeVar("R", bound=say.Reply)
Input: TypeAlias = "tuple[str, str | tuple[str, ...]]"
Rated: TypeAlias = Literal["integer", "logprobs"]
"""How a rating is read: as a number, or as the mean weighted by probabilities of tokens."""

_SHOWN: Mapping[str, str] = {
    **dict.fromkeys(("statements", "sentences", "questions"), "answer"),
    "context": "contexts",
    "sub_questions": "question",
    "intent": "question",
}
"""The field of the sample that a text made from it reveals, by the name of the text."""

_REPLY_TOKENS = 1024  # tokens of a reply, apart from its entries and the texts that it repeats
_ENTRY_TOKENS = 64
_WITH_REASONS = 3  # how many times longer a reply with reasons may be
_MOST_TOKENS = 16_384  # what many models can write at most

_OPEN: frozenset[str] = frozenset({"question", "contexts", "answer"})
"""Fields of the sample that a request may show even if one of its tasks does not need them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """A worked example in a prompt: ``inputs`` are texts, ``outputs`` is the right reply (JSON)."""

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

    def task(
        self,
        shown: Mapping[str, str | Sequence[str]],
        *,
        draw: int = 0,
        rated: Rated = "integer",
        examples: Iterable[Mapping[str, Any]] = (),
    ) -> Task[R]:
        fitting = (example_of(self, example) for example in examples)
        kept = tuple(example for example in fitting if example)
        inputs = _inputs(self, shown)
        return Task(kind=self, inputs=inputs, draw=draw, rated=rated, examples=kept)


@dataclass(frozen=True, slots=True, kw_only=True)
class Task(Generic[R]):
    """One question to a judge, with the texts of one sample; equal tasks are the same question.

    ``draw`` differs between repetitions of a question; ``complaint`` is why the last reply did not
    parse; ``reasons`` says whether the judge gives reasons, which are most of a reply's tokens.
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
        return frozenset(fields.get(name, name) for name, _ in self.inputs)


def _inputs(kind: Kind[Any], shown: Mapping[str, str | Sequence[str]]) -> tuple[Input, ...]:
    named = ((name, shown[name]) for name in kind.inputs if name in shown)
    return tuple((name, text if isinstance(text, str) else tuple(text)) for name, text in named)


def most_tokens(tasks: Sequence[Task[Any]]) -> int | None:
    """Return a generous limit of a reply to ``tasks``; None for a prompt of the user."""
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


def may_share(one: Task[say.Reply], other: Task[say.Reply]) -> bool:
    if one.kind.blind_to & other.shows or other.kind.blind_to & one.shows:
        return False
    if (one.shows ^ other.shows) - _OPEN:
        return False
    # Two prompts of one question are independent judges.
    is_same = (one.kind, one.examples) == (other.kind, other.examples)
    if one.kind.family == other.kind.family and not is_same:
        return False
    mine, theirs = dict(one.inputs), dict(other.inputs)
    shared = (mine.keys() & theirs.keys()) - {"context"}  # contexts become a list
    return all(mine[name] == theirs[name] for name in shared)


def example_of(kind: Kind[Any], example: Mapping[str, Any]) -> Example | None:
    try:
        shown, outputs = example["inputs"], example["outputs"]
        kind.reply.model_validate(outputs)
        reply = json.dumps(outputs, ensure_ascii=False)
    except (KeyError, TypeError, ValidationError):
        return None
    if not isinstance(shown, Mapping) or not shown:
        return None
    lists = (value if isinstance(value, list | tuple) else [value] for value in shown.values())
    if not all(isinstance(text, str) for texts in lists for text in texts):
        return None
    if not (set(shown) <= set(kind.inputs) and set(outputs) <= set(kind.reply.model_fields)):
        return None
    return Example(inputs=_inputs(kind, shown), outputs=reply)


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
    """What a metric calls to put tasks (questions) to the judge: an `Ask`."""

    async def __call__(self, task: Task[R]) -> R:
        """Return the judge's reply to ``task``; raise a `JudgeError` if there is no reply."""

    async def each(self, tasks: Sequence[Task[R]]) -> list[R | BaseException]:
        """Put ``tasks`` to the judge at once; return a reply or an exception for each task."""


class Judge(Protocol):
    """A model or a set of rules that replies to tasks (typed questions of metrics)."""

    @property
    def model(self) -> str:
        """The name of the judge's model, which is a part of the version of every score."""

    async def reply(self, tasks: Sequence[Task[Any]]) -> Replies:
        """Send ``tasks`` in one request and return the replies; raise `JudgeError` if none."""


def _kind(
    prompt: str, reply: type[R], inputs: str, *, repeats: str = "", **options: Any
) -> Kind[R]:
    options["repeats"] = tuple(repeats.split())
    return Kind(prompt=prompt, reply=reply, inputs=tuple(inputs.split()), **options)


def _two_voices(family: str, reply: type[R], inputs: str) -> tuple[Kind[R], ...]:
    return tuple(_kind(f"{family}_{voice}", reply, inputs, voice=voice) for voice in (1, 2))


_OTHERS = frozenset({"question", "contexts"})
_Judged = say.JudgedStatements
REVERSE_QUESTION = _kind("reverse_question", say.ReverseQuestion, "answer", blind_to=_OTHERS)
SIMILARITIES = _kind("similarities", say.Similarities, "question questions", each="questions")
DIRECT_RELEVANCY = _kind("direct_relevancy", say.UnitRating, "question answer")
SUB_QUESTIONS = _kind("sub_questions", say.SubQuestions, "question", repeats="question")
ADDRESSED = _kind("addressed", say.Verdicts, "sub_questions answer", each="sub_questions")
INTENT = _kind("intent", say.Intent, "question")
INTENT_FULFILMENT = _kind("intent_fulfilment", say.UnitRating, "intent answer")
ANSWER_RELEVANCY_RUBRIC = _kind("answer_relevancy_rubric", say.TwoFlags, "question answer")
GUIDELINE = _kind("guideline", say.Decision, "question answer guidelines")
CONTEXT_RELEVANCE = _two_voices("context_relevance", say.Rating, "question contexts")
RELEVANT_STATEMENTS = _kind(
    "relevant_statements", say.RelevantStatements, "question contexts", repeats="contexts"
)
RELEVANT_CONTEXTS = _kind("relevant_contexts", say.RelevantContexts, "question contexts")
CONTEXT_STATEMENTS = _kind("context_statements", _Judged, "question contexts", repeats="contexts")
CONTEXT_RELEVANCY_RUBRIC = _kind("context_relevancy_rubric", say.TwoMarks, "question contexts")
USEFUL_FOR_ANSWER = _kind("useful_for_answer", say.Useful, "question context answer")
USEFUL_FOR_REFERENCE = _kind("useful_for_reference", say.Useful, "question context reference")
STATEMENTS = _kind("statements", say.Statements, "question answer", repeats="answer")
VERDICTS = _kind("verdicts", say.Verdicts, "contexts statements", each="statements")
SUPPORTED = _kind(
    "supported", say.SupportedSentences, "question contexts sentences", each="sentences"
)
JUDGED_STATEMENTS = _kind(
    "judged_statements", _Judged, "question answer contexts", repeats="answer"
)
GROUNDEDNESS = _two_voices("groundedness", say.Rating, "answer contexts")
RESPONSE_SUPPORTED = _kind("response_supported", say.Decision, "answer contexts")
CONTEXT_AGREEMENT = _kind("context_agreement", say.Decision, "question answer contexts")
REFERENCE_STATEMENTS = _kind(
    "reference_statements", _Judged, "question contexts reference", repeats="reference"
)
COMPARED_STATEMENTS = _kind(
    "compared_statements",
    say.ComparedStatements,
    "question answer reference",
    repeats="answer reference",
)
ACCURACY = _two_voices("accuracy", say.Accuracy, "question answer reference")
CORRECTNESS = _kind("correctness", say.FivePoint, "question answer reference")
