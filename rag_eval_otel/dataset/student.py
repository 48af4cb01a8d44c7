"""Student's t: how far the mean of a few numbers may be off."""

from __future__ import annotations

import math
from statistics import NormalDist

_EXACT_TO = 200  # degrees of freedom; from there the expansion is off by less than 1e-10
_STEPS = 80  # of bisection


def mean_interval(
    mean: float, deviation: float, *, n: int, confidence: float = 0.95
) -> tuple[float, float] | None:
    """Return the confidence interval of the mean of ``n`` values with this sample deviation.

    ``mean`` plus and minus ``t(n - 1) * deviation / sqrt(n)``, Student's t. It is not cut off at
    the bounds of a metric's range. None for fewer than two values; values all alike give an
    interval of no width, which says that they are alike, not that the mean is known.
    """
    if n < 2:  # noqa: PLR2004  # one value has no deviation
        return None
    half = t_quantile((1 + confidence) / 2, n - 1) * deviation / math.sqrt(n)
    return mean - half, mean + half


def t_quantile(p: float, df: int) -> float:
    """Return the ``p`` quantile, p above .5, of Student's t with ``df`` degrees of freedom."""
    return _expansion(p, df) if df > _EXACT_TO else _bisected(p, df)


def _bisected(p: float, df: int) -> float:
    """Find the angle whose tangent is t / sqrt(df): the distribution is a finite sum in it."""
    low, high = 0.0, math.pi / 2
    for _ in range(_STEPS):
        middle = (low + high) / 2
        if (1 + _two_sided(middle, df)) / 2 < p:
            low = middle
        else:
            high = middle
    return math.tan(low) * math.sqrt(df)


def _two_sided(angle: float, df: int) -> float:
    """Return P(-t < T < t): Abramowitz & Stegun 26.7.3 (odd) and 26.7.4 (even)."""
    sine, square = math.sin(angle), math.cos(angle) ** 2
    odd = df % 2
    term = math.cos(angle) if odd else 1.0
    total = 0.0 if df == 1 else term
    for k in range(2 + odd, df - 1, 2):
        term *= (k - 1) / k * square
        total += term
    return 2 / math.pi * (angle + sine * total) if odd else sine * total


def _expansion(p: float, df: int) -> float:
    """Return the quantile by the normal one: Abramowitz & Stegun 26.7.5."""
    x = NormalDist().inv_cdf(p)
    terms = (
        (x**3 + x) / 4,
        (5 * x**5 + 16 * x**3 + 3 * x) / 96,
        (3 * x**7 + 19 * x**5 + 17 * x**3 - 15 * x) / 384,
        (79 * x**9 + 776 * x**7 + 1482 * x**5 - 1920 * x**3 - 945 * x) / 92160,
    )
    return x + sum(term / float(df) ** power for power, term in enumerate(terms, start=1))
