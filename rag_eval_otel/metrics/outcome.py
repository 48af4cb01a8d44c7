"""How metrics say what they found: a number, a number with a remark, or no number and why."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rag_eval_otel.types import Label, Reason, Score


def measured(
    name: str,
    value: float,
    *,
    threshold: float | None,
    reason: Reason | None = None,
    explanation: str | None = None,
    detail: Mapping[str, Any] | None = None,
) -> Score:
    """Return an ok score, labelled pass where ``value`` reaches ``threshold``."""
    label: Label | None = None
    if threshold is not None:
        label = "pass" if value >= threshold else "fail"
    return Score(
        name=name,
        value=value,
        label=label,
        reason=reason,
        explanation=explanation,
        detail=detail or {},
    )


def undefined(name: str, reason: Reason, *, detail: Mapping[str, Any] | None = None) -> Score:
    """Return a score that the definition gives no number for."""
    return Score(name=name, status="undefined", reason=reason, detail=detail or {})
