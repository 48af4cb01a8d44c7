"""Does the answer address the question?"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rag_eval_otel.embed import cosine
from rag_eval_otel.errors import ConfigError, JudgeError
from rag_eval_otel.judge.replies import ReverseQuestion, Verdict
from rag_eval_otel.judge.tasks import (
    ADDRESSED,
    ANSWER_RELEVANCY_RUBRIC,
    DIRECT_RELEVANCY,
    INTENT,
    INTENT_FULFILMENT,
    REVERSE_QUESTION,
    SIMILARITIES,
    SUB_QUESTIONS,
    AskLike,
    fitting,
)
from rag_eval_otel.metrics.outcome import (
    Examples,
    Metric,
    check_options,
    edge_score,
    in_order,
    measured,
    share_of,
    task_about,
    undefined,
    valid_replies,
)
from rag_eval_otel.types import EmbedFn, Reason, Sample, Score

_NEEDS = frozenset({"question", "answer"})
_MAX_SUB_QUESTIONS = 8
_BANDS = (
    (0.8, "The answer directly addresses the question."),
    (0.6, "The answer partially addresses the question."),
    (0.4, "The answer is somewhat related, but misses key aspects of the question."),
    (0.0, "The answer does not address the question."),
)
"""The least score and its explanation."""


def _check_strictness(strictness: int) -> None:
    if strictness < 1:
        msg = f"strictness must be at least 1, not {strictness}"
        raise ConfigError(msg)


def band(value: float) -> str:
    """Return what a relevancy in [0, 1] means, in words."""
    return next((text for low, text in _BANDS if value >= low), _BANDS[-1][1])


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerRelevancy:
    """How close the question is to the questions that the answer would answer (ragas).

    The judge sees the answer alone. It writes ``strictness`` questions ``g_i`` that the answer
    would answer, and says with each whether the answer is evasive::

        score = mean_i cos(emb(g_i), emb(question)),   0 if the judge always says evasive

    Range [-1, 1], in practice [0, 1]; not clipped. Needs question and answer. ``strictness`` judge
    requests unfused, 1 fused; 1 embedding request.

    Edges: no question: undefined ``missing_question``; no answer: 0 ``empty_answer``; always
    evasive: 0 ``noncommittal``; only blank questions written: undefined ``no_questions``; no vector
    of a length above 0: undefined ``zero_vector``; replies that do not parse are left out
    (``partial``). Raises `ConfigError` for a ``strictness`` below 1.

    Source: ragas 0.4.3 ``AnswerRelevancy``. Differs: a blank question is left out but its evasive
    flag counts; an empty answer is not sent to the judge; a failure is never a number. In a fused
    request the judge is asked for questions that differ.
    """

    strictness: int = 3
    threshold: float | None = 0.5
    examples: Examples = ()
    name: str = "answer_relevancy"

    needs = _NEEDS
    asks = (REVERSE_QUESTION,)
    requests = "3 (fused 1)"
    range = "[-1, 1]"

    def __post_init__(self) -> None:
        _check_strictness(self.strictness)
        check_options(self)

    async def measure(self, sample: Sample, ask: AskLike, embed: EmbedFn) -> Score:
        if edge := edge_score(self, sample, question=None, answer=0.0):
            return edge
        drawn = await draw_questions(sample.answer, self.strictness, ask, examples=self.examples)
        return await self._score(sample.question, drawn, embed)

    async def _score(self, question: str, drawn: list[ReverseQuestion], embed: EmbedFn) -> Score:
        asked = [draw.question for draw in drawn if draw.question.strip()]
        detail = {
            "questions": asked,
            "noncommittal_fraction": sum(draw.noncommittal for draw in drawn) / len(drawn),
        }
        if all(draw.noncommittal for draw in drawn):
            return measured(self, 0.0, reason="noncommittal", detail=detail)
        if not asked:
            return undefined(self.name, "no_questions", detail=detail)
        rows = await embed([question, *asked])
        similarities = [s for row in rows[1:] if (s := cosine(rows[0], row)) is not None]
        if not similarities:
            return undefined(self.name, "zero_vector", detail=detail)
        return measured(
            self,
            float(np.mean(similarities)),
            reason="partial" if len(similarities) < self.strictness else None,
            explanation="The answer reads as a reply to: " + " / ".join(asked),
            detail={**detail, "similarities": similarities},
        )


async def draw_questions(
    answer: str, count: int, ask: AskLike, *, examples: Examples
) -> list[ReverseQuestion]:
    """Ask for ``count`` questions that ``answer`` would answer, and return the valid replies.

    Raises the first error if no reply is valid.
    """
    shown = {"answer": answer}
    tasks = [REVERSE_QUESTION.task(shown, draw=i, examples=examples) for i in range(count)]
    return await valid_replies(tasks, ask)


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerRelevancyRubric:
    """Two points for an answer: it is on the subject, and it takes the perspective asked for.

    ``score = points / 2``, in {0, .5, 1}. Needs question and answer. 1 judge request.

    Edges: no question: undefined ``missing_question``; no answer: 0 ``empty_answer``.

    Source: LlamaIndex 0.14 ``AnswerRelevancyEvaluator``. Differs: the judge replies with two flags
    of a schema; LlamaIndex searches its text for a number, which may exceed 2. There is a label.
    """

    threshold: float | None = 0.5
    examples: Examples = ()
    name: str = "answer_relevancy_rubric"

    needs = _NEEDS
    asks = (ANSWER_RELEVANCY_RUBRIC,)
    requests = "1"
    range = "{0, .5, 1}"

    def __post_init__(self) -> None:
        check_options(self)

    async def measure(self, sample: Sample, ask: AskLike, embed: EmbedFn) -> Score:  # noqa: ARG002
        if edge := edge_score(self, sample, question=None, answer=0.0):
            return edge
        points = await ask(task_about(sample, ANSWER_RELEVANCY_RUBRIC, examples=self.examples))
        return measured(
            self,
            (points.subject + points.focus) / 2,
            explanation=points.reason,
            detail={"subject": points.subject, "focus": points.focus},
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ReverseRelevancy:
    """How similar the question is to those that the answer would answer, as the judge rates it.

    The judge writes questions as for `AnswerRelevancy`. Then it rates the similarity of each to the
    question asked, on the anchors 0, .25, .5, .75, 1::

        score = mean similarity

    Range [0, 1]. Needs question and answer. ``strictness`` + 1 judge requests unfused, 2 fused.

    Edges: no question: undefined ``missing_question``; no answer: 0 ``empty_answer``; only blank
    questions written: undefined ``no_questions``; a similarity missing: undefined
    ``judge_incomplete``. Raises `ConfigError` for a ``strictness`` below 1.

    Source: the reverse generation part of multi-method relevancy (seed article). Differs: without a
    written question there is no score, instead of 0; a similarity that does not parse is not read
    as .5.
    """

    strictness: int = 3
    threshold: float | None = 0.5
    examples: Examples = ()
    name: str = "reverse_relevancy"

    needs = _NEEDS
    asks = (REVERSE_QUESTION, SIMILARITIES)
    requests = "4 (fused 2)"
    range = "[0, 1]"

    def __post_init__(self) -> None:
        _check_strictness(self.strictness)
        check_options(self)

    async def measure(self, sample: Sample, ask: AskLike, embed: EmbedFn) -> Score:  # noqa: ARG002
        if edge := edge_score(self, sample, question=None, answer=0.0):
            return edge
        drawn = await draw_questions(sample.answer, self.strictness, ask, examples=self.examples)
        asked = [draw.question for draw in drawn if draw.question.strip()]
        if not asked:
            return undefined(self.name, "no_questions")
        task = task_about(sample, SIMILARITIES, questions=asked, examples=self.examples)
        rated = in_order((await ask(task)).similarities, len(asked))
        if rated is None:
            return undefined(self.name, "judge_incomplete", detail={"questions": asked})
        similarities = [one.similarity for one in rated]
        value = sum(similarities) / len(similarities)
        return measured(
            self,
            value,
            reason="partial" if len(asked) < self.strictness else None,
            explanation=band(value),
            detail={"questions": asked, "similarities": similarities},
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class DirectRelevancy:
    """How well the answer addresses the question, as one number from the judge.

    Range [0, 1]. Needs question and answer. 1 judge request.

    Edges: no question: undefined ``missing_question``; no answer: 0 ``empty_answer``.

    Source: the direct part of multi-method relevancy (seed article). Differs: the judge is asked
    again for a number out of range or in prose, which is not read as .5.
    """

    threshold: float | None = 0.5
    examples: Examples = ()
    name: str = "direct_relevancy"

    needs = _NEEDS
    asks = (DIRECT_RELEVANCY,)
    requests = "1"
    range = "[0, 1]"

    def __post_init__(self) -> None:
        check_options(self)

    async def measure(self, sample: Sample, ask: AskLike, embed: EmbedFn) -> Score:  # noqa: ARG002
        if edge := edge_score(self, sample, question=None, answer=0.0):
            return edge
        reply = await ask(task_about(sample, DIRECT_RELEVANCY, examples=self.examples))
        return measured(self, reply.rating, explanation=reply.reason)


@dataclass(frozen=True, slots=True, kw_only=True)
class DecompositionRelevancy:
    """The share of the question's sub-questions that the answer addresses.

    The judge splits the question into sub-questions, of which the first 8 count. Then it says for
    each whether the answer addresses it::

        score = addressed / sub-questions        detail["coverage"] = "addressed/sub-questions"

    Range [0, 1]. Needs question and answer. 2 judge requests, one after the other.

    Edges: no question: undefined ``missing_question``; no answer: 0 ``empty_answer``; no
    sub-question: undefined ``no_questions``; a flag missing: undefined ``judge_incomplete``.

    Source: the decomposition part of multi-method relevancy (seed article). Differs: sub-questions
    are a list of a schema, not the lines of a text, which may hold a preamble; their number is
    limited; without one there is no score, instead of 0.
    """

    threshold: float | None = 0.5
    examples: Examples = ()
    name: str = "decomposition_relevancy"

    needs = _NEEDS
    asks = (SUB_QUESTIONS, ADDRESSED)
    requests = "2"
    range = "[0, 1]"

    def __post_init__(self) -> None:
        check_options(self)

    async def measure(self, sample: Sample, ask: AskLike, embed: EmbedFn) -> Score:  # noqa: ARG002
        if edge := edge_score(self, sample, question=None, answer=0.0):
            return edge
        split = await ask(task_about(sample, SUB_QUESTIONS, examples=self.examples))
        parts = [part for part in split.sub_questions if part.strip()][:_MAX_SUB_QUESTIONS]
        if not parts:
            return undefined(self.name, "no_questions")
        task = task_about(sample, ADDRESSED, sub_questions=parts, examples=self.examples)
        verdicts = in_order((await ask(task)).verdicts, len(parts))
        if verdicts is None:
            return undefined(self.name, "judge_incomplete", detail={"sub_questions": parts})
        return self._coverage(parts, verdicts)

    def _coverage(self, parts: Sequence[str], judged: Sequence[Verdict]) -> Score:
        flags = [one.verdict for one in judged]
        missing = [part for part, flag in zip(parts, flags, strict=True) if not flag]
        return measured(
            self,
            share_of(judged),
            explanation="Not addressed: " + " / ".join(missing) if missing else None,
            detail={
                "sub_questions": list(parts),
                "addressed": flags,
                "coverage": f"{sum(flags)}/{len(flags)}",
            },
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class IntentRelevancy:
    """How far the answer fulfils the intent of the question.

    The judge states the intent, seeing the question alone. Then it rates how far the answer fulfils
    it. Range [0, 1]. Needs question and answer. 2 judge requests, one after the other.

    Edges: no question: undefined ``missing_question``; no answer: 0 ``empty_answer``; a blank
    intent: undefined ``judge_incomplete``.

    Source: the intent part of multi-method relevancy (seed article); differs as `DirectRelevancy`.
    """

    threshold: float | None = 0.5
    examples: Examples = ()
    name: str = "intent_relevancy"

    needs = _NEEDS
    asks = (INTENT, INTENT_FULFILMENT)
    requests = "2"
    range = "[0, 1]"

    def __post_init__(self) -> None:
        check_options(self)

    async def measure(self, sample: Sample, ask: AskLike, embed: EmbedFn) -> Score:  # noqa: ARG002
        if edge := edge_score(self, sample, question=None, answer=0.0):
            return edge
        wanted = await ask(task_about(sample, INTENT, examples=self.examples))
        if not wanted.intent.strip():
            return undefined(self.name, "judge_incomplete")
        task = task_about(sample, INTENT_FULFILMENT, intent=wanted.intent, examples=self.examples)
        reply = await ask(task)
        return measured(
            self, reply.rating, explanation=reply.reason, detail={"intent": wanted.intent}
        )


_METHODS = (ReverseRelevancy, DirectRelevancy, DecompositionRelevancy, IntentRelevancy)
_KINDS = tuple(kind for method in _METHODS for kind in method.asks)
_PARTS: Mapping[str, float] = {"reverse": 0.3, "direct": 0.25, "decomposition": 0.25, "intent": 0.2}


@dataclass(frozen=True, slots=True, kw_only=True)
class MultiMethodRelevancy:
    """Relevancy of the answer by four methods: reverse, direct, decomposition and intent.

    Each part is a metric of its own (`ReverseRelevancy`, `DirectRelevancy`,
    `DecompositionRelevancy`, `IntentRelevancy`)::

        score = sum_i w_i part_i / sum_i w_i   over the parts that have a value
        w = .3 reverse, .25 direct, .25 decomposition, .2 intent

    Range [0, 1]. Needs question and answer. 9 judge requests unfused, 3 fused. ``detail`` has the
    value or the reason of each part and the coverage "addressed/sub-questions". The explanation
    names one of four bands of scores. ``weights`` maps parts to weights; a part without a weight is
    not measured.

    Edges: no question: undefined ``missing_question``; no answer: 0 ``empty_answer``; parts without
    a value are left out (``partial``); if they have more than half of the weight: undefined
    ``judge_incomplete``; if all failed: the error of the first. Raises `ConfigError` for weights of
    unknown parts, negative ones, and weights that are all 0.

    Source: multi-method relevancy (seed article). Differs: a part that failed has no value, instead
    of .5, and the weights of the other parts are normalised.
    """

    strictness: int = 3
    weights: Mapping[str, float] = field(default_factory=lambda: dict(_PARTS), hash=False)
    threshold: float | None = 0.5
    examples: Examples = ()
    name: str = "multi_method_relevancy"

    needs = _NEEDS
    asks = _KINDS
    requests = "9 (fused 3)"
    range = "[0, 1]"

    def __post_init__(self) -> None:
        """Refuse weights of unknown parts, negative ones, all zero, and examples that don't fit."""
        weights = self.weights.values()
        if not set(self.weights) <= set(_PARTS) or not all(0 <= w < math.inf for w in weights):
            msg = f"weights must map some of {', '.join(_PARTS)} to numbers from 0"
            raise ConfigError(msg)
        if not 0 < sum(weights) < math.inf:
            msg = "at least one of the weights must be above 0, and their sum a number"
            raise ConfigError(msg)
        check_options(self)

    async def measure(self, sample: Sample, ask: AskLike, embed: EmbedFn) -> Score:
        if edge := edge_score(self, sample, question=None, answer=0.0):
            return edge
        parts = self._parts()
        outcomes = await asyncio.gather(
            *(part.measure(sample, ask, embed) for part in parts.values()), return_exceptions=True
        )
        errors = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
        if len(errors) == len(parts):
            raise errors[0]
        return self._combined(
            {
                name: undefined(name, _reason(one)) if isinstance(one, BaseException) else one
                for name, one in zip(parts, outcomes, strict=True)
            }
        )

    def _parts(self) -> dict[str, Metric]:
        examples = [fitting(self.examples, kind.asks) for kind in _METHODS]
        parts: dict[str, Metric] = {
            "reverse": ReverseRelevancy(strictness=self.strictness, examples=examples[0]),
            "direct": DirectRelevancy(examples=examples[1]),
            "decomposition": DecompositionRelevancy(examples=examples[2]),
            "intent": IntentRelevancy(examples=examples[3]),
        }
        return {name: part for name, part in parts.items() if self.weights.get(name)}

    def _combined(self, parts: Mapping[str, Score]) -> Score:
        values = {name: part.value for name, part in parts.items() if part.value is not None}
        total = sum(self.weights[name] for name in parts)
        weight = sum(self.weights[name] for name in values)
        detail: dict[str, Any] = {
            "parts": values,
            "missing": {name: part.reason for name, part in parts.items() if name not in values},
        }
        if "decomposition" in values:
            detail["coverage"] = parts["decomposition"].detail["coverage"]
        if weight < total / 2:
            return undefined(self.name, "judge_incomplete", detail=detail)
        value = sum(self.weights[name] * one for name, one in values.items()) / weight
        return measured(
            self,
            value,
            reason="partial" if detail["missing"] else None,
            explanation=band(value),
            detail=detail,
        )


def _reason(error: BaseException) -> Reason:
    return error.reason if isinstance(error, JudgeError) else "internal"
