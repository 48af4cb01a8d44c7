"""Drift of questions and lengths."""

from __future__ import annotations

import numpy as np
import pytest

from rag_eval_otel.drift.inputs import EmbeddingDrift
from rag_eval_otel.drift.monitor import length_score
from rag_eval_otel.errors import ConfigError


def questions(count: int, shares: tuple[float, ...], *, seed: int = 0) -> np.ndarray:
    """Return embeddings of questions on some topics, in these shares."""
    dice = np.random.default_rng(seed)
    topics = np.eye(16)[dice.choice(len(shares), size=count, p=shares)]
    return topics + dice.normal(scale=0.15, size=(count, 16))


def first_alarm(found: EmbeddingDrift, rows: np.ndarray) -> int | None:
    """Return the index of the first alarm."""
    return next((at for at, row in enumerate(rows) if found.update(row)), None)


def test_the_same_questions_are_no_drift() -> None:
    """Of several seeds none raises an alarm."""
    for seed in range(4):
        found = EmbeddingDrift(window=800)
        assert first_alarm(found, questions(2500, (0.5, 0.3, 0.2), seed=seed)) is None


def test_a_new_topic_is_found() -> None:
    """Questions that are like none before."""
    found = EmbeddingDrift(window=400)
    assert first_alarm(found, questions(500, (0.5, 0.5))) is None
    assert first_alarm(found, questions(300, (0.3, 0.3, 0.4), seed=1)) is not None
    assert found.alarm is not None


def test_another_mix_of_topics_is_found() -> None:
    """Each question is like some before, but there are more of one kind."""
    found = EmbeddingDrift(window=600)
    assert first_alarm(found, questions(800, (0.6, 0.3, 0.1))) is None
    assert first_alarm(found, questions(1000, (0.2, 0.3, 0.5), seed=1)) is not None


def test_embeddings_without_direction_are_passed_over() -> None:
    """Of an empty question, or a broken embedder."""
    found = EmbeddingDrift(window=20)
    assert first_alarm(found, np.zeros((50, 3))) is None
    assert first_alarm(found, np.full((50, 3), np.nan)) is None
    assert first_alarm(found, np.ones((100, 3))) is None


def test_a_window_is_large_enough() -> None:
    """A reference of a few questions says nothing."""
    with pytest.raises(ConfigError, match="window must be a whole number, 20 or more"):
        EmbeddingDrift(window=5)


def test_lengths_are_on_one_scale() -> None:
    """Rising with the length, from 0 to 1."""
    found = [length_score(n) for n in (0, 10, 100, 1000, 20_000, 10**9)]
    assert found == sorted(found)
    assert (found[0], found[-1]) == (0.0, 1.0)
