"""``rag-eval-otel rules``: Prometheus rules for a target of the user's own."""

from __future__ import annotations

import argparse
import sys

from rag_eval_otel.alerting.rules import render
from rag_eval_otel.alerting.target import Target
from rag_eval_otel.commands import Commands

_DESCRIPTION = """\
Prints Prometheus rules for the score histograms of `rag_eval_otel`: recorded ratios and means,
alerts on bad answers (evidence with a stated rate of false alarms, and burn rates), and alerts on
what scores them: coverage, silence, errors, lag, budget, drift.

  rag-eval-otel rules --slo 0.95 --tau 0.4 > rules.yaml && promtool check rules rules.yaml
"""


def add(commands: Commands) -> None:
    """Describe the command."""
    usual = Target()
    parser = commands.add_parser(
        "rules",
        help="print Prometheus rules for a target",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--slo",
        type=float,
        default=usual.slo,
        metavar="SHARE",
        help=f"the share of answers that is to be good (default: {usual.slo:g})",
    )
    parser.add_argument(
        "--tau",
        type=float,
        default=usual.tau,
        metavar="SCORE",
        help=f"an answer is bad where its score is at or below this (default: {usual.tau:g})",
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
        help="where bad turns are seen, with {service} and {metric} (default: a local Jaeger)",
    )
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Print the rules."""
    target = Target(
        slo=options.slo,
        tau=options.tau,
        every=options.every,
        interval=options.interval,
        traces=options.traces,
    )
    sys.stdout.write(render(target))
    return 0
