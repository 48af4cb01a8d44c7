"""Does the answer address the question? Four ways of asking, which `multi_method` combines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rag_eval_otel.embed import cosine
from rag_eval_otel.errors import ConfigError
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
    check_examples,
)
from rag_eval_otel.metrics.outcome import Examples, Metric, measured, share_of, undefined
from rag_eval_otel.types import EmbedFn, Sample, Score


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerRelevancy:
    """How well the question can be told from the answer (ragas' answer relevancy).

    The judge sees the answer alone and writes ``strictness`` questions ``g_i`` it would answer,
    saying for each drawing whether the answer is evasive::

        score = mean_i cos(emb(g_i), emb(question)),   0 if every drawing calls it evasive

    Range [-1, 1], in practice [0, 1]; not clipped. Needs question and answer. ``strictness`` judge
    requests unfused, 1 fused; 1 embedding request.

    Edges: no question: undefined ``missing_question``; no answer: 0 ``empty_answer``; all evasive:
    0 ``noncommittal``; no question was written: undefined ``no_questions``; no vector has a
    direction: undefined ``zero_vector``. Drawings that can't be parsed are left out (``partial``).

    Source: ragas 0.4.3. Differs: a blank question is dropped but its evasive flag counts; an empty
    answer is not judged; failures are never numbers. Fused, the drawings are asked to differ.
    """

    strictness: int = 3
    threshold: float | None = 0.5
    examples: Examples = ()
    name: str = "answer_relevancy"

    needs = frozenset({"question", "answer"})
    asks = (REVERSE_QUESTION,)
    requests = "3 (fused 1)"
    range = "[-1, 1]"

    def __post_init__(self) -> None:
        """Refuse a ``strictness`` below 1, and examples that do not fit."""
        if self.strictness < 1:
            msg = f"strictness must be at least 1, not {self.strictness}"
            raise ConfigError(msg)
        check_examples(self.name, self.examples, self.asks)

    async def measure(self, sample: Sample, ask: AskLike, embed: EmbedFn) -> Score:
        """Return the score of ``sample``."""
        if not sample.question.strip():
            return undefined(self.name, "missing_question")
        if not sample.answer.strip():
            return measured(self.name, 0.0, threshold=self.threshold, reason="empty_answer")
        drawn = await draw_questions(sample.answer, self.strictness, ask, examples=self.examples)
        return await self._score(sample.question, drawn, embed)

    async def _score(self, question: str, drawn: list[ReverseQuestion], embed: EmbedFn) -> Score:
        asked = [draw.question for draw in drawn if draw.question.strip()]
        detail = {
            "questions": asked,
            "noncommittal_fraction": sum(draw.noncommittal for draw in drawn) / len(drawn),
        }
        if all(draw.noncommittal for draw in drawn):
            return measured(
                self.name, 0.0, threshold=self.threshold, reason="noncommittal", detail=detail
            )
        if not asked:
            return undefined(self.name, "no_questions", detail=detail)
        rows = await embed([question, *asked])
        similarities = [s for row in rows[1:] if (s := cosine(rows[0], row)) is not None]
        if not similarities:
            return undefined(self.name, "zero_vector", detail=detail)
        return measured(
            self.name,
            float(np.mean(similarities)),
            threshold=self.threshold,
            reason="partial" if len(similarities) < self.strictness else None,
            explanation="The answer reads as a reply to: " + " / ".join(asked),
            detail={**detail, "similarities": similarities},
        )


async def draw_questions(
    answer: str, count: int, ask: AskLike, *, examples: Examples
) -> list[ReverseQuestion]:
    """Return the parsable of ``count`` drawings of a question that ``answer`` answers.

    Raises the first error where none is.
    """
    tasks = [
        REVERSE_QUESTION.task({"answer": answer}, draw=i, examples=examples) for i in range(count)
    ]
    replies = await ask.each(tasks)
    drawn = [reply for reply in replies if isinstance(reply, ReverseQuestion)]
    if not drawn:
        raise next(reply for reply in replies if isinstance(reply, BaseException))
    return drawn


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerRelevancyRubric:
    """Two points for an answer: it is on the subject, and on the side of it that was asked for.

    ``score = points / 2``, in {0, .5, 1}. Needs question and answer. 1 judge request.

    Edges: no question: undefined ``missing_question``; no answer: 0 ``empty_answer``.

    Source: LlamaIndex 0.14 ``AnswerRelevancyEvaluator``. Differs: the points are two flags of a
    schema, not a number searched for in a text, so that they are at most 2; a label is given.
    """

    threshold: float | None = 0.5
    examples: Examples = ()
    name: str = "answer_relevancy_rubric"

    needs = frozenset({"question", "answer"})
    asks = (ANSWER_RELEVANCY_RUBRIC,)
    requests = "1"
    range = "{0, .5, 1}"

    def __post_init__(self) -> None:
        """Refuse examples that do not fit."""
        check_examples(self.name, self.examples, self.asks)

    async def measure(self, sample: Sample, ask: AskLike, embed: EmbedFn) -> Score:  # noqa: ARG002
        """Return the score of ``sample``."""
        if not sample.question.strip():
            return undefined(self.name, "missing_question")
        if not sample.answer.strip():
            return measured(self.name, 0.0, threshold=self.threshold, reason="empty_answer")
        points = await ask(
            ANSWER_RELEVANCY_RUBRIC.task(
                {"question": sample.question, "answer": sample.answer}, examples=self.examples
            )
        )
        return measured(
            self.name,
            (points.subject + points.focus) / 2,
            threshold=self.threshold,
            explanation=points.reason,
            detail={"subject": points.subject, "focus": points.focus},
        )


_MAX_SUB_QUESTIONS = 8
_BANDS = (
    (0.8, "The answer directly addresses the question."),
    (0.6, "The answer partially addresses the question."),
    (0.4, "The answer is somewhat related, but misses key aspects of the question."),
    (0.0, "The answer does not address the question."),
)
_NEEDS = frozenset({"question", "answer"})


def band(value: float) -> str:
    """Return in words what a relevancy in [0, 1] says."""
    return next((text for low, text in _BANDS if value >= low), _BANDS[-1][1])


def short_circuit(metric: Metric, sample: Sample, *, threshold: float | None) -> Score | None:
    """Return the score of a sample that there is nothing to ask about; None for all others."""
    if not sample.question.strip():
        return undefined(metric.name, "missing_question")
    if not sample.answer.strip():
        return measured(metric.name, 0.0, threshold=threshold, reason="empty_answer")
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReverseRelevancy:
    """How near the questions the answer would answer are to the one asked, rated by the judge.

    The questions are those of `AnswerRelevancy`; the judge gives each a similarity to the question
    on the anchors 0, .25, .5, .75, 1::

        score = mean similarity

    Range [0, 1]. Needs question and answer. ``strictness`` + 1 judge requests unfused, 2 fused.

    Edges: no question was written: undefined ``no_questions``; similarities left out are an
    undefined ``judge_incomplete``; no answer: 0 ``empty_answer``.

    Source: the reverse generation part of multi-method relevancy (seed article). Differs: no
    question gives no score instead of 0; a similarity that does not parse is never .5.
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
        """Refuse a ``strictness`` below 1, and examples that do not fit."""
        if self.strictness < 1:
            msg = f"strictness must be at least 1, not {self.strictness}"
            raise ConfigError(msg)
        check_examples(self.name, self.examples, self.asks)

    async def measure(self, sample: Sample, ask: AskLike, embed: EmbedFn) -> Score:  # noqa: ARG002
        """Return the score of ``sample``."""
        if short := short_circuit(self, sample, threshold=self.threshold):
            return short
        drawn = await draw_questions(sample.answer, self.strictness, ask, examples=self.examples)
        asked = [draw.question for draw in drawn if draw.question.strip()]
        if not asked:
            return undefined(self.name, "no_questions")
        reply = await ask(
            SIMILARITIES.task(
                {"question": sample.question, "questions": asked}, examples=self.examples
            )
        )
        found = {s.index: s.similarity for s in reversed(reply.similarities)}  # the first counts
        if not all(i in found for i in range(1, len(asked) + 1)):
            return undefined(self.name, "judge_incomplete", detail={"questions": asked})
        similarities = [found[i] for i in range(1, len(asked) + 1)]
        value = sum(similarities) / len(similarities)
        return measured(
            self.name,
            value,
            threshold=self.threshold,
            reason="partial" if len(asked) < self.strictness else None,
            explanation=band(value),
            detail={"questions": asked, "similarities": similarities},
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class DirectRelevancy:
    """How well the answer addresses the question, as one number from the judge.

    Range [0, 1]. Needs question and answer. 1 judge request. No answer: 0 ``empty_answer``.

    Source: the direct part of multi-method relevancy (seed article). Differs: a number out of
    range or in prose is asked again and never read as .5.
    """

    threshold: float | None = 0.5
    examples: Examples = ()
    name: str = "direct_relevancy"

    needs = _NEEDS
    asks = (DIRECT_RELEVANCY,)
    requests = "1"
    range = "[0, 1]"

    def __post_init__(self) -> None:
        """Refuse examples that do not fit."""
        check_examples(self.name, self.examples, self.asks)

    async def measure(self, sample: Sample, ask: AskLike, embed: EmbedFn) -> Score:  # noqa: ARG002
        """Return the score of ``sample``."""
        if short := short_circuit(self, sample, threshold=self.threshold):
            return short
        task = DIRECT_RELEVANCY.task(
            {"question": sample.question, "answer": sample.answer}, examples=self.examples
        )
        reply = await ask(task)
        return measured(self.name, reply.rating, threshold=self.threshold, explanation=reply.reason)


@dataclass(frozen=True, slots=True, kw_only=True)
class DecompositionRelevancy:
    """The share of the question's parts that the answer addresses.

    The judge splits the question into sub-questions (at most 8 count), then says of each whether
    the answer addresses it::

        score = addressed / sub-questions        detail["coverage"] = "addressed/sub-questions"

    Range [0, 1]. Needs question and answer. 2 judge requests, one after the other.

    Edges: no sub-question: undefined ``no_questions``; flags left out: undefined
    ``judge_incomplete``; no answer: 0 ``empty_answer``.

    Source: the decomposition part of multi-method relevancy (seed article). Differs: a list from
    a schema instead of the lines of a text, so that a preamble is no sub-question; their number is
    limited; none gives no score instead of 0.
    """

    threshold: float | None = 0.5
    examples: Examples = ()
    name: str = "decomposition_relevancy"

    needs = _NEEDS
    asks = (SUB_QUESTIONS, ADDRESSED)
    requests = "2"
    range = "[0, 1]"

    def __post_init__(self) -> None:
        """Refuse examples that do not fit."""
        check_examples(self.name, self.examples, self.asks)

    async def measure(self, sample: Sample, ask: AskLike, embed: EmbedFn) -> Score:  # noqa: ARG002
        """Return the score of ``sample``."""
        if short := short_circuit(self, sample, threshold=self.threshold):
            return short
        split = await ask(SUB_QUESTIONS.task({"question": sample.question}, examples=self.examples))
        parts = [part for part in split.sub_questions if part.strip()][:_MAX_SUB_QUESTIONS]
        if not parts:
            return undefined(self.name, "no_questions")
        reply = await ask(
            ADDRESSED.task(
                {"sub_questions": parts, "answer": sample.answer}, examples=self.examples
            )
        )
        found = {one.index: one for one in reversed(reply.verdicts)}  # the first counts
        if not all(i in found for i in range(1, len(parts) + 1)):
            return undefined(self.name, "judge_incomplete", detail={"sub_questions": parts})
        return self._coverage(parts, [found[i] for i in range(1, len(parts) + 1)])

    def _coverage(self, parts: Sequence[str], judged: Sequence[Verdict]) -> Score:
        flags = [one.verdict for one in judged]
        missing = [part for part, flag in zip(parts, flags, strict=True) if not flag]
        return measured(
            self.name,
            share_of(judged),
            threshold=self.threshold,
            explanation="Not addressed: " + " / ".join(missing) if missing else None,
            detail={
                "sub_questions": list(parts),
                "addressed": flags,
                "coverage": f"{sum(flags)}/{len(flags)}",
            },
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class IntentRelevancy:
    """How far the answer gives what the person who asked was after.

    The judge says what was wanted, seeing the question alone, then how far the answer gives it.
    Range [0, 1]. Needs question and answer. 2 judge requests, one after the other.

    Edges: no intent was stated: undefined ``judge_incomplete``; no answer: 0 ``empty_answer``.

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
        """Refuse examples that do not fit."""
        check_examples(self.name, self.examples, self.asks)

    async def measure(self, sample: Sample, ask: AskLike, embed: EmbedFn) -> Score:  # noqa: ARG002
        """Return the score of ``sample``."""
        if short := short_circuit(self, sample, threshold=self.threshold):
            return short
        wanted = await ask(INTENT.task({"question": sample.question}, examples=self.examples))
        if not wanted.intent.strip():
            return undefined(self.name, "judge_incomplete")
        reply = await ask(
            INTENT_FULFILMENT.task(
                {"intent": wanted.intent, "answer": sample.answer}, examples=self.examples
            )
        )
        return measured(
            self.name,
            reply.rating,
            threshold=self.threshold,
            explanation=reply.reason,
            detail={"intent": wanted.intent},
        )
