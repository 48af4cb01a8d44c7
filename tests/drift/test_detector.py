"""`BettingDetector`: detected changes, false alarms, invalid input, and saved states."""

import json
import math
import random
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rag_eval_otel.drift import BettingDetector
from rag_eval_otel.errors import ConfigError

GOOD, BAD = (0.08, 0.24, 0.68), (0.24, 0.40, 0.36)


def scores(count: int, weights: Sequence[float] = GOOD, *, seed: int = 0) -> list[float]:
    return random.Random(seed).choices([0.0, 0.5, 1.0], weights, k=count)


def first_alarm(found: BettingDetector, stream: Sequence[float | None]) -> int | None:
    return next((i for i, score in enumerate(stream) if found.update(score)), None)


@pytest.mark.parametrize(("direction", "weights"), [("down", GOOD), ("up", BAD)])
def test_changes_in_the_other_direction_raise_no_alarm(direction: Any, weights: Any) -> None:
    """A detector of falls ignores a rise, and a detector of rises a fall."""
    reference = scores(2000, BAD if direction == "down" else GOOD)
    found = BettingDetector(reference=reference, direction=direction)
    assert first_alarm(found, scores(2000, weights, seed=3)) is None


def test_the_rate_of_false_alarms_is_bounded() -> None:
    """Of 40 runs of 500 scores, 20 alarms are expected; 28 are 2.5 standard deviations more."""
    runs = [BettingDetector(target=0.8, every=1000) for _ in range(40)]
    alarms = sum(first_alarm(d, scores(500, seed=s)) is not None for s, d in enumerate(runs))
    assert alarms <= 28


def test_without_target_and_reference_the_first_scores_are_the_baseline() -> None:
    """The detector finds a later fall below their mean."""
    found = BettingDetector(learn=600)
    assert first_alarm(found, scores(600)) is None
    assert found.baseline is not None
    assert found.baseline.level.mean == pytest.approx(0.8, abs=0.05)
    assert first_alarm(found, scores(600, BAD, seed=5)) is not None


def test_a_target_replaces_the_mean_of_the_reference() -> None:
    """Spread and dependence still come from the reference."""
    found = BettingDetector(target=0.9, reference=scores(2000))
    assert found.baseline is not None
    assert found.baseline.level.mean == 0.9
    assert first_alarm(found, scores(1000, seed=4)) is not None  # at .8, and not at .9


def test_after_an_alarm_the_evidence_keeps_its_value_for_the_cooldown() -> None:
    """A drift that continues raises another alarm only after the cool-down."""
    found = BettingDetector(reference=scores(2000), cooldown=300)
    at = first_alarm(found, scores(2000, BAD, seed=1))
    assert at is not None
    peak = found.log10_evidence
    assert peak >= 5
    assert first_alarm(found, scores(299, BAD, seed=2)) is None
    assert found.log10_evidence == peak
    assert first_alarm(found, scores(1000, BAD, seed=3)) is not None  # it has not gone away


def test_a_rise_is_detected_from_scores_about_its_onset() -> None:
    """Mean and onset do not depend on the other views."""
    dice = random.Random(1)
    stream = [dice.uniform(0.1, 0.3) for _ in range(1500)] + [dice.uniform(0.5, 0.7)] * 50
    for found in (BettingDetector(learn=500, direction="up"), BettingDetector(learn=500)):
        assert any(map(found.update, stream))
        assert found.alarm is not None
        assert (found.alarm.direction, found.alarm.onset) == ("up", pytest.approx(1500, abs=5))
        assert found.alarm.after > 0.4
        assert found.alarm.change == found.alarm.after - found.alarm.before


@pytest.mark.parametrize(
    ("options", "calm", "change"),
    [
        *(({"every": 1000, "learn": 500}, [level] * 5000, None) for level in (0.0, 0.5, 0.8, 1.0)),
        ({"every": 1000, "target": 0.8}, [0.8] * 5000, None),
        ({"every": 1e30}, scores(4000), [0.0] * 2000),
        (
            {"reference": scores(2000, (0.1, 0, 0.9))},
            scores(2000, (0.1, 0, 0.9), seed=1),
            scores(1000, (0.25, 0, 0.75), seed=2),
        ),
        ({"reference": [1.0] * 2000}, [1.0] * 50 + [0.0] + [1.0] * 500 + [0.0], [0.0] * 20),
    ],
    ids=["0", "half", "eight", "1", "target", "large every", "pass or fail", "all perfect"],
)
def test_streams_without_an_alarm_and_with_one(
    options: dict[str, Any], calm: list[float], change: list[float] | None
) -> None:
    """Constant streams, pass or fail, and rare failures raise no alarm; a change does."""
    found = BettingDetector(**options)
    assert first_alarm(found, calm) is None
    assert change is None or first_alarm(found, change) is not None


@given(
    st.lists(
        st.none() | st.floats() | st.booleans() | st.integers(-2, 3) | st.text(max_size=2),
        max_size=50,
    )
)
def test_invalid_values_are_counted_and_ignored(values: list[Any]) -> None:
    """None, NaN, infinities, booleans, texts and values outside [0, 1] are not evidence."""
    found = BettingDetector(target=0.8)
    scored = [v for v in values if type(v) in {int, float} and -1e-6 <= v <= 1 + 1e-6]
    for value in values:
        found.update(value)
    assert found.count == len(scored)
    assert math.isfinite(found.log10_evidence)


def test_the_first_invalid_value_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """None stands for a failed evaluation, and is not logged."""
    found = BettingDetector(target=0.8)
    found.update(None)
    assert not caplog.records
    for value in (7.0, float("nan"), -1.0):
        found.update(value)
    (record,) = caplog.records
    assert "ignored 7.0, which is not a score in [0, 1]" in record.getMessage()


@pytest.mark.parametrize(
    ("options", "told"),
    [
        *(
            ({name: bad}, told)
            for name, told, values in (
                ("target", "target must be a mean between 0 and 1", (1.5, 0.0, math.nan)),
                ("every", "every must be a number of scores", (1, math.inf, "1e5")),
                ("tail", "tail must be a score", (math.nan, 1.0)),
                ("learn", "learn must be a whole number, 2 or more", (1, math.inf, "2000")),
            )
            for bad in values
        ),
        ({"cooldown": -1}, "cooldown must be a whole number, 0 or more"),
        ({"reference": [0.5]}, "a reference needs two scores"),
        ({"reference": [None, float("nan"), 0.5, 7]}, r"not 1"),
    ],
)
def test_invalid_options_are_refused(options: dict[str, Any], told: str) -> None:
    """The error names the option, its value, and the allowed values."""
    with pytest.raises(ConfigError, match=told):
        BettingDetector(**options)


@pytest.mark.slow
@settings(max_examples=20)
@given(st.integers(0, 900))
def test_a_restored_detector_raises_the_same_alarms(cut: int) -> None:
    """The state can be saved as JSON at any time, also while the baseline is learned."""
    stream = scores(400) + scores(500, BAD, seed=1)
    whole, begun, resumed = (BettingDetector(learn=300, every=1000) for _ in range(3))
    for score in stream[:cut]:
        begun.update(score)
    resumed.restore(json.loads(json.dumps(begun.to_state())))
    for score in stream[:cut]:
        whole.update(score)
    decided = [list(map(each.update, stream[cut:])) for each in (whole, resumed)]
    assert decided[0] == decided[1]
    assert whole.to_state() == resumed.to_state()


def test_every_target_can_be_restored() -> None:
    """Rounding does not change a saved target; a state with another target is refused."""
    for target in [k / 100 for k in range(1, 100)]:
        found = BettingDetector(target=target)
        found.update(0.3)
        state = json.loads(json.dumps(found.to_state()))
        again = BettingDetector(target=target)
        again.restore(state)
        assert again.to_state() == state
        for other in (BettingDetector(target=0.555), BettingDetector()):
            with pytest.raises(ValueError, match="it belongs to"):
                other.restore(state)


def broken_states() -> list[dict[str, Any]]:
    state = BettingDetector(reference=scores(500)).to_state()
    evidence = state["evidence"]
    return [
        {},
        {**state, "format": 99},
        {**state, "every": 7.0},
        {**state, "count": None},
        {**state, "count": math.inf},
        {**state, "baseline": {"centre": 0.5}},
        {**state, "evidence": None},
        {**state, "evidence": {**evidence, "recent": "no hex"}},
        {**state, "evidence": {**evidence, "bets": [10**400] * len(evidence["bets"])}},
    ]


@pytest.mark.parametrize("state", broken_states())
def test_an_invalid_state_changes_nothing(state: dict[str, Any]) -> None:
    """It is refused as a whole."""
    found = BettingDetector()
    before = found.to_state()
    with pytest.raises((KeyError, TypeError, ValueError, OverflowError)):
        found.restore(state)
    assert found.to_state() == before
