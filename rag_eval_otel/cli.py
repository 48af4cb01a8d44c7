"""The ``rag-eval-otel`` command."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from importlib.metadata import version

from rag_eval_otel.errors import RagEvalError


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit status: 0 done, 1 failed, 2 misused."""
    parser = _parser()
    options = parser.parse_args(arguments)
    try:
        status: int = options.run(options)
    except RagEvalError as error:
        sys.stderr.write(f"rag-eval-otel: {error}\n")
        return 2
    return status


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="rag-eval-otel", description="Live quality scores for RAG, on the trace itself."
    )
    parser.add_argument("--version", action="version", version=version("rag-eval-otel"))
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
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
        metavar="lexical|openai/MODEL",
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
    demo.set_defaults(run=_demo)
    return parser


def _demo(options: argparse.Namespace) -> int:
    from rag_eval_otel.demo.run import run_demo  # noqa: PLC0415  # imports LangChain

    chosen = {"judge": options.judge} if options.judge else {}
    return run_demo(form=options.form, options=chosen, write=sys.stdout.write)
