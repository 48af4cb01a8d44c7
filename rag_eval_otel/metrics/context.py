"""Were the right contexts retrieved, as a judge sees it?

The metrics of this module ask a judge whether contexts are relevant to the question, or useful for
the answer or the reference.
"""

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
_HIGHEST = 2  # rating of a judge
_MARKS = 4  # most points of `ContextRelevancyRubric`


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextRelevance:
    """How relevant the contexts, taken together, are to the question (NVIDIA, in ragas).

    A judge gives the rating 0, 1 or 2; the score is half of the rating: 0, .5 or 1. With
    ``judges=2``, as in ragas, two prompts of different wording are answered independently. The
    score is then half of the mean of the two ratings: 0, .25, .5, .75 or 1. With
    ``rating="logprobs"``, the rating is the mean of 0, 1 and 2, weighted by the probabilities that
    the judge gives these numbers, so that the score may be any number in [0, 1]. The metric needs
    question and contexts. It takes as many judge requests as ``judges`` says (1 or 2).

    Special cases: If there is no question, the score is 0 (``missing_question``). If there is no
    context, the score is 0 (``no_context``). In neither case is the judge asked. If one of two
    judges gives no valid rating, the rating of the other judge counts (``partial``). If the server
    returns no probabilities, the plain ratings count (``no_logprobs``).

    Source: ``ContextRelevance`` of ragas 0.4.3. Unlike in ragas, one judge is the default, a
    context that is a part of the question is judged like any other context, and either of the two
    judges may fail. The judge is asked again for a rating that is not 0, 1 or 2; such a rating is
    not rounded. The rating 2 means that the contexts allow a full answer.
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
    """Whether contexts have a sentence that the question needs, or what share helps (Haystack).

    With ``rule="binary"``, the judge gives the numbers of the contexts that have a sentence needed
    to answer the question. The score is 1 if there is such a context, else 0. With ``form="full"``,
    as in Haystack, the judge copies the needed sentences instead of the numbers. With
    ``rule="proportion"``, the judge breaks up the contexts into statements and says for each
    statement whether it helps to answer the
    question; ``form`` has no effect::

        score = statements that help / statements

    The range is [0, 1]. The metric needs question and contexts. It takes 1 judge request.

    Special cases: If there is no question, the score is undefined (``missing_question``). If there
    is no context, the score is 0 (``no_context``), and the judge is not asked. If the judge finds
    no statement (``rule="proportion"``), the score is undefined (``no_claims``). If the judge names
    a context that does not exist, the score is undefined (``judge_incomplete``).

    Source: ``ContextRelevanceEvaluator`` of haystack-ai 3.4.1. The code of Haystack computes
    ``binary``; its documentation describes ``proportion``. Unlike in Haystack, blank sentences do
    not count.
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
    """Points for contexts: 0 to 2 for being on the subject, 0 to 2 for allowing a full answer.

    The judge gives the points; ``score = points / 4``, in the range [0, 1]. The metric needs
    question and contexts. It takes 1 judge request.

    Special cases: If there is no question, the score is undefined (``missing_question``). If there
    is no context, the score is 0 (``no_context``).

    Source: ``ContextRelevancyEvaluator`` of LlamaIndex 0.14. Unlike in LlamaIndex, the judge
    replies with two numbers from 0 to 2 that match a schema; LlamaIndex searches the judge's text
    for a number. All contexts are judged in one request.
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
    """Whether contexts that are useful for the reference answer are ranked first (ragas).

    The judge says for each context whether it was useful to arrive at the reference answer. The
    judge sees the question, the reference and this context. With the verdicts ``v_k`` (1 or 0) in
    the order of the ranks ``k``::

        score = sum_k v_k (v_1 + .. + v_k) / k  /  sum_k v_k       (average precision)

    The range is [0, 1]; the score is 0 if no context is useful. The metric needs question, contexts
    and reference. It takes 1 judge request for each context. With ``fusion="on"``, all contexts
    are judged in 1 request.

    Special cases: If there is no question, the score is undefined (``missing_question``). If there
    is no reference, the score is undefined (``missing_reference``). If there is no context, the
    score is undefined (``no_context``). If a verdict is missing, the score is undefined
    (``judge_incomplete``), and its ``detail`` has the other verdicts.

    Source: ``LLMContextPrecisionWithReference`` of ragas 0.4.3. Unlike in ragas, 1e-10 is not added
    to the denominator, so that a perfect ranking scores 1. The judge is asked again for a verdict
    that is not 0 or 1.
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
    """Whether contexts that were useful for the answer are ranked first (ragas).

    The judge says for each context whether it was useful to arrive at the answer. The judge sees
    the question, the answer and this context. The score is the average precision of the verdicts,
    as for `ContextPrecision`. The range is [0, 1]. The metric needs question, contexts and answer.
    It takes 1 judge request for each context. With ``fusion="on"``, all contexts are judged in 1
    request.

    Special cases: If there is no question, the score is undefined (``missing_question``). If there
    is no answer, the score is undefined (``empty_answer``). If there is no context, the score is
    undefined (``no_context``). If a verdict is missing, the score is undefined
    (``judge_incomplete``), and its ``detail`` has the other verdicts.

    Source: ``LLMContextPrecisionWithoutReference`` of ragas 0.4.3. Unlike in ragas, 1e-10 is not
    added to the denominator, so that a perfect ranking scores 1. The judge is asked again for a
    verdict that is not 0 or 1.
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
    """Ask the judge ``tasks`` (one for each context, by rank); score the average precision.

    If some replies of the judge do not parse, the score is undefined (``judge_incomplete``). If no
    reply parses, or a request fails, raises the first error.
    """
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
    """Return the average precision of ``flags`` (1 for a useful context) in rank order.

    The average precision is the mean of the precisions at the ranks with the flag 1. It is 0 if no
    flag is 1. Flags may be probabilities from 0 to 1; then each rank is weighted by its flag.
    """
    hits = [flag * sum(flags[:rank]) / rank for rank, flag in enumerate(flags, start=1) if flag]
    return sum(hits) / sum(flags) if hits else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextRecall:
    """The share of the claims of the reference answer that the contexts support (ragas).

    The judge breaks up the reference into claims and says for each claim whether the contexts
    support the claim::

        score = supported claims / claims

    The range is [0, 1]. The metric needs contexts and reference; the judge also sees the question
    if there is one. It takes 1 judge request.

    Special cases: If there is no reference, the score is undefined (``missing_reference``). If
    there is no context, the score is 0 (``no_context``), and the judge is not asked. If the judge
    finds no claim, the score is undefined (``no_claims``).

    Source: ``LLMContextRecall`` of ragas 0.4.3. Unlike in ragas, verdicts other than 0 and 1 are
    refused, so that the score stays in its range. The judge is not asked if there is no context.
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
