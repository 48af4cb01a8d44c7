"""What a detector may be told, and what is a score."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from rag_eval_otel.errors import ConfigError

_ROUNDING = 1e-6
_SMALLEST_LEARN = 2
_FEWEST_EVERY = 10
_FEWEST, _USUAL = 50, 2000  # scores of a file from which to learn what is normal


def usable(score: object) -> float | None:
    """Return ``score`` as a float in [0, 1]; None for what is no score.

    What leaves the range by no more than rounding is brought back to it.
    """
    if type(score) is float and 0.0 <= score <= 1.0:  # nearly all are
        return score
    if isinstance(score, bool) or not isinstance(score, (float, int)):
        return None
    if not -_ROUNDING <= score <= 1 + _ROUNDING:  # false for NaN
        return None
    return min(1.0, max(0.0, float(score)))


def usable_scores(scores: Iterable[object]) -> list[float]:
    """Return those of ``scores`` that are scores; `ConfigError` for fewer than two."""
    found = [value for value in map(usable, scores) if value is not None]
    if len(found) < _SMALLEST_LEARN:
        msg = f"a reference needs two scores in [0, 1] or more (better 2,000), not {len(found)}"
        raise ConfigError(msg)
    return found


def learn_from(count: int) -> int:
    """Return from how many of a file's ``count`` scores to learn: of few, from half."""
    return min(_USUAL, max(_FEWEST, count // 2))


def check_target(target: float | None) -> None:
    """Raise `ConfigError` for a mean that scores in [0, 1] cannot fall from and rise from."""
    if target is not None and not (usable(target) is not None and 0 < target < 1):
        msg = f"target must be a mean between 0 and 1, as 0.8 is, not {target!r}"
        raise ConfigError(msg)


def check_targets(target: float | Mapping[str, float] | None) -> None:
    """Raise `ConfigError` unless ``target``, or that of every stratum, is such a mean."""
    if isinstance(target, Mapping) and not target:
        msg = "target is a mapping without strata: give it a mean for each, or one mean for all"
        raise ConfigError(msg)
    for one in target.values() if isinstance(target, Mapping) else (target,):
        check_target(one)


def check_tail(tail: float) -> None:
    """Raise `ConfigError` for a bound that no score is above, or none at or below."""
    if usable(tail) is None or tail >= 1:
        msg = f"tail must be a score from 0 to below 1, as 0.5 is, not {tail!r}"
        raise ConfigError(msg)


def check_every(every: float) -> None:
    """Raise `ConfigError` unless ``every`` is a number of scores."""
    if not _is_number(every) or not _FEWEST_EVERY <= every < math.inf:
        msg = f"every must be a number of scores for each false alarm, 10 or more, not {every!r}"
        raise ConfigError(msg)


def check_count(name: str, value: int, *, least: int = 0, most: float = math.inf) -> None:
    """Raise `ConfigError` unless ``value`` is a whole number from ``least`` to ``most``."""
    whole = _is_number(value) and least <= value < math.inf and value == int(value)
    if not whole or value > most:
        allowed = f"{least} or more" if most == math.inf else f"{least} to {most}"
        msg = f"{name} must be a whole number, {allowed}, not {value!r}"
        raise ConfigError(msg)


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def check_direction(direction: str) -> None:
    """Raise `ConfigError` for what is no direction."""
    if direction not in _DIRECTIONS:
        msg = f"direction must be one of {', '.join(_DIRECTIONS)}, not {direction!r}"
        raise ConfigError(msg)


_DIRECTIONS = ("both", "down", "up")
