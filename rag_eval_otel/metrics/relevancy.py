"""Does the answer address the question?"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rag_eval_otel.embed import cosine
from rag_eval_otel.judge.tasks import ReverseQuestion, reverse_question
from rag_eval_otel.metrics.outcome import measured, undefined
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
    name: str = "answer_relevancy"

    @property
    def needs(self) -> frozenset[str]:
        """The fields of the sample it reads."""
        return frozenset({"question", "answer"})

    @property
    def prompts(self) -> tuple[str, ...]:
        """The prompts that are part of its definition."""
        return ("reverse_question",)

    def __post_init__(self) -> None:
        """Refuse a ``strictness`` below 1."""
        if self.strictness < 1:
            msg = f"strictness must be at least 1, not {self.strictness}"
            raise ValueError(msg)

    async def measure(self, sample: Sample, ask: AskLike, embed: EmbedFn) -> Score:
        """Return the score of ``sample``."""
        if not sample.question.strip():
            return undefined(self.name, "missing_question")
        if not sample.answer.strip():
            return measured(self.name, 0.0, threshold=self.threshold, reason="empty_answer")
        tasks = [reverse_question(sample.answer, draw=i) for i in range(self.strictness)]
        replies = await ask.each(tasks)
        drawn = [reply for reply in replies if isinstance(reply, ReverseQuestion)]
        if not drawn:
            raise next(reply for reply in replies if isinstance(reply, BaseException))
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
