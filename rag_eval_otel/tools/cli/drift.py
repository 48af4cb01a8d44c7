"""Find drift in the scores of a file."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from rag_eval_otel.drift import Stream
from rag_eval_otel.drift.detector import Alarm, BettingDetector, default_learn, valid_score
from rag_eval_otel.errors import ConfigError
from rag_eval_otel.log import log
from rag_eval_otel.tools.cli.options import AS_JSON, Options, add_all
from rag_eval_otel.tools.rows import Row, unit_value
from rag_eval_otel.tools.scores import read_scores
from rag_eval_otel.tools.stats import mean_of

_MIN_GAP = 3600.0  # seconds between two scores
_GAP_FACTOR = 50  # times the median time between two scores


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One score on the scale 0 to 1, with its position in the file.

    ``value`` is None if the row has no score. ``place`` names the row or trace, for messages.
    """

    value: float | None
    place: str
    time: float | None = None


@dataclass(slots=True)
class Series:
    """The scores of one metric version in one service (a *stream*), in order."""

    stream: Stream
    points: list[Point] = field(default_factory=list)


def read_series(path: Path, *, metric: str | None = None) -> list[Series]:
    """Read the scores in the file ``path``, and return them by stream.

    A stream is a metric version of one service. The file is a table of scores, or spans and log
    records as OTLP JSON. ``metric`` selects one metric. If the times of a stream run backwards, the
    scores of the stream are sorted by time. Raises `ConfigError` if the file cannot be read or has
    no scores.
    """
    found: dict[Stream, Series] = {}
    for row in read_scores(path, metric=metric):
        if not isinstance(row, Row):
            continue
        for score in row.scores:
            stream = Stream(service=row.service, name=score.name, version=score.version)
            point = Point(value=unit_value(score), place=row.place, time=row.time)
            found.setdefault(stream, Series(stream)).points.append(point)
    if not any(point.value is not None for series in found.values() for point in series.points):
        names = ", ".join(dict.fromkeys(stream.name for stream in found))
        msg = f"{path} has evaluations of {names}, but none of them gave a score"
        raise ConfigError(msg)
    for series in found.values():
        _order(series)
    return list(found.values())


# --- order ----------------------------------------------------------------------------------------


def _order(series: Series) -> None:
    """Sort the scores of ``series`` by time if every score has a time.

    Log a warning if the scores were not in order of time, or if there is a long gap without scores.
    """
    name, times = series.stream.name, [p.time for p in series.points if p.time is not None]
    if len(times) < len(series.points):
        return
    if times != sorted(times):
        log.warning(
            "drift: the times of %s run backwards; its scores are taken in order of time", name
        )
        series.points.sort(key=lambda point: point.time or 0.0)
    steps = sorted(later - earlier for earlier, later in pairwise(sorted(times)))
    if steps and steps[-1] > max(_MIN_GAP, _GAP_FACTOR * steps[len(steps) // 2]):
        log.warning(
            "drift: %s has no scores for %.1f hours; evidence from before the gap is kept",
            name,
            steps[-1] / 3600,
        )


DESCRIPTION = """\
Detects drift in the scores of FILE, in the order of the file. FILE is .csv, .jsonl or .parquet, and
each row is one of

  {"score": 0.8, "metric": "faithfulness", "time": "2026-11-21T09:00:00Z"}
  {"scores": {"faithfulness": 0.8}}
  {"faithfulness": 0.8}                          with --metric faithfulness
  a row that `rag-eval-otel evaluate --output` wrote

or FILE has spans and log records as OTLP JSON, .json or .jsonl, from a collector's file exporter.
Each service, metric and version is a stream of its own.

Exit status: 0 no drift, 1 drift, 2 misuse.
"""


_OPTIONS: Options = {
    "file FILE": ("scores, in their order", {"type": Path}),
    "--metric NAME": ("use this metric only", {}),
    "--target MEAN": ("the mean that the scores should have", {"type": float}),
    "--reference FILE": ("learn the baseline from this file", {"type": Path}),
    "--learn N": (
        "learn the baseline from the first N scores (default: 2000, or half of a short file)",
        {"type": int},
    ),
    "--every N": (
        "allow one false alarm in N scores (default: 100000)",
        {"type": float, "default": 100_000},
    ),
    "--direction": ("(default: both)", {"choices": ("both", "down", "up"), "default": "both"}),
}


def add_options(parser: argparse.ArgumentParser) -> None:
    add_all(parser, _OPTIONS)
    parser.add_argument("--json", **AS_JSON)


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """The drift alarms in the scores of one metric version in one service.

    ``points`` are the valid scores. ``before`` is the baseline, the mean before a change.
    ``learned`` is the number of scores from which the detector learned the baseline.
    """

    series: Series
    points: tuple[Point, ...]
    learned: int
    before: float | None
    alarms: tuple[Alarm, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return the alarms, the baseline and the number of scores as a dict for JSON."""
        return {
            "service": self.series.stream.service,
            "metric": self.series.stream.name,
            "version": self.series.stream.version,
            "scores": len(self.points),
            "without_score": len(self.series.points) - len(self.points),
            "learned_from": self.learned,
            "baseline": self.before,
            "alarms": [self._alarm(alarm) for alarm in self.alarms],
        }

    def _alarm(self, alarm: Alarm) -> dict[str, Any]:
        return {
            **asdict(alarm),
            "change": alarm.change,
            "at": self.points[alarm.index].place,
            "since": self.points[alarm.onset].place,
            "worst": [point.place for point in self.worst(alarm)],
        }

    def worst(self, alarm: Alarm) -> list[Point]:
        """Return the five worst scores between the onset of the change and ``alarm``.

        The worst scores are the lowest, or the highest if the alarm says that scores went up.
        """
        seen = self.points[alarm.onset : alarm.index + 1]
        sign = -1 if alarm.direction == "up" else 1
        return sorted(seen, key=lambda point: sign * (point.value or 0.0))[:5]


def run(options: argparse.Namespace) -> int:
    """Print the drift alarms of each metric in the file. Return 1 if there is an alarm, else 0."""
    found = read_series(options.file, metric=options.metric)
    reference = _reference(options)
    findings = [_detect(series, options, reference.get(series.stream.name)) for series in found]
    shown = [finding.to_dict() for finding in findings]
    text = (
        json.dumps(shown, indent=2) if options.form == "json" else "\n\n".join(map(_text, findings))
    )
    sys.stdout.write(f"{text}\n")
    return 1 if any(finding.alarms for finding in findings) else 0


def _reference(options: argparse.Namespace) -> dict[str, list[float | None]]:
    """Return the scores in the file of ``--reference``, by metric."""
    if options.reference is None:
        return {}
    found: dict[str, list[float | None]] = {}
    for series in read_series(options.reference, metric=options.metric):
        found.setdefault(series.stream.name, []).extend(p.value for p in series.points)
    return found


def _detect(
    series: Series, options: argparse.Namespace, reference: Sequence[float | None] | None
) -> Finding:
    if options.reference is not None and reference is None:
        msg = f"{options.reference} has no scores of {series.stream.name}"
        raise ConfigError(msg)
    points = tuple(point for point in series.points if valid_score(point.value) is not None)
    first = default_learn(len(points)) if options.learn is None else options.learn
    detector = BettingDetector(
        target=options.target,
        reference=reference,
        learn=first,
        every=options.every,
        direction=options.direction,
    )
    learned = 0 if reference or options.target is not None else first
    alarms = [
        detector.alarm
        for point in series.points
        if detector.update(point.value) and detector.alarm is not None
    ]
    values = reference or [point.value for point in points[:learned]]
    known = [value for value in values if value is not None]
    before = options.target if options.target is not None else mean_of(known)
    return Finding(
        series=series,
        points=points,
        learned=learned,
        before=alarms[0].before if alarms else before,
        alarms=tuple(alarms),
    )


def _text(finding: Finding) -> str:
    stream, count = finding.series.stream, len(finding.points)
    without = len(finding.series.points) - count
    head = " ".join(filter(None, (stream.service, stream.name, stream.version)))
    baseline = "unknown" if finding.before is None else f"{finding.before:.3f}"
    learned = f" from the first {finding.learned}" if finding.learned else ""
    lines = [f"{head}: {count} scores, {without} without; baseline {baseline}{learned}"]
    if finding.learned > count:
        lines.append(f"  too few scores: the baseline needs {finding.learned}")
    elif not finding.alarms:
        lines.append("  no drift")
    return "\n".join([*lines, *(_line(finding, alarm) for alarm in finding.alarms)])


def _line(finding: Finding, alarm: Alarm) -> str:
    low, high = alarm.interval
    evidence = f", evidence 10^{alarm.log10_evidence:.1f}"
    worst = ", ".join(point.place for point in finding.worst(alarm))
    return (
        f"  {alarm.direction:6} at {finding.points[alarm.index].place}, since about"
        f" {finding.points[alarm.onset].place}: mean {alarm.before:.3f} -> {alarm.after:.3f},"
        f" change {alarm.change:+.3f} [{low:+.3f}, {high:+.3f}]{evidence}\n"
        f"         worst: {worst}"
    )
