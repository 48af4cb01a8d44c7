"""Were the right contexts retrieved, as a judge sees it?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from rag_eval_otel.errors import UnparsableReplyError
from rag_eval_otel.judge.replies import Useful
from rag_eval_otel.judge.tasks import (
    CONTEXT_RELEVANCE,
    CONTEXT_RELEVANCY_RUBRIC,
    CONTEXT_STATEMENTS,
    REFERENCE_STATEMENTS,
    RELEVANT_CONTEXTS,
    RELEVANT_STATEMENTS,
    USEFUL_FOR_ANSWER,
    USEFUL_FOR_REFERENCE,
    AskLike,
    Kind,
    Rated,
    Task,
)
from rag_eval_otel.metrics.outcome import (
    Examples,
    Labelled,
    check_options,
    claims_in,
    dual_score,
    edge_score,
    measured,
    share_of,
    task_about,
    undefined,
    verdicts_of,
)
from rag_eval_otel.types import EmbedFn, Form, Sample, Score

_NEEDS = frozenset({"question", "contexts"})
_HIGHEST = 2  # rating of the dual judges
_MARKS = 4  # of the rubric


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextRelevance:
    """How relevant the contexts, taken together, are to the question (NVIDIA, in ragas).

    A judge rates 0, 1 or 2; the score is the rating over 2, in {0, .5, 1}. ``judges=2``, as in the
    source: two judges with prompts of different wording, which do not see each other's replies; the
    score is their mean, in {0, .25, .5, .75, 1}. ``rating="logprobs"`` takes the mean of the scale
    under each judge's own probabilities, any number in [0, 1]. Needs question and contexts.
    ``judges`` requests.

    Edges: no question: 0 ``missing_question``; no context: 0 ``no_context``, both without a
    request. If one of two judges gives no valid rating, the rating of the other counts
    (``partial``). If the server returns no probabilities, the ratings count (``no_logprobs``).

    Source: ragas 0.4.3 ``ContextRelevance``. Differs: a context that is part of the question is
    judged as any other; either judge may fail; the judge is asked again for a rating off the scale,
    which is not rounded; 2 means that the contexts allow a full answer.
    """

    judges: Literal[1, 2] = 1
    rating: Rated = "integer"
    threshold: float | None = 0.5
    examples: Examples = ()
    name: str = "context_relevance"

    needs = _NEEDS
    requests = "1"
    range = "{0, .5, 1}"

    @property
    def asks(self) -> tuple[Kind[Any], ...]:
        return CONTEXT_RELEVANCE[: self.judges]

    def __post_init__(self) -> None:
        check_options(self)

    async def measure(self, sample: Sample, ask: AskLike, embed: EmbedFn) -> Score:  # noqa: ARG002
        if edge := edge_score(self, sample, question=0.0, contexts=0.0):
            return edge
        tasks = [
            task_about(sample, kind, rated=self.rating, examples=self.examples)
            for kind in CONTEXT_RELEVANCE[: self.judges]
        ]
        return await dual_score(self, tasks, ask, top=_HIGHEST)


@dataclass(frozen=True, slots=True, kw_only=True)
class StatementContextRelevance:
    """Whether the contexts hold what the question needs, or which share of them does (Haystack).

    ``rule="binary"``: the judge names the contexts that hold a sentence needed to answer the
    question; the score is 1 if there is one, else 0. With ``form="full"``, the form of the source,
    it copies these sentences. ``rule="proportion"``, the same in both forms: the judge breaks the
    contexts into statements and says for each whether it helps::

        score = statements that help / statements

    Range [0, 1]. Needs question and contexts. 1 judge request.

    Edges: no question: undefined ``missing_question``; no context: 0 ``no_context`` without a
    request; no statement (``proportion``): undefined ``no_claims``; the number of a context that
    does not exist: undefined ``judge_incomplete``.

    Source: haystack-ai 3.4.1 ``ContextRelevanceEvaluator``, whose code does ``binary`` and whose
    documentation says ``proportion``. Differs: blank sentences do not count.
    """

    rule: Literal["binary", "proportion"] = "binary"
    form: Form = "short"
    threshold: float | None = 0.5
    examples: Examples = ()
    name: str = "statement_context_relevance"

    needs = _NEEDS
    requests = "1"
    range = "[0, 1]"

    @property
    def asks(self) -> tuple[Kind[Any], ...]:
        if self.rule == "proportion":
            return (CONTEXT_STATEMENTS,)
        return (RELEVANT_CONTEXTS if self.form == "short" else RELEVANT_STATEMENTS,)

    def __post_init__(self) -> None:
        check_options(self)

    async def measure(self, sample: Sample, ask: AskLike, embed: EmbedFn) -> Score:  # noqa: ARG002
        if edge := edge_score(self, sample, question=None, contexts=0.0):
            return edge
        if self.rule == "proportion":
            return await self._proportion(sample, ask)
        return await (self._by_number if self.form == "short" else self._by_copy)(sample, ask)

    async def _by_number(self, sample: Sample, ask: AskLike) -> Score:
        reply = await ask(task_about(sample, RELEVANT_CONTEXTS, examples=self.examples))
        ranks = sorted(set(reply.numbers))
        if ranks and not 1 <= ranks[0] <= ranks[-1] <= len(sample.context_texts):
            return undefined(self.name, "judge_incomplete", detail={"numbers": ranks})
        told = ", ".join(map(str, ranks)) or "none"
        return measured(
            self,
            1.0 if ranks else 0.0,
            explanation=f"Needed, by rank: {told}.",
            detail={"relevant_contexts": ranks},
        )

    async def _by_copy(self, sample: Sample, ask: AskLike) -> Score:
        reply = await ask(task_about(sample, RELEVANT_STATEMENTS, examples=self.examples))
        found = [statement for statement in reply.relevant_statements if statement.strip()]
        return measured(
            self,
            1.0 if found else 0.0,
            explanation="Needed: " + " / ".join(found) if found else "Nothing of it is needed.",
            detail={"relevant_statements": found},
        )

    async def _proportion(self, sample: Sample, ask: AskLike) -> Score:
        reply = await ask(task_about(sample, CONTEXT_STATEMENTS, examples=self.examples))
        judged = claims_in(reply.statements)
        if not judged:
            return undefined(self.name, "no_claims")
        helpful = sum(one.verdict for one in judged)
        return measured(
            self,
            share_of(judged),
            explanation=f"{helpful} of {len(judged)} statements help.",
            detail={"statements": [one.statement for one in judged], **verdicts_of(judged)},
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextRelevancyRubric:
    """Up to two points each for contexts on the subject, and for contexts that suffice.

    ``score = points / 4``, range [0, 1]. Needs question and contexts. 1 judge request.

    Edges: no question: undefined ``missing_question``; no context: 0 ``no_context``.

    Source: LlamaIndex 0.14 ``ContextRelevancyEvaluator``. Differs: the judge replies with two
    numbers of a schema, from 0 to 2; LlamaIndex searches its text for a number. All contexts are
    judged in one request.
    """

    threshold: float | None = 0.5
    examples: Examples = ()
    name: str = "context_relevancy_rubric"

    needs = _NEEDS
    asks = (CONTEXT_RELEVANCY_RUBRIC,)
    requests = "1"
    range = "[0, 1]"

    def __post_init__(self) -> None:
        check_options(self)

    async def measure(self, sample: Sample, ask: AskLike, embed: EmbedFn) -> Score:  # noqa: ARG002
        if edge := edge_score(self, sample, question=None, contexts=0.0):
            return edge
        marks = await ask(task_about(sample, CONTEXT_RELEVANCY_RUBRIC, examples=self.examples))
        return measured(
            self,
            (marks.subject + marks.sufficiency) / _MARKS,
            explanation=marks.reason,
            detail={"subject": marks.subject, "sufficiency": marks.sufficiency},
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextPrecision:
    """Whether the useful contexts are ranked above the others, by a reference answer (ragas).

    For each context the judge says whether it was useful to arrive at the reference. It sees the
    question, the reference and that context. With the flags ``v_k`` in rank order::

        score = sum_k v_k (v_1 + .. + v_k) / k  /  sum_k v_k       (average precision)

    Range [0, 1]; 0 if no context is useful. Needs question, contexts and reference. 1 judge request
    for each context, fused 1.

    Edges: no question: undefined ``missing_question``; no reference: undefined
    ``missing_reference``; no context: undefined ``no_context``; a verdict missing: undefined
    ``judge_incomplete``, with the other verdicts in the detail.

    Source: ragas 0.4.3 ``LLMContextPrecisionWithReference``. Differs: no 1e-10 in the denominator,
    so that a perfect ranking is 1; the judge is asked again for a verdict other than 0 and 1.
    """

    threshold: float | None = 0.5
    examples: Examples = ()
    name: str = "context_precision"

    needs = frozenset({"question", "contexts", "reference"})
    asks = (USEFUL_FOR_REFERENCE,)
    requests = "1 a context (fused 1)"
    range = "[0, 1]"

    def __post_init__(self) -> None:
        check_options(self)

    async def measure(self, sample: Sample, ask: AskLike, embed: EmbedFn) -> Score:  # noqa: ARG002
        if edge := edge_score(self, sample, question=None, reference=None, contexts=None):
            return edge
        tasks = [
            task_about(sample, USEFUL_FOR_REFERENCE, context=context, examples=self.examples)
            for context in sample.context_texts
        ]
        return await _ranked(self, tasks, ask)


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextUtilization:
    """Whether the contexts that were useful for the answer are ranked above the others (ragas).

    As `ContextPrecision`, with the answer instead of a reference. Range [0, 1]. Needs question,
    contexts and answer. 1 judge request for each context, fused 1.

    Edges: no answer: undefined ``empty_answer``; otherwise as `ContextPrecision`.

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
        check_options(self)

    async def measure(self, sample: Sample, ask: AskLike, embed: EmbedFn) -> Score:  # noqa: ARG002
        if edge := edge_score(self, sample, question=None, answer=None, contexts=None):
            return edge
        tasks = [
            task_about(sample, USEFUL_FOR_ANSWER, context=context, examples=self.examples)
            for context in sample.context_texts
        ]
        return await _ranked(self, tasks, ask)


async def _ranked(metric: Labelled, tasks: Sequence[Task[Useful]], ask: AskLike) -> Score:
    """Return the average precision of the verdicts on contexts in rank order."""
    replies = await ask.each(tasks)
    judged = [reply for reply in replies if isinstance(reply, Useful)]
    errors = [reply for reply in replies if isinstance(reply, BaseException)]
    failed = [error for error in errors if not isinstance(error, UnparsableReplyError)]
    if failed or len(errors) == len(tasks):
        raise (failed or errors)[0]
    if len(judged) < len(tasks):
        known = [reply.verdict if isinstance(reply, Useful) else None for reply in replies]
        return undefined(metric.name, "judge_incomplete", detail={"verdicts": known})
    useful = [str(rank) for rank, one in enumerate(judged, start=1) if one.verdict]
    return measured(
        metric,
        average_precision([one.probability for one in judged]),
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
    """The share of the reference's claims that the contexts hold (ragas).

    The judge breaks the reference into claims and says for each whether the contexts hold it::

        score = claims in the contexts / claims

    Range [0, 1]. Needs contexts and reference; a question is shown if there is one. 1 judge
    request.

    Edges: no reference: undefined ``missing_reference``; no context: 0 ``no_context`` without a
    request; no claim: undefined ``no_claims``.

    Source: ragas 0.4.3 ``LLMContextRecall``. Differs: flags other than 0 and 1 are refused, so that
    the score stays in its range; the judge is not asked without a context.
    """

    threshold: float | None = 0.5
    examples: Examples = ()
    name: str = "context_recall"

    needs = frozenset({"contexts", "reference"})
    asks = (REFERENCE_STATEMENTS,)
    requests = "1"
    range = "[0, 1]"

    def __post_init__(self) -> None:
        check_options(self)

    async def measure(self, sample: Sample, ask: AskLike, embed: EmbedFn) -> Score:  # noqa: ARG002
        if edge := edge_score(self, sample, reference=None, contexts=0.0):
            return edge
        reply = await ask(task_about(sample, REFERENCE_STATEMENTS, examples=self.examples))
        judged = claims_in(reply.statements)
        if not judged:
            return undefined(self.name, "no_claims")
        missing = [claim.statement for claim in judged if not claim.verdict]
        return measured(
            self,
            share_of(judged),
            explanation="Not in the contexts: " + " / ".join(missing) if missing else None,
            detail={"statements": [claim.statement for claim in judged], **verdicts_of(judged)},
        )
