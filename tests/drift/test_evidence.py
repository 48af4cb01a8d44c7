"""The evidence of `BettingDetector` and the estimated onset of a change."""

from __future__ import annotations

import pytest

from rag_eval_otel.drift.evidence import likeliest_fall


def test_the_onset_needs_twelve_scores() -> None:
    """Three equal zeros have no variance, so the gain of a fall is computed over 12 scores."""
    gain, number = likeliest_fall([0.8] * 100 + [0.0] * 3, 0.8)
    assert number == 12
    assert gain == pytest.approx((3 * 0.8) ** 2 / 12)
    assert likeliest_fall([0.8] * 5 + [0.0] * 3, 0.8) == (0.0, 0)
