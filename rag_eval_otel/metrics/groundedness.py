"""Is what the answer says backed by the contexts?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from rag_eval_otel.judge import tasks
from rag_eval_otel.metrics.dual import dual_score
from rag_eval_otel.metrics.outcome import measured, undefined
from rag_eval_otel.protocols import AskLike, EmbedFn
from rag_eval_otel.types import Sample, Score


@dataclass(frozen=True, slots=True, kw_only=True)
class Faithfulness:
    """The share of the answer's claims that follow from the contexts (ragas' faithfulness).

    First the judge breaks the answer into claims, seeing question and answer; then it decides for
    each claim whether it follows from the contexts::

        score = supported claims / claims

    Range [0, 1]. Needs question, answer and contexts. 2 judge requests, one after the other.

    Edges: no answer: undefined ``empty_answer``; no claims (a refusal): undefined ``no_claims``; no
    context: 0 ``no_context`` without a second request; claims left without a verdict are asked
    once more, then undefined ``judge_incomplete``. The question may be empty.

    Source: ragas 0.4.3. Differs: verdicts belong to claims by index, so the denominator is the
    claims that were asked about, not the verdicts that happened to come back.
    """

    threshold: float | None = 0.5
    name: str = "faithfulness"

    @property
    def needs(self) -> frozenset[str]:
        """The fields of the sample it reads."""
        return frozenset({"question", "answer", "contexts"})

    @property
    def prompts(self) -> tuple[str, ...]:
        """The prompts that are part of its definition."""
        return ("statements", "verdicts")

    async def measure(self, sample: Sample, ask: AskLike, embed: EmbedFn) -> Score:  # noqa: ARG002
        """Return the score of ``sample``."""
        if not sample.answer.strip():
            return undefined(self.name, "empty_answer")
        reply = await ask(tasks.statements(sample.question, sample.answer))
        claims = [claim for claim in reply.statements if claim.strip()]
        if not claims:
            return undefined(self.name, "no_claims")
        contexts = sample.context_texts
        if not contexts:
            return measured(
                self.name,
                0.0,
                threshold=self.threshold,
                reason="no_context",
                detail={"statements": claims, "verdicts": [0] * len(claims)},
            )
        verdicts = await _judge_claims(contexts, claims, ask)
        if len(verdicts) < len(claims):
            return undefined(self.name, "judge_incomplete", detail={"statements": claims})
        return _supported_share(
            self.name, claims, [verdicts[i] for i in range(len(claims))], threshold=self.threshold
        )


async def _judge_claims(
    contexts: Sequence[str], claims: Sequence[str], ask: AskLike
) -> dict[int, tasks.Verdict]:
    """Return the verdicts by position of their claim; what is missing is asked once more."""
    found: dict[int, tasks.Verdict] = {}
    for draw in range(2):
        missing = [i for i in range(len(claims)) if i not in found]
        if not missing:
            break
        asked = tasks.verdicts(contexts, [claims[i] for i in missing], draw=draw)
        reply = await ask(asked)
        for verdict in reply.verdicts:
            if 1 <= verdict.index <= len(missing):
                found.setdefault(missing[verdict.index - 1], verdict)
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class StatementFaithfulness:
    """Faithfulness in one judge request: claims and verdicts together (Haystack's evaluator).

    ``score = supported claims / claims``, range [0, 1]. Needs question, answer and contexts. Half
    the requests and half the wait of `Faithfulness`, but the judge sees the contexts while it
    breaks up the answer, which may shape the claims.

    Edges: as for `Faithfulness`; no context is 0 ``no_context`` without a request.

    Source: haystack-ai 3.4.1 ``FaithfulnessEvaluator``. Differs: an answer without claims is
    undefined, not 0; each claim carries its own verdict, so their numbers cannot disagree.
    """

    threshold: float | None = 0.5
    name: str = "statement_faithfulness"

    @property
    def needs(self) -> frozenset[str]:
        """The fields of the sample it reads."""
        return frozenset({"question", "answer", "contexts"})

    @property
    def prompts(self) -> tuple[str, ...]:
        """The prompts that are part of its definition."""
        return ("judged_statements",)

    async def measure(self, sample: Sample, ask: AskLike, embed: EmbedFn) -> Score:  # noqa: ARG002
        """Return the score of ``sample``."""
        if not sample.answer.strip():
            return undefined(self.name, "empty_answer")
        contexts = sample.context_texts
        if not contexts:
            return measured(self.name, 0.0, threshold=self.threshold, reason="no_context")
        reply = await ask(tasks.judged_statements(sample.question, sample.answer, contexts))
        judged = [claim for claim in reply.statements if claim.statement.strip()]
        if not judged:
            return undefined(self.name, "no_claims")
        claims = [claim.statement for claim in judged]
        return _supported_share(self.name, claims, judged, threshold=self.threshold)


def _supported_share(
    name: str,
    claims: Sequence[str],
    verdicts: Sequence[tasks.Verdict | tasks.JudgedStatement],
    *,
    threshold: float | None,
) -> Score:
    flags = [verdict.verdict for verdict in verdicts]
    unsupported = [claim for claim, flag in zip(claims, flags, strict=True) if not flag]
    told = "Not backed: " + " / ".join(unsupported) if unsupported else "Every claim is backed."
    return measured(
        name,
        sum(flags) / len(flags),
        threshold=threshold,
        explanation=told,
        detail={"statements": list(claims), "verdicts": flags},
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponseGroundedness:
    """How far the contexts back the answer as a whole (NVIDIA, in ragas).

    Two differently worded judges rate 0, 1 or 2; the score is the mean rating over 2, in
    {0, .25, .5, .75, 1}. Needs answer and contexts; the question is not shown. 2 judge requests
    (1 with ``judges=1``).

    Edges: a blank answer (``empty_answer``) or no non-blank context (``no_context``) is 0 without
    a request. One judge without a valid rating: the other's counts (``partial``).

    Source: ragas 0.4.3 ``ResponseGroundedness``. Differs: an answer that is a piece of the contexts
    is judged like any other; otherwise as `ContextRelevance`.
    """

    judges: Literal[1, 2] = 2
    threshold: float | None = 0.5
    name: str = "response_groundedness"

    @property
    def needs(self) -> frozenset[str]:
        """The fields of the sample it reads."""
        return frozenset({"answer", "contexts"})

    @property
    def prompts(self) -> tuple[str, ...]:
        """The prompts that are part of its definition."""
        return ("groundedness_1", "groundedness_2")

    async def measure(self, sample: Sample, ask: AskLike, embed: EmbedFn) -> Score:  # noqa: ARG002
        """Return the score of ``sample``."""
        if not sample.answer.strip():
            return measured(self.name, 0.0, threshold=self.threshold, reason="empty_answer")
        contexts = sample.context_texts
        if not contexts:
            return measured(self.name, 0.0, threshold=self.threshold, reason="no_context")
        voices = [
            tasks.groundedness(sample.answer, contexts, voice=voice)
            for voice in range(1, self.judges + 1)
        ]
        return await dual_score(self.name, voices, ask, threshold=self.threshold)
