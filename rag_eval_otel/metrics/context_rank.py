"""Do the useful contexts come first, and is what the reference says among them?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rag_eval_otel.errors import UnparsableReplyError
from rag_eval_otel.judge.replies import Useful
from rag_eval_otel.judge.tasks import (
    REFERENCE_STATEMENTS,
    USEFUL_FOR_ANSWER,
    USEFUL_FOR_REFERENCE,
    AskLike,
    Task,
    check_examples,
)
from rag_eval_otel.metrics.outcome import (
    Examples,
    measured,
    share_of,
    undefined,
    verdicts_of,
)
from rag_eval_otel.types import EmbedFn, Sample, Score


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextPrecision:
    """Whether the contexts of use come before the others, by a reference answer (ragas).

    For each context the judge says whether it was of use in arriving at the reference, seeing the
    question, the reference and that context. With the flags ``v_k`` in rank order::

        score = sum_k v_k (v_1 + .. + v_k) / k  /  sum_k v_k       (average precision)

    Range [0, 1]; 0 if no context is of use. Needs question, contexts and reference. One judge
    request for each context, fused 1.

    Edges: no context: undefined ``no_context``; no reference: undefined ``missing_reference``; a
    context without a verdict: undefined ``judge_incomplete``, the others are in the detail.

    Source: ragas 0.4.3 ``LLMContextPrecisionWithReference``. Differs: no 1e-10 in the denominator,
    so that a perfect ranking is 1; verdicts other than 0 and 1 are asked again.
    """

    threshold: float | None = 0.5
    examples: Examples = ()
    name: str = "context_precision"

    needs = frozenset({"question", "contexts", "reference"})
    asks = (USEFUL_FOR_REFERENCE,)
    requests = "1 a context (fused 1)"
    range = "[0, 1]"

    def __post_init__(self) -> None:
        """Refuse examples that do not fit."""
        check_examples(self.name, self.examples, self.asks)

    async def measure(self, sample: Sample, ask: AskLike, embed: EmbedFn) -> Score:  # noqa: ARG002
        """Return the score of ``sample``."""
        if not sample.question.strip():
            return undefined(self.name, "missing_question")
        reference = sample.reference or ""
        if not reference.strip():
            return undefined(self.name, "missing_reference")
        tasks = [
            USEFUL_FOR_REFERENCE.task(
                {"question": sample.question, "context": context, "reference": reference},
                examples=self.examples,
            )
            for context in sample.context_texts
        ]
        return await _ranked(self.name, tasks, ask, threshold=self.threshold)


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextUtilization:
    """Whether the contexts that the answer drew on come before the others (ragas).

    As `ContextPrecision`, with the answer in the place of the reference: needs no ground truth.
    Range [0, 1]. Needs question, contexts and answer. One judge request a context, fused 1.

    Edges: as `ContextPrecision`; no answer: undefined ``empty_answer``.

    Source: ragas 0.4.3 ``LLMContextPrecisionWithoutReference``; differs as `ContextPrecision`.
    """

    threshold: float | None = 0.5
    examples: Examples = ()
    name: str = "context_utilization"

    needs = frozenset({"question", "contexts", "answer"})
    asks = (USEFUL_FOR_ANSWER,)
    requests = "1 a context (fused 1)"
    range = "[0, 1]"

    def __post_init__(self) -> None:
        """Refuse examples that do not fit."""
        check_examples(self.name, self.examples, self.asks)

    async def measure(self, sample: Sample, ask: AskLike, embed: EmbedFn) -> Score:  # noqa: ARG002
        """Return the score of ``sample``."""
        if not sample.question.strip():
            return undefined(self.name, "missing_question")
        if not sample.answer.strip():
            return undefined(self.name, "empty_answer")
        tasks = [
            USEFUL_FOR_ANSWER.task(
                {"question": sample.question, "context": context, "answer": sample.answer},
                examples=self.examples,
            )
            for context in sample.context_texts
        ]
        return await _ranked(self.name, tasks, ask, threshold=self.threshold)


async def _ranked(
    name: str, tasks: Sequence[Task[Useful]], ask: AskLike, *, threshold: float | None
) -> Score:
    """Return the average precision of the verdicts on contexts in rank order."""
    if not tasks:
        return undefined(name, "no_context")
    replies = await ask.each(tasks)
    judged = [reply for reply in replies if isinstance(reply, Useful)]
    errors = [reply for reply in replies if isinstance(reply, BaseException)]
    failed = [error for error in errors if not isinstance(error, UnparsableReplyError)]
    if failed or len(errors) == len(tasks):
        raise (failed or errors)[0]
    if len(judged) < len(tasks):
        known = [reply.verdict if isinstance(reply, Useful) else None for reply in replies]
        return undefined(name, "judge_incomplete", detail={"verdicts": known})
    useful = [str(rank) for rank, one in enumerate(judged, start=1) if one.verdict]
    return measured(
        name,
        average_precision([one.probability for one in judged]),
        threshold=threshold,
        explanation=f"Of use, by rank: {', '.join(useful) or 'none'}.",
        detail=verdicts_of(judged),
    )


def average_precision(flags: Sequence[float]) -> float:
    """Return the mean, over the ranks with a 1, of the share of 1s so far; 0 without any.

    Of flags between 0 and 1, each rank counts as much as its flag.
    """
    hits = [flag * sum(flags[:rank]) / rank for rank, flag in enumerate(flags, start=1) if flag]
    return sum(hits) / sum(flags) if hits else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextRecall:
    """The share of the reference's claims that can be traced to the contexts (ragas).

    The judge breaks the reference into claims and says of each whether the contexts hold it::

        score = attributed claims / claims

    Range [0, 1]. Needs contexts and reference; the question is shown where there is one. 1 judge
    request.

    Edges: no reference: undefined ``missing_reference``; no context: 0 ``no_context`` without a
    request; no claims: undefined ``no_claims``.

    Source: ragas 0.4.3 ``LLMContextRecall``. Differs: flags are 0 or 1, checked, so that the score
    cannot leave the range; no context is not put to the judge.
    """

    threshold: float | None = 0.5
    examples: Examples = ()
    name: str = "context_recall"

    needs = frozenset({"contexts", "reference"})
    asks = (REFERENCE_STATEMENTS,)
    requests = "1"
    range = "[0, 1]"

    def __post_init__(self) -> None:
        """Refuse examples that do not fit."""
        check_examples(self.name, self.examples, self.asks)

    async def measure(self, sample: Sample, ask: AskLike, embed: EmbedFn) -> Score:  # noqa: ARG002
        """Return the score of ``sample``."""
        reference = sample.reference or ""
        if not reference.strip():
            return undefined(self.name, "missing_reference")
        contexts = sample.context_texts
        if not contexts:
            return measured(self.name, 0.0, threshold=self.threshold, reason="no_context")
        task = REFERENCE_STATEMENTS.task(
            {"question": sample.question, "contexts": contexts, "reference": reference},
            examples=self.examples,
        )
        reply = await ask(task)
        judged = [claim for claim in reply.statements if claim.statement.strip()]
        if not judged:
            return undefined(self.name, "no_claims")
        missing = [claim.statement for claim in judged if not claim.verdict]
        return measured(
            self.name,
            share_of(judged),
            threshold=self.threshold,
            explanation="Not in the contexts: " + " / ".join(missing) if missing else None,
            detail={"statements": [claim.statement for claim in judged], **verdicts_of(judged)},
        )
