"""Is the answer right, compared with a reference answer?"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np

from rag_eval_otel.embed import cosine
from rag_eval_otel.errors import ConfigError
from rag_eval_otel.judge.tasks import ACCURACY, COMPARED_STATEMENTS, CORRECTNESS, AskLike, Rated
from rag_eval_otel.metrics.base import BaseMetric, RatedMetric, claims_in, shown_texts, task_about
from rag_eval_otel.types import EmbedFn, Sample, Score

CORRECT = (
    RatedMetric(
        name="answer_accuracy",
        kinds=ACCURACY,
        judges=2,
        blank={"reference": None, "answer": 0.0},
        top=4,
        swaps=True,
        about="""\
How far the answer agrees with the reference (NVIDIA, in ragas).

Two prompts of different wording are answered independently with a rating of 0, 2 or 4. In the
second prompt, answer and reference are exchanged. The score is the mean rating divided by 4. With
``judges=1``, only the first prompt is used. The option ``rating`` and the special cases are those
of ``context_relevance``.

Source: ``AnswerAccuracy`` of ragas 0.4.3, with answer and reference exchanged as in its
``collections`` version. Unlike in ragas, either of the two judges may fail, and the ratings 1 and 3
are refused.""",
    ),
)

_NO_REFERENCE: dict[str, float | None] = {"reference": None, "answer": None}
_MAX_BETA = 1e6  # nearly recall alone
_PAIR = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class SemanticSimilarity(BaseMetric):
    """Similarity of the embeddings of answer and reference (ragas, LlamaIndex, Haystack's SAS).

    - ``mode``: ``cosine`` (from -1 to 1), ``dot_product`` (any number), or ``euclidean``: the
      negative distance, with ``normalized`` = 1 / (1 + distance).
    - ``rule="threshold"``: the score is 1 if the similarity (for ``euclidean``, ``normalized``)
      reaches ``threshold``, else 0; a ``threshold`` of None then raises `ConfigError`.

    Special cases: undefined if the mode is ``cosine`` and a vector is zero (``zero_vector``).

    Source: ``SemanticSimilarity`` of ragas 0.4.3, whose ``threshold`` is ``rule="threshold"`` here,
    and ``SemanticSimilarityEvaluator`` of LlamaIndex 0.14. Unlike in these libraries, a threshold
    of 0 is not ignored, and blank texts are not embedded.
    """

    mode: Literal["cosine", "dot_product", "euclidean"] = "cosine"
    rule: Literal["value", "threshold"] = "value"
    threshold: float | None = 0.8
    name: str = "semantic_similarity"
    cut: float | None = field(init=False, default=None, repr=False)
    """A copy of ``threshold`` if ``rule="threshold"``, else None, for the version of the score."""

    blank = _NO_REFERENCE
    scale = (-1.0, 1.0)

    def __post_init__(self) -> None:
        BaseMetric.__post_init__(self)
        if self.rule == "threshold":
            if self.threshold is None:
                raise ConfigError("rule='threshold' needs a threshold")
            object.__setattr__(self, "cut", self.threshold)

    async def compute(self, sample: Sample, ask: AskLike, embed: EmbedFn) -> Score:  # noqa: ARG002
        answer, reference = await embed([sample.answer, sample.reference or ""])
        normalized: float | None = None
        if self.mode == "cosine":
            similarity = cosine(answer, reference)
        elif self.mode == "dot_product":
            similarity = float(np.dot(answer, reference))
        else:
            similarity = 0.0 - float(np.linalg.norm(answer - reference))  # never -0.0
            normalized = 1 / (1 - similarity)
        if similarity is None or not math.isfinite(similarity):
            return self.undefined("zero_vector")
        near = similarity if normalized is None else normalized
        score = self.score_of(near, detail={"similarity": similarity})  # the label is by `near`
        if self.cut is not None:
            return replace(score, value=float(near >= self.cut))
        return replace(score, value=similarity, normalized=normalized)


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerExactMatch(BaseMetric):
    """Whether answer and reference are the same string: 1 or 0 (Haystack).

    White space and case count. The score is undefined without a reference (``missing_reference``).

    Source: ``AnswerExactMatchEvaluator`` of haystack-ai 3.4.1.
    """

    name: str = "answer_exact_match"

    needs = frozenset({"answer", "reference"})

    async def measure(self, sample: Sample, ask: AskLike, embed: EmbedFn) -> Score:  # noqa: ARG002
        if not sample.reference:
            return self.undefined("missing_reference")
        return self.score_of(float(sample.answer == sample.reference))


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerCorrectness(BaseMetric):
    """How far the claims of answer and reference agree, and how similar the texts are (ragas).

    The judge breaks up answer and reference into claims and says for each claim whether the other
    text states it too. ``tp`` and ``fp`` are the numbers of claims of the answer that the reference
    states and does not state, ``fn`` that of claims which only the reference states::

        P = tp / (tp + fp)    R = tp / (tp + fn)    F = (1 + beta^2) P R / (beta^2 P + R)
        score = (w1 F + w2 cos(emb(answer), emb(reference))) / (w1 + w2)

    A quotient with the denominator 0 is 0. ``weights`` are ``(w1, w2)``; a part with the weight 0
    is not measured. If the weights add up to 1, the range is [-w2, 1]. Numbers that cannot be used
    raise `ConfigError`.

    Special cases: undefined if neither text makes a claim (``no_claims``), or if a vector is zero
    (``zero_vector``). If only one of the texts makes a claim, F is 0.

    Source: ``AnswerCorrectness`` of ragas 0.4.3. Unlike in ragas, the judge is asked once, not
    three times, and texts without claims are not counted as a success.
    """

    beta: float = 1.0
    weights: tuple[float, float] = (0.75, 0.25)
    name: str = "answer_correctness"

    blank = {"reference": None, "answer": 0.0}  # noqa: RUF012  # never changed
    needs = frozenset({"question", "answer", "reference"})
    asks = (COMPARED_STATEMENTS,)
    scale = (-0.25, 1.0)

    def __post_init__(self) -> None:
        if not 0 < self.beta <= _MAX_BETA:
            raise ConfigError(f"beta must be above 0, at most {_MAX_BETA:g}, not {self.beta!r}")
        total = sum(self.weights)
        if len(self.weights) != _PAIR or not min(self.weights) >= 0 < total < math.inf:
            raise ConfigError(f"weights must be two numbers from 0, one above: {self.weights!r}")
        BaseMetric.__post_init__(self)

    async def compute(self, sample: Sample, ask: AskLike, embed: EmbedFn) -> Score:
        by_claims, by_vectors = self.weights
        detail: dict[str, Any] = {"factual": 0.0}
        if by_claims:
            reply = await ask(task_about(sample, COMPARED_STATEMENTS, self.examples))
            said, wanted = map(claims_in, (reply.answer_statements, reply.reference_statements))
            if not said and not wanted:
                return self.undefined("no_claims")
            tp = sum(claim.probability for claim in said) if wanted else 0
            fp, fn = len(said) - tp, sum(1 - claim.probability for claim in wanted)
            factual = f_beta(tp, fp, fn=fn, beta=self.beta)
            detail = {"tp": tp, "fp": fp, "fn": fn, "factual": factual}
        texts = [sample.answer, sample.reference or ""]
        similar = cosine(*await embed(texts)) if by_vectors else 0.0
        if similar is None:
            return self.undefined("zero_vector", detail=detail)
        value = (by_claims * detail["factual"] + by_vectors * similar) / (by_claims + by_vectors)
        return self.score_of(value, detail={**detail, "similarity": similar})


def f_beta(tp: float, fp: float, *, fn: float, beta: float) -> float:
    precision = tp / (tp + fp) if tp + fp else 0.0
    recall = tp / (tp + fn) if tp + fn else 0.0
    bottom = beta**2 * precision + recall
    return (1 + beta**2) * precision * recall / bottom if bottom else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Correctness(BaseMetric):
    """How correct and relevant the answer is as a whole, as a grade from 1 to 5 (LlamaIndex).

    ``normalized`` is ``(score - 1) / 4``; ``threshold`` is from 1 to 5. With ``rating="logprobs"``,
    the grade is the mean of the whole grades, weighted by the judge's probabilities; if there are
    none, the plain grade counts (``no_logprobs``). The judge also sees the reference, if any.

    Source: ``CorrectnessEvaluator`` of LlamaIndex 0.14, where the number may leave the scale.
    """

    rating: Rated = "integer"
    threshold: float | None = 4.0
    name: str = "correctness"

    blank = {"question": None, "answer": 1.0}  # noqa: RUF012  # never changed
    asks = (CORRECTNESS,)
    scale = (1.0, 5.0)

    async def measure(self, sample: Sample, ask: AskLike, embed: EmbedFn) -> Score:  # noqa: ARG002
        if score := self.blank_score(sample, self.blank):
            return score if score.value is None else replace(score, normalized=0.0)
        shown = shown_texts(sample, ("question", "answer", "reference"))
        task = CORRECTNESS.task(shown, rated=self.rating, examples=self.examples)
        return await self.graded(task, ask, low=1.0, high=5.0)
