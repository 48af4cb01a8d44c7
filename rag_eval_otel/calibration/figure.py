"""`Figure`: a number with its interval, or no number and why in words."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Numbers: TypeAlias = NDArray[np.float64]
Truths: TypeAlias = NDArray[np.bool_]
Interval: TypeAlias = tuple[float, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """A finite number with its confidence interval, where it has one; else ``reason`` says why not.

    ``value`` is None if and only if there is a ``reason``. It is never NaN.
    """

    value: float | None = None
    interval: Interval | None = None
    reason: str = ""

    def __post_init__(self) -> None:
        """Refuse NaN, infinities, and a number beside a reason for none."""
        if (self.value is None) != bool(self.reason):
            msg = f"a figure has either a value or a reason, not {self.value!r} and {self.reason!r}"
            raise ValueError(msg)
        if not all(map(math.isfinite, (self.value or 0.0, *(self.interval or ())))):
            msg = f"a figure must be finite, not {self.value!r} {self.interval!r}"
            raise ValueError(msg)

    def __str__(self) -> str:
        """Return ``0.812  [0.701, 0.889]``, or ``-  (why there is none)``."""
        if self.value is None:
            return f"-  ({self.reason})"
        if self.interval is None:
            return f"{self.value:.3f}"
        return f"{self.value:.3f}  [{self.interval[0]:.3f}, {self.interval[1]:.3f}]"

    def to_dict(self) -> Mapping[str, Any]:
        """Return ``value``, ``low``, ``high`` and ``reason``, as far as there are any."""
        low, high = self.interval or (None, None)
        parts = {"low": low, "high": high, "reason": self.reason or None}
        return {"value": self.value, **{k: v for k, v in parts.items() if v is not None}}


def known(value: float, interval: Interval | None = None) -> Figure:
    """Return a figure that could be had."""
    return Figure(value=float(value), interval=interval)


def unknown(reason: str) -> Figure:
    """Return a figure that could not be had, and why."""
    return Figure(reason=reason)
