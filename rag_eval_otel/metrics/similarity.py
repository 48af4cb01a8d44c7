"""Is the answer right? By comparing it with a reference, without a judge."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal

import numpy as np

from rag_eval_otel.embed import cosine
from rag_eval_otel.errors import ConfigError
from rag_eval_otel.metrics.outcome import check_choices, measured, undefined
from rag_eval_otel.protocols import AskLike, EmbedFn
from rag_eval_otel.types import Sample, Score

if TYPE_CHECKING:
    from rag_eval_otel.protocols import Vectors

_NEEDS = frozenset({"answer", "reference"})


def _dot(one: Vectors, other: Vectors) -> float:
    return float(np.dot(one, other))


def _negative_distance(one: Vectors, other: Vectors) -> float:
    return 0.0 - float(np.linalg.norm(one - other))  # never -0.0


_MODES: Mapping[str, Callable[[Vectors, Vectors], float | None]] = {
    "cosine": cosine,
    "dot_product": _dot,
    "euclidean": _negative_distance,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SemanticSimilarity:
    """How near the embeddings of answer and reference are (ragas, LlamaIndex, Haystack's SAS).

    ``mode``: ``cosine``, in [-1, 1]; ``dot_product``, on no scale; ``euclidean``, the negative
    distance, at most 0, with ``normalized`` 1 / (1 + distance). With ``rule="threshold"`` the score
    is 1 where the similarity reaches ``threshold``, else 0. A ``euclidean`` one reaches it where
    its ``normalized`` does. Needs answer and reference. No judge request, 1 embedding request.

    Edges: no reference: undefined ``missing_reference``; no answer: undefined ``empty_answer``; a
    cosine of a vector without direction: undefined ``zero_vector``.

    Source: ragas 0.4.3 ``SemanticSimilarity`` (``rule="threshold"`` with its ``threshold``) and
    LlamaIndex 0.14 ``SemanticSimilarityEvaluator``. Differs: a threshold of 0 is one; blank texts
    are not embedded.
    """

    mode: Literal["cosine", "dot_product", "euclidean"] = "cosine"
    rule: Literal["value", "threshold"] = "value"
    threshold: float | None = 0.8
    name: str = "semantic_similarity"
    cut: float | None = field(init=False, default=None, repr=False)
    """The threshold where it makes the score, so that it is part of the version."""

    needs = _NEEDS
    asks = ()
    requests = "0"
    range = "[-1, 1]"

    def __post_init__(self) -> None:
        """Refuse an unknown mode, and the threshold rule without one."""
        check_choices(self)
        if self.rule == "threshold":
            if self.threshold is None:
                msg = "rule='threshold' needs a threshold"
                raise ConfigError(msg)
            object.__setattr__(self, "cut", self.threshold)

    async def measure(self, sample: Sample, ask: AskLike, embed: EmbedFn) -> Score:  # noqa: ARG002
        """Return the score of ``sample``."""
        reference = sample.reference or ""
        if not reference.strip():
            return undefined(self.name, "missing_reference")
        if not sample.answer.strip():
            return undefined(self.name, "empty_answer")
        rows = await embed([sample.answer, reference])
        similarity = _MODES[self.mode](rows[0], rows[1])
        if similarity is None or not math.isfinite(similarity):
            return undefined(self.name, "zero_vector")
        near = 1 / (1 - similarity) if self.mode == "euclidean" else similarity
        detail = {"similarity": similarity}
        score = measured(self.name, near, threshold=self.threshold, detail=detail)
        if self.cut is not None:
            return replace(score, value=float(near >= self.cut))
        return replace(
            score, value=similarity, normalized=near if self.mode == "euclidean" else None
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class CrossEncoderSimilarity:
    """How alike answer and reference are to a model that reads both at once (Haystack's SAS).

    ``score(answer, reference)`` is any function to a number, say a cross-encoder's ``predict``;
    ``model`` names it in the version of the scores.
    ``activation="sigmoid"`` brings logits to (0, 1); ``"identity"`` takes the number as it is.
    Needs answer and reference. No judge request. The function runs on the evaluator's own thread.

    Edges: no reference: undefined ``missing_reference``; no answer: undefined ``empty_answer``.

    Source: haystack-ai 3.4.1 ``SASEvaluator``. Differs: the activation is chosen once, not for
    each batch by whether one of its scores is above 1.
    """

    score: Callable[[str, str], float] = field(compare=False)
    model: str = ""
    activation: Literal["identity", "sigmoid"] = "identity"
    threshold: float | None = 0.5
    name: str = "cross_encoder_similarity"

    needs = _NEEDS
    asks = ()
    requests = "0"
    range = "the model's"

    def __post_init__(self) -> None:
        """Refuse an unknown activation."""
        check_choices(self)

    async def measure(self, sample: Sample, ask: AskLike, embed: EmbedFn) -> Score:  # noqa: ARG002
        """Return the score of ``sample``."""
        reference = sample.reference or ""
        if not reference.strip():
            return undefined(self.name, "missing_reference")
        if not sample.answer.strip():
            return undefined(self.name, "empty_answer")
        value = float(self.score(sample.answer, reference))
        if self.activation == "sigmoid":
            value = 0.5 * (1 + math.tanh(value / 2))
        return measured(self.name, value, threshold=self.threshold)


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerExactMatch:
    """1 if answer and reference are the same string, else 0 (Haystack).

    Nothing is trimmed, and case counts. Needs answer and reference. No requests. No reference:
    undefined ``missing_reference``.

    Source: haystack-ai 3.4.1 ``AnswerExactMatchEvaluator``.
    """

    threshold: float | None = 0.5
    name: str = "answer_exact_match"

    needs = _NEEDS
    asks = ()
    requests = "0"
    range = "{0, 1}"

    async def measure(self, sample: Sample, ask: AskLike, embed: EmbedFn) -> Score:  # noqa: ARG002
        """Return the score of ``sample``."""
        if not sample.reference:
            return undefined(self.name, "missing_reference")
        return measured(
            self.name, float(sample.answer == sample.reference), threshold=self.threshold
        )
