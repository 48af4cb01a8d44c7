"""Were the right contexts retrieved? As a judge sees it, without a reference."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from rag_eval_otel.judge.tasks import (
    CONTEXT_RELEVANCE,
    CONTEXT_RELEVANCY_RUBRIC,
    CONTEXT_STATEMENTS,
    RELEVANT_CONTEXTS,
    RELEVANT_STATEMENTS,
    AskLike,
    Kind,
    Rated,
    check_examples,
)
from rag_eval_otel.metrics.dual import dual_score
from rag_eval_otel.metrics.outcome import (
    Examples,
    check_choices,
    measured,
    share_of,
    undefined,
    verdicts_of,
)
from rag_eval_otel.metrics.ranking import relevant_of
from rag_eval_otel.types import EmbedFn, Form, Sample, Score

_ID_NEEDS = frozenset({"retrieved_ids", "relevant_ids"})


@dataclass(frozen=True, slots=True, kw_only=True)
class IDContextPrecision:
    """The share of the retrieved ids that are relevant: |retrieved & relevant| / |retrieved|.

    Range [0, 1]. Nothing retrieved: undefined ``no_context``. That no id is relevant is taken at
    its word: 0. (`RetrievalPrecision` takes it for not known.)

    Source: ragas 0.4.3 ``IDBasedContextPrecision``.
    """

    threshold: float | None = 0.5
    name: str = "id_context_precision"

    needs = _ID_NEEDS
    asks = ()
    requests = "0"
    range = "[0, 1]"

    async def measure(self, sample: Sample, ask: AskLike, embed: EmbedFn) -> Score:  # noqa: ARG002
        """Return the score of ``sample``."""
        retrieved, relevant = set(sample.ranked_ids), relevant_of(sample)
        if not retrieved:
            return undefined(self.name, "no_context")
        value = len(retrieved & relevant) / len(retrieved)
        return measured(self.name, value, threshold=self.threshold)


@dataclass(frozen=True, slots=True, kw_only=True)
class IDContextRecall:
    """The share of the relevant ids that were retrieved: |retrieved & relevant| / |relevant|.

    Range [0, 1]. No id is relevant: undefined ``missing_reference``; nothing retrieved: 0.

    Source: ragas 0.4.3 ``IDBasedContextRecall``.
    """

    threshold: float | None = 0.5
    name: str = "id_context_recall"

    needs = _ID_NEEDS
    asks = ()
    requests = "0"
    range = "[0, 1]"

    async def measure(self, sample: Sample, ask: AskLike, embed: EmbedFn) -> Score:  # noqa: ARG002
        """Return the score of ``sample``."""
        retrieved, relevant = set(sample.ranked_ids), relevant_of(sample)
        if not relevant:
            return undefined(self.name, "missing_reference")
        value = len(retrieved & relevant) / len(relevant)
        return measured(
            self.name, value, threshold=self.threshold, reason=None if retrieved else "no_context"
        )


_NEEDS = frozenset({"question", "contexts"})
_SCALE = 2  # the highest rating of the dual judges
_MARKS = 4  # of the rubric


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextRelevance:
    """How far the contexts, taken together, serve to answer the question (NVIDIA, in ragas).

    A judge rates 0, 1 or 2; the score is its rating over 2, in {0, .5, 1}. ``judges=2``, as the
    source has it: two differently worded judges, of whom neither sees what the other says; the
    score is their mean, in {0, .25, .5, .75, 1}. Needs question and contexts. ``judges`` requests.
    ``rating="logprobs"`` takes each judge's mean under its own probabilities, anywhere in [0, 1].

    Edges: a blank question (``missing_question``) or no non-blank context (``no_context``) is 0
    without a request. One judge without a valid rating: the other's counts (``partial``). No
    probabilities from the server: the ratings count as they are (``no_logprobs``).

    Source: ragas 0.4.3 ``ContextRelevance``. Differs: no short circuit for a context that is part
    of the question; the fallback works whichever judge failed; a rating off the scale is asked
    again and never rounded; 2 means that a full answer is possible.
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
        """The kind of question it puts, for each judge."""
        return CONTEXT_RELEVANCE[: self.judges]

    def __post_init__(self) -> None:
        """Refuse examples that do not fit."""
        check_choices(self)
        check_examples(self.name, self.examples, self.asks)

    async def measure(self, sample: Sample, ask: AskLike, embed: EmbedFn) -> Score:  # noqa: ARG002
        """Return the score of ``sample``."""
        if not sample.question.strip():
            return measured(self.name, 0.0, threshold=self.threshold, reason="missing_question")
        contexts = sample.context_texts
        if not contexts:
            return measured(self.name, 0.0, threshold=self.threshold, reason="no_context")
        shown: dict[str, Any] = {"question": sample.question, "contexts": contexts}
        voices = [
            kind.task(shown, rated=self.rating, examples=self.examples)
            for kind in CONTEXT_RELEVANCE[: self.judges]
        ]
        return await dual_score(self.name, voices, ask, scale=_SCALE, threshold=self.threshold)


@dataclass(frozen=True, slots=True, kw_only=True)
class StatementContextRelevance:
    """Whether, or how much of, what was retrieved serves to answer the question (Haystack).

    ``rule="binary"``: the judge names the contexts that hold a sentence that is needed; the score
    is 1 if there is one, else 0. With ``form="full"`` it copies those sentences out, as the source
    has it. ``rule="proportion"``: the judge breaks the contexts into statements, in either form::

        score = statements that help / statements

    Range [0, 1]. Needs question and contexts. 1 judge request.

    Edges: no question: undefined ``missing_question``; no context: 0 ``no_context`` without a
    request; contexts without statements (``proportion``): undefined ``no_claims``.

    Source: haystack-ai 3.4.1 ``ContextRelevanceEvaluator``: ``binary`` is what it does,
    ``proportion`` what it documents. Differs: blank sentences do not count.
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
        """The kind of question it puts."""
        if self.rule == "proportion":
            return (CONTEXT_STATEMENTS,)
        return (RELEVANT_CONTEXTS if self.form == "short" else RELEVANT_STATEMENTS,)

    def __post_init__(self) -> None:
        """Refuse examples that do not fit."""
        check_choices(self)
        check_examples(self.name, self.examples, self.asks)

    async def measure(self, sample: Sample, ask: AskLike, embed: EmbedFn) -> Score:  # noqa: ARG002
        """Return the score of ``sample``."""
        if not sample.question.strip():
            return undefined(self.name, "missing_question")
        contexts = sample.context_texts
        if not contexts:
            return measured(self.name, 0.0, threshold=self.threshold, reason="no_context")
        if self.rule == "proportion":
            return await self._proportion(sample.question, contexts, ask)
        rule = self._by_number if self.form == "short" else self._binary
        return await rule(sample.question, contexts, ask)

    async def _by_number(self, question: str, contexts: Sequence[str], ask: AskLike) -> Score:
        task = RELEVANT_CONTEXTS.task(
            {"question": question, "contexts": contexts}, examples=self.examples
        )
        reply = await ask(task)
        ranks = sorted(set(reply.numbers))
        if ranks and not 1 <= ranks[0] <= ranks[-1] <= len(contexts):
            return undefined(self.name, "judge_incomplete", detail={"numbers": ranks})
        told = ", ".join(map(str, ranks)) or "none"
        return measured(
            self.name,
            1.0 if ranks else 0.0,
            threshold=self.threshold,
            explanation=f"Needed, by rank: {told}.",
            detail={"relevant_contexts": ranks},
        )

    async def _binary(self, question: str, contexts: Sequence[str], ask: AskLike) -> Score:
        task = RELEVANT_STATEMENTS.task(
            {"question": question, "contexts": contexts}, examples=self.examples
        )
        reply = await ask(task)
        found = [statement for statement in reply.relevant_statements if statement.strip()]
        return measured(
            self.name,
            1.0 if found else 0.0,
            threshold=self.threshold,
            explanation="Needed: " + " / ".join(found) if found else "Nothing of it is needed.",
            detail={"relevant_statements": found},
        )

    async def _proportion(self, question: str, contexts: Sequence[str], ask: AskLike) -> Score:
        task = CONTEXT_STATEMENTS.task(
            {"question": question, "contexts": contexts}, examples=self.examples
        )
        reply = await ask(task)
        judged = [one for one in reply.statements if one.statement.strip()]
        if not judged:
            return undefined(self.name, "no_claims")
        helpful = sum(one.verdict for one in judged)
        return measured(
            self.name,
            share_of(judged),
            threshold=self.threshold,
            explanation=f"{helpful} of {len(judged)} statements help.",
            detail={"statements": [one.statement for one in judged], **verdicts_of(judged)},
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextRelevancyRubric:
    """Up to two marks each for contexts on the subject, and for contexts that suffice.

    ``score = marks / 4``, range [0, 1]. Needs question and contexts. 1 judge request.

    Edges: no question: undefined ``missing_question``; no context: 0 ``no_context``.

    Source: LlamaIndex 0.14 ``ContextRelevancyEvaluator``. Differs: marks of a schema, from 0 to 2
    each, not a number searched for in a text; all contexts are judged in one request.
    """

    threshold: float | None = 0.5
    examples: Examples = ()
    name: str = "context_relevancy_rubric"

    needs = _NEEDS
    asks = (CONTEXT_RELEVANCY_RUBRIC,)
    requests = "1"
    range = "[0, 1]"

    def __post_init__(self) -> None:
        """Refuse examples that do not fit."""
        check_examples(self.name, self.examples, self.asks)

    async def measure(self, sample: Sample, ask: AskLike, embed: EmbedFn) -> Score:  # noqa: ARG002
        """Return the score of ``sample``."""
        if not sample.question.strip():
            return undefined(self.name, "missing_question")
        contexts = sample.context_texts
        if not contexts:
            return measured(self.name, 0.0, threshold=self.threshold, reason="no_context")
        task = CONTEXT_RELEVANCY_RUBRIC.task(
            {"question": sample.question, "contexts": contexts}, examples=self.examples
        )
        marks = await ask(task)
        return measured(
            self.name,
            (marks.subject + marks.sufficiency) / _MARKS,
            threshold=self.threshold,
            explanation=marks.reason,
            detail={"subject": marks.subject, "sufficiency": marks.sufficiency},
        )
