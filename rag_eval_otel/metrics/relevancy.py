"""Does the answer address the question?"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rag_eval_otel.embed import cosine
from rag_eval_otel.errors import ConfigError
from rag_eval_otel.judge.kinds import ANSWER_RELEVANCY_RUBRIC, REVERSE_QUESTION
from rag_eval_otel.judge.replies import ReverseQuestion
from rag_eval_otel.judge.tasks import check_examples
from rag_eval_otel.metrics.outcome import Examples, measured, undefined
from rag_eval_otel.protocols import AskLike, EmbedFn
from rag_eval_otel.types import Sample, Score


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
