"""What the tests of metrics share: a sample that has everything, and judges with a script."""

import asyncio
import random
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import pytest
from pydantic import BaseModel

from rag_eval_otel.embed import HashingEmbedder
from rag_eval_otel.errors import JudgeTransportError
from rag_eval_otel.evaluation import Measurement
from rag_eval_otel.judge.tasks import Kind, Task
from rag_eval_otel.metrics import resolve_metrics
from rag_eval_otel.metrics.base import Metric
from rag_eval_otel.testing.fakes import FakeJudge
from rag_eval_otel.types import Embedder, Evaluation, Replies, Sample, Score, Vectors

FULL = Sample(
    question="When and where was Ada Lovelace born?",
    contexts=["Ada Lovelace was born in London.", "She was born in 1815.", "Cats purr."],
    answer="She was born in London [1] in 1815 [2].",
    reference="Ada Lovelace was born in London on 10 December 1815.",
    retrieved_ids=["a", "b", "c"],
    relevant_ids=["b", "d"],
    rubric={0: "Wrong.", 0.5: "Half right.", 1: "Right."},
)
"""A sample that no metric finds anything missing in."""

LOOP = asyncio.new_event_loop()
"""The event loop of all scores: one for each would take a tenth of the time."""

DOWN = JudgeTransportError("down")
Answer = Callable[[Task[Any]], object]


def numbered(task: Task[Any], name: str, **reply: object) -> list[dict[str, object]]:
    return [{"index": i, **reply} for i in range(1, len(task.texts(name)) + 1)]


def flagged(*flags: object) -> list[dict[str, object]]:
    return [{"statement": f"claim {i}", "verdict": flag} for i, flag in enumerate(flags)]


LISTS = {"claims", "contexts", "statements", "sentences", "questions", "sub_questions"}


def task_of(kind: Kind[Any]) -> Task[Any]:
    """Return a task of ``kind`` about short texts."""
    texts = {name: ["One.", "Two."] if name in LISTS else "One." for name in kind.inputs}
    return kind.task({**texts, "rubric": "0: No.\n1: Yes."})


GOOD: Mapping[str, Answer] = {
    "reverse_question": lambda _: {"question": "When was she born?", "noncommittal": 0},
    "similarities": lambda task: {"similarities": numbered(task, "questions", similarity=0.75)},
    "direct_relevancy": lambda _: {"rating": 0.9},
    "sub_questions": lambda _: {"sub_questions": ["When was she born?", "Where was she born?"]},
    "addressed": lambda task: {"verdicts": numbered(task, "sub_questions", verdict=1)},
    "intent": lambda _: {"intent": "To know time and place of her birth."},
    "intent_fulfilment": lambda _: {"rating": 0.8},
    "answer_relevancy_rubric": lambda _: {"subject": 1, "focus": 1},
    "guideline": lambda _: {"passing": True, "reason": "It keeps to them."},
    "context_relevance_1": lambda _: {"rating": 2},
    "context_relevance_2": lambda _: {"rating": 1},
    "relevant_contexts": lambda _: {"numbers": [2]},
    "relevant_statements": lambda _: {"relevant_statements": ["She was born in 1815."]},
    "context_statements": lambda _: {"statements": flagged(1, 1, 0)},
    "context_relevancy_rubric": lambda _: {"subject": 2, "sufficiency": 1.5},
    "useful_for_answer": lambda _: {"verdict": 1},
    "useful_for_reference": lambda _: {"verdict": 1},
    "statements": lambda _: {"statements": ["She was born in London.", "She was born in 1815."]},
    "verdicts": lambda task: {"verdicts": numbered(task, "statements", verdict=1)},
    "supported": lambda task: {"verdicts": numbered(task, "sentences", verdict=1)},
    "citations": lambda task: {"verdicts": numbered(task, "claims", verdict=1)},
    "standalone_question": lambda _: {"question": "When was she born?"},
    "judged_statements": lambda _: {"statements": flagged(1, 1)},
    "groundedness_1": lambda _: {"rating": 2},
    "groundedness_2": lambda _: {"rating": 2},
    "response_supported": lambda _: {"passing": True},
    "context_agreement": lambda _: {"passing": True},
    "reference_statements": lambda _: {"statements": flagged(1, 0)},
    "compared_statements": lambda _: {
        "answer_statements": flagged(1, 1),
        "reference_statements": flagged(1, 0),
    },
    "accuracy_1": lambda _: {"rating": 4},
    "accuracy_2": lambda _: {"rating": 2},
    "correctness": lambda _: {"rating": 4.5},
    "rubric": lambda task: {"rating": levels_shown(task)[-1]},
}
"""A usable reply to every prompt."""


def levels_shown(task: Task[Any]) -> list[float]:
    return [float(line.partition(":")[0]) for line in task.text("rubric").splitlines()]


def script(**by_prompt: object) -> Answer:
    """Answer as `GOOD`, except for the prompts named: a reply, or a function of the task."""

    def answer(task: Task[Any]) -> object:
        given = by_prompt.get(task.prompt, GOOD.get(task.prompt))
        return given(task) if callable(given) else given

    return answer


def evaluated(
    metric: Metric | Sequence[str | Metric],
    judge: FakeJudge | None = None,
    *,
    share_requests: bool = True,
    sample: Sample = FULL,
    embedder: Embedder | None = None,
    repairs: int = 1,
    **texts: Any,
) -> Evaluation:
    """Score `FULL` with the ``texts`` given in place of its own."""
    measurement = Measurement(
        metrics=resolve_metrics(metric if isinstance(metric, Sequence) else [metric]),
        judge=judge or FakeJudge(script()),
        embedder=embedder or HashingEmbedder(),
        share_requests=share_requests,
        repairs=repairs,
    )
    return LOOP.run_until_complete(measurement.of(replace(sample, **texts)))


def score_of(metric: Metric, judge: FakeJudge | None = None, **options: Any) -> Score:
    return evaluated(metric, judge, **options).scores[0]


@dataclass(frozen=True, slots=True)
class Case:
    """A metric, and the value and further facts of its score; see `case`."""

    metric: Metric
    value: float | None
    replies: Mapping[str, object]
    texts: Mapping[str, Any]
    facts: Mapping[str, object]


def case(
    metric: Metric,
    value: float | None,
    replies: Mapping[str, object] | None = None,
    *,
    texts: Mapping[str, Any] | None = None,
    **facts: object,
) -> Case:
    """Expect ``value`` and facts (of score, detail or ``requests``) of ``replies`` by prompt."""
    return Case(metric, value, replies or {}, texts or {}, facts)


def assert_case(one: Case) -> None:
    value, facts = one.value, one.facts
    judge = FakeJudge(script(**one.replies))
    score = score_of(one.metric, judge, **one.texts)
    assert score.value == (None if value is None else pytest.approx(value, abs=1e-15)), score
    stated = {
        **{name: getattr(score, name) for name in ("reason", "explanation", "label", "normalized")},
        "requests": len(judge.requests),
        **score.detail,
    }
    assert {name: stated[name] for name in facts} == facts, stated


def shown(judge: FakeJudge) -> list[dict[str, object]]:
    return [dict(task.inputs) for request in judge.requests for task in request]


def verdicts(*flags: object) -> dict[str, object]:
    return {"verdicts": indexed("verdict", *flags)}


def indexed(key: str, *values: object, first: int = 1) -> list[dict[str, object]]:
    return [{"index": i, key: v} for i, v in enumerate(values, start=first) if v is not None]


BLANK = {"statement": " ", "verdict": 1}


def told(score: Score) -> tuple[object, ...]:
    return (score.value, score.status, score.reason, score.label, score.normalized)


TEXTS = ("Ada was born.", "It was London.", "When was Ada born?", "Why?", "", " \n")


class AnyJudge(FakeJudge):
    """Says anything that fits the question, or fails; always the same of the same question."""

    def __init__(self, seed: int, *, failures: float = 0.0) -> None:
        super().__init__(self._any)
        self._seed = seed
        self._failures = failures

    def _any(self, task: Task[Any]) -> object:
        shown = [(n, sorted(t) if n == "contexts" else t) for n, t in task.inputs]
        key = repr((self._seed, task.prompt, shown, task.draw))
        dice = random.Random(zlib.crc32(key.encode()))
        if dice.random() < self._failures:
            return dice.choice([None, DOWN])
        return _said(task, dice)


SCALES = {"correctness": (1, 5), "context_relevancy_rubric": (0, 2)}
"""Where a number is not from 0 to 1."""


@cache
def schema_of(reply: type[BaseModel]) -> dict[str, Any]:
    return reply.model_json_schema()


def _said(task: Task[Any], dice: random.Random) -> object:
    if task.prompt == "rubric":
        return {"rating": dice.choice(levels_shown(task))}
    low, high = SCALES.get(task.prompt, (0, 1))
    whole = schema_of(task.reply)

    def fitting(schema: Any) -> Any:
        schema = whole.get("$defs", {}).get(schema.get("$ref", "").rpartition("/")[2], schema)
        if schema.get("type") == "object":
            members = {k: v for k, v in schema["properties"].items() if "default" not in v}
            return {name: fitting(member) for name, member in members.items()}
        if schema.get("type") != "array":
            numbers = [low, high, dice.uniform(low, high)]
            others = {"boolean": [True, False], "string": TEXTS, "number": numbers}
            return dice.choice(schema.get("enum") or others.get(schema["type"], range(-1, 12)))
        indexes = [*range(1, dice.choice([2, 9, 9, 9])), dice.randint(-1, 12)]
        entries = [fitting(schema["items"]) for _ in indexes]
        if isinstance(entries[0], dict) and "index" in entries[0]:
            return [{**entry, "index": i} for entry, i in zip(entries, indexes, strict=True)]
        return entries[: dice.randint(0, 4)] * dice.choice([1, 1, 5])

    return fitting(whole)


NO_NUMBERS = (None, "1", True, False, [1], -1, 99, float("nan"), float("inf"), 10**400)
NO_INDEXES = (None, "1", True, 0.5)
NO_FLAGS = (None, "true", "yes", 1, 0)


def spoilt(reply: Any) -> Iterator[Any]:
    """Yield ``reply`` with each of its numbers and booleans in turn replaced by what is none."""
    items = enumerate(reply) if isinstance(reply, list) else list(reply.items())
    for key, value in items:
        if isinstance(value, str):
            continue
        if key == "numbers":  # which there are is not known here
            others = iter([[bad] for bad in NO_INDEXES])
        else:
            others = spoilt(value) if isinstance(value, dict | list) else iter(_no(key, value))
        for other in others:
            copy = reply.copy()
            copy[key] = other
            yield copy


def _no(key: object, value: object) -> Sequence[object]:
    if isinstance(value, bool):
        return NO_FLAGS
    return NO_INDEXES if key == "index" else NO_NUMBERS


class Failing:
    """A judge and embedder that raises ``error``, whatever it is asked."""

    model = "failing"

    def __init__(self, error: BaseException) -> None:
        self.error = error
        self.requests: list[Sequence[Task[Any]]] = []

    async def reply(self, tasks: Sequence[Task[Any]]) -> Replies:
        self.requests.append(tasks)
        raise self.error

    async def embed(self, texts: Sequence[str]) -> Vectors:
        raise self.error
