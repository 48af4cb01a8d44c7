"""Means from samples: weights, prediction-powered inference, small samples, and their intervals."""

from __future__ import annotations

import math

import numpy as np
import pytest

from rag_eval_otel.calibration.means import (
    MIN_POWERED,
    Sampled,
    powered_mean,
    student,
    unit_interval,
    weighted_mean,
)

NAN = math.nan


def sampled(
    scores: list[float], probabilities: list[float], offline: list[float] | None = None
) -> Sampled:
    """Return turns from lists."""
    return Sampled(
        scores=np.array(scores),
        probabilities=np.array(probabilities),
        offline=None if offline is None else np.array(offline),
    )


def month(seed: int, *, turns: int = 4000, bias: float = 0.0, gain: float = 1.0) -> Sampled:
    """Return a sample in which low offline scores are chosen four times as often."""
    rng = np.random.default_rng(seed)
    scores = rng.beta(4, 1.5, turns)
    offline = np.clip(gain * (scores + rng.normal(0, 0.12, turns)) + bias, 0, 1)
    probabilities = np.where(offline < np.median(offline), 0.2, 0.05)
    chosen = rng.random(turns) < probabilities
    return Sampled(
        scores=np.where(chosen, scores, NAN), probabilities=probabilities, offline=offline
    )


def test_a_score_counts_for_the_turns_it_stands_for() -> None:
    """A turn with the probability 1/4 counts four times."""
    found = weighted_mean(sampled([1.0, 0.0, NAN], [0.25, 1.0, 0.25]))
    assert found.figure.value == pytest.approx(4 / 5)
    assert found.effective == pytest.approx(25 / 17)


def test_one_score_gives_no_interval() -> None:
    """The reason is given, not a number."""
    assert weighted_mean(sampled([0.5], [1.0])).figure.reason == "one scored turn gives no interval"
    assert weighted_mean(sampled([NAN], [1.0])).figure.reason == "no scored turns"


def test_equal_scores_are_no_certainty() -> None:
    """Ten right answers leave room for wrong ones."""
    interval = weighted_mean(sampled([1.0] * 10, [0.1] * 10)).figure.interval
    assert interval is not None
    assert interval[1] == 1.0
    assert 0.6 < interval[0] < 0.75


def test_scores_on_another_scale_have_a_plain_interval() -> None:
    """Without the bounds 0 and 1 it is Student's; equal scores then give none."""
    found = weighted_mean(sampled([1.0, 2.0, 3.0, 4.0], [1.0] * 4)).figure
    assert found.value == 2.5
    assert found.interval == pytest.approx((0.446, 4.554), abs=0.01)
    assert "all scores are equal" in weighted_mean(sampled([3.0] * 4, [1.0] * 4)).figure.reason


@pytest.mark.parametrize(("bias", "gain"), [(0.0, 1.0), (0.2, 1.0), (0.5, 0.1), (1.0, -1.0)])
def test_offline_scores_make_the_interval_narrower_whatever_their_bias(
    bias: float, gain: float
) -> None:
    """A shift, a compression or the wrong sign changes nothing, since only the slope counts."""
    widths = np.zeros(2)
    for seed in range(20):
        month_ = month(seed, bias=bias, gain=gain)
        for i, found in enumerate((weighted_mean(month_), powered_mean(month_))):
            assert found.figure.value == pytest.approx(4 / 5.5, abs=0.08)
            low, high = found.figure.interval or (NAN, NAN)
            widths[i] += high - low
    assert widths[1] < 0.9 * widths[0]


def test_useless_offline_scores_do_no_harm() -> None:
    """Where offline scores predict nothing, the slope is near 0."""
    rng = np.random.default_rng(3)
    widths = np.zeros(2)
    for seed in range(20):
        found = month(seed)
        noise = Sampled(
            scores=found.scores, probabilities=found.probabilities, offline=rng.random(4000)
        )
        for i, mean in enumerate((weighted_mean(noise), powered_mean(noise))):
            low, high = mean.figure.interval or (NAN, NAN)
            widths[i] += high - low
    assert widths[1] <= 1.02 * widths[0]


def test_where_all_turns_are_scored_offline_scores_add_nothing() -> None:
    """With the probability 1 both estimates are the plain mean."""
    scores = [0.1, 0.9] * 20
    every = sampled(scores, [1.0] * 40, scores)
    assert powered_mean(every).figure == weighted_mean(every).figure
    assert powered_mean(every).slope == 0


def test_offline_scores_need_enough_scored_turns() -> None:
    """With few scored turns, or no offline score, there is a reason."""
    few = [0.5, 0.7] * (MIN_POWERED // 2 - 1)
    chances = [0.5] * len(few)
    assert "need 20 scored turns" in powered_mean(sampled(few, chances, few)).figure.reason
    many = few * 3
    none = sampled(many, [0.5] * len(many), [NAN] * len(many))
    assert powered_mean(none).figure.reason == "no offline scores"
    assert powered_mean(sampled(many, [0.5] * len(many))).figure.reason == "no offline scores"


def test_turns_of_one_trace_count_together() -> None:
    """A score that is there ten times in each trace is no more certain than once."""
    scores = np.random.default_rng(1).random(30)
    once = Sampled(scores=scores, probabilities=np.full(30, 0.5))
    tenfold = Sampled(
        scores=np.repeat(scores, 10),
        probabilities=np.full(300, 0.5),
        clusters=np.repeat(np.arange(30), 10),
    )
    (low, high), (low10, high10) = (
        weighted_mean(one).figure.interval or (NAN, NAN) for one in (once, tenfold)
    )
    assert high10 - low10 == pytest.approx(high - low, rel=0.06)


@pytest.mark.parametrize(
    ("freedom", "expected"), [(1, 12.706), (2, 4.303), (3, 3.182), (5, 2.571), (30, 2.042)]
)
def test_quantiles_of_student(freedom: float, expected: float) -> None:
    """They agree with the tables."""
    assert student(0.975, freedom) == pytest.approx(expected, rel=0.005)


def test_the_interval_is_wilsons_for_yes_and_no() -> None:
    """For 8 of 10, Wilson's interval is .490 to .943."""
    assert unit_interval(0.8, 0.016, quantile=1.96, effective=10) == pytest.approx(
        (0.490, 0.943), abs=0.001
    )
