"""``rag-eval-otel demo``."""

from __future__ import annotations

import argparse
import sys

from rag_eval_otel.commands import Commands


def add(commands: Commands) -> None:
    """Describe the command."""
    demo = commands.add_parser(
        "demo",
        help="run a small RAG app, offline, and show its traces with their scores",
        description=(
            "Runs a LangChain RAG app over a small handbook with the callback installed and"
            " exports its traces over OTLP: to a receiver of its own, which prints what it got,"
            " or to OTEL_EXPORTER_OTLP_ENDPOINT where that is set. Takes no key and no network."
        ),
    )
    demo.add_argument(
        "--judge",
        metavar="lexical|PROVIDER/MODEL",
        help="who judges (default: RAG_EVAL_JUDGE, else lexical, which is offline)",
    )
    demo.add_argument(
        "--json",
        dest="form",
        action="store_const",
        const="json",
        default="text",
        help="print what arrived as JSON",
    )
    demo.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Run the demo."""
    from rag_eval_otel.demo.run import run_demo  # noqa: PLC0415  # imports LangChain

    chosen = {"judge": options.judge} if options.judge else {}
    return run_demo(form=options.form, options=chosen, write=sys.stdout.write)
