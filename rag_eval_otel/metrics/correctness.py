"""Is the answer right?

The metrics of this module compare the answer with a reference answer, by embeddings, by strings, or
by asking a judge.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, Literal

import numpy as np

from rag_eval_otel.embed import cosine
from rag_eval_otel.errors import ConfigError
from rag_eval_otel.judge.tasks import ACCURACY, COMPARED_STATEMENTS, CORRECTNESS, AskLike, Rated
from rag_eval_otel.metrics.base import BaseMetric, RatedMetric, claims_in, shown_text, task_about
from rag_eval_otel.types import EmbedFn, Sample, Score

if TYPE_CHECKING:
    from rag_eval_otel.types import Vectors

CORRECT = (
    RatedMetric(
        name="answer_accuracy",
        kinds=ACCURACY,
        judges=2,
        blank={"reference": None, "answer": 0.0},
        needs=frozenset({"question", "answer", "reference"}),
        top=4,
        swaps=True,
        about="""\
How far the answer agrees with the reference (NVIDIA, in ragas).

Two prompts of different wording are answered independently with a rating of 0, 2 or 4. In the
second prompt, answer and reference are exchanged. The score is the mean rating divided by 4: 0,
.25, .5, .75 or 1. With ``judges=1``, only the first prompt is used. The option ``rating`` is that
of ``context_relevance``.

Special cases: If one judge gives no valid rating, the rating of the other judge counts
(``partial``). If the server returns no probabilities, the plain ratings count (``no_logprobs``).

Source: ``AnswerAccuracy`` of ragas 0.4.3, with answer and reference exchanged as in its
``collections`` version. Unlike in ragas, either of the two judges may fail, and the ratings 1 and 3
are refused.""",
    ),
)
"""The metrics of this module that ask one kind of question."""


def _dot(one: Vectors, other: Vectors) -> float:
    return float(np.dot(one, other))


def _negative_distance(one: Vectors, other: Vectors) -> float:
    return 0.0 - float(np.linalg.norm(one - other))  # never -0.0


_MODES: Mapping[str, Callable[[Vectors, Vectors], float | None]] = {
    "cosine": cosine,
    "dot_product": _dot,
    "euclidean": _negative_distance,
}
_NEEDS = frozenset({"answer", "reference"})
_BLANK: Final[Mapping[str, float | None]] = {"reference": None, "answer": None}
_ALL = frozenset({"question", "answer", "reference"})
_MAX_BETA = 1e6  # nearly recall alone
_PAIR = 2
_SCALE = (1.0, 5.0)  # lowest and highest grade of `Correctness`


@dataclass(frozen=True, slots=True, kw_only=True)
class SemanticSimilarity(BaseMetric):
    """Similarity of the embeddings of answer and reference (ragas, LlamaIndex, Haystack's SAS).

    With ``mode="cosine"``, the score is in [-1, 1]. With ``mode="dot_product"``, the score may be
    any number. With ``mode="euclidean"``, the score is the negative distance, at most 0, and
    ``normalized`` is 1 / (1 + distance). With ``rule="threshold"``, the score is 1 if the
    similarity reaches ``threshold``, else 0. In the mode ``euclidean``, ``normalized`` is compared
    with the threshold. The metric needs answer and reference. It takes no judge request and 1
    embedding request.

    Special cases: If the mode is ``cosine`` and a vector is zero, the score is undefined
    (``zero_vector``). ``rule="threshold"`` without a threshold raises `ConfigError`.

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

    blank = _BLANK
    requests = "0"
    scale = (-1.0, 1.0)

    def __post_init__(self) -> None:
        BaseMetric.__post_init__(self)
        if self.rule == "threshold":
            if self.threshold is None:
                msg = "rule='threshold' needs a threshold"
                raise ConfigError(msg)
            object.__setattr__(self, "cut", self.threshold)

    async def compute(self, sample: Sample, ask: AskLike, embed: EmbedFn) -> Score:  # noqa: ARG002
        reference = sample.reference or ""
        rows = await embed([sample.answer, reference])
        similarity = _MODES[self.mode](rows[0], rows[1])
        if similarity is None or not math.isfinite(similarity):
            return self.undefined("zero_vector")
        near = 1 / (1 - similarity) if self.mode == "euclidean" else similarity
        detail = {"similarity": similarity}
        score = self.score_of(near, detail=detail)
        if self.cut is not None:
            return replace(score, value=float(near >= self.cut))
        return replace(
            score, value=similarity, normalized=near if self.mode == "euclidean" else None
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class CrossEncoderSimilarity(BaseMetric):
    """Similarity of answer and reference, computed by a function that you pass (Haystack's SAS).

    ``score(answer, reference)`` is any function that returns a number, such as the ``predict`` of a
    cross-encoder. ``model`` is a name for the function; the version of the scores contains this
    name. ``activation="sigmoid"`` maps logits to (0, 1); ``"identity"`` keeps the number. The
    metric needs answer and reference. It takes no judge request. The function runs on the
    evaluator's thread.

    Special cases: If there is no reference, the score is undefined (``missing_reference``). If
    there is no answer, the score is undefined (``empty_answer``).

    Source: ``SASEvaluator`` of haystack-ai 3.4.1. Unlike in Haystack, the activation is an option;
    Haystack applies the sigmoid to each batch that contains a score above 1.
    """

    score: Callable[[str, str], float] = field(compare=False)
    model: str = ""
    activation: Literal["identity", "sigmoid"] = "identity"
    name: str = "cross_encoder_similarity"

    blank = _BLANK
    requests = "0"
    scale = (-math.inf, math.inf)

    async def compute(self, sample: Sample, ask: AskLike, embed: EmbedFn) -> Score:  # noqa: ARG002
        reference = sample.reference or ""
        value = float(self.score(sample.answer, reference))
        if self.activation == "sigmoid":
            value = 0.5 * (1 + math.tanh(value / 2))
        return self.score_of(value)


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerExactMatch(BaseMetric):
    """Whether answer and reference are the same string: 1 or 0 (Haystack).

    White space and case count. The metric needs answer and reference. It takes no request.

    Special cases: If there is no reference, the score is undefined (``missing_reference``).

    Source: ``AnswerExactMatchEvaluator`` of haystack-ai 3.4.1.
    """

    name: str = "answer_exact_match"

    needs = _NEEDS
    requests = "0"

    async def measure(self, sample: Sample, ask: AskLike, embed: EmbedFn) -> Score:  # noqa: ARG002
        if not sample.reference:
            return self.undefined("missing_reference")
        return self.score_of(float(sample.answer == sample.reference))


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerCorrectness(BaseMetric):
    """How far the claims of answer and reference agree, and how similar the texts are (ragas).

    The judge breaks up answer and reference into claims and says for each claim whether the other
    text states it too. ``tp`` is the number of claims of the answer that the reference states,
    ``fp`` the number of claims of the answer that the reference does not state, and ``fn`` the
    number of claims of the reference that the answer does not state::

        P = tp / (tp + fp)    R = tp / (tp + fn)    F = (1 + beta^2) P R / (beta^2 P + R)
        score = (w1 F + w2 cos(emb(answer), emb(reference))) / (w1 + w2)

    A quotient with the denominator 0 is 0. ``weights`` are ``(w1, w2)``; if the weights add up to
    1, the range is [-w2, 1]. The metric needs question, answer and reference. It takes 1 judge
    request (none if ``w1`` is 0) and 1 embedding request (none if ``w2`` is 0).

    Special cases: If neither text makes a claim, the score is undefined (``no_claims``). If only
    one of the texts makes a claim, F is 0. If a vector is zero, the score is undefined
    (``zero_vector``). A ``beta`` that is not above 0, and weights that are negative or both 0,
    raise `ConfigError`.

    Source: ``AnswerCorrectness`` of ragas 0.4.3. Unlike in ragas, the judge is asked once, not
    three times, so that the counts agree with the claims. An answer and a reference without claims
    are not counted as a success.
    """

    beta: float = 1.0
    weights: tuple[float, float] = (0.75, 0.25)
    name: str = "answer_correctness"

    blank = {"reference": None, "answer": 0.0}  # noqa: RUF012  # nobody changes it
    needs = _ALL
    asks = (COMPARED_STATEMENTS,)
    scale = (-0.25, 1.0)

    def __post_init__(self) -> None:
        if not 0 < self.beta <= _MAX_BETA:
            msg = f"beta must be a number above 0, at most {_MAX_BETA:g}, not {self.beta!r}"
            raise ConfigError(msg)
        total = sum(self.weights)
        if len(self.weights) != _PAIR or not min(self.weights) >= 0 < total < math.inf:
            msg = f"weights must be two numbers from 0, not both 0, not {self.weights!r}"
            raise ConfigError(msg)
        BaseMetric.__post_init__(self)

    async def compute(self, sample: Sample, ask: AskLike, embed: EmbedFn) -> Score:
        factual, detail = await self._factual(sample, ask)
        if factual is None:
            return self.undefined("no_claims")
        similar = await self._similar(sample, embed)
        if similar is None:
            return self.undefined("zero_vector", detail=detail)
        by_claims, by_vectors = self.weights
        value = (by_claims * factual + by_vectors * similar) / (by_claims + by_vectors)
        detail = {**detail, "factual": factual, "similarity": similar}
        return self.score_of(value, detail=detail)

    async def _factual(self, sample: Sample, ask: AskLike) -> tuple[float | None, dict[str, Any]]:
        """Return the F-beta score of the claims, and its counts; None if no text has a claim."""
        if not self.weights[0]:
            return 0.0, {}
        reply = await ask(task_about(sample, COMPARED_STATEMENTS, self.examples))
        said, wanted = map(claims_in, (reply.answer_statements, reply.reference_statements))
        if not said and not wanted:
            return None, {}
        tp = sum(claim.probability for claim in said) if wanted else 0
        fp, fn = len(said) - tp, sum(1 - claim.probability for claim in wanted)
        return f_beta(tp, fp, fn=fn, beta=self.beta), {"tp": tp, "fp": fp, "fn": fn}

    async def _similar(self, sample: Sample, embed: EmbedFn) -> float | None:
        if not self.weights[1]:
            return 0.0
        rows = await embed([sample.answer, sample.reference or ""])
        return cosine(rows[0], rows[1])


def f_beta(tp: float, fp: float, *, fn: float, beta: float) -> float:
    """Return the F-beta score of counts of true positives, false positives and false negatives.

    The score is in [0, 1]. A quotient with the denominator 0 counts as 0.
    """
    precision = tp / (tp + fp) if tp + fp else 0.0
    recall = tp / (tp + fn) if tp + fn else 0.0
    bottom = beta**2 * precision + recall
    return (1 + beta**2) * precision * recall / bottom if bottom else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Correctness(BaseMetric):
    """How correct and relevant the answer is as a whole, as a grade from 1 to 5 (LlamaIndex).

    ``normalized`` is ``(score - 1) / 4``; ``threshold`` is on the scale from 1 to 5. With
    ``rating="logprobs"``, the grade is the mean of the whole grades, weighted by the probabilities
    that the judge gives these grades. The metric needs question and answer; the judge also sees the
    reference if there is one. It takes 1 judge request.

    Special cases: If the server returns no probabilities, the plain grade counts
    (``no_logprobs``).

    Source: ``CorrectnessEvaluator`` of LlamaIndex 0.14. Unlike in LlamaIndex, the judge replies
    with a number that matches a schema, and the number must be on the scale; LlamaIndex reads the
    first line of the judge's text.
    """

    rating: Rated = "integer"
    threshold: float | None = 4.0
    name: str = "correctness"

    blank = {"question": None, "answer": _SCALE[0]}  # noqa: RUF012
    asks = (CORRECTNESS,)
    scale = _SCALE

    async def measure(self, sample: Sample, ask: AskLike, embed: EmbedFn) -> Score:  # noqa: ARG002
        if score := self.blank_score(sample, self.blank):
            return score if score.value is None else replace(score, normalized=0.0)
        fields = ("question", "answer", "reference")
        texts = {name: shown_text(sample, name) for name in fields}
        shown = {name: text for name, text in texts.items() if text}
        task = CORRECTNESS.task(shown, rated=self.rating, examples=self.examples)
        grade = await ask(task)
        return self.grade_score(grade, scale=_SCALE, rated=self.rating)
