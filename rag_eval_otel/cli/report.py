"""Run ``rag-eval-otel report``: write an HTML page about a file of scores."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Literal

from rag_eval_otel.cli.options import check_page, count_up_to
from rag_eval_otel.config import Config
from rag_eval_otel.dataset.page import Shown, scores_page
from rag_eval_otel.dataset.series import collect_scores
from rag_eval_otel.results import read_scores
from rag_eval_otel.results.files import write_whole

DESCRIPTION = """\
Writes one HTML page on the scores of FILE: distributions, time lines with drift, worst turns,
coverage, cost, judges and versions. The page needs no network and no server; its only script sorts
and filters the worst turns. FILE is what `rag-eval-otel evaluate --output` wrote, what
`rag-eval-otel drift` reads, or spans, log records and counters as OTLP JSON (.json or .jsonl), as a
collector's file exporter writes them.

Exit status: 0 written, 2 misuse.
"""
_WORST, _MOST_WORST = 10, 1000


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", type=Path)
    parser.add_argument(
        "-o", "--output", type=Path, required=True, metavar="PAGE", help="the page: .html"
    )
    parser.add_argument("--metric", metavar="NAME", help="only this metric")
    parser.add_argument(
        "--worst",
        type=count_up_to(_MOST_WORST),
        default=_WORST,
        metavar="N",
        help=f"show the N lowest scores of each metric (default: {_WORST})",
    )
    parser.add_argument(
        "--explanations",
        action="store_const",
        const="on",
        default="off",
        help="show explanations and questions where FILE has them; they quote user data",
    )
    parser.add_argument(
        "--texts",
        choices=("on", "off"),
        help="show question, contexts and answer of the worst turns, where FILE has them (default:"
        " on if content capture is on, else off)",
    )
    parser.add_argument(
        "--trace-url",
        metavar="URL",
        help="link turns to their traces: 'http://localhost:16686/trace/{trace_id}'",
    )


def run(options: argparse.Namespace) -> int:
    check_page(options.output, options.file, option="--output")
    shown = Shown(
        texts=options.texts or _texts(),
        explanations=options.explanations,
        trace_url=options.trace_url,
    )
    records = read_scores(options.file, metric=options.metric)
    scores = collect_scores(records, worst=options.worst)
    page = scores_page(scores, name=options.file.name, shown=shown)
    write_whole(options.output, page, option="--output")
    sys.stdout.write(f"{options.output}: {scores.turns} turns, {len(scores.series)} metrics\n")
    return 0


def _texts() -> Literal["off", "on"]:
    """Return "on" if the environment switches content capture on, as for live scores."""
    return "off" if Config.from_env().capture_content == "off" else "on"
