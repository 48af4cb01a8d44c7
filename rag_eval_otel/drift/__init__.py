"""Detect drift in evaluation scores, and estimate when the scores changed and by how much.

`BettingDetector` watches one *stream*: the scores of one service, metric and version of the metric.
`DriftMonitor` keeps a detector for each stream; `DriftOptions` holds the options.
"""

from __future__ import annotations

from collections.abc import Sequence

from rag_eval_otel.drift.detector import Alarm, BettingDetector
from rag_eval_otel.drift.monitor import Drift, DriftMonitor, DriftOptions, NewBaseline, Stream

__all__ = [
    "Alarm",
    "BettingDetector",
    "Drift",
    "DriftMonitor",
    "DriftOptions",
    "NewBaseline",
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
