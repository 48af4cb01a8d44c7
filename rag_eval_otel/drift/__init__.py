"""Detection of drift in scores: when they changed, by how much, and whether the judge changed.

`BettingDetector`, the default, watches one stream of scores; `EmbeddingDrift` watches questions;
`RiverDetector` adapts detectors of river. `DriftMonitor` keeps a detector for each service, metric
and version, with the options in `DriftOptions`.
"""

from __future__ import annotations

from collections.abc import Sequence

from rag_eval_otel.drift.betting import BettingDetector
from rag_eval_otel.drift.detectors import Detector, RiverDetector
from rag_eval_otel.drift.inputs import EmbeddingDrift
from rag_eval_otel.drift.monitor import DriftMonitor
from rag_eval_otel.drift.options import DriftOptions
from rag_eval_otel.drift.records import Alarm, Drift, NewBaseline, Stream

__all__ = [
    "Alarm",
    "BettingDetector",
    "Detector",
    "Drift",
    "DriftMonitor",
    "DriftOptions",
    "EmbeddingDrift",
    "NewBaseline",
    "RiverDetector",
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
