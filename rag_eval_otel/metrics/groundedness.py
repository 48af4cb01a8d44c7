"""Is the answer backed by the contexts?

The metrics of this module ask a judge whether the contexts support the claims of the answer, or the
answer as a whole.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from rag_eval_otel.judge.replies import Decision, Judged, Verdict
from rag_eval_otel.judge.tasks import (
    CONTEXT_AGREEMENT,
    GROUNDEDNESS,
    JUDGED_STATEMENTS,
    RESPONSE_SUPPORTED,
    STATEMENTS,
    SUPPORTED,
    VERDICTS,
    AskLike,
    Kind,
)
from rag_eval_otel.metrics.base import (
    BaseMetric,
    RatedMetric,
    TaskMetric,
    claims_in,
    in_order,
    task_about,
)
from rag_eval_otel.types import EmbedFn, Form, Sample, Score

_BLANK: Final[Mapping[str, float | None]] = {"answer": None}
_NO_CLAIM = 2  # the verdict on a sentence that claims nothing
_MOST_SENTENCES = 40  # that a judge is shown; if there are more, neighbours are joined
_BULLET = re.compile(r"^\s*(?:[-*\u2022\u2013#>|]+|\(?\d{1,2}[.)])\s+")
_SPACES = re.compile(r"[^\S\r\n]+")
_LETTER = re.compile(r"\w")
_LAST = 12  # characters before a full stop: longer than any known abbreviation
_END = re.compile(
    r"(?<=[.!?\u2026\u061f\u06d4])[\"'\u2019\u201d\u00bb)\]*]*\s+"
    r"|(?<=[\u3002\uff01\uff1f\u0964\u0965])[\u300d\u300f\u201d\uff09]*\s*|[\r\n]\s*"
)
_UNENDED = re.compile(
    r"(?:^|[\s.(])(?:[^\W\d_]|\d{1,2}|dr|mr|mrs|ms|prof|st|no|nr|vs|approx|ca|inc|ltd|etc|bzw|sra?)"
    r"\.$",
    re.IGNORECASE,
)


def _decided(metric: BaseMetric, decision: Decision) -> Score:
    return metric.score_of(float(decision.passing), explanation=decision.reason)


GROUNDED = (
    RatedMetric(
        name="response_groundedness",
        kinds=GROUNDEDNESS,
        blank={"answer": 0.0, "contexts": 0.0},
        top=2,
        about="""\
How far the contexts support the answer as a whole (NVIDIA, in ragas).

A judge gives the rating 0, 1 or 2; the score is half of the rating: 0, .5 or 1. The options
``judges`` and ``rating`` are those of ``context_relevance``. The judge does not see the question.

Special cases: If one of two judges gives no valid rating, the rating of the other judge counts
(``partial``). If the server returns no probabilities, the plain ratings count (``no_logprobs``).

Source: ``ResponseGroundedness`` of ragas 0.4.3. Unlike in ragas, one judge is the default, an
answer that is a part of the contexts is judged like any other answer, either of the two judges may
fail, and the judge is asked again for a rating that is not 0, 1 or 2.""",
    ),
    TaskMetric(
        name="response_supported",
        kind=RESPONSE_SUPPORTED,
        blank={"answer": None, "contexts": 0.0},
        formula=_decided,
        about="""\
Whether the contexts support the answer: 1 or 0 (LlamaIndex's faithfulness).

The judge does not see the question.

Source: ``FaithfulnessEvaluator`` of LlamaIndex 0.14. Unlike in LlamaIndex, the judge replies with a
boolean that matches a schema; LlamaIndex searches the judge's text for "yes". If the reply does not
parse, the score is undefined (there: 0). All contexts are judged in one request; LlamaIndex judges
them in groups, and the last group decides.""",
    ),
    TaskMetric(
        name="context_agreement",
        kind=CONTEXT_AGREEMENT,
        blank={"question": None, "answer": None, "contexts": 0.0},
        formula=_decided,
        about="""\
Whether question and answer agree with the contexts: 1 or 0 (LlamaIndex's relevancy).

The metric does not measure whether the answer addresses the question, as ``ResponseRelevancy`` of
ragas does; `AnswerRelevancy` does.

Source: ``RelevancyEvaluator`` of LlamaIndex 0.14, with the same differences.""",
    ),
)
"""The metrics of this module that ask one kind of question."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Faithfulness(BaseMetric):
    """The share of the answer's claims that follow from the contexts (ragas' faithfulness).

    ``score = supported claims / claims``. If the judge gives probabilities, the score is the mean
    of the probabilities.

    With ``form="short"``, the claims are the sentences of the answer, at most 40, which this
    library numbers. The judge replies to 1 request with one digit for each sentence. With
    ``form="full"``, as in ragas, the judge first breaks up the answer into claims; it sees question
    and answer. Then the judge decides for each claim whether the claim follows from the contexts.
    The full form takes 2 judge requests, one after the other, and about ten times as many reply
    tokens.

    Special cases: If the answer makes no claim, such as a refusal, the score is undefined
    (``no_claims``). If there is no context, the score is 0 (``no_context``), and the judge is not
    asked to decide. If the judge leaves out a claim, the score is undefined (``judge_incomplete``).
    The question may be empty.

    Source: ``Faithfulness`` of ragas 0.4.3. Unlike in ragas, each verdict names the number of its
    claim. The score is divided by the number of claims, not by the number of verdicts in the reply.
    """

    form: Form = "short"
    name: str = "faithfulness"

    blank = _BLANK
    needs = frozenset({"question", "answer", "contexts"})

    @property
    def asks(self) -> tuple[Kind[Any], ...]:
        return (SUPPORTED,) if self.form == "short" else (STATEMENTS, VERDICTS)

    async def compute(self, sample: Sample, ask: AskLike, embed: EmbedFn) -> Score:  # noqa: ARG002
        return await (self._by_sentence if self.form == "short" else self._by_claim)(sample, ask)

    async def _by_sentence(self, sample: Sample, ask: AskLike) -> Score:
        """Ask the judge about each sentence of the answer."""
        sentences = sentences_of(sample.answer)
        if not sentences:
            return self.undefined("no_claims")
        if not sample.context_texts:
            return self._without_contexts(sentences)
        task = task_about(sample, SUPPORTED, self.examples, sentences=sentences)
        verdicts = in_order((await ask(task)).verdicts, len(sentences))
        if verdicts is None:
            return self.undefined("judge_incomplete", detail={"statements": sentences})
        judged = zip(sentences, verdicts, strict=True)
        claims = [(text, verdict) for text, verdict in judged if verdict.verdict != _NO_CLAIM]
        if not claims:
            return self.undefined("no_claims")
        return self._supported_share(*zip(*claims, strict=True))

    async def _by_claim(self, sample: Sample, ask: AskLike) -> Score:
        """Ask the judge for the claims of the answer, then about each of them."""
        reply = await ask(task_about(sample, STATEMENTS, self.examples))
        claims = [claim for claim in reply.statements if claim.strip()]
        if not claims:
            return self.undefined("no_claims")
        if not sample.context_texts:
            return self._without_contexts(claims)
        verdicts = await self._judge_claims(sample, claims, ask)
        if len(verdicts) < len(claims):
            return self.undefined("judge_incomplete", detail={"statements": claims})
        return self._supported_share(claims, [verdicts[i] for i in range(len(claims))])

    async def _judge_claims(
        self, sample: Sample, claims: Sequence[str], ask: AskLike
    ) -> dict[int, Verdict]:
        """Return the verdict on each of ``claims``, by its position (from 0).

        If the judge leaves out claims, it is asked about these claims once more.
        """
        verdicts: dict[int, Verdict] = {}
        for draw in range(2):
            missing = [i for i in range(len(claims)) if i not in verdicts]
            if not missing:
                break
            statements = [claims[i] for i in missing]
            task = task_about(sample, VERDICTS, self.examples, statements=statements)
            for verdict in (await ask(replace(task, draw=draw))).verdicts:
                if 1 <= verdict.index <= len(missing):
                    verdicts.setdefault(missing[verdict.index - 1], verdict)
        return verdicts

    def _without_contexts(self, claims: Sequence[str]) -> Score:
        """Return the score 0 for an answer with ``claims`` if the sample has no contexts."""
        detail = {"statements": claims, "verdicts": [0] * len(claims)}
        return self.score_of(0.0, reason="no_context", detail=detail)

    def _supported_share(self, claims: Sequence[str], verdicts: Sequence[Judged]) -> Score:
        return self.claims_score(claims, verdicts, _unsupported)


def _unsupported(claims: Sequence[str]) -> str:
    return "Not backed: " + " / ".join(claims) if claims else "Every claim is backed."


@dataclass(frozen=True, slots=True, kw_only=True)
class StatementFaithfulness(Faithfulness):
    """The share of the answer's claims that follow from the contexts, in one request (Haystack).

    With ``form="short"``, the metric is the same as `Faithfulness`. With ``form="full"``, as in
    Haystack, the judge breaks up the answer into claims and decides on each claim in the same
    reply. The judge sees the contexts while it breaks up the answer, which may influence the
    claims. The special cases are those of `Faithfulness`.

    Source: ``FaithfulnessEvaluator`` of haystack-ai 3.4.1. Unlike in Haystack, the score of an
    answer without claims is undefined (there: 0). In the full form the judge writes each claim
    together with its verdict, so that there are as many verdicts as claims.
    """

    name: str = "statement_faithfulness"

    @property
    def asks(self) -> tuple[Kind[Any], ...]:
        return (SUPPORTED,) if self.form == "short" else (JUDGED_STATEMENTS,)

    async def _by_claim(self, sample: Sample, ask: AskLike) -> Score:
        if score := self.blank_score(sample, {"contexts": 0.0}):
            return score
        reply = await ask(task_about(sample, JUDGED_STATEMENTS, self.examples))
        judged = claims_in(reply.statements)
        if not judged:
            return self.undefined("no_claims")
        return self._supported_share([claim.statement for claim in judged], judged)


# --- sentences ------------------------------------------------------------------------------------


def sentences_of(text: str) -> list[str]:
    """Return the sentences and list items of ``text``, in any script, as at most 40 pieces.

    A part without a letter or a digit is added to the sentence before it. A text in a script
    without marks at the end of sentences, such as Thai, is split only at line breaks.
    """
    text = _SPACES.sub(" ", text)
    sentences: list[list[str]] = []
    start = 0
    for end in [*_END.finditer(text), None]:
        at = end.start() + len(end[0].rstrip()) if end else len(text)  # including closing quotes
        if end and "\n" not in end[0]:
            last = text[max(start, at - _LAST) : at]
            if _goes_on(last, text[end.end() : end.end() + 1]):
                continue
        piece, start = text[start:at], end.end() if end else start
        if _LETTER.search(piece):
            bare = _BULLET.sub("", piece)
            sentences.append([bare if _LETTER.search(bare) else piece])
        elif sentences:
            sentences[-1].append(piece)
    return _put_together([" ".join(pieces).strip() for pieces in sentences])


def _goes_on(last: str, following: str) -> bool:
    """Return True if a full stop ends an abbreviation, an initial or an ordinal, not a sentence.

    ``last`` is the text that ends with the full stop, ``following`` the next character.
    """
    return following.islower() or bool(_UNENDED.search(last))


def _put_together(sentences: Sequence[str]) -> list[str]:
    """Return ``sentences``; join neighbours if there are more than `_MOST_SENTENCES`."""
    size = -(-len(sentences) // _MOST_SENTENCES) or 1
    return [" ".join(sentences[i : i + size]) for i in range(0, len(sentences), size)]
