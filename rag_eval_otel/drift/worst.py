"""`WorstTurns`: which turns to look at when the alarm comes."""

from __future__ import annotations

from bisect import insort
from typing import TypeAlias

from rag_eval_otel.drift.records import Direction, Worst
from rag_eval_otel.types import SpanRef

_Turn: TypeAlias = "tuple[float, int, SpanRef | None]"
"""A score, its index below 0 (so that of equal scores the latest comes first), and its turn."""

_KEPT = 5


class WorstTurns:
    """The lowest and the highest scores among those that are part of the evidence."""

    __slots__ = ("_high", "_low")

    def __init__(self) -> None:
        """Know none."""
        self._low: list[_Turn] = []
        self._high: list[_Turn] = []

    def add(self, score: float, span: SpanRef | None, *, index: int, since: int) -> None:
        """Take the ``index``-th score; what was before ``since`` is no evidence any more."""
        self._low = _kept(self._low, (score, -index, span), since)
        self._high = _kept(self._high, (-score, -index, span), since)

    def since(self, onset: int, *, direction: Direction) -> tuple[Worst, ...]:
        """Return the worst from ``onset`` on: the highest, where scores have risen."""
        sign, found = (-1, self._high) if direction == "up" else (1, self._low)
        return tuple(
            Worst(score=sign * score, span=span) for score, at, span in found if -at >= onset
        )


def _kept(found: list[_Turn], one: _Turn, since: int) -> list[_Turn]:
    if found and -min(found, key=_place)[1] < since:
        found = [turn for turn in found if -turn[1] >= since]
    if len(found) < _KEPT or one[:2] < found[-1][:2]:
        insort(found, one, key=_rank)
    return found[:_KEPT]


def _rank(turn: _Turn) -> tuple[float, int]:
    return turn[:2]


def _place(turn: _Turn) -> int:
    return -turn[1]
