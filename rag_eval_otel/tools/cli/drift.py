"""Find drift in the scores of a file."""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from rag_eval_otel.drift import Stream
from rag_eval_otel.drift.detector import Alarm, default_learn, valid_score
from rag_eval_otel.errors import ConfigError
from rag_eval_otel.tools.cli.options import AS_JSON, Options, add_all, print_result
from rag_eval_otel.tools.rows import Row, unit_value
from rag_eval_otel.tools.scores import read_scores
from rag_eval_otel.tools.stats import alarms_in, mean_of

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
    "--learn N": ("learn from the first N scores (default: half, at most 2000)", {"type": int}),
    "--every N": ("one false alarm in N scores (default: 1e5)", {"type": float, "default": 1e5}),
    "--direction": ("(default: both)", {"choices": ("both", "down", "up"), "default": "both"}),
    **AS_JSON,
}
add_options = partial(add_all, options=_OPTIONS)


class Point(NamedTuple):
    """A score on [0, 1] or None, the name of its row or trace, and the time, if it is known."""

    value: float | None
    place: str
    time: float | None


def read_streams(path: Path, *, metric: str | None = None) -> dict[Stream, list[Point]]:
    """Return the scores in ``path`` by service, metric and version, sorted by time if known."""
    streams: defaultdict[Stream, list[Point]] = defaultdict(list)
    for row in read_scores(path, metric=metric):
        if not isinstance(row, Row):
            continue
        for score in row.scores:
            stream = Stream(service=row.service, name=score.name, version=score.version)
            streams[stream].append(Point(unit_value(score), row.place, row.time))
    if all(point.value is None for points in streams.values() for point in points):
        names = ", ".join(dict.fromkeys(stream.name for stream in streams))
        raise ConfigError(f"{path} has evaluations of {names}, but none of them gave a score")
    for points in streams.values():
        times = [point.time for point in points if point.time is not None]
        if len(times) == len(points):
            points.sort(key=lambda point: point.time or 0.0)
    return streams


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """The drift alarms in one stream of scores, of which the first ``learned`` are the baseline."""

    stream: Stream
    points: Sequence[Point]
    without: int
    learned: int
    before: float | None
    alarms: Sequence[Alarm]

    def to_dict(self) -> dict[str, Any]:
        return {
            "service": self.stream.service,
            "metric": self.stream.name,
            "version": self.stream.version,
            "scores": len(self.points),
            "without_score": self.without,
            "learned_from": self.learned,
            "baseline": self.before,
            "alarms": [
                {
                    **asdict(alarm),
                    "change": alarm.change,
                    "at": self.points[alarm.index].place,
                    "since": self.points[alarm.onset].place,
                }
                for alarm in self.alarms
            ],
        }

    def __str__(self) -> str:
        stream, count = self.stream, len(self.points)
        head = " ".join(filter(None, (stream.service, stream.name, stream.version)))
        baseline = "unknown" if self.before is None else f"{self.before:.3f}"
        learned = f" from the first {self.learned}" if self.learned else ""
        lines = [f"{head}: {count} scores, {self.without} without; baseline {baseline}{learned}"]
        if self.learned > count:
            lines.append(f"  too few scores: the baseline needs {self.learned}")
        elif not self.alarms:
            lines.append("  no drift")
        for alarm in self.alarms:
            low, high = alarm.interval
            lines.append(
                f"  {alarm.direction:6} at {self.points[alarm.index].place}, since about"
                f" {self.points[alarm.onset].place}: mean {alarm.before:.3f} -> {alarm.after:.3f},"
                f" change {alarm.change:+.3f} [{low:+.3f}, {high:+.3f}],"
                f" evidence 10^{alarm.log10_evidence:.1f}"
            )
        return "\n".join(lines)


def run(options: argparse.Namespace) -> int:
    streams = read_streams(options.file, metric=options.metric)
    reference: defaultdict[str, list[float | None]] = defaultdict(list)
    if options.reference is not None:
        for stream, points in read_streams(options.reference, metric=options.metric).items():
            reference[stream.name] += [point.value for point in points]
    findings = [
        _detect(stream, points, options, reference.get(stream.name))
        for stream, points in streams.items()
    ]
    print_result(
        options, [finding.to_dict() for finding in findings], "\n\n".join(map(str, findings))
    )
    return 1 if any(finding.alarms for finding in findings) else 0


def _detect(
    stream: Stream,
    scores: Sequence[Point],
    options: argparse.Namespace,
    reference: Sequence[float | None] | None,
) -> Finding:
    if options.reference is not None and reference is None:
        raise ConfigError(f"{options.reference} has no scores of {stream.name}")
    points = [point for point in scores if valid_score(point.value) is not None]
    first = default_learn(len(points)) if options.learn is None else options.learn
    alarms = alarms_in(
        [point.value for point in scores],
        target=options.target,
        reference=reference,
        learn=first,
        every=options.every,
        direction=options.direction,
    )
    learned = 0 if reference or options.target is not None else first
    values = reference or [point.value for point in points[:learned]]
    before = options.target
    if before is None:
        before = mean_of([value for value in values if value is not None])
    return Finding(
        stream=stream,
        points=points,
        without=len(scores) - len(points),
        learned=learned,
        before=alarms[0].before if alarms else before,
        alarms=alarms,
    )
