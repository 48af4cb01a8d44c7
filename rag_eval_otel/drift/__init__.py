"""Drift: have the scores changed, since when, by how much, and is it the system or the judge.

`detector` makes the default detector; `BettingDetector`, `CusumDetector` and `PageHinkleyDetector`
can be had by name, and `EmbeddingDrift` watches questions. `DriftMonitor` keeps one for each
service, metric and version.
"""

from __future__ import annotations

from collections.abc import Sequence

from rag_eval_otel.drift.betting import BettingDetector
from rag_eval_otel.drift.control import CusumDetector, PageHinkleyDetector
from rag_eval_otel.drift.inputs import EmbeddingDrift
from rag_eval_otel.drift.monitor import DriftMonitor
from rag_eval_otel.drift.records import Alarm, Drift, NewBaseline, Stream
from rag_eval_otel.drift.settings import DriftOptions
from rag_eval_otel.drift.watched import Detector

__all__ = [
    "Alarm",
    "BettingDetector",
    "CusumDetector",
    "Detector",
    "Drift",
    "DriftMonitor",
    "DriftOptions",
    "EmbeddingDrift",
    "NewBaseline",
    "PageHinkleyDetector",
    "Stream",
    "detector",
]


def detector(
    target: float | None = None,
    reference: Sequence[float | None] | None = None,
    A: float = 100_000,  # noqa: N803  # the letter of the papers
) -> BettingDetector:
    """Return a `BettingDetector` with at most one false alarm in ``A`` scores."""
    return BettingDetector(target=target, reference=reference, every=A)
