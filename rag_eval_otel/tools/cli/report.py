"""Show the scores of a file, or how those of two files differ."""

from __future__ import annotations

import argparse
import sys
from functools import partial
from pathlib import Path

from rag_eval_otel.config import Config
from rag_eval_otel.errors import ConfigError
from rag_eval_otel.tools.cli.options import (
    AS_JSON,
    Options,
    add_all,
    count_up_to,
    print_result,
    require_another_file,
)
from rag_eval_otel.tools.compare import compare_files
from rag_eval_otel.tools.files import write_whole
from rag_eval_otel.tools.report import Shown, collect_scores, comparison_page, scores_page
from rag_eval_otel.tools.scores import read_scores

DESCRIPTION = """\
Prints the scores of FILE, and with --output writes one HTML page about them: distributions, time
lines with drift, worst turns, coverage, judges and versions. If a judge has scored a sample
of the turns, the mean of all turns is estimated: each score is weighted by the inverse of its
turn's probability, and offline scores of all turns, as in a cascade, make the interval narrower.

With B, compares FILE (A, the earlier run) and B, two runs over the same questions: means, paired
differences with their intervals, and the turns that got worse or better. A difference is B minus A.
For a status that says whether B is worse, see --baseline and --no-worse of `evaluate`.

A page needs no network and no server; its only script sorts and filters tables. FILE is what
`rag-eval-otel evaluate --output` wrote, what `rag-eval-otel drift` reads, or spans and log records
as OTLP JSON (.json or .jsonl), as a collector's file exporter writes them.

Exit status: 0 written, 2 misuse.
"""
_WORST, _MOST_WORST = 10, 1000
_OPTIONS: Options = {
    "file FILE": ("the scores", {"type": Path}),
    "other B": ("compare FILE with B", {"type": Path, "nargs": "?"}),
    "-o --output PAGE": ("write a page: .html", {"type": Path}),
    "--metric NAME": ("only this metric", {}),
    "--worst N": (
        f"show the N lowest scores, or with B the N largest changes each way (default: {_WORST})",
        {"type": count_up_to(_MOST_WORST), "default": _WORST},
    ),
    "--explanations": (
        "show explanations and questions where FILE has them; they quote user data",
        {"action": "store_const", "const": "on", "default": "off"},
    ),
    "--texts": (
        "show texts of turns where FILE has them (default: as content capture; with B on)",
        {"choices": ("on", "off")},
    ),
    "--trace-url URL": ("link turns to traces: 'http://localhost:16686/trace/{trace_id}'", {}),
    "--versions": (
        "with B, any: compare also scores of other judges, metrics or prompts",
        {"choices": ("same", "any")},
    ),
    **AS_JSON,
}
add_options = partial(add_all, options=_OPTIONS)


def run(options: argparse.Namespace) -> int:
    if (page := options.output) is not None:
        if page.suffix.lower() not in {".html", ".htm"}:
            raise ConfigError(f"--output {page} must end in .html")
        if page.is_dir():
            raise ConfigError(f"--output {page} is a folder; name a file")
        require_another_file(page, *filter(None, (options.file, options.other)), option="--output")
    if options.other is not None:
        return _compare(options)
    if options.versions is not None or options.form == "json":
        raise ConfigError("--versions and --json need a second file: rag-eval-otel report A B")
    has_content = Config.from_env().export_content == "all"
    shown = Shown(
        texts=options.texts or ("on" if has_content else "off"),
        explanations=options.explanations,
        trace_url=options.trace_url,
    )
    records = read_scores(options.file, metric=options.metric)
    scores = collect_scores(records, worst=options.worst)
    sys.stdout.write(f"{options.file}: {scores.turns} turns, {len(scores.series)} metrics\n")
    sys.stdout.write(f"{scores}\n")
    if options.output is not None:
        page = scores_page(scores, name=options.file.name, shown=shown)
        write_whole(options.output, page, option="--output")
    return 0


def _compare(options: argparse.Namespace) -> int:
    comparison = compare_files(
        options.file,
        options.other,
        metric=options.metric,
        versions=options.versions or "same",
        turns=options.worst,
        texts=options.texts or "on",
    )
    print_result(options, comparison.to_dict(), repr(comparison))
    if options.output is not None:
        write_whole(options.output, comparison_page(comparison), option="--output")
    return 0
