"""Run ``rag-eval-otel rules``: print Prometheus rules for a service level objective."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from difflib import get_close_matches

from rag_eval_otel.alerting.rules import Target, render
from rag_eval_otel.cli.options import THRESHOLDS, chosen_thresholds
from rag_eval_otel.errors import ConfigError
from rag_eval_otel.metrics import METRICS, with_thresholds
from rag_eval_otel.metrics.registry import bounds_of

DESCRIPTION = """\
Prints Prometheus rules for the score histograms of `rag_eval_otel`: recorded ratios and means,
alerts on bad answers (evidence with a stated rate of false alarms, and burn rates), and alerts on
the scoring itself: coverage, silence, errors, lag, budget, drift. An answer is bad if its score is
at or below its metric's threshold.

  rag-eval-otel rules --slo 0.95 --tau 0.4 > rules.yaml && promtool check rules rules.yaml
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    usual = Target()
    parser.add_argument(
        "--slo",
        type=float,
        default=usual.slo,
        metavar="SHARE",
        help=f"share of answers that should be good (default: {usual.slo:g})",
    )
    parser.add_argument(
        "--tau",
        type=float,
        default=usual.tau,
        metavar="SCORE",
        help=f"an answer is bad if its score is at or below this (default: {usual.tau:g})",
    )
    parser.add_argument(
        "--every",
        type=float,
        default=usual.every,
        metavar="N",
        help=f"allow one false alarm in N scores (default: {usual.every:g})",
    )
    parser.add_argument(
        "--interval",
        default=usual.interval,
        metavar="TIME",
        help=f"how often the rules run (default: {usual.interval})",
    )
    parser.add_argument(
        "--traces",
        default=usual.traces,
        metavar="URL",
        help="link to bad turns, with {service} and {metric} (default: a local Jaeger)",
    )
    parser.add_argument(
        "--time-scale",
        type=float,
        default=usual.time_scale,
        metavar="N",
        help="for a look around: divide all times of the rules by N; 60 makes an hour a minute",
    )
    for name, told in THRESHOLDS.items():
        parser.add_argument(name, **told)


def run(options: argparse.Namespace) -> int:
    target = Target(
        slo=options.slo,
        tau=options.tau,
        every=options.every,
        interval=options.interval,
        traces=options.traces,
        thresholds=_on_unit_scale(chosen_thresholds(options) or {}),
        label_metrics=tuple(options.label_metrics or ()),
        time_scale=options.time_scale,
    )
    sys.stdout.write(render(target))
    return 0


def _on_unit_scale(thresholds: Mapping[str, float]) -> dict[str, float]:
    """Convert each threshold from the scale of its metric to [0, 1], the scale of histograms.

    ``thresholds`` maps the name of a metric to its threshold.
    """
    found = {}
    for name, threshold in thresholds.items():
        near = [] if name in METRICS else get_close_matches(name, METRICS, n=1, cutoff=0.8)
        if near:
            msg = f"there is no metric {name!r}; did you mean {near[0]}?"
            raise ConfigError(msg)
        made = METRICS[name]() if name in METRICS else None
        low, high = (0.0, 1.0) if made is None else bounds_of(made)
        if made is not None:
            with_thresholds([made], {name: threshold})
        found[name] = (threshold - low) / (high - low) if high > 1 else threshold
    return found
