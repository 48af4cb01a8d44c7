"""Read the option ``budget``: limits of turns, requests, tokens and money."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from rag_eval_otel.errors import ConfigError

MAX_TEXT_CHARS: Final = 100_000
"""The most characters of a text, without the option ``max_text_chars``: about fifty pages."""

PERIODS: Final[Mapping[str, float]] = {"minute": 60.0, "hour": 3600.0, "day": 86400.0}
_SHORT: Final = {"min": "minute", "m": "minute", "h": "hour", "d": "day"}
_SCALE: Final = {"": 1, "k": 1_000, "K": 1_000, "M": 1_000_000}
TURNS: Final = "turns"
"""The unit of limits of evaluated turns."""
_COUNTED: Final = {"request": "requests", "token": "tokens", "turn": TURNS}
_LIMIT: Final = re.compile(
    r"(?P<amount>\d[\d_]*(?:\.\d+)?|\.\d+)(?:\s*(?P<scale>[kKM]))?\s+(?P<unit>[A-Za-z]+)"
    r"\s*(?:/|\bper\b)\s*(?P<period>[a-z]+)"
)
_CURRENCY: Final = re.compile(r"[A-Z]{3}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """The maximum ``amount`` in any window of ``seconds`` seconds.

    ``unit`` is ``requests``, ``tokens``, ``turns``, ``judge requests`` (without those of the
    embedder, not for users), or a currency such as ``USD``. If ``seconds`` is infinite, ``amount``
    is the limit for the whole run of the program.
    """

    amount: float
    unit: str
    seconds: float

    @property
    def is_money(self) -> bool:
        return self.unit not in {*_COUNTED.values(), "judge requests"}

    @property
    def period(self) -> str:
        """The length of the window in words, such as ``day`` or ``90 s``; ``run`` if infinite."""
        if math.isinf(self.seconds):
            return "run"
        names = {seconds: name for name, seconds in PERIODS.items()}
        return names.get(self.seconds, f"{self.seconds:g} s")

    def __str__(self) -> str:
        amount = f"{self.amount:g}" if self.is_money else f"{self.amount:.0f}"
        return f"{amount} {self.unit}/{self.period}"


def limits_of(given: object, *, where: str) -> tuple[Limit, ...]:
    """Return the limits in ``given``, a text such as ``5 USD/day, 600 requests/minute``.

    None stands for no limits. Raises `ConfigError` for anything else; the message begins with
    ``where``, the option or variable that was read.
    """
    if given is None:
        return ()
    if not isinstance(given, str):
        raise ConfigError(_wrong(where, given))
    # A comma in a number ends no limit, so that the error shows the whole number.
    parts = re.split(r"(?<!\d),|,(?!\d)", given)
    limits = tuple(_limit(part.strip(), where=where) for part in parts)
    seen: set[tuple[str, float]] = set()
    for limit in limits:
        if (limit.unit, limit.seconds) in seen:
            msg = f"{where} has two limits of {limit.unit}/{limit.period}; keep one of them"
            raise ConfigError(msg)
        seen.add((limit.unit, limit.seconds))
    currencies = sorted({limit.unit for limit in limits if limit.is_money})
    if len(currencies) > 1:
        msg = f"{where} names {' and '.join(currencies)}: prices are in one currency, so use it"
        raise ConfigError(msg)
    return limits


def _limit(part: str, *, where: str) -> Limit:
    found = _LIMIT.fullmatch(part)
    if found is None:
        raise ConfigError(_wrong(where, part))
    amount = float(found["amount"].replace("_", "")) * _SCALE[found["scale"] or ""]
    unit, period = _unit(found["unit"]), _SHORT.get(found["period"], found["period"])
    if unit is None or period not in PERIODS:
        raise ConfigError(_wrong(where, part))
    if amount <= 0 or (unit in _COUNTED.values() and amount != int(amount)):
        kind = "a whole number" if unit in _COUNTED.values() else "a number"
        msg = f"{where}: the limit of {unit} must be {kind} above 0, not {part!r}"
        raise ConfigError(msg)
    return Limit(amount=amount, unit=unit, seconds=PERIODS[period])


def _unit(text: str) -> str | None:
    counted = _COUNTED.get(text.lower().removesuffix("s"))
    return counted or (text if _CURRENCY.fullmatch(text) else None)


def _wrong(where: str, given: object) -> str:
    comma = re.search(r"\d,\d", str(given))
    numbers = "; write a number without a comma, such as 1000 or 1_000" if comma else ""
    return (
        f"{where} must be limits such as '5 USD/day, 600 requests/minute, 60 turns/minute' (units:"
        " turns, requests, tokens, a currency of three capitals; periods: minute, hour, day),"
        f" not {given!r}{numbers}"
    )
