"""Were the right contexts retrieved?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from rag_eval_otel.judge import tasks
from rag_eval_otel.metrics.dual import dual_score
from rag_eval_otel.metrics.outcome import measured
from rag_eval_otel.protocols import AskLike, EmbedFn
from rag_eval_otel.types import Sample, Score


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextRelevance:
    """How far the contexts, taken together, serve to answer the question (NVIDIA, in ragas).

    Two differently worded judges rate 0, 1 or 2; the score is the mean rating over 2, in
    {0, .25, .5, .75, 1}. Needs question and contexts. 2 judge requests (1 with ``judges=1``).

    Edges: a blank question (``missing_question``) or no non-blank context (``no_context``) is 0
    without a request. One judge without a valid rating: the other's counts (``partial``).

    Source: ragas 0.4.3 ``ContextRelevance``. Differs: no short circuit for a context that is part
    of the question; the fallback works whichever judge failed; a rating off the scale is asked
    again and never rounded; 2 means that a full answer is possible.
    """

    judges: Literal[1, 2] = 2
    threshold: float | None = 0.5
    name: str = "context_relevance"

    @property
    def needs(self) -> frozenset[str]:
        """The fields of the sample it reads."""
        return frozenset({"question", "contexts"})

    @property
    def prompts(self) -> tuple[str, ...]:
        """The prompts that are part of its definition."""
        return ("context_relevance_1", "context_relevance_2")

    async def measure(self, sample: Sample, ask: AskLike, embed: EmbedFn) -> Score:  # noqa: ARG002
        """Return the score of ``sample``."""
        if not sample.question.strip():
            return measured(self.name, 0.0, threshold=self.threshold, reason="missing_question")
        contexts = sample.context_texts
        if not contexts:
            return measured(self.name, 0.0, threshold=self.threshold, reason="no_context")
        voices = [
            tasks.context_relevance(sample.question, contexts, voice=voice)
            for voice in range(1, self.judges + 1)
        ]
        return await dual_score(self.name, voices, ask, threshold=self.threshold)
