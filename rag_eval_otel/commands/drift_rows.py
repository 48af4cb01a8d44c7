"""From the rows of a file to streams of scores, in the order in which they were given."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from itertools import pairwise
from pathlib import Path
from typing import Any

from rag_eval_otel.commands.drift_otlp import otlp_points
from rag_eval_otel.dataset.cells import is_missing
from rag_eval_otel.dataset.sources import source_of
from rag_eval_otel.drift import Stream
from rag_eval_otel.errors import ConfigError

_log = logging.getLogger("rag_eval_otel")

_LEAVES = (".status", ".normalized", ".version", ".score")
_TIMES = ("time", "timestamp")
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
    columns: dict[str, None] = {}
    for point in _points(path, metric, stratum, columns):
        found.setdefault(point.stream, Series(point.stream)).points.append(point)
    kept = [one for one in found.values() if metric in {None, one.stream.name}]
    if not any(point.value is not None for one in kept for point in one.points):
        msg = (
            f"{path} has no scores{f' of {metric}' if metric else ''};"
            " use score, scores, or a column"
            f" named by --metric. Found: {', '.join(columns) or 'nothing'}"
        )
        raise ConfigError(msg)
    for one in kept:
        _order(one)
    return kept


def _points(
    path: Path, metric: str | None, stratum: str | None, columns: dict[str, None]
) -> Iterator[Point]:
    if path.suffix.lower() == ".json":
        yield from _otlp(path, _whole(path))
        return
    for index, record in enumerate(source_of(path).records()):
        cells: Any = record.cells
        columns.update(dict.fromkeys(map(str, cells)))
        if "resourceSpans" in cells or "resourceLogs" in cells:
            yield from _otlp(path, cells)
        else:
            yield from _row_points(cells, f"row {index}", metric=metric, stratum=stratum)


def _whole(path: Path) -> Mapping[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        msg = f"{path} cannot be read: {error}"
        raise ConfigError(msg) from error
    if not isinstance(found, dict):
        msg = f"{path}: must be OTLP JSON, an object with resourceSpans or resourceLogs"
        raise ConfigError(msg)
    return found


def _otlp(path: Path, message: Mapping[str, Any]) -> Iterator[Point]:
    try:
        for one in otlp_points(message):
            yield Point(
                stream=one.stream,
                value=one.value,
                place=f"trace {one.trace}",
                time=one.time,
                trace=one.trace,
            )
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        msg = f"{path}: is not OTLP JSON: {error!r}"
        raise ConfigError(msg) from error


# --- rows -----------------------------------------------------------------------------------------


def _row_points(
    cells: Mapping[str, Any], place: str, *, metric: str | None, stratum: str | None
) -> Iterator[Point]:
    service = str(cells.get("service") or "")
    time = next((_time(cells[name]) for name in _TIMES if name in cells), None)
    for name, found in _scores(cells, metric):
        yield Point(
            stream=Stream(service=service, name=name, version=str(found.get("version") or "")),
            value=_value(found),
            place=place,
            time=time,
            stratum=None if stratum is None else str(cells.get(stratum)),
        )


def _scores(
    cells: Mapping[str, Any], metric: str | None
) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the scores of a row, each a mapping with its value."""
    if isinstance(cells.get("scores"), Mapping):
        for name, one in cells["scores"].items():
            yield name, one if isinstance(one, Mapping) else {"value": one}
    elif "score" in cells:
        yield str(cells.get("metric") or "score"), {**cells, "value": cells["score"]}
    else:
        stems = [k.removesuffix(leaf) for k in cells for leaf in _LEAVES if k.endswith(leaf)]
        for name in dict.fromkeys([*stems, *([metric] if metric in cells else [])]):
            if name is not None:
                leaves = {leaf[1:]: cells.get(f"{name}{leaf}") for leaf in _LEAVES}
                yield name, {**leaves, "value": cells.get(name, cells.get(f"{name}.score"))}


def _value(found: Mapping[str, Any]) -> float | None:
    if found.get("status") in {"undefined", "error"}:
        return None
    value = found.get("normalized")
    return _number(found.get("value") if is_missing(value) or value == "" else value)


def _number(value: Any) -> float | None:
    """Return a number, or None for what is none: it is no score."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        return None
    return None if math.isnan(number) else number


def _time(value: Any) -> float | None:
    """Return seconds since the epoch, of a number or an ISO 8601 text (without a zone: UTC)."""
    if isinstance(value, str):
        try:
            value = datetime.fromisoformat(value.replace("Z", "+00:00"))
        except ValueError:
            return _number(value)
    if isinstance(value, datetime):
        zoned = value if value.tzinfo else value.replace(tzinfo=timezone.utc)
        return zoned.timestamp()
    return _number(value)


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
