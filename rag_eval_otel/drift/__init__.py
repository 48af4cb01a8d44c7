"""Detect drift in evaluation scores, and estimate when the scores changed and by how much.

`BettingDetector` watches one *stream*: the scores of one service, metric and version of the metric.
`DriftMonitor` keeps a detector for each stream; `DriftOptions` holds the options.
"""

from __future__ import annotations

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
]
