"""Agreement of scores with human labels, and of a judge with known verdicts."""

from __future__ import annotations

from rag_eval_otel.calibration.calibrate import Calibration, calibrate

__all__ = ["Calibration", "calibrate"]
