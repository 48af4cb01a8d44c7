"""`EmbeddingDrift`: drift of questions."""

from __future__ import annotations

import base64
import json
from typing import Any

import numpy as np
import pytest

from rag_eval_otel.drift.inputs import EmbeddingDrift
from rag_eval_otel.drift.monitor import length_score
from rag_eval_otel.errors import ConfigError


def questions(count: int, shares: tuple[float, ...], *, seed: int = 0) -> np.ndarray:
    """Return embeddings of questions on some topics with the given ``shares``."""
    dice = np.random.default_rng(seed)
    topics = np.eye(16)[dice.choice(len(shares), size=count, p=shares)]
    return topics + dice.normal(scale=0.15, size=(count, 16))


def first_alarm(found: EmbeddingDrift, rows: np.ndarray) -> int | None:
    """Return the index of the first alarm."""
    return next((at for at, row in enumerate(rows) if found.update(row)), None)


@pytest.mark.slow
def test_the_same_topics_raise_no_alarm() -> None:
    """Four seeds are tried."""
    for seed in range(4):
        found = EmbeddingDrift(window=800)
        assert first_alarm(found, questions(2500, (0.5, 0.3, 0.2), seed=seed)) is None


def test_a_new_topic_is_detected() -> None:
    """Its questions are unlike any before."""
    found = EmbeddingDrift(window=400)
    assert first_alarm(found, questions(500, (0.5, 0.5))) is None
    assert first_alarm(found, questions(300, (0.3, 0.3, 0.4), seed=1)) is not None
    assert found.alarm is not None


def test_another_mix_of_topics_is_detected() -> None:
    """Each question is similar to earlier ones, but their shares have changed."""
    found = EmbeddingDrift(window=600)
    assert first_alarm(found, questions(800, (0.6, 0.3, 0.1))) is None
    assert first_alarm(found, questions(1000, (0.2, 0.3, 0.5), seed=1)) is not None


def test_invalid_embeddings_are_ignored() -> None:
    """Zeros come from empty questions, NaN from a broken embedder."""
    found = EmbeddingDrift(window=100)
    assert first_alarm(found, np.zeros((50, 3))) is None
    assert first_alarm(found, np.full((50, 3), np.nan)) is None
    assert found.ignored == 100
    assert first_alarm(found, np.ones((300, 3))) is None
    assert found.count == 250


def test_embeddings_of_another_length_are_ignored() -> None:
    """Before and after the map is computed."""
    found = EmbeddingDrift(window=100)
    rows = questions(100, (0.5, 0.5))
    others: list[Any] = [rows[:1], 0.5, "abc", None, rows[0][:5], [0.5]]
    assert not any(found.update(one) for row in rows for one in (row, *others))
    assert found.count == 100 - 50
    assert found.ignored == 600


def test_the_nearness_of_a_new_question_is_lower() -> None:
    """It is None before the map is computed."""
    found = EmbeddingDrift(window=200)
    rows = questions(200, (0.5, 0.5))
    assert found.nearness(rows[0]) is None
    first_alarm(found, rows)
    known, new = found.nearness(np.eye(16)[0]), found.nearness(np.eye(16)[9])
    assert known is not None
    assert new is not None
    assert known > 0.8
    assert new < 0.5
    assert found.nearness(np.zeros(16)) is None


def test_a_restored_detector_raises_the_same_alarm() -> None:
    """Without a map it learns anew, because single embeddings are not saved."""
    old, new = questions(600, (0.5, 0.5)), questions(300, (0.3, 0.3, 0.4), seed=1)
    whole = EmbeddingDrift(window=400)
    at = first_alarm(whole, np.concatenate([old, new]))
    assert at is not None
    for cut in (350, 590, 602):
        before, after = EmbeddingDrift(window=400), EmbeddingDrift(window=400)
        first_alarm(before, old[:cut])
        first_alarm(before, new[: max(0, cut - 600)])
        after.restore(json.loads(json.dumps(before.to_state())))
        assert after.log10_evidence == before.log10_evidence
        assert after.since == before.since
        rest = np.concatenate([old[cut:], new[max(0, cut - 600) :]])
        found = first_alarm(after, rest)
        assert found is not None
        assert found + cut == at
    early = EmbeddingDrift(window=400)
    first_alarm(early, old[:100])
    state = early.to_state()
    assert state["map"] is None
    again = EmbeddingDrift(window=400)
    again.restore(state)
    assert again.count == 0


@pytest.mark.parametrize(
    "change",
    [
        lambda state: state.update(format=0),
        lambda state: state.update(kind="betting"),
        lambda state: state.update(detectors=state["detectors"][1:]),
        lambda state: state["detectors"][4].update(count=-1),
        lambda state: state["map"].pop(),
        lambda state: state["map"][0].update(shape=[4, 4]),
        lambda state: state["map"][0].update(shape=[17]),
        lambda state: state["map"][1].update(float32="AAAA"),
        lambda state: state["map"][2].update(float32="???"),
        lambda state: state["map"].__setitem__(3, NAN),
    ],
)
def test_an_invalid_state_changes_nothing(change: Any) -> None:
    """It is refused as a whole."""
    found = EmbeddingDrift(window=100)
    first_alarm(found, questions(120, (0.5, 0.5)))
    before = json.dumps(found.to_state())
    state = json.loads(before)
    change(state)
    with pytest.raises((KeyError, OverflowError, TypeError, ValueError)):
        found.restore(state)
    assert json.dumps(found.to_state()) == before


NAN = {"shape": [1, 16], "float32": "AADAfwAAwH8AAMB/" * 5 + "AADAfw=="}


def test_an_invalid_window_is_refused() -> None:
    """A small window is too imprecise, and a large one takes too long."""
    for window in (50, 100_000):
        with pytest.raises(ConfigError, match="window must be a whole number, 100 to 2000"):
            EmbeddingDrift(window=window)
    with pytest.raises(ConfigError, match="every must be a number"):
        EmbeddingDrift(every=2)


@pytest.mark.parametrize("kinds", [1, 6])
@pytest.mark.parametrize("noise", [1e-8, 1e-7, 1e-6])
def test_rounding_raises_no_alarm(kinds: int, noise: float) -> None:
    """Embeddings from another machine differ in their last digits."""
    dice = np.random.default_rng(0)
    asked = dice.normal(size=(kinds, 64))
    found = EmbeddingDrift(window=400)
    assert first_alarm(found, asked[dice.integers(kinds, size=600)]) is None
    later = asked[dice.integers(kinds, size=1500)]
    assert first_alarm(found, later * (1 + dice.normal(scale=noise, size=later.shape))) is None


def test_one_change_raises_one_alarm() -> None:
    """The detectors of all five features pause together."""
    found = EmbeddingDrift(window=400, cooldown=1500)
    first_alarm(found, questions(500, (0.5, 0.5)))
    assert sum(found.update(row) for row in questions(1500, (0.2, 0.2, 0.6), seed=1)) == 1
    assert found.alarm is not None
    assert found.alarm.every == 100_000
    assert found.alarm.log10_evidence == pytest.approx(found.log10_evidence)
    assert found.alarm.log10_evidence >= 5


def test_another_mix_of_known_topics_has_the_direction_spread() -> None:
    """The sign of a main direction is arbitrary."""
    found = EmbeddingDrift(window=600)
    first_alarm(found, questions(700, (0.8, 0.2)))
    assert first_alarm(found, questions(2000, (0.3, 0.7), seed=1)) is not None
    assert found.alarm is not None
    assert found.alarm.direction == "spread"


def test_no_single_question_is_in_the_state() -> None:
    """Embeddings reveal much of their texts, so that rare questions are left out, too."""
    usual, strange = questions(498, (0.5, 0.3, 0.2)), np.eye(16)[[9, 12]] * 3
    for seed in range(5):
        rows = np.random.default_rng(seed).permutation(np.concatenate([usual, strange]))
        found = EmbeddingDrift(window=1000)
        first_alarm(found, rows)
        centres = unpacked(found.to_state()["map"][3])
        unit = rows / np.linalg.norm(rows, axis=1, keepdims=True)
        assert np.max(centres @ unit.T) < 1 - 1e-3


def unpacked(part: Any) -> np.ndarray:
    """Return an array of the state."""
    flat = np.frombuffer(base64.b64decode(part["float32"]), dtype="<f4")
    return flat.reshape(part["shape"])


def test_length_scores_rise_from_0_to_1() -> None:
    """Longer texts than 20,000 characters have a score of 1."""
    found = [length_score(n) for n in (0, 10, 100, 1000, 20_000, 10**9)]
    assert found == sorted(found)
    assert (found[0], found[-1]) == (0.0, 1.0)
