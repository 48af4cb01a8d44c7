"""Run ``rag-eval-otel compare``: show how the scores of two files differ."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from rag_eval_otel.cli.options import AS_JSON, check_page, count_up_to
from rag_eval_otel.dataset.changes import compare_files
from rag_eval_otel.dataset.page import comparison_page
from rag_eval_otel.results.files import write_whole

DESCRIPTION = """\
Compares the scores of two runs over the same questions: means, paired differences with their
intervals, and the turns that got worse or better. A and B are what `rag-eval-otel evaluate
--output` wrote; A is the earlier run. A difference is B minus A. Rows are paired by question.

Exit status: 0 compared, 2 misuse. For a status that says whether B is worse, see the options
--baseline and --no-worse of `evaluate`.
"""
_TURNS, _MOST_TURNS = 5, 1000


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("a", metavar="A", type=Path)
    parser.add_argument("b", metavar="B", type=Path)
    parser.add_argument("--html", type=Path, metavar="PAGE", help="also write an HTML page")
    parser.add_argument("--metric", metavar="NAME", help="only this metric")
    parser.add_argument(
        "--turns",
        type=count_up_to(_MOST_TURNS),
        default=_TURNS,
        metavar="N",
        help=f"list the N turns that changed the most, each way (default: {_TURNS})",
    )
    parser.add_argument(
        "--texts",
        choices=("on", "off"),
        default="on",
        help="show questions, answers and explanations that the files have (default: on)",
    )
    parser.add_argument(
        "--versions",
        choices=("same", "any"),
        default="same",
        help="any: compare also scores of other judges, metrics or prompts",
    )
    parser.add_argument("--json", **AS_JSON)


def run(options: argparse.Namespace) -> int:
    if options.html is not None:
        for file in (options.a, options.b):
            check_page(options.html, file, option="--html")
    found = compare_files(
        options.a,
        options.b,
        metric=options.metric,
        versions=options.versions,
        turns=options.turns,
        texts=options.texts,
    )
    as_json = options.form == "json"
    sys.stdout.write(f"{json.dumps(found.to_dict(), indent=2) if as_json else found}\n")
    if options.html is not None:
        write_whole(options.html, comparison_page(found), option="--html")
    return 0
