"""Check the scores given to drift detectors, and the options of the detectors."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import get_args

from rag_eval_otel.drift.records import Directions
from rag_eval_otel.errors import ConfigError
from rag_eval_otel.runtime.limited_log import LimitedLog

_ROUNDING = 1e-6
_MIN_REFERENCE = 2
_MIN_EVERY = 10
_MIN_LEARN, _DEFAULT_LEARN = 50, 2000  # number of scores from which a baseline is learned


def valid_score(score: object) -> float | None:
    """Return ``score`` as a float in [0, 1], or None if it is not a number in this range.

    A number that is outside the range by a rounding error is moved to the bound.
    """
    if type(score) is float and 0.0 <= score <= 1.0:  # nearly all are
        return score
    if isinstance(score, bool) or not isinstance(score, (float, int)):
        return None
    if not -_ROUNDING <= score <= 1 + _ROUNDING:  # false for NaN
        return None
    return min(1.0, max(0.0, float(score)))


def valid_reference(scores: Iterable[object]) -> list[float]:
    """Return the values in ``scores`` that are scores in [0, 1].

    Raises `ConfigError` if there are fewer than two, because no baseline can be learned from them.
    """
    found = [value for value in map(valid_score, scores) if value is not None]
    if len(found) < _MIN_REFERENCE:
        msg = f"a reference needs two scores in [0, 1] or more (better 2,000), not {len(found)}"
        raise ConfigError(msg)
    return found


def count_ignored(value: object, ignored: int, *, log: LimitedLog) -> int:
    """Return the number of ignored values after ``value``, which is not a valid score.

    ``ignored`` is the number before. A warning is written to ``log``. The value None stands for a
    failed evaluation and is neither counted nor logged.
    """
    if value is None:
        return ignored
    log.write("ignored", "drift: ignored %.40r, which is not a score in [0, 1]", value)
    return ignored + 1


def default_learn(count: int) -> int:
    """Return how many of the ``count`` scores in a file are used to learn the baseline.

    This is half of the scores, but at least 50 and at most 2,000.
    """
    return min(_DEFAULT_LEARN, max(_MIN_LEARN, count // 2))


def check_targets(target: float | Mapping[str, float] | None) -> None:
    """Raise `ConfigError` unless ``target``, or the target of each stratum, is in (0, 1)."""
    if isinstance(target, Mapping) and not target:
        msg = "target is a mapping without strata: give it a mean for each, or one mean for all"
        raise ConfigError(msg)
    for mean in target.values() if isinstance(target, Mapping) else (target,):
        if mean is not None and not (valid_score(mean) is not None and 0 < mean < 1):
            msg = f"target must be a mean between 0 and 1, as 0.8 is, not {mean!r}"
            raise ConfigError(msg)


def check_tail(tail: float) -> None:
    if valid_score(tail) is None or tail >= 1:
        msg = f"tail must be a score from 0 to below 1, as 0.5 is, not {tail!r}"
        raise ConfigError(msg)


def check_every(every: float) -> None:
    if not _is_number(every) or not _MIN_EVERY <= every < math.inf:
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
    allowed = get_args(Directions)
    if direction not in allowed:
        msg = f"direction must be one of {', '.join(allowed)}, not {direction!r}"
        raise ConfigError(msg)
