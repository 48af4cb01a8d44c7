"""Were the right contexts retrieved, as a judge sees it?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from rag_eval_otel.errors import UnparsableReplyError
from rag_eval_otel.judge import tasks as kinds
from rag_eval_otel.judge.tasks import AskLike, Kind, Useful
from rag_eval_otel.metrics.base import (
    BaseMetric,
    RatedMetric,
    TaskMetric,
    claims_in,
    task_about,
    verdicts_of,
)
from rag_eval_otel.types import EmbedFn, Form, Sample, Score


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextRankingMetric(TaskMetric):
    """A metric that asks the judge one question about each context, and scores the replies."""

    async def compute(self, sample: Sample, ask: AskLike, embed: EmbedFn) -> Score:  # noqa: ARG002
        ask_about = partial(task_about, sample, self.kind, self.examples)
        tasks = [ask_about(context=context) for context in sample.context_texts]
        replies = await ask.each(tasks)
        errors = [reply for reply in replies if isinstance(reply, BaseException)]
        failed = [error for error in errors if not isinstance(error, UnparsableReplyError)]
        if failed or len(errors) == len(tasks):
            raise (failed or errors)[0]
        if errors:
            verdicts = [r.verdict if isinstance(r, Useful) else None for r in replies]
            return self.undefined("judge_incomplete", detail={"verdicts": verdicts})
        return self.formula(self, replies)


def _average_precision(metric: BaseMetric, verdicts: Sequence[Useful]) -> Score:
    useful = [str(rank) for rank, reply in enumerate(verdicts, start=1) if reply.verdict]
    flags = [reply.probability for reply in verdicts]
    hits = [flag * sum(flags[:rank]) / rank for rank, flag in enumerate(flags, start=1) if flag]
    value = sum(hits) / sum(flags) if hits else 0.0
    text = f"Of use, by rank: {', '.join(useful) or 'none'}."
    return metric.score_of(value, explanation=text, detail=verdicts_of(verdicts))


CONTEXT = (
    RatedMetric(
        name="context_relevance",
        kinds=kinds.CONTEXT_RELEVANCE,
        blank={"question": 0.0, "contexts": 0.0},
        top=2,
        about="""\
How relevant the contexts, taken together, are to the question (NVIDIA, in ragas).

The score is half of a judge's rating 0, 1 or 2; the rating 2 means that the contexts allow a full
answer. With ``judges=2``, as in ragas, two prompts of different wording are answered independently,
and the score is the mean of the two. With ``rating="logprobs"``, the rating is the mean of 0, 1 and
2, weighted by the probabilities that the judge gives them.

Special cases: If one of two judges gives no valid rating, that of the other counts (``partial``).
If the server returns no probabilities, the plain ratings count (``no_logprobs``).

Source: ``ContextRelevance`` of ragas 0.4.3. Unlike in ragas, one judge is the default, a context
that is a part of the question is judged like any other context, either of the two judges may fail,
and the judge is asked again for a rating that is not 0, 1 or 2.""",
    ),
    TaskMetric(
        name="context_sufficiency",
        kind=kinds.CONTEXT_RELEVANCE[0],
        blank={"question": None, "contexts": 0.0},
        formula=lambda metric, reply: metric.score_of(reply.rating / 2, explanation=reply.reason),
        about="""\
Whether the contexts are enough for a full answer: 0 (nothing), .5 (a part) or 1 (all).

This is the rating for ``context_relevance``: beside that metric, it takes no request.

Source: sufficient context (Joren et al. 2024), on the scale of ``ContextRelevance`` of ragas.""",
    ),
    TaskMetric(
        name="context_relevancy_rubric",
        kind=kinds.CONTEXT_RELEVANCY_RUBRIC,
        blank={"question": None, "contexts": 0.0},
        formula=lambda metric, marks: metric.score_of(
            (marks.subject + marks.sufficiency) / 4,
            explanation=marks.reason,
            detail={"subject": marks.subject, "sufficiency": marks.sufficiency},
        ),
        about="""\
Points for contexts: 0 to 2 for the subject, 0 to 2 for allowing a full answer.

The judge gives the points; ``score = points / 4``.

Source: ``ContextRelevancyEvaluator`` of LlamaIndex 0.14, which searches the judge's text for a
number; here the judge replies with two numbers, for all contexts in one request.""",
    ),
    ContextRankingMetric(
        name="context_precision",
        kind=kinds.USEFUL_FOR_REFERENCE,
        blank={"question": None, "reference": None, "contexts": None},
        formula=_average_precision,
        about="""\
Whether contexts that are useful for the reference answer are ranked first (ragas).

The judge says for each context whether it was useful to arrive at the reference answer. The judge
sees the question, the reference and this context. With the verdicts ``v_k`` (1 or 0) in the order
of the ranks ``k``::

    score = sum_k v_k (v_1 + .. + v_k) / k  /  sum_k v_k       (average precision)

Special cases: 0 if no context is useful; undefined if a verdict is missing (``judge_incomplete``).

Source: ``LLMContextPrecisionWithReference`` of ragas 0.4.3. Unlike in ragas, 1e-10 is not added to
the denominator, so that a perfect ranking scores 1. The judge is asked again for a verdict that is
not 0 or 1.""",
    ),
    ContextRankingMetric(
        name="context_utilization",
        kind=kinds.USEFUL_FOR_ANSWER,
        blank={"question": None, "answer": None, "contexts": None},
        formula=_average_precision,
        about="""\
Whether contexts that were useful for the answer are ranked first (ragas).

This is ``context_precision`` with the answer in place of the reference.

Source: ``LLMContextPrecisionWithoutReference`` of ragas 0.4.3, with the same differences.""",
    ),
    TaskMetric(
        name="context_recall",
        kind=kinds.REFERENCE_STATEMENTS,
        blank={"reference": None, "contexts": 0.0},
        formula=lambda metric, reply: metric.statements_score(
            reply.statements,
            lambda missing: "Not in the contexts: " + " / ".join(missing) if missing else None,
        ),
        about="""\
The share of the claims of the reference answer that the contexts support (ragas).

The judge breaks up the reference into claims and says for each whether the contexts support it. The
judge also sees the question if there is one. Without claims, the score is undefined
(``no_claims``).

Source: ``LLMContextRecall`` of ragas 0.4.3. Unlike in ragas, verdicts other than 0 and 1 are
refused, so that the score stays in its range. The judge is not asked if there is no context.""",
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class StatementContextRelevance(BaseMetric):
    """Whether contexts have a sentence that the question needs, or what share helps (Haystack).

    With ``rule="binary"``, the judge names the contexts that have a needed sentence. The score
    is 1 if there is one, else 0. With ``form="full"``, as in Haystack, the judge copies the
    sentences. With ``rule="proportion"``, the judge breaks up the contexts into statements and says
    for each whether it helps to answer the question; ``form`` has no effect::

        score = statements that help / statements

    Special cases: undefined if the judge finds no statement (``no_claims``), or names a context
    that does not exist (``judge_incomplete``).

    Source: ``ContextRelevanceEvaluator`` of haystack-ai 3.4.1, whose code computes ``binary``, and
    whose documentation describes ``proportion``. Unlike in Haystack, blank sentences do not count.
    """

    rule: Literal["binary", "proportion"] = "binary"
    form: Form = "short"
    name: str = "statement_context_relevance"

    blank = {"question": None, "contexts": 0.0}  # noqa: RUF012  # never changed

    @property
    def asks(self) -> tuple[Kind[Any], ...]:
        if self.rule == "proportion":
            return (kinds.CONTEXT_STATEMENTS,)
        return (kinds.RELEVANT_CONTEXTS if self.form == "short" else kinds.RELEVANT_STATEMENTS,)

    async def compute(self, sample: Sample, ask: AskLike, embed: EmbedFn) -> Score:  # noqa: ARG002
        reply = await ask(task_about(sample, self.asks[0], self.examples))
        if self.rule == "proportion":
            claims = claims_in(reply.statements)
            return self.statements_score(
                claims,
                lambda others: f"{len(claims) - len(others)} of {len(claims)} statements help.",
            )
        if self.form == "full":
            needed = [statement for statement in reply.relevant_statements if statement.strip()]
            text = "Needed: " + " / ".join(needed) if needed else "Nothing of it is needed."
            detail = {"relevant_statements": needed}
            return self.score_of(float(bool(needed)), explanation=text, detail=detail)
        ranks = sorted(set(reply.numbers))
        if ranks and not 1 <= ranks[0] <= ranks[-1] <= len(sample.context_texts):
            return self.undefined("judge_incomplete", detail={"numbers": ranks})
        return self.score_of(
            float(bool(ranks)),
            explanation=f"Needed, by rank: {', '.join(map(str, ranks)) or 'none'}.",
            detail={"relevant_contexts": ranks},
        )
