"""Find drift in the scores of a file."""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

from rag_eval_otel.drift import Stream
from rag_eval_otel.drift.detector import default_learn, valid_score
from rag_eval_otel.errors import ConfigError
from rag_eval_otel.tools.cli.options import print_result
from rag_eval_otel.tools.rows import unit_value
from rag_eval_otel.tools.scores import read_scores
from rag_eval_otel.tools.stats import alarms_in, mean_of


class Point(NamedTuple):
    """A score (on [0, 1] if its scale is known) or None, its row or trace, and its Unix time."""

    value: float | None
    place: str
    time: float | None


def read_streams(path: Path, *, metric: str | None = None) -> dict[Stream, list[Point]]:
    """Return the scores in ``path`` by service, metric and version, sorted by time if known."""
    streams: defaultdict[Stream, list[Point]] = defaultdict(list)
    for row in read_scores(path, metric=metric):
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


def run(options: argparse.Namespace) -> int:
    streams = read_streams(options.file, metric=options.metric)
    reference: defaultdict[str, list[float | None]] = defaultdict(list)
    if options.baseline is not None:
        for stream, points in read_streams(options.baseline, metric=options.metric).items():
            reference[stream.name] += [point.value for point in points]
    findings = [
        _detect(stream, points, options, reference.get(stream.name))
        for stream, points in streams.items()
    ]
    print_result(options, findings, "\n\n".join(map(_text, findings)))
    return 1 if any(finding["alarms"] for finding in findings) else 0


def _detect(
    stream: Stream,
    scores: Sequence[Point],
    options: argparse.Namespace,
    reference: Sequence[float | None] | None,
) -> dict[str, Any]:
    if options.baseline is not None and reference is None:
        raise ConfigError(f"{options.baseline} has no scores of {stream.name}")
    points = [point for point in scores if valid_score(point.value) is not None]
    learn = default_learn(len(points)) if options.learn is None else options.learn
    alarms = alarms_in(
        [point.value for point in scores],
        target=options.target,
        reference=reference,
        learn=learn,
        every=options.every,
        direction=options.direction,
    )
    learned = 0 if reference or options.target is not None else learn
    values = reference or [point.value for point in points[:learned]]
    before = options.target
    if before is None:
        before = mean_of([value for value in values if value is not None])
    return {
        "service": stream.service,
        "metric": stream.name,
        "version": stream.version,
        "scores": len(points),
        "without_score": len(scores) - len(points),
        "learned_from": learned,
        "baseline": alarms[0].before if alarms else before,
        "alarms": [
            {
                **asdict(alarm),
                "change": alarm.change,
                "at": points[alarm.index].place,
                "since": points[alarm.onset].place,
            }
            for alarm in alarms
        ],
    }


def _text(found: Mapping[str, Any]) -> str:
    """Return as text what `_detect` has found in a stream."""
    count, learned, before = found["scores"], found["learned_from"], found["baseline"]
    head = " ".join(filter(None, (found["service"], found["metric"], found["version"])))
    baseline = "unknown" if before is None else f"{before:.3f}"
    after = f" from the first {learned}" if learned else ""
    lines = [
        f"{head}: {count} scores, {found['without_score']} without; baseline {baseline}{after}"
    ]
    if learned > count:
        lines.append(f"  too few scores: the baseline needs {learned}")
    elif not found["alarms"]:
        lines.append("  no drift")
    for alarm in found["alarms"]:
        low, high = alarm["interval"]
        lines.append(
            f"  {alarm['direction']:6} at {alarm['at']}, since about {alarm['since']}: mean"
            f" {alarm['before']:.3f} -> {alarm['after']:.3f}, change {alarm['change']:+.3f}"
            f" [{low:+.3f}, {high:+.3f}], evidence 10^{alarm['log10_evidence']:.1f}"
        )
    return "\n".join(lines)
