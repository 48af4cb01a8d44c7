"""Do the contexts back the answer, taken as a whole?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from rag_eval_otel.judge.tasks import (
    GROUNDEDNESS,
    RESPONSE_RELEVANCY,
    RESPONSE_SUPPORTED,
    AskLike,
    Kind,
    Rated,
    check_examples,
)
from rag_eval_otel.metrics.dual import dual_score
from rag_eval_otel.metrics.outcome import Examples, check_choices, decided, measured, undefined
from rag_eval_otel.types import EmbedFn, Sample, Score

_SCALE = 2  # the highest rating of the dual judges


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponseGroundedness:
    """How far the contexts back the answer as a whole (NVIDIA, in ragas).

    A judge rates 0, 1 or 2; the score is its rating over 2, in {0, .5, 1}. ``judges=2`` as for
    `ContextRelevance`. Needs answer and contexts; the question is not shown. ``judges`` requests.

    Edges: a blank answer (``empty_answer``) or no non-blank context (``no_context``) is 0 without
    a request. One judge without a valid rating: the other's counts (``partial``).

    Source: ragas 0.4.3 ``ResponseGroundedness``. Differs: an answer that is a piece of the contexts
    is judged like any other; otherwise as `ContextRelevance`.
    """

    judges: Literal[1, 2] = 1
    rating: Rated = "integer"
    threshold: float | None = 0.5
    examples: Examples = ()
    name: str = "response_groundedness"

    needs = frozenset({"answer", "contexts"})
    requests = "1"
    range = "{0, .5, 1}"

    @property
    def asks(self) -> tuple[Kind[Any], ...]:
        """The kind of question it puts, for each judge."""
        return GROUNDEDNESS[: self.judges]

    def __post_init__(self) -> None:
        """Refuse examples that do not fit."""
        check_choices(self)
        check_examples(self.name, self.examples, self.asks)

    async def measure(self, sample: Sample, ask: AskLike, embed: EmbedFn) -> Score:  # noqa: ARG002
        """Return the score of ``sample``."""
        if not sample.answer.strip():
            return measured(self.name, 0.0, threshold=self.threshold, reason="empty_answer")
        contexts = sample.context_texts
        if not contexts:
            return measured(self.name, 0.0, threshold=self.threshold, reason="no_context")
        shown: dict[str, Any] = {"answer": sample.answer, "contexts": contexts}
        voices = [
            kind.task(shown, rated=self.rating, examples=self.examples)
            for kind in GROUNDEDNESS[: self.judges]
        ]
        return await dual_score(self.name, voices, ask, scale=_SCALE, threshold=self.threshold)


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponseSupported:
    """Whether the contexts bear out the answer, yes or no (LlamaIndex's faithfulness).

    Score 1 or 0. Needs answer and contexts; the question is not shown. 1 judge request.

    Edges: no answer: undefined ``empty_answer``; no context: 0 ``no_context``.

    Source: LlamaIndex 0.14 ``FaithfulnessEvaluator``. Differs: a boolean of a schema, not the
    letters "yes" anywhere in the reply; a reply that does not parse is undefined, not 0; all
    contexts are judged at once instead of pack by pack with the last one deciding.
    """

    threshold: float | None = 0.5
    examples: Examples = ()
    name: str = "response_supported"

    needs = frozenset({"answer", "contexts"})
    asks = (RESPONSE_SUPPORTED,)
    requests = "1"
    range = "{0, 1}"

    def __post_init__(self) -> None:
        """Refuse examples that do not fit."""
        check_examples(self.name, self.examples, self.asks)

    async def measure(self, sample: Sample, ask: AskLike, embed: EmbedFn) -> Score:  # noqa: ARG002
        """Return the score of ``sample``."""
        if not sample.answer.strip():
            return undefined(self.name, "empty_answer")
        contexts = sample.context_texts
        if not contexts:
            return measured(self.name, 0.0, threshold=self.threshold, reason="no_context")
        task = RESPONSE_SUPPORTED.task(
            {"answer": sample.answer, "contexts": contexts}, examples=self.examples
        )
        return decided(self.name, await ask(task), threshold=self.threshold)


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponseRelevancy:
    """Whether question and answer together agree with the contexts (LlamaIndex's relevancy).

    Score 1 or 0. It says nothing of whether the answer addresses the question: that is
    `AnswerRelevancy`. Needs question, answer and contexts. 1 judge request.

    Edges: no question: undefined ``missing_question``; otherwise as `ResponseSupported`.

    Source: LlamaIndex 0.14 ``RelevancyEvaluator``; differs as `ResponseSupported`.
    """

    threshold: float | None = 0.5
    examples: Examples = ()
    name: str = "response_relevancy"

    needs = frozenset({"question", "answer", "contexts"})
    asks = (RESPONSE_RELEVANCY,)
    requests = "1"
    range = "{0, 1}"

    def __post_init__(self) -> None:
        """Refuse examples that do not fit."""
        check_examples(self.name, self.examples, self.asks)

    async def measure(self, sample: Sample, ask: AskLike, embed: EmbedFn) -> Score:  # noqa: ARG002
        """Return the score of ``sample``."""
        if not sample.question.strip():
            return undefined(self.name, "missing_question")
        if not sample.answer.strip():
            return undefined(self.name, "empty_answer")
        contexts = sample.context_texts
        if not contexts:
            return measured(self.name, 0.0, threshold=self.threshold, reason="no_context")
        task = RESPONSE_RELEVANCY.task(
            {"question": sample.question, "answer": sample.answer, "contexts": contexts},
            examples=self.examples,
        )
        return decided(self.name, await ask(task), threshold=self.threshold)
