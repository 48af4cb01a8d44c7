"""What a file of scores says: scores, turns without any, and counters."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias, cast

from rag_eval_otel.types import Label, Reason, Score, ScoreStatus

_LABELS = frozenset({"pass", "fail"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Scored:
    """A score and where it stands in its file: ``place`` is its row or trace, in words.

    ``turn`` counts the turns from 0; the scores of one share it. ``time`` is in seconds since the
    epoch, ``duration`` the seconds that scoring the turn took. ``question`` and the score's
    explanation quote the user. ``stratum`` is that of the column asked for.
    """

    score: Score
    place: str
    turn: int
    time: float | None = None
    service: str = ""
    judge: str | None = None
    duration: float | None = None
    question: str | None = None
    trace: str | None = None
    stratum: str | None = None

    @property
    def unit(self) -> float | None:
        """The score on [0, 1], if its metric is; None where there is none."""
        score = self.score
        return score.value if score.normalized is None else score.normalized


@dataclass(frozen=True, slots=True, kw_only=True)
class Unscored:
    """A turn whose span left without scores: ``status`` says why."""

    service: str
    status: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Counted:
    """A counter's ``value`` for these ``attributes`` at some ``time``.

    Of a ``cumulative`` one all values with one ``key`` are the same count at different times.
    """

    name: str
    attributes: Mapping[str, Any]
    value: float
    time: float
    key: str
    cumulative: bool


Found: TypeAlias = "Scored | Unscored | Counted"


@dataclass(slots=True)
class Turns:
    """Numbers the turns of a file; a score of a turn that is there twice is read once."""

    count: int = 0
    _seen: dict[tuple[str, str], int] = field(default_factory=dict)
    _scores: set[tuple[int, str]] = field(default_factory=set)

    def new(self) -> int:
        """Return the number of one more turn."""
        self.count += 1
        return self.count - 1

    def of_span(self, trace: str, span: str) -> int:
        """Return the number of the turn that a span stands for; each is new without an id."""
        if not span:
            return self.new()
        if (trace, span) not in self._seen:
            self._seen[trace, span] = self.new()
        return self._seen[trace, span]

    def is_first(self, turn: int, name: str) -> bool:
        """Tell whether this is the first score called ``name`` of ``turn``: span or event."""
        found = (turn, name) not in self._scores
        self._scores.add((turn, name))
        return found


def score_from(name: str, found: Mapping[str, Any]) -> Score:
    """Return the score that ``found`` tells by the names of the fields of `Score`.

    What is no finite number is none, and a score without one is undefined, if it is no error.
    """
    status = found.get("status")
    value, normalized = number(found.get("value")), number(found.get("normalized"))
    if normalized is not None and not 0 <= normalized <= 1:
        normalized = None
    value = normalized if value is None else value
    told: ScoreStatus = "ok" if value is not None and status not in _FAILED else "undefined"
    if status == "error":
        told = "error"
    label = found.get("label")
    reason = text(found.get("reason"))
    return Score(
        name=name,
        value=value if told == "ok" else None,
        normalized=normalized if told == "ok" else None,
        status=told,
        reason=cast("Reason | None", reason if told == "ok" else reason or ""),
        label=cast("Label", label) if label in _LABELS else None,
        explanation=text(found.get("explanation")),
        version=text(found.get("version")) or "",
    )


_FAILED = ("undefined", "error")


def number(value: object) -> float | None:
    """Return a finite number, written as a text, too; None for all else."""
    try:
        found = float(cast("Any", value))
    except (OverflowError, TypeError, ValueError):
        return None
    return found if math.isfinite(found) else None


def text(value: object) -> str | None:
    """Return a text that is not empty; None for all else."""
    return value if isinstance(value, str) and value else None
