"""`Scores`: what of a file the page needs, metric by metric, in columns of numbers."""

from __future__ import annotations

import heapq
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from rag_eval_otel.dataset.tally import Moments, Tally
from rag_eval_otel.report.counters import Counters
from rag_eval_otel.results.rows import Row, ScoreRecord, UnscoredTurn, unit_value
from rag_eval_otel.types import Score

_NAN = float("nan")

Low = tuple[Row, Score]


@dataclass(slots=True, kw_only=True)
class Series:
    """The scores of one metric of one service, in the order of the file.

    Of those with a number, ``rows`` has the turn's place in the file (from 0), ``times`` seconds
    since the epoch (NaN where there is none), ``values`` the score on the metric's own scale,
    ``units`` that on [0, 1], and ``version`` its version's place among the ``versions``.
    """

    service: str
    name: str
    worst: int
    rows: array[int] = field(default_factory=lambda: array("q"))
    times: array[float] = field(default_factory=lambda: array("d"))
    values: array[float] = field(default_factory=lambda: array("d"))
    units: array[float] = field(default_factory=lambda: array("d"))
    version: array[int] = field(default_factory=lambda: array("l"))
    tally: Tally = field(default_factory=Tally)
    failed: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Of those without a number, how many by status and reason."""
    judges: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Scores by version and by the judge that answered, blank where none is known."""
    _places: dict[str, int] = field(default_factory=dict)
    _lows: list[tuple[float, int, Low]] = field(default_factory=list)

    def add(self, row: Row, score: Score) -> None:
        """Take one score."""
        self.tally.add(score)
        unit = unit_value(score)
        if score.value is None or unit is None:
            self.failed[score.status, score.reason or ""] += 1
            return
        self.rows.append(row.index)
        self.times.append(_NAN if row.time is None else row.time)
        self.values.append(score.value)
        self.units.append(unit)
        self.version.append(self._places.setdefault(score.version, len(self._places)))
        self.judges[score.version, row.evaluation.judge or ""] += 1
        self._keep(unit, (row, score))

    def _keep(self, unit: float, low: Low) -> None:
        entry = (-unit, len(self.values), low)
        if len(self._lows) < self.worst:
            heapq.heappush(self._lows, entry)
        elif self._lows and entry[:2] > self._lows[0][:2]:
            heapq.heapreplace(self._lows, entry)

    @property
    def versions(self) -> tuple[str, ...]:
        """The versions, as they came up."""
        return tuple(self._places)

    def lows(self) -> Iterator[Low]:
        """Yield the lowest scores, the worst first; of equal ones the latest."""
        for _, _, low in sorted(self._lows, key=lambda entry: entry[:2], reverse=True):
            yield low


@dataclass(slots=True, kw_only=True)
class Scores:
    """All of a file: a series for each service and metric, and what is known of the turns."""

    worst: int = 10
    turns: int = 0
    first: float | None = None
    last: float | None = None
    judges: Counter[str] = field(default_factory=Counter)
    """The turns that each judge answered."""
    durations: Moments = field(default_factory=Moments)
    longest: float = 0.0
    series: dict[tuple[str, str], Series] = field(default_factory=dict)
    unscored: Counter[str] = field(default_factory=Counter)
    """Turns whose spans left without scores, by status."""
    counters: Counters = field(default_factory=Counters)

    def add(self, row: Row) -> None:
        """Take the scores of one row."""
        for score in row.scores:
            key = row.service, score.name
            if key not in self.series:
                self.series[key] = Series(service=key[0], name=key[1], worst=self.worst)
            self.series[key].add(row, score)
        if row.index >= self.turns:  # they are numbered as they come
            self.turns = row.index + 1
            self._turn(row)

    def _turn(self, row: Row) -> None:
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
        """The services, as they came up."""
        return tuple(dict.fromkeys(service for service, _ in self.series))


def scores_of(found: Iterable[ScoreRecord], *, worst: int = 10) -> Scores:
    """Return all of ``found``, with the ``worst`` lowest scores of each series kept whole."""
    scores = Scores(worst=worst)
    for one in found:
        if isinstance(one, Row):
            scores.add(one)
        elif isinstance(one, UnscoredTurn):
            scores.unscored[one.status] += 1
        else:
            scores.counters.add(one)
    return scores
