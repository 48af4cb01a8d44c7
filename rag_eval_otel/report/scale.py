"""Axes: from values to places on a drawing, and the round values that are named there."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Literal

_STEPS = (1, 2, 5, 10)
_MINUTE, _HOUR, _DAY = 60, 3600, 86400
_TIMES = (
    *(1, 5, 15, 30),
    *(n * _MINUTE for n in (1, 5, 15, 30)),
    *(n * _HOUR for n in (1, 3, 6, 12)),
    *(n * _DAY for n in (1, 2, 7, 14, 30, 90, 365)),
)
_FIRST, _LAST = 0.0, 253402300799.0  # the years that have a name: 1970 to 9999

Unit = Literal["row", "time"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """Values from ``low`` to ``high`` on the places from ``start`` to ``end``."""

    low: float
    high: float
    start: float
    end: float

    def place(self, value: float) -> float:
        """Return where ``value`` is, to a tenth; at the nearer end for what is outside."""
        share = (value - self.low) / ((self.high - self.low) or 1.0)
        return round(self.start + min(1.0, max(0.0, share)) * (self.end - self.start), 1)


def ticks(low: float, high: float, *, most: int = 6) -> list[float]:
    """Return at most ``most`` round values from ``low`` to ``high``."""
    if not high > low:
        return [low]
    raw = (high - low) / (most - 1)
    power = 10.0 ** math.floor(math.log10(raw))
    return _multiples(low, high, next((s * power for s in _STEPS if s * power >= raw), raw))


def time_ticks(low: float, high: float, *, most: int = 6) -> list[float]:
    """Return at most ``most`` round times (UTC) from ``low`` to ``high``, in seconds."""
    if not high > low:
        return [low]
    raw = (high - low) / (most - 1)
    return _multiples(low, high, next((float(step) for step in _TIMES if step >= raw), raw))


def _multiples(low: float, high: float, step: float) -> list[float]:
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [n * step for n in range(first, last + 1)]


def told(value: float, unit: Unit) -> str:
    """Return the time or the number of a row in words."""
    if unit == "row":
        return f"row {value:,.0f}"
    return f"{_moment(value):%Y-%m-%d %H:%M:%S} UTC"


def tick_label(value: float, unit: Unit, *, all_of_them: Sequence[float]) -> str:
    """Return ``value`` as it is named at an axis that has ``all_of_them``."""
    if unit == "row":
        return f"{value:,.0f}"
    step = all_of_them[1] - all_of_them[0] if len(all_of_them) > 1 else 0.0
    form = "%Y-%m-%d" if step >= _DAY else "%m-%d %H:%M" if step >= _MINUTE else "%H:%M:%S"
    return _moment(value).strftime(form)


def _moment(value: float) -> datetime:
    return datetime.fromtimestamp(min(_LAST, max(_FIRST, value)), tz=timezone.utc)
