"""Detect drift in evaluation scores, and estimate when the scores changed and by how much.

`BettingDetector`, the default detector, watches the scores of one stream. A *stream* is the
sequence of scores of one service, metric and version of the metric. `EmbeddingDrift` watches the
embeddings of questions. `RiverDetector` adapts a drift detector of the river library.
`DriftMonitor` keeps one detector for each stream; `DriftOptions` holds the options.
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
    """Return a `BettingDetector` that raises on average at most one false alarm in ``A`` scores.

    ``target`` is the mean that the scores should have. Without a target, the baseline is learned
    from ``reference``, or from the first 2,000 scores if there is no reference either.
    """
    return BettingDetector(target=target, reference=reference, every=A)
