"""What is watched of a turn."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, TypeAlias

from rag_eval_otel.types import Evaluation

if TYPE_CHECKING:
    from rag_eval_otel.types import Vectors

Value: TypeAlias = "float | Vectors"
"""A score in [0, 1], or the embedding of a question."""
QUESTIONS = "question_embedding"
"""The name of the stream of embeddings: an `EmbeddingDrift` watches it."""


def watched_values(evaluation: Evaluation) -> Iterator[tuple[str, str, Value]]:
    """Yield name, version and value of all that is watched in a turn.

    A score that failed is no score, but the share of those that did not fail is watched, too, in
    all versions together: a new judge that fails more often is to be found.
    """
    for score in evaluation.scores:
        value = score.value if score.normalized is None else score.normalized
        if value is not None:
            yield score.name, score.version, value
        yield f"{score.name}.scored", "", float(value is not None)
    if evaluation.answer_length is not None:
        yield "answer_length", "", length_score(evaluation.answer_length)
    embedding = evaluation.question_embedding
    if embedding is not None:
        yield QUESTIONS, f"{evaluation.embedder}/{len(embedding)}", embedding


_LONG = math.log1p(20_000)  # characters: longer answers are all alike


def length_score(characters: int) -> float:
    """Return the length of a text on [0, 1], by its logarithm; 20,000 characters and more are 1."""
    return min(1.0, math.log1p(characters) / _LONG)
