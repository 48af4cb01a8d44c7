"""Collect the scores in a file for the HTML page about the file.

The scores of each metric of each service are kept in columns of numbers. A *turn* is one question
of a user and its answer.
"""

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
"""A row of a score file and one of its scores, which is among the lowest of a metric."""


@dataclass(slots=True, kw_only=True)
class Series:
    """The scores of one metric of one service, in the order of the file.

    Each column has an entry for each score with a value. ``rows`` has the number of the scored
    question and answer, ``times`` the seconds since the epoch (NaN if unknown), ``values`` the
    score on the metric's own scale, ``units`` the score on [0, 1], and ``version`` an index into
    ``versions``.
    """

    service: str
    name: str
    worst: int
    """The number of lowest scores to keep."""
    rows: array[int] = field(default_factory=lambda: array("q"))
    times: array[float] = field(default_factory=lambda: array("d"))
    values: array[float] = field(default_factory=lambda: array("d"))
    units: array[float] = field(default_factory=lambda: array("d"))
    version: array[int] = field(default_factory=lambda: array("l"))
    tally: Tally = field(default_factory=Tally)
    failed: Counter[tuple[str, str]] = field(default_factory=Counter)
    """The number of scores without a value, by status and reason."""
    judges: Counter[tuple[str, str]] = field(default_factory=Counter)
    """The number of scores by version and judge; an unknown judge is an empty text."""
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
        """The versions of the metric, in the order in which they were first read."""
        return tuple(self._version_index)

    def lowest(self) -> list[Low]:
        """Return the lowest scores of the metric with their rows, the lowest score first.

        Of equal scores, the latest comes first.
        """
        return [low for *_, low in sorted(self._lows, key=lambda entry: entry[:2], reverse=True)]


@dataclass(slots=True)
class CounterTotals:
    """Add up the points of OpenTelemetry counters from several processes.

    The points may come in any order, and a process may have restarted.
    """

    _latest: dict[str, CounterPoint] = field(default_factory=dict)
    _sums: dict[str, float] = field(default_factory=dict)

    def add(self, point: CounterPoint) -> None:
        """Add ``point``, a data point of an OpenTelemetry counter, to the totals.

        The latest point of a cumulative counter replaces earlier points of the same counter and
        process.
        """
        known = self._latest.get(point.key)
        if known is None or point.time >= known.time:
            self._latest[point.key] = point
        before = 0.0 if point.cumulative else self._sums.get(point.key, 0.0)
        latest = self._latest[point.key]
        self._sums[point.key] = latest.value if point.cumulative else before + point.value

    def total(self, name: str, attributes: Mapping[str, Any]) -> float | None:
        """Return the sum of the counter ``name`` over all processes.

        Only points that have ``attributes`` among their attributes are counted. Returns None if
        there is no such point.
        """
        found = [
            self._sums[key]
            for key, point in self._latest.items()
            if point.name == name and attributes.items() <= point.attributes.items()
        ]
        return sum(found) if found else None


@dataclass(slots=True, kw_only=True)
class FileScores:
    """The scores in a file: one `Series` for each service and metric, and totals.

    A turn is one question of a user and its answer. ``turns`` is the number of scored turns.
    ``first`` and ``last`` are the times of the earliest and the latest turn. ``worst`` is the
    number of lowest scores to keep for each metric of each service.
    """

    worst: int = 10
    turns: int = 0
    first: float | None = None
    last: float | None = None
    judges: Counter[str] = field(default_factory=Counter)
    """The number of turns by judge."""
    durations: Moments = field(default_factory=Moments)
    longest: float = 0.0
    series: dict[tuple[str, str], Series] = field(default_factory=dict)
    unscored: Counter[str] = field(default_factory=Counter)
    """The number of turns whose spans were exported without scores, by evaluation status."""
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
        """The names of the services, in the order in which they were first read."""
        return tuple(dict.fromkeys(service for service, _ in self.series))


def collect_scores(records: Iterable[ScoreRecord], *, worst: int = 10) -> FileScores:
    """Collect ``records`` of a score file, and return them as `FileScores`.

    ``worst`` is the number of lowest scores to keep for each metric.
    """
    scores = FileScores(worst=worst)
    for record in records:
        if isinstance(record, Row):
            scores.add(record)
        elif isinstance(record, UnscoredTurn):
            scores.unscored[record.status] += 1
        else:
            scores.counters.add(record)
    return scores
