"""Compare scores with human labels, and check how often a judge is right on known cases."""

from __future__ import annotations

from rag_eval_otel.calibration.calibrate import Calibration, calibrate

__all__ = ["Calibration", "calibrate"]
