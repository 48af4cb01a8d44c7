"""Is the answer backed by the contexts?"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeAlias

from rag_eval_otel.judge import tasks as kinds
from rag_eval_otel.judge.tasks import AskLike, Decision, Judged, Kind, Verdict
from rag_eval_otel.metrics.base import BaseMetric, RatedMetric, TaskMetric, in_order, task_about
from rag_eval_otel.types import EmbedFn, Form, Sample, Score

_NO_CLAIM = 2  # the verdict on a sentence that claims nothing
Texts: TypeAlias = Sequence[str]
Verdicts: TypeAlias = Sequence[Judged] | None
_MOST_SENTENCES = 40  # that a judge is shown; if there are more, neighbours are joined


def _passing(metric: BaseMetric, decision: Decision) -> Score:
    return metric.score_of(float(decision.passing), explanation=decision.reason)


GROUNDED = (
    RatedMetric(
        name="response_groundedness",
        kinds=kinds.GROUNDEDNESS,
        blank={"answer": 0.0, "contexts": 0.0},
        top=2,
        about="""\
How far the contexts support the answer as a whole (NVIDIA, in ragas).

The score is half of a judge's rating 0, 1 or 2. The judge does not see the question. Options and
special cases are those of ``context_relevance``.

Source: ``ResponseGroundedness`` of ragas 0.4.3. Unlike in ragas, one judge is the default, an
answer that is a part of the contexts is judged like any other answer, either of the two judges may
fail, and the judge is asked again for a rating that is not 0, 1 or 2.""",
    ),
    TaskMetric(
        name="response_supported",
        kind=kinds.RESPONSE_SUPPORTED,
        blank={"answer": None, "contexts": 0.0},
        formula=_passing,
        about="""\
Whether the contexts support the answer: 1 or 0 (LlamaIndex's faithfulness).

The judge does not see the question.

Source: ``FaithfulnessEvaluator`` of LlamaIndex 0.14. Unlike there, a reply that does not parse is
undefined (there: 0), and all contexts are judged in one request (there: in groups, of which the
last one decides).""",
    ),
    TaskMetric(
        name="context_agreement",
        kind=kinds.CONTEXT_AGREEMENT,
        blank={"question": None, "answer": None, "contexts": 0.0},
        formula=_passing,
        about="""\
Whether question and answer agree with the contexts: 1 or 0 (LlamaIndex's relevancy).

The metric does not measure whether the answer addresses the question, as ``ResponseRelevancy`` of
ragas does; `AnswerRelevancy` does.

Source: ``RelevancyEvaluator`` of LlamaIndex 0.14, with the same differences.""",
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Faithfulness(BaseMetric):
    """The share of the answer's claims that follow from the contexts (ragas' faithfulness).

    ``score = supported claims / claims``, or the mean of the judge's probabilities.

    - ``form="short"``: the claims are the sentences of the answer, joined to at most 40. The judge
      replies to one request with a digit for each; those that claim nothing do not count.
    - ``form="full"``, as in ragas: the judge breaks up the answer into claims, then decides on each
      of them: two requests (three if it leaves out some), about ten times as many reply tokens.

    Special cases: 0 without contexts (``no_context``), in the short form also for a refusal;
    undefined if the answer makes no claim, such as a refusal (``no_claims``), or if the judge
    leaves out a claim, in the full form twice (``judge_incomplete``). The question may be empty.

    Source: ``Faithfulness`` of ragas 0.4.3. Unlike in ragas, each verdict names the number of its
    claim. The score is divided by the number of claims, not by the number of verdicts in the reply.
    """

    form: Form = "short"
    name: str = "faithfulness"

    blank = {"answer": None}  # noqa: RUF012  # never changed
    needs = frozenset({"question", "answer", "contexts"})

    @property
    def asks(self) -> tuple[Kind[Any], ...]:
        return (kinds.SUPPORTED,) if self.form == "short" else (kinds.STATEMENTS, kinds.VERDICTS)

    async def compute(self, sample: Sample, ask: AskLike, embed: EmbedFn) -> Score:  # noqa: ARG002
        sentences = sentences_of(sample.answer)
        if self.form == "short":
            claims = [sentence.text for sentence in sentences]
        else:
            reply = await ask(task_about(sample, kinds.STATEMENTS, self.examples))
            claims = [claim for claim in reply.statements if claim.strip()]
        if not claims:
            return self.undefined("no_claims")
        if not sample.context_texts:
            detail = {"statements": claims, "verdicts": [0] * len(claims)}
            return self.score_of(0.0, reason="no_context", detail=detail)
        if self.form == "short":
            task = task_about(sample, kinds.SUPPORTED, self.examples, sentences=claims)
            verdicts: Verdicts = in_order((await ask(task)).verdicts, len(claims))
        else:
            verdicts = await self._judge_claims(sample, claims, ask)
        if verdicts is None:
            return self.undefined("judge_incomplete", detail={"statements": claims})
        kept = [i for i, verdict in enumerate(verdicts) if verdict.verdict != _NO_CLAIM]
        said, judged = [claims[i] for i in kept], [verdicts[i] for i in kept]
        score = self.claims_score(said, judged, _unsupported)
        if self.form != "short" or score.value is None:
            return score
        places = [[sentences[i].start, sentences[i].end] for i in kept]
        return replace(score, detail={**score.detail, "offsets": places})

    async def _judge_claims(self, sample: Sample, claims: Texts, ask: AskLike) -> Verdicts:
        """Return a verdict on each of ``claims``, or None if the judge leaves some out twice."""
        verdicts: dict[int, Verdict] = {}
        for draw in range(2):
            missing = [i for i in range(len(claims)) if i not in verdicts]
            if not missing:
                break
            statements = [claims[i] for i in missing]
            task = task_about(sample, kinds.VERDICTS, self.examples, statements=statements)
            for verdict in (await ask(replace(task, draw=draw))).verdicts:
                if 1 <= verdict.index <= len(missing):
                    verdicts.setdefault(missing[verdict.index - 1], verdict)
        is_complete = len(verdicts) == len(claims)
        return [verdicts[i] for i in range(len(claims))] if is_complete else None


def _unsupported(claims: Texts) -> str:
    return "Not backed: " + " / ".join(claims) if claims else "Every claim is backed."


@dataclass(frozen=True, slots=True, kw_only=True)
class StatementFaithfulness(Faithfulness):
    """The share of the answer's claims that follow from the contexts, in one request (Haystack).

    With ``form="short"``, this is `Faithfulness`. With ``form="full"``, as in Haystack, the judge
    breaks up the answer into claims and decides on each in the same reply; the contexts, which it
    sees, may influence the claims. The special cases are those of `Faithfulness`.

    Source: ``FaithfulnessEvaluator`` of haystack-ai 3.4.1. Unlike in Haystack, the score of an
    answer without claims is undefined (there: 0), and each claim has a verdict.
    """

    name: str = "statement_faithfulness"

    @property
    def asks(self) -> tuple[Kind[Any], ...]:
        return (kinds.SUPPORTED,) if self.form == "short" else (kinds.JUDGED_STATEMENTS,)

    async def compute(self, sample: Sample, ask: AskLike, embed: EmbedFn) -> Score:
        if self.form == "short":
            return await Faithfulness.compute(self, sample, ask, embed)
        if score := self.blank_score(sample, {"contexts": 0.0}):
            return score
        reply = await ask(task_about(sample, kinds.JUDGED_STATEMENTS, self.examples))
        return self.statements_score(reply.statements, _unsupported)


_BULLET = re.compile(r"^\s*(?:[-*\u2022\u2013#>|]+|\(?\d{1,2}[.)])\s+")
_LETTER = re.compile(r"\w")
_SPACE = re.compile(r"[^\S\r\n]+")
_END = re.compile(
    r"(?<=[.!?\u2026\u061f\u06d4])[\"'\u2019\u201d\u00bb)\]*]*\s+"
    r"|(?<=[\u3002\uff01\uff1f\u0964\u0965])[\u300d\u300f\u201d\uff09]*\s*|[\r\n]\s*"
)
_UNENDED = re.compile(
    r"(?:^|[\s.(])(?:[^\W\d_]|\d{1,2}|dr|mr|mrs|ms|prof|st|no|nr|vs|approx|ca|inc|ltd|etc|bzw|sra?)"
    r"\.$",
    re.IGNORECASE,
)
"""An abbreviation, an initial or an ordinal, whose full stop does not end a sentence."""
_LAST = 12  # characters before a full stop: longer than any known abbreviation


class Sentence(NamedTuple):
    """A sentence as judges see it, and where it is: ``answer[start:end]``."""

    text: str
    start: int
    end: int


def sentences_of(text: str) -> list[Sentence]:
    """Divide ``text`` into sentences and list items; of more than 40, neighbours are joined."""
    sentences: list[tuple[list[str], int, int]] = []  # texts, start and end of each
    start = 0
    for end in [*_END.finditer(text), None]:
        at = end.start() + len(end[0].rstrip()) if end else len(text)  # including closing quotes
        if end and "\n" not in end[0]:
            last, following = text[max(start, at - _LAST) : at], text[end.end() : end.end() + 1]
            if following.islower() or _UNENDED.search(last):
                continue
        piece = text[start:at]
        begin, stop = start + len(piece) - len(piece.lstrip()), start + len(piece.rstrip())
        shown = _SPACE.sub(" ", piece).strip()
        bare = _BULLET.sub("", shown)
        if _LETTER.search(shown):
            sentences.append(([bare if _LETTER.search(bare) else shown], begin, stop))
        elif sentences and shown:
            texts, first, _ = sentences[-1]
            texts.append(shown)
            sentences[-1] = texts, first, stop
        start = end.end() if end else start
    size = -(-len(sentences) // _MOST_SENTENCES) or 1
    groups = (sentences[i : i + size] for i in range(0, len(sentences), size))
    return [Sentence(" ".join([t for s in g for t in s[0]]), g[0][1], g[-1][2]) for g in groups]
