"""Run ``rag-eval-otel demo``: start a small RAG app and print its traces with scores."""

from __future__ import annotations

import argparse
import sys

from rag_eval_otel.cli.options import AS_JSON

DESCRIPTION = """\
Runs a LangChain RAG app over a small handbook with the callback installed and exports its
traces over OTLP to its own receiver, which prints them, and to OTEL_EXPORTER_OTLP_ENDPOINT as well
if that is set. Needs no key and no network.
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--judge",
        metavar="lexical|PROVIDER/MODEL",
        help="the judge (default: RAG_EVAL_JUDGE, else lexical, which is offline)",
    )
    parser.add_argument("--json", **AS_JSON)


def run(options: argparse.Namespace) -> int:
    from rag_eval_otel.demo.show import run_demo  # noqa: PLC0415  # imports LangChain

    chosen = {"judge": options.judge} if options.judge else {}
    return run_demo(form=options.form, options=chosen, write=sys.stdout.write)
