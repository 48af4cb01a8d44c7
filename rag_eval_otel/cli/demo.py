"""``rag-eval-otel demo``."""

from __future__ import annotations

import argparse
import sys

DESCRIPTION = """\
Runs a LangChain RAG app over a small handbook with the callback installed and exports its
traces over OTLP: to a receiver of its own, which prints what it received, or to
OTEL_EXPORTER_OTLP_ENDPOINT if that is set. Needs no key and no network.
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--judge",
        metavar="lexical|PROVIDER/MODEL",
        help="who judges (default: RAG_EVAL_JUDGE, else lexical, which is offline)",
    )
    parser.add_argument(
        "--json",
        dest="form",
        action="store_const",
        const="json",
        default="text",
        help="print what arrived as JSON",
    )


def run(options: argparse.Namespace) -> int:
    """Run the demo."""
    from rag_eval_otel.demo.show import run_demo  # noqa: PLC0415  # imports LangChain

    chosen = {"judge": options.judge} if options.judge else {}
    return run_demo(form=options.form, options=chosen, write=sys.stdout.write)
