"""`FileScores`: the scores of a file that its page needs, by metric, in columns of numbers."""

from __future__ import annotations

import heapq
import math
from array import array
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from rag_eval_otel.dataset.summary import Moments, Tally
from rag_eval_otel.results.rows import CounterPoint, Row, ScoreRecord, UnscoredTurn, unit_value
from rag_eval_otel.types import Score

Low: TypeAlias = tuple[Row, Score]
"""One of the lowest scores of a metric, and its row."""


@dataclass(slots=True, kw_only=True)
class Series:
    """The scores of one metric of one service, in the order of the file.

    The columns have an entry for each score with a value: ``rows`` the number of its turn,
    ``times`` seconds since the epoch (NaN where unknown), ``values`` the score on the metric's own
    scale, ``units`` the score on [0, 1], and ``version`` the index of its version in ``versions``.
    """

    service: str
    name: str
    worst: int
    """How many of the lowest scores are kept."""
    rows: array[int] = field(default_factory=lambda: array("q"))
    times: array[float] = field(default_factory=lambda: array("d"))
    values: array[float] = field(default_factory=lambda: array("d"))
    units: array[float] = field(default_factory=lambda: array("d"))
    version: array[int] = field(default_factory=lambda: array("l"))
    tally: Tally = field(default_factory=Tally)
    failed: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Number of scores without a value, by status and reason."""
    judges: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Number of scores by version and judge; the judge is blank where unknown."""
    _version_index: dict[str, int] = field(default_factory=dict)
    _lows: list[tuple[float, int, Low]] = field(default_factory=list)

    def add(self, row: Row, score: Score) -> None:
        self.tally.add(score)
        unit = unit_value(score)
        if score.value is None or unit is None:
            self.failed[score.status, score.reason or ""] += 1
            return
        self.rows.append(row.index)
        self.times.append(math.nan if row.time is None else row.time)
        self.values.append(score.value)
        self.units.append(unit)
        self.version.append(self._version_index.setdefault(score.version, len(self.versions)))
        self.judges[score.version, row.evaluation.judge or ""] += 1
        entry = (-unit, len(self.values), (row, score))
        if len(self._lows) < self.worst:
            heapq.heappush(self._lows, entry)
        elif self._lows and entry[:2] > self._lows[0][:2]:
            heapq.heapreplace(self._lows, entry)

    @property
    def versions(self) -> tuple[str, ...]:
        """The versions, in the order in which they were first read."""
        return tuple(self._version_index)

    def lowest(self) -> list[Low]:
        """Return the lowest scores in ascending order, the latest of equal ones first."""
        return [low for *_, low in sorted(self._lows, key=lambda entry: entry[:2], reverse=True)]


@dataclass(slots=True)
class CounterTotals:
    """Adds up the points of counters, over processes and restarts, in any order."""

    _latest: dict[str, CounterPoint] = field(default_factory=dict)
    _sums: dict[str, float] = field(default_factory=dict)

    def add(self, point: CounterPoint) -> None:
        """Add a point; the latest point of a cumulative counter replaces those before it."""
        known = self._latest.get(point.key)
        if known is None or point.time >= known.time:
            self._latest[point.key] = point
        before = 0.0 if point.cumulative else self._sums.get(point.key, 0.0)
        latest = self._latest[point.key]
        self._sums[point.key] = latest.value if point.cumulative else before + point.value

    def total(self, name: str, attributes: Mapping[str, Any]) -> float | None:
        """Return the count of ``name`` with at least these attributes; None without any point."""
        found = [
            self._sums[key]
            for key, point in self._latest.items()
            if point.name == name and attributes.items() <= point.attributes.items()
        ]
        return sum(found) if found else None


@dataclass(slots=True, kw_only=True)
class FileScores:
    """The scores of a file: a series for each service and metric, and facts on the turns."""

    worst: int = 10
    turns: int = 0
    first: float | None = None
    last: float | None = None
    judges: Counter[str] = field(default_factory=Counter)
    """Number of turns by judge."""
    durations: Moments = field(default_factory=Moments)
    longest: float = 0.0
    series: dict[tuple[str, str], Series] = field(default_factory=dict)
    unscored: Counter[str] = field(default_factory=Counter)
    """Number of turns whose spans were exported without scores, by status."""
    counters: CounterTotals = field(default_factory=CounterTotals)

    def add(self, row: Row) -> None:
        for score in row.scores:
            key = row.service, score.name
            if key not in self.series:
                self.series[key] = Series(service=key[0], name=key[1], worst=self.worst)
            self.series[key].add(row, score)
        if row.index >= self.turns:  # turns are numbered in the order in which they are read
            self.turns = row.index + 1
            self._add_turn(row)

    def _add_turn(self, row: Row) -> None:
        judge, duration = row.evaluation.judge, row.evaluation.duration
        if judge is not None:
            self.judges[judge] += 1
        if row.time is not None:
            self.first = row.time if self.first is None else min(self.first, row.time)
            self.last = row.time if self.last is None else max(self.last, row.time)
        if duration:
            self.durations.add(duration)
            self.longest = max(self.longest, duration)

    @property
    def services(self) -> tuple[str, ...]:
        """The services, in the order in which they were first read."""
        return tuple(dict.fromkeys(service for service, _ in self.series))


def collect_scores(records: Iterable[ScoreRecord], *, worst: int = 10) -> FileScores:
    """Return the scores in ``records``, with the ``worst`` lowest rows of each series."""
    scores = FileScores(worst=worst)
    for record in records:
        if isinstance(record, Row):
            scores.add(record)
        elif isinstance(record, UnscoredTurn):
            scores.unscored[record.status] += 1
        else:
            scores.counters.add(record)
    return scores
