"""Run ``rag-eval-otel estimate``: estimate the mean quality of all turns from a sample."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from rag_eval_otel.calibration.estimate import estimate, table
from rag_eval_otel.cli.options import AS_JSON, names

DESCRIPTION = """\
Estimates the mean of each metric over all turns, with an interval, from the scores of a sample of
turns. (A turn is one question of a user and its answer.) Each score is weighted by the inverse of
the probability with which its turn was chosen. If an offline judge has scored all turns, as in a
cascade, its scores make the interval narrower; they may be biased in any way.

FILE is OTLP JSON as the OpenTelemetry Collector writes it (spans or events), or a .jsonl, .csv or
.parquet table with sampling_probability and, if a turn has several rows, trace_id and span_id, or
turn_id, or id. docs/sampling.md says more.
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("files", metavar="FILE", nargs="+", type=Path, help="score files")
    parser.add_argument(
        "--by",
        type=names,
        default=("service",),
        metavar="NAMES",
        help="an estimate for each service, hour, day or month (default: service)",
    )
    parser.add_argument("--metric", metavar="NAME", help="only this metric")
    parser.add_argument(
        "--judge", metavar="NAME", help="the judge whose mean is wanted (a part of the version)"
    )
    parser.add_argument(
        "--probability",
        type=float,
        metavar="P",
        help="probability of the judge's scores that carry none; 1 if it scored all turns",
    )
    parser.add_argument(
        "--confidence", type=float, default=0.95, metavar="C", help="of the interval (0.95)"
    )
    parser.add_argument("--json", **AS_JSON)


def run(options: argparse.Namespace) -> int:
    """Print the estimates; return 1 if there is none but reasons, else 0."""
    found = estimate(
        options.files,
        by=options.by,
        metric=options.metric,
        judge=options.judge,
        probability=options.probability,
        confidence=options.confidence,
    )
    if options.form == "json":
        shown = json.dumps([one.to_dict() for one in found], indent=2, ensure_ascii=False)
    else:
        shown = table(found, confidence=options.confidence)
    sys.stdout.write(f"{shown}\n")
    return 0 if any(one.mean.value is not None for one in found) else 1
