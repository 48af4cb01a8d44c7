"""Does the answer address the question?"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final

import numpy as np

from rag_eval_otel.embed import cosine
from rag_eval_otel.errors import ConfigError
from rag_eval_otel.judge import tasks as kinds
from rag_eval_otel.judge.tasks import AskLike, fitting
from rag_eval_otel.metrics.base import (
    BaseMetric,
    TaskMetric,
    in_order,
    share_of,
    task_about,
    valid_replies,
)
from rag_eval_otel.types import EmbedFn, Reason, Sample, Score

_BLANK: Final[Mapping[str, float | None]] = {"question": None, "answer": 0.0}
_ASKS = ("?", "\uff1f", "\u061f")
_MAX_SUB_QUESTIONS = 8
_BANDS = (
    (0.8, "The answer directly addresses the question."),
    (0.6, "The answer partially addresses the question."),
    (0.4, "The answer is somewhat related, but misses key aspects of the question."),
    (-math.inf, "The answer does not address the question."),
)


def band(value: float) -> str:
    return next(text for low, text in _BANDS if value >= low)


RELEVANCY = (
    TaskMetric(
        name="answer_relevancy_rubric",
        kind=kinds.ANSWER_RELEVANCY_RUBRIC,
        blank=_BLANK,
        formula=lambda metric, points: metric.score_of(
            (points.subject + points.focus) / 2,
            explanation=points.reason,
            detail={"subject": points.subject, "focus": points.focus},
        ),
        about="""\
Two points for the answer: it is on the subject, and it takes the perspective asked for.

``score = points / 2``, one of 0, .5 and 1.

Source: ``AnswerRelevancyEvaluator`` of LlamaIndex 0.14, which searches the judge's text for a
number; here the judge replies with two flags.""",
    ),
    TaskMetric(
        name="direct_relevancy",
        kind=kinds.DIRECT_RELEVANCY,
        blank=_BLANK,
        formula=lambda metric, reply: metric.score_of(reply.rating, explanation=reply.reason),
        about="""\
How well the answer addresses the question, as a number from 0 to 1 that the judge gives.

Source: the article that describes multi-method relevancy, method "direct". Unlike there, the judge
is asked again if it replies with prose or with a number out of range (there: .5).""",
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _QuestionMetric(BaseMetric):
    strictness: int = 3

    blank = _BLANK

    def __post_init__(self) -> None:
        if self.strictness < 1:
            raise ConfigError(f"strictness must be at least 1, not {self.strictness}")
        BaseMetric.__post_init__(self)

    async def _draw(self, sample: Sample, ask: AskLike) -> tuple[list[str], list[int]]:
        shown, draws = {"answer": sample.answer}, range(self.strictness)
        tasks = [kinds.REVERSE_QUESTION.task(shown, draw=i, examples=self.examples) for i in draws]
        replies = await valid_replies(tasks, ask)
        questions = [reply.question for reply in replies if reply.question.strip()]
        return questions, [reply.noncommittal for reply in replies]


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerRelevancy(_QuestionMetric):
    """How similar the question is to questions that the judge generates from the answer (ragas).

    The judge sees only the answer. It generates ``strictness`` (1 or more) questions ``g_i`` to
    which the answer would be a reply, and says each time whether the answer is evasive::

        score = mean_i cos(emb(g_i), emb(question))     from -1 to 1

    Special cases: 0 (``noncommittal``) if all replies say evasive; undefined if all questions are
    blank (``no_questions``) or all vectors zero (``zero_vector``). Replies that failed, if not
    all did, blank questions and zero vectors are left out of the mean (``partial``).

    If there were messages before the question (`Sample.history`), the stand-alone question takes
    its place: the query of the application if it is a question, or one that the judge writes.

    Source: ``AnswerRelevancy`` of ragas 0.4.3. Unlike in ragas, a blank question is left out of the
    mean, but its evasive flag counts, an empty answer is not judged, and a failure is no number.
    """

    name: str = "answer_relevancy"

    asks = (kinds.REVERSE_QUESTION,)
    scale = (-1.0, 1.0)

    async def compute(self, sample: Sample, ask: AskLike, embed: EmbedFn) -> Score:
        drawing = self._draw(sample, ask)
        if sample.history:
            standalone = self._standalone(sample, ask)
            (questions, evasive), asked = await asyncio.gather(drawing, standalone)
        else:
            (questions, evasive), asked = await drawing, sample.question
        fraction = sum(evasive) / len(evasive)
        detail: dict[str, Any] = {"questions": questions, "noncommittal_fraction": fraction}
        if all(evasive):
            return self.score_of(0.0, reason="noncommittal", detail=detail)
        if not questions:
            return self.undefined("no_questions", detail=detail)
        rows = await embed([asked, *questions])
        similarities = [s for row in rows[1:] if (s := cosine(rows[0], row)) is not None]
        if not similarities:
            return self.undefined("zero_vector", detail=detail)
        return self.score_of(
            float(np.mean(similarities)),
            reason="partial" if len(similarities) < self.strictness else None,
            explanation="The answer reads as a reply to: " + " / ".join(questions),
            detail={**detail, "similarities": similarities},
        )

    async def _standalone(self, sample: Sample, ask: AskLike) -> str:
        """Return the question as somebody understands it who has not seen the history."""
        if sample.query and sample.query.rstrip().endswith(_ASKS):  # else words to search for
            return sample.query
        reply = await ask(task_about(sample, kinds.STANDALONE_QUESTION))
        return reply.question if reply.question.strip() else sample.question


@dataclass(frozen=True, slots=True, kw_only=True)
class NeedlessRefusal(_QuestionMetric):
    """Whether the answer declines although the contexts suffice: 1 (bad) or 0.

    **High is bad**: scores below ``threshold`` pass. An answer declines if all ``strictness``
    replies for `AnswerRelevancy` say evasive; contexts suffice if they are rated 2 of 2 for
    ``context_relevance``. Beside these two metrics, this one takes no request.

    Special cases: undefined (``insufficient_context``) if the contexts do not suffice.
    """

    name: str = "needless_refusal"

    asks = (kinds.REVERSE_QUESTION, kinds.CONTEXT_RELEVANCE[0])
    blank = {"question": None, "contexts": None, "answer": None}  # noqa: RUF012  # never changed
    direction = "low"

    async def compute(self, sample: Sample, ask: AskLike, embed: EmbedFn) -> Score:  # noqa: ARG002
        rate = ask(task_about(sample, kinds.CONTEXT_RELEVANCE[0], self.examples))
        (_, evasive), rating = await asyncio.gather(self._draw(sample, ask), rate)
        if rating.rating != 2:  # noqa: PLR2004  # the highest
            return self.undefined("insufficient_context")
        return self.score_of(float(all(evasive)))


@dataclass(frozen=True, slots=True, kw_only=True)
class ReverseRelevancy(_QuestionMetric):
    """How similar the question is to questions generated from the answer, as rated by the judge.

    The judge generates ``strictness`` questions, as for `AnswerRelevancy`, then rates from 0 to 1
    how similar each is to the user's question. The score is the mean of the ratings.

    Special cases: undefined if all generated questions are blank (``no_questions``), or if the
    judge leaves out a similarity (``judge_incomplete``); ``partial`` if some are blank or failed.

    Source: the article that describes multi-method relevancy, method "reverse". Unlike there, no
    question (there: 0) and a similarity that does not parse (there: .5) give no number.
    """

    name: str = "reverse_relevancy"

    asks = (kinds.REVERSE_QUESTION, kinds.SIMILARITIES)

    async def compute(self, sample: Sample, ask: AskLike, embed: EmbedFn) -> Score:  # noqa: ARG002
        questions, _ = await self._draw(sample, ask)
        if not questions:
            return self.undefined("no_questions")
        task = task_about(sample, kinds.SIMILARITIES, self.examples, questions=questions)
        ratings = in_order((await ask(task)).similarities, len(questions))
        if ratings is None:
            return self.undefined("judge_incomplete", detail={"questions": questions})
        similarities = [rating.similarity for rating in ratings]
        value = sum(similarities) / len(similarities)
        reason: Reason | None = "partial" if len(questions) < self.strictness else None
        detail = {"questions": questions, "similarities": similarities}
        return self.score_of(value, reason=reason, explanation=band(value), detail=detail)


@dataclass(frozen=True, slots=True, kw_only=True)
class DecompositionRelevancy(BaseMetric):
    """The share of the question's sub-questions that the answer addresses.

    The judge splits the question into sub-questions, of which the first 8 count, and says for each
    whether the answer addresses it::

        score = addressed / sub-questions        detail["coverage"] = "addressed/sub-questions"

    Special cases: undefined if the judge finds no sub-question (``no_questions``), or leaves one
    out in its second reply (``judge_incomplete``).

    Source: the article that describes multi-method relevancy, method "decomposition". Unlike there,
    the number of sub-questions is limited, and the score is undefined without any (there: 0).
    """

    name: str = "decomposition_relevancy"

    blank = _BLANK
    asks = (kinds.SUB_QUESTIONS, kinds.ADDRESSED)

    async def compute(self, sample: Sample, ask: AskLike, embed: EmbedFn) -> Score:  # noqa: ARG002
        split = await ask(task_about(sample, kinds.SUB_QUESTIONS, self.examples))
        parts = [part for part in split.sub_questions if part.strip()][:_MAX_SUB_QUESTIONS]
        if not parts:
            return self.undefined("no_questions")
        task = task_about(sample, kinds.ADDRESSED, self.examples, sub_questions=parts)
        verdicts = in_order((await ask(task)).verdicts, len(parts))
        if verdicts is None:
            return self.undefined("judge_incomplete", detail={"sub_questions": parts})
        flags = [verdict.verdict for verdict in verdicts]
        missing = [part for part, flag in zip(parts, flags, strict=True) if not flag]
        coverage = f"{sum(flags)}/{len(flags)}"
        text = "Not addressed: " + " / ".join(missing) if missing else None
        detail = {"sub_questions": parts, "addressed": flags, "coverage": coverage}
        return self.score_of(share_of(verdicts), explanation=text, detail=detail)


@dataclass(frozen=True, slots=True, kw_only=True)
class IntentRelevancy(BaseMetric):
    """How far the answer fulfils the intent of the question.

    The judge sees only the question and states the intent; then the judge rates from 0 to 1 how far
    the answer fulfils it. The score is undefined if the intent is blank (``judge_incomplete``).

    Source: the article that describes multi-method relevancy, method "intent". Unlike there, the
    judge is asked again if it replies with prose or with a number out of range (there: .5).
    """

    name: str = "intent_relevancy"

    blank = _BLANK
    asks = (kinds.INTENT, kinds.INTENT_FULFILMENT)

    async def compute(self, sample: Sample, ask: AskLike, embed: EmbedFn) -> Score:  # noqa: ARG002
        intent = (await ask(task_about(sample, kinds.INTENT, self.examples))).intent
        if not intent.strip():
            return self.undefined("judge_incomplete")
        reply = await ask(task_about(sample, kinds.INTENT_FULFILMENT, self.examples, intent=intent))
        return self.score_of(reply.rating, explanation=reply.reason, detail={"intent": intent})


_PARTS: Mapping[str, tuple[float, Callable[..., BaseMetric]]] = {
    "reverse": (0.3, ReverseRelevancy),
    "direct": (0.25, partial(replace, RELEVANCY[1])),
    "decomposition": (0.25, DecompositionRelevancy),
    "intent": (0.2, IntentRelevancy),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class MultiMethodRelevancy(BaseMetric):
    """Weighted mean of `ReverseRelevancy`, ``direct_relevancy`` and two other relevancy scores.

    The others are `DecompositionRelevancy` and `IntentRelevancy`::

        score = sum_i w_i part_i / sum_i w_i   over the parts that have a value
        w = .3 reverse, .25 direct, .25 decomposition, .2 intent

    ``weights`` maps the names of the parts to measure to their weights; wrong weights raise
    `ConfigError`. The ``detail`` of the score has the value of each part, or why it is missing.

    Special cases: Parts that have no value are left out (``partial``); if they have more than half
    of the weight, the score is undefined (``judge_incomplete``). If all parts failed, the score has
    the error of the first part.

    Source: the article that describes multi-method relevancy. Unlike there, a part that failed has
    no value (there: .5), and the weights of the other parts are normalised.
    """

    strictness: int = 3
    weights: Mapping[str, float] = field(
        default_factory=lambda: {name: weight for name, (weight, _) in _PARTS.items()}, hash=False
    )
    name: str = "multi_method_relevancy"

    blank = _BLANK
    asks = tuple(kind for _, make in _PARTS.values() for kind in make().asks)

    def __post_init__(self) -> None:
        weights = self.weights.values()
        if not set(self.weights) <= set(_PARTS) or not all(0 <= w < math.inf for w in weights):
            raise ConfigError(f"weights must map some of {', '.join(_PARTS)} to numbers from 0")
        if not 0 < sum(weights) < math.inf:
            raise ConfigError("at least one of the weights must be above 0, and their sum a number")
        BaseMetric.__post_init__(self)

    async def compute(self, sample: Sample, ask: AskLike, embed: EmbedFn) -> Score:
        parts = {name: make() for name, (_, make) in _PARTS.items() if self.weights.get(name)}
        for name, part in parts.items():
            options: dict[str, Any] = {"strictness": self.strictness} if name == "reverse" else {}
            parts[name] = replace(part, examples=fitting(self.examples, part.asks), **options)
        measured = (part.measure(sample, ask, embed) for part in parts.values())
        outcomes = await asyncio.gather(*measured, return_exceptions=True)
        errors = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
        if len(errors) == len(parts):
            raise errors[0]
        return self._combined(dict(zip(parts, outcomes, strict=True)))

    def _combined(self, parts: Mapping[str, Score | BaseException]) -> Score:
        scores = {name: part for name, part in parts.items() if isinstance(part, Score)}
        values = {name: part.value for name, part in scores.items() if part.value is not None}
        others = [(name, part) for name, part in parts.items() if name not in values]
        missing = {name: getattr(part, "reason", "internal") for name, part in others}
        detail: dict[str, Any] = {"parts": values, "missing": missing}
        if "decomposition" in values:
            detail["coverage"] = scores["decomposition"].detail["coverage"]
        weight = sum(self.weights[name] for name in values)
        if weight < sum(self.weights[name] for name in parts) / 2:
            return self.undefined("judge_incomplete", detail=detail)
        value = sum(self.weights[name] * part for name, part in values.items()) / weight
        reason: Reason | None = "partial" if missing else None
        return self.score_of(value, reason=reason, explanation=band(value), detail=detail)
