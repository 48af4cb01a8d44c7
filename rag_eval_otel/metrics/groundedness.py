"""Is what the answer says backed by the contexts?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rag_eval_otel.judge.kinds import JUDGED_STATEMENTS, STATEMENTS, VERDICTS
from rag_eval_otel.judge.replies import JudgedStatement, Verdict
from rag_eval_otel.judge.tasks import check_examples
from rag_eval_otel.metrics.outcome import (
    Examples,
    measured,
    share_of,
    undefined,
    verdicts_of,
)
from rag_eval_otel.protocols import AskLike, EmbedFn
from rag_eval_otel.types import Sample, Score

_NEEDS = frozenset({"question", "answer", "contexts"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Faithfulness:
    """The share of the answer's claims that follow from the contexts (ragas' faithfulness).

    First the judge breaks the answer into claims, seeing question and answer; then it decides for
    each claim whether it follows from the contexts::

        score = supported claims / claims

    Range [0, 1]. Needs question, answer and contexts. 2 judge requests, one after the other. Where
    the judge says how likely each claim is backed, the score is the mean of that.

    Edges: no answer: undefined ``empty_answer``; no claims (a refusal): undefined ``no_claims``; no
    context: 0 ``no_context`` without a second request; claims left without a verdict are asked
    once more, then undefined ``judge_incomplete``. The question may be empty.

    Source: ragas 0.4.3. Differs: verdicts belong to claims by index, so the denominator is the
    claims that were asked about, not the verdicts that happened to come back.
    """

    threshold: float | None = 0.5
    examples: Examples = ()
    name: str = "faithfulness"

    needs = _NEEDS
    asks = (STATEMENTS, VERDICTS)
    requests = "2"
    range = "[0, 1]"

    def __post_init__(self) -> None:
        """Refuse examples that do not fit."""
        check_examples(self.name, self.examples, self.asks)

    async def measure(self, sample: Sample, ask: AskLike, embed: EmbedFn) -> Score:  # noqa: ARG002
        """Return the score of ``sample``."""
        if not sample.answer.strip():
            return undefined(self.name, "empty_answer")
        reply = await ask(
            STATEMENTS.task(
                {"question": sample.question, "answer": sample.answer}, examples=self.examples
            )
        )
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
        verdicts = await _judge_claims(contexts, claims, ask, examples=self.examples)
        if len(verdicts) < len(claims):
            return undefined(self.name, "judge_incomplete", detail={"statements": claims})
        return _supported_share(
            self.name, claims, [verdicts[i] for i in range(len(claims))], threshold=self.threshold
        )


async def _judge_claims(
    contexts: Sequence[str], claims: Sequence[str], ask: AskLike, *, examples: Examples
) -> dict[int, Verdict]:
    """Return the verdicts by position of their claim; what is missing is asked once more."""
    found: dict[int, Verdict] = {}
    for draw in range(2):
        missing = [i for i in range(len(claims)) if i not in found]
        if not missing:
            break
        asked = [claims[i] for i in missing]
        task = VERDICTS.task(
            {"contexts": contexts, "statements": asked}, draw=draw, examples=examples
        )
        reply = await ask(task)
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
    examples: Examples = ()
    name: str = "statement_faithfulness"

    needs = _NEEDS
    asks = (JUDGED_STATEMENTS,)
    requests = "1"
    range = "[0, 1]"

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
        task = JUDGED_STATEMENTS.task(
            {"question": sample.question, "answer": sample.answer, "contexts": contexts},
            examples=self.examples,
        )
        reply = await ask(task)
        judged = [claim for claim in reply.statements if claim.statement.strip()]
        if not judged:
            return undefined(self.name, "no_claims")
        claims = [claim.statement for claim in judged]
        return _supported_share(self.name, claims, judged, threshold=self.threshold)


def _supported_share(
    name: str,
    claims: Sequence[str],
    verdicts: Sequence[Verdict | JudgedStatement],
    *,
    threshold: float | None,
) -> Score:
    unsupported = [claim for claim, one in zip(claims, verdicts, strict=True) if not one.verdict]
    told = "Not backed: " + " / ".join(unsupported) if unsupported else "Every claim is backed."
    return measured(
        name,
        share_of(verdicts),
        threshold=threshold,
        explanation=told,
        detail={"statements": list(claims), **verdicts_of(verdicts)},
    )
