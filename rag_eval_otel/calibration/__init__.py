"""Calibration: how well the scores of a metric agree with human labels, and what to make of it."""

from __future__ import annotations

from rag_eval_otel.calibration.calibrate import Calibration, calibrate

__all__ = ["Calibration", "calibrate"]
