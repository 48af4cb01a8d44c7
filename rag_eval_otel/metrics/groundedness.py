"""Is the answer backed by the contexts?

The metrics of this module ask a judge whether the contexts support the claims of the answer, or the
answer as a whole.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from rag_eval_otel.judge.replies import JudgedStatement, Sentence, Verdict
from rag_eval_otel.judge.tasks import (
    GROUNDEDNESS,
    JUDGED_STATEMENTS,
    RESPONSE_RELEVANCY,
    RESPONSE_SUPPORTED,
    STATEMENTS,
    SUPPORTED,
    VERDICTS,
    AskLike,
    Kind,
    Rated,
)
from rag_eval_otel.metrics.outcome import (
    Examples,
    Labelled,
    check_options,
    claims_in,
    decided,
    dual_score,
    edge_score,
    in_order,
    measured,
    share_of,
    task_about,
    undefined,
    verdicts_of,
)
from rag_eval_otel.types import EmbedFn, Form, Sample, Score

_NEEDS = frozenset({"question", "answer", "contexts"})
_NO_CLAIM = 2  # the verdict on a sentence that claims nothing
_MOST_SENTENCES = 40  # that a judge is shown; if there are more, neighbours are joined
_BULLET = re.compile(r"^\s*(?:[-*\u2022\u2013#>|]+|\(?\d{1,2}[.)])\s+")
_SPACES = re.compile(r"[^\S\r\n]+")
_LAST = 12  # characters before a full stop: longer than any known abbreviation
_END = re.compile(
    r"(?<=[.!?\u2026\u061f\u06d4])[\"'\u2019\u201d\u00bb)\]*]*\s+"
    r"|(?<=[\u3002\uff01\uff1f\u0964\u0965])[\u300d\u300f\u201d\uff09]*\s*|\s*[\r\n]+\s*"
)
_UNENDED = re.compile(
    r"(?:^|[\s.(])(?:[^\W\d_]|\d{1,2}|dr|mr|mrs|ms|prof|st|no|nr|vs|approx|ca|inc|ltd|etc|bzw|sra?)"
    r"\.$",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Faithfulness:
    """The share of the answer's claims that follow from the contexts (ragas' faithfulness).

    ``score = supported claims / claims``, in the range [0, 1]. If the judge gives probabilities,
    the score is the mean of the probabilities.

    With ``form="short"``, the claims are the sentences of the answer, at most 40, which this
    library numbers. The judge replies to 1 request with one digit for each sentence. With
    ``form="full"``, as in ragas, the judge first breaks up the answer into claims; it sees question
    and answer. Then the judge decides for each claim whether the claim follows from the contexts.
    The full form takes 2 judge requests, one after the other, and about ten times as many reply
    tokens. The metric needs question, answer and contexts.

    Special cases: If there is no answer, the score is undefined (``empty_answer``). If the answer
    makes no claim, such as a refusal, the score is undefined (``no_claims``). If there is no
    context, the score is 0 (``no_context``), and the judge is not asked to decide. If the judge
    leaves out a claim, the score is undefined (``judge_incomplete``). The question may be empty.

    Source: ``Faithfulness`` of ragas 0.4.3. Unlike in ragas, each verdict names the number of its
    claim. The score is divided by the number of claims, not by the number of verdicts in the reply.
    """

    form: Form = "short"
    threshold: float | None = 0.5
    examples: Examples = ()
    name: str = "faithfulness"

    needs = _NEEDS
    requests = "1"
    range = "[0, 1]"

    @property
    def asks(self) -> tuple[Kind[Any], ...]:
        return (SUPPORTED,) if self.form == "short" else (STATEMENTS, VERDICTS)

    def __post_init__(self) -> None:
        check_options(self)

    async def measure(self, sample: Sample, ask: AskLike, embed: EmbedFn) -> Score:  # noqa: ARG002
        if edge := edge_score(self, sample, answer=None):
            return edge
        if self.form == "short":
            return await _by_sentence(self, sample, ask)
        return await self._by_claim(sample, ask)

    async def _by_claim(self, sample: Sample, ask: AskLike) -> Score:
        reply = await ask(task_about(sample, STATEMENTS, examples=self.examples))
        claims = [claim for claim in reply.statements if claim.strip()]
        if not claims:
            return undefined(self.name, "no_claims")
        if not sample.context_texts:
            return _unsupported(self, claims)
        verdicts = await _judge_claims(sample, claims, ask, examples=self.examples)
        if len(verdicts) < len(claims):
            return undefined(self.name, "judge_incomplete", detail={"statements": claims})
        return _supported_share(self, claims, [verdicts[i] for i in range(len(claims))])


def sentences_of(text: str) -> list[str]:
    """Return the sentences and list items of ``text``, in any script, as at most 40 pieces.

    A part without a letter or a digit is added to the sentence before it. A text in a script
    without marks at the end of sentences, such as Thai, is split only at line breaks.
    """
    text = _SPACES.sub(" ", text)
    found: list[list[str]] = []
    start = 0
    for end in [*_END.finditer(text), None]:
        at = end.start() + len(end[0].rstrip()) if end else len(text)  # including closing quotes
        if end and "\n" not in end[0]:
            last = text[max(start, at - _LAST) : at]
            if _goes_on(last, text[end.end() : end.end() + 1]):
                continue
        piece, start = text[start:at], end.end() if end else start
        if re.search(r"\w", piece):
            bare = _BULLET.sub("", piece)
            found.append([bare if re.search(r"\w", bare) else piece])
        elif found:
            found[-1].append(piece)
    return _put_together([" ".join(pieces).strip() for pieces in found])


def _goes_on(last: str, following: str) -> bool:
    """Return True if a full stop ends an abbreviation, an initial or an ordinal, not a sentence.

    ``last`` is the text that ends with the full stop, ``following`` the next character.
    """
    return following.islower() or bool(_UNENDED.search(last))


def _put_together(sentences: Sequence[str]) -> list[str]:
    """Return ``sentences``; join neighbours if there are more than `_MOST_SENTENCES`."""
    size = -(-len(sentences) // _MOST_SENTENCES) or 1
    return [" ".join(sentences[i : i + size]) for i in range(0, len(sentences), size)]


async def _by_sentence(
    metric: Faithfulness | StatementFaithfulness, sample: Sample, ask: AskLike
) -> Score:
    """Ask the judge about each sentence of the answer, and score the share that is supported."""
    sentences = sentences_of(sample.answer)
    if not sentences:
        return undefined(metric.name, "no_claims")
    if not sample.context_texts:
        return _unsupported(metric, sentences)
    task = task_about(sample, SUPPORTED, sentences=sentences, examples=metric.examples)
    verdicts = in_order((await ask(task)).verdicts, len(sentences))
    if verdicts is None:
        return undefined(metric.name, "judge_incomplete", detail={"statements": sentences})
    judged = zip(sentences, verdicts, strict=True)
    claims = [(text, one) for text, one in judged if one.verdict != _NO_CLAIM]
    if not claims:
        return undefined(metric.name, "no_claims")
    texts, judged_claims = zip(*claims, strict=True)
    return _supported_share(metric, texts, judged_claims)


def _unsupported(metric: Labelled, claims: Sequence[str]) -> Score:
    """Return the score 0 for an answer with ``claims`` if the sample has no contexts."""
    detail = {"statements": claims, "verdicts": [0] * len(claims)}
    return measured(metric, 0.0, reason="no_context", detail=detail)


async def _judge_claims(
    sample: Sample, claims: Sequence[str], ask: AskLike, *, examples: Examples
) -> dict[int, Verdict]:
    """Ask the judge whether each of ``claims`` follows from the contexts of ``sample``.

    Returns a dict from the position of a claim in ``claims`` (from 0) to its verdict. If the judge
    leaves out claims, it is asked about these claims once more.
    """
    found: dict[int, Verdict] = {}
    for draw in range(2):
        missing = [i for i in range(len(claims)) if i not in found]
        if not missing:
            break
        asked = [claims[i] for i in missing]
        task = task_about(sample, VERDICTS, statements=asked, examples=examples)
        reply = await ask(replace(task, draw=draw))
        for verdict in reply.verdicts:
            if 1 <= verdict.index <= len(missing):
                found.setdefault(missing[verdict.index - 1], verdict)
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class StatementFaithfulness:
    """The share of the answer's claims that follow from the contexts, in one request (Haystack).

    ``score = supported claims / claims``, in the range [0, 1]. The metric needs question, answer
    and contexts. It takes 1 judge request.

    With ``form="short"``, the metric is the same as `Faithfulness`: the claims are the sentences of
    the answer. With ``form="full"``, as in Haystack, the judge breaks up the answer into claims and
    decides on each claim in the same reply. The judge sees the contexts while it breaks up the
    answer, which may influence the claims.

    Special cases: If there is no answer, the score is undefined (``empty_answer``). If the answer
    makes no claim, such as a refusal, the score is undefined (``no_claims``). If there is no
    context, the score is 0 (``no_context``). If the judge leaves out a sentence in the short form,
    the score is undefined (``judge_incomplete``). The question may be empty.

    Source: ``FaithfulnessEvaluator`` of haystack-ai 3.4.1. Unlike in Haystack, the score of an
    answer without claims is undefined (there: 0). In the full form the judge writes each claim
    together with its verdict, so that there are as many verdicts as claims.
    """

    form: Form = "short"
    threshold: float | None = 0.5
    examples: Examples = ()
    name: str = "statement_faithfulness"

    needs = _NEEDS
    requests = "1"
    range = "[0, 1]"

    @property
    def asks(self) -> tuple[Kind[Any], ...]:
        return (SUPPORTED,) if self.form == "short" else (JUDGED_STATEMENTS,)

    def __post_init__(self) -> None:
        check_options(self)

    async def measure(self, sample: Sample, ask: AskLike, embed: EmbedFn) -> Score:  # noqa: ARG002
        if edge := edge_score(self, sample, answer=None):
            return edge
        if self.form == "short":
            return await _by_sentence(self, sample, ask)
        if edge := edge_score(self, sample, contexts=0.0):
            return edge
        reply = await ask(task_about(sample, JUDGED_STATEMENTS, examples=self.examples))
        judged = claims_in(reply.statements)
        if not judged:
            return undefined(self.name, "no_claims")
        claims = [claim.statement for claim in judged]
        return _supported_share(self, claims, judged)


def _supported_share(
    metric: Labelled,
    claims: Sequence[str],
    verdicts: Sequence[Verdict | JudgedStatement | Sentence],
) -> Score:
    unsupported = [
        f"{claim} ({verdict.reason})" if verdict.reason else claim
        for claim, verdict in zip(claims, verdicts, strict=True)
        if not verdict.verdict
    ]
    told = "Not backed: " + " / ".join(unsupported) if unsupported else "Every claim is backed."
    return measured(
        metric,
        share_of(verdicts),
        explanation=told,
        detail={"statements": list(claims), **verdicts_of(verdicts)},
    )


_HIGHEST = 2  # rating of a judge


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponseGroundedness:
    """How far the contexts support the answer as a whole (NVIDIA, in ragas).

    A judge gives the rating 0, 1 or 2; the score is half of the rating: 0, .5 or 1. With
    ``judges=2``, two prompts of different wording are answered independently, and the score is half
    of the mean of the two ratings. With ``rating="logprobs"``, the rating is the mean of 0, 1 and
    2, weighted by the probabilities that the judge gives these numbers. The metric needs answer and
    contexts; the judge does not see the question. It takes as many judge requests as ``judges``
    says (1 or 2).

    Special cases: If there is no answer, the score is 0 (``empty_answer``). If there is no context,
    the score is 0 (``no_context``). In neither case is the judge asked. If one of two judges gives
    no valid rating, the rating of the other judge counts (``partial``). If the server returns no
    probabilities, the plain ratings count (``no_logprobs``).

    Source: ``ResponseGroundedness`` of ragas 0.4.3. Unlike in ragas, one judge is the default, an
    answer that is a part of the contexts is judged like any other answer, either of the two judges
    may fail, and the judge is asked again for a rating that is not 0, 1 or 2.
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
        return GROUNDEDNESS[: self.judges]

    def __post_init__(self) -> None:
        check_options(self)

    async def measure(self, sample: Sample, ask: AskLike, embed: EmbedFn) -> Score:  # noqa: ARG002
        if edge := edge_score(self, sample, answer=0.0, contexts=0.0):
            return edge
        tasks = [
            task_about(sample, kind, rated=self.rating, examples=self.examples)
            for kind in GROUNDEDNESS[: self.judges]
        ]
        return await dual_score(self, tasks, ask, top=_HIGHEST)


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponseSupported:
    """Whether the contexts support the answer: 1 or 0 (LlamaIndex's faithfulness).

    The metric needs answer and contexts; the judge does not see the question. It takes 1 judge
    request.

    Special cases: If there is no answer, the score is undefined (``empty_answer``). If there is no
    context, the score is 0 (``no_context``).

    Source: ``FaithfulnessEvaluator`` of LlamaIndex 0.14. Unlike in LlamaIndex, the judge replies
    with a boolean that matches a schema; LlamaIndex searches the judge's text for "yes". If the
    reply does not parse, the score is undefined (there: 0). All contexts are judged in one request;
    LlamaIndex judges them in groups, and the last group decides.
    """

    threshold: float | None = 0.5
    examples: Examples = ()
    name: str = "response_supported"

    needs = frozenset({"answer", "contexts"})
    asks = (RESPONSE_SUPPORTED,)
    requests = "1"
    range = "{0, 1}"

    def __post_init__(self) -> None:
        check_options(self)

    async def measure(self, sample: Sample, ask: AskLike, embed: EmbedFn) -> Score:  # noqa: ARG002
        if edge := edge_score(self, sample, answer=None, contexts=0.0):
            return edge
        task = task_about(sample, RESPONSE_SUPPORTED, examples=self.examples)
        return decided(self, await ask(task))


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponseRelevancy:
    """Whether question and answer agree with the contexts: 1 or 0 (LlamaIndex's relevancy).

    The metric does not measure whether the answer addresses the question; `AnswerRelevancy` does.
    It needs question, answer and contexts. It takes 1 judge request.

    Special cases: If there is no question, the score is undefined (``missing_question``). If there
    is no answer, the score is undefined (``empty_answer``). If there is no context, the score is 0
    (``no_context``).

    Source: ``RelevancyEvaluator`` of LlamaIndex 0.14. Unlike in LlamaIndex, the judge replies with
    a boolean that matches a schema; LlamaIndex searches the judge's text for "yes". If the reply
    does not parse, the score is undefined (there: 0). All contexts are judged in one request;
    LlamaIndex judges them in groups, and the last group decides.
    """

    threshold: float | None = 0.5
    examples: Examples = ()
    name: str = "response_relevancy"

    needs = frozenset({"question", "answer", "contexts"})
    asks = (RESPONSE_RELEVANCY,)
    requests = "1"
    range = "{0, 1}"

    def __post_init__(self) -> None:
        check_options(self)

    async def measure(self, sample: Sample, ask: AskLike, embed: EmbedFn) -> Score:  # noqa: ARG002
        if edge := edge_score(self, sample, question=None, answer=None, contexts=0.0):
            return edge
        task = task_about(sample, RESPONSE_RELEVANCY, examples=self.examples)
        return decided(self, await ask(task))
