"""The latest scores, coarsely, to date a change that is not long ago."""

from __future__ import annotations

from collections.abc import Sequence

SIZE = 256
_STEPS = 255
_FEWEST = 12  # values: fewer are often all alike, and would seem to be a large change for certain
_EDGE = 8  # a change that seems as old as the oldest scores may be older


class Recent:
    """A ring of scores, a byte each."""

    __slots__ = ("_count", "_ring")

    def __init__(self, ring: bytes = bytes(SIZE), count: int = 0) -> None:
        """Hold the ``count`` latest scores that ``ring`` has; `ValueError` for another size."""
        if len(ring) != SIZE or count < 0:
            msg = f"a ring has {SIZE} bytes, not {len(ring)}"
            raise ValueError(msg)
        self._ring = bytearray(ring)
        self._count = count

    def add(self, score: float) -> None:
        """Take ``score``; what is not in [0, 1], as the view of a stratum may be, is cut off."""
        if not 0.0 <= score <= 1.0:
            score = min(1.0, max(0.0, score))
        self._ring[self._count % SIZE] = int(score * _STEPS + 0.5)
        self._count += 1

    def scores(self) -> list[float]:
        """Return the scores, to within 1/510, the latest last."""
        at = self._count % SIZE
        ring = self._ring[at:] + self._ring[:at] if self._count >= SIZE else self._ring[:at]
        return [one / _STEPS for one in ring]

    def to_state(self) -> list[str | int]:
        """Return it as JSON can hold it."""
        return [self._ring.hex(), self._count]


def steepest(values: Sequence[float], mean: float) -> tuple[float, int]:
    """Return how clearly the last ``values`` lie below ``mean``, and how many of them do so most.

    Of all numbers of values from 12 on, the one with the largest ``(sum of mean - value)**2 /
    number``: the likeliest time of a change of the mean. None do (0, 0) where that is about as old
    as the values.
    """
    gain, found, total = 0.0, 0, 0.0
    for number, value in enumerate(reversed(values), start=1):
        total += mean - value
        if number >= _FEWEST and total > 0 and total * total / number > gain:
            gain, found = total * total / number, number
    return (gain, found) if found <= len(values) - _EDGE else (0.0, 0)
