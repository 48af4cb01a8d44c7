"""The evidence of `BettingDetector` and the estimated onset of a change."""

from __future__ import annotations

import random
from array import array

import pytest

from rag_eval_otel.drift.evidence import likeliest_fall, multiplied


def test_the_onset_needs_twelve_scores() -> None:
    """Three equal zeros have no variance, so the gain of a fall is computed over 12 scores."""
    gain, number = likeliest_fall([0.8] * 100 + [0.0] * 3, 0.8)
    assert number == 12
    assert gain == pytest.approx((3 * 0.8) ** 2 / 12)
    assert likeliest_fall([0.8] * 5 + [0.0] * 3, 0.8) == (0.0, 0)


def test_the_unrolled_loop_multiplies_each_bet_by_its_factor() -> None:
    """The unrolled loop gives the same numbers as the formula, each bet with its own view."""
    dice = random.Random(0)
    m, a, b = (array("d", [dice.random() for _ in range(18)]) for _ in range(3))
    views = (0.1, 0.2, 0.3, 0.4)
    expected = [
        (m[k] + 1) * (a[k] - b[k] * views[view])
        for view, first, last in ((0, 0, 6), (1, 6, 10), (2, 10, 14), (3, 14, 18))
        for k in range(first, last)
    ]
    assert list(multiplied(m, a, b, views)) == expected
