"""CUSUM and Page-Hinkley: by name, for those who know what limit they want."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from rag_eval_otel.drift import CusumDetector, PageHinkleyDetector
from rag_eval_otel.errors import ConfigError


def binary(count: int, mean: float, *, seed: int = 0) -> list[float]:
    """Return so many scores of 0 or 1."""
    dice = random.Random(seed)
    return [float(dice.random() < mean) for _ in range(count)]


KINDS = {
    "cusum": lambda **options: CusumDetector(limit=12, **options),
    "page-hinkley": lambda **options: PageHinkleyDetector(limit=25, tolerance=0.02, **options),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("mean", "direction"), [(0.3, "down"), (0.9, "up")])
@pytest.mark.parametrize("options", [{"reference": binary(2000, 0.6)}, {"target": 0.6}])
def test_a_change_is_found_in_both_directions(
    kind: str, mean: float, direction: str, options: dict[str, Any]
) -> None:
    """From a target or a reference, with onset and size."""
    found = KINDS[kind](**options)
    stream = binary(200, 0.6, seed=1) + binary(2000, mean, seed=2)
    assert any(found.update(score) for score in stream)
    assert found.alarm is not None
    assert found.alarm.direction == direction
    assert 200 < found.alarm.index < 400
    assert found.alarm.onset < 300
    assert (found.alarm.change < 0) == (direction == "down")


def test_cusum_learns_from_the_stream() -> None:
    """Without target or reference the first scores are the baseline."""
    found = CusumDetector(learn=500, limit=12)
    assert not any(found.update(score) for score in binary(500, 0.8))
    assert any(found.update(score) for score in binary(300, 0.4, seed=1))


def test_a_target_beside_a_reference_is_the_mean() -> None:
    """The reference then says how scores spread."""
    found = CusumDetector(target=0.9, reference=binary(500, 0.6), limit=12)
    assert any(found.update(score) for score in binary(500, 0.6, seed=1))
    assert found.alarm is not None
    assert found.alarm.before == 0.9


def test_after_an_alarm_the_sums_start_over() -> None:
    """The next score alone raises no other alarm."""
    found = CusumDetector(target=0.8)
    assert any(found.update(0.0) for _ in range(20))
    assert not found.update(0.0)
    assert not found.drift_detected


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_no_score_is_passed_over(kind: str) -> None:
    """NaN, None and what is out of range change nothing."""
    found = KINDS[kind](target=0.8)
    assert not any(found.update(value) for value in (None, float("nan"), 5.0))
    assert (found.count, found.ignored) == (0, 2)


def test_a_constant_stream_is_no_alarm() -> None:
    """Neither test takes a stream that never moves for drift."""
    for found in (CusumDetector(learn=100), PageHinkleyDetector()):
        assert not any(found.update(0.7) for _ in range(3000))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("options", [{}, {"reference": binary(500, 0.6)}, {"target": 0.6}])
def test_a_restart_goes_on_where_it_was(kind: str, options: dict[str, Any]) -> None:
    """One that was saved and restored at any time finds the same as one that was not."""
    stream = binary(2500, 0.6) + binary(400, 0.2, seed=1)
    whole = KINDS[kind](**options)
    alarms = [at for at, score in enumerate(stream) if whole.update(score)]
    assert alarms
    for cut in (100, 1999, 2540):
        parts = KINDS[kind](**options)
        before = [at for at, score in enumerate(stream[:cut]) if parts.update(score)]
        state = json.loads(json.dumps(parts.to_state()))
        parts = KINDS[kind](**options)
        parts.restore(state)
        assert parts.count == cut
        after = [at for at, score in enumerate(stream[cut:], cut) if parts.update(score)]
        assert before + after == alarms


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "change",
    [
        {"format": 0},
        {"kind": "another"},
        {"count": -1},
        {"target": 0.7},
        {"sums": [[0.0, 0.0, -1.0, 0.0, 0.0]] * 2},
        {"learned": [0.8, 0.0, 0.1]},
        {"sums": []},
        {"sums": [[float("nan")] * 5] * 2},
        {"sums": [[1.0]] * 2},
        {"learned": []},
        {"learned": [float("nan")] * 3},
        {"learned": [float("nan")] * 2},
        {"learned": [1, 2]},
        {"learned": ["", ""]},
    ],
)
def test_a_state_of_anything_else_is_refused(kind: str, change: dict[str, Any]) -> None:
    """And changes nothing."""
    found = KINDS[kind](target=0.8)
    found.update(0.2)
    before = found.to_state()
    with pytest.raises((IndexError, KeyError, OverflowError, TypeError, ValueError)):
        found.restore(before | change)
    assert found.to_state() == before


def test_a_state_of_scores_that_are_none_is_refused() -> None:
    """From which CUSUM would have learned."""
    found = CusumDetector()
    with pytest.raises(ValueError, match="is no score"):
        found.restore(found.to_state() | {"learning": [7]})


def test_strata_are_of_no_effect() -> None:
    """There is one mean for all, so that what a monitor gives to every detector can be given."""
    found = CusumDetector(target=0.8)
    assert any(found.update(0.0, stratum="billing") for _ in range(20))


def test_options_that_cannot_be_used_are_refused() -> None:
    """With what is allowed."""
    with pytest.raises(ConfigError, match="target must be"):
        CusumDetector(target=2)
    with pytest.raises(ConfigError, match="least must be"):
        PageHinkleyDetector(least=0)
