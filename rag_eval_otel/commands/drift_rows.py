"""From the rows of a file to streams of scores, in the order in which they were given."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from rag_eval_otel.drift import Stream
from rag_eval_otel.errors import ConfigError
from rag_eval_otel.scorefile import Scored, read_scores

_log = logging.getLogger("rag_eval_otel")

_GAP = 3600.0  # seconds
_USUAL = 50  # times the usual distance


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One score: ``value`` is None where there is none, ``place`` says where it stands."""

    stream: Stream
    value: float | None
    place: str
    time: float | None = None
    stratum: str | None = None
    trace: str | None = None


@dataclass(slots=True)
class Series:
    """The scores of one stream, in order, and what was done about their order."""

    stream: Stream
    points: list[Point] = field(default_factory=list)


def read_series(
    path: Path, *, metric: str | None = None, stratum: str | None = None
) -> list[Series]:
    """Return the streams in ``path``: rows of scores, or spans and log records as OTLP JSON.

    ``metric`` takes that one alone, ``stratum`` names the column of each score's stratum. Points
    whose times run backwards are put in order of time. Raises `ConfigError` for what cannot be
    read, and where there are no scores.
    """
    found: dict[Stream, Series] = {}
    for one in read_scores(path, metric=metric, stratum=stratum):
        if isinstance(one, Scored):
            point = _point(one)
            found.setdefault(point.stream, Series(point.stream)).points.append(point)
    if not any(point.value is not None for one in found.values() for point in one.points):
        names = ", ".join(dict.fromkeys(stream.name for stream in found))
        msg = f"{path} has evaluations of {names}, but none of them gave a score"
        raise ConfigError(msg)
    for series in found.values():
        _order(series)
    return list(found.values())


def _point(scored: Scored) -> Point:
    score = scored.score
    return Point(
        stream=Stream(service=scored.service, name=score.name, version=score.version),
        value=scored.unit,
        place=scored.place,
        time=scored.time,
        stratum=scored.stratum,
        trace=scored.trace,
    )


# --- order ----------------------------------------------------------------------------------------


def _order(series: Series) -> None:
    """Put the points in order of time, where all have one, and say what was found."""
    times = [point.time for point in series.points if point.time is not None]
    if len(times) < len(series.points):
        return
    if any(later < earlier for earlier, later in pairwise(times)):
        _log.warning(
            "drift: the times of %s run backwards; its scores are taken in order of time",
            series.stream.name,
        )
        series.points.sort(key=lambda point: point.time or 0.0)
    _warn_of_gap(series.stream.name, sorted(times))


def _warn_of_gap(name: str, times: Iterable[float]) -> None:
    times = list(times)
    steps = sorted(later - earlier for earlier, later in pairwise(times))
    if steps and steps[-1] > max(_GAP, _USUAL * steps[len(steps) // 2]):
        _log.warning(
            "drift: %s has no scores for %.1f hours; evidence from before the gap is kept",
            name,
            steps[-1] / 3600,
        )
