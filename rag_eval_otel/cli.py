"""The ``rag-eval-otel`` command."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from importlib.metadata import version

from rag_eval_otel.commands import (
    calibrate,
    check_judge,
    demo,
    doctor,
    drift,
    evaluate,
    metrics,
    report,
    rules,
)
from rag_eval_otel.errors import RagEvalError

_COMMANDS = (demo, evaluate, metrics, check_judge, calibrate, drift, report, doctor, rules)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit status: 0 done, 1 failed, 2 misused."""
    parser = _parser()
    options = parser.parse_args(arguments)
    try:
        status: int = options.run(options)
        sys.stdout.flush()
    except BrokenPipeError:
        # Whoever reads has stopped, and what is left would be written once more at the exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
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
    for command in _COMMANDS:
        command.add(commands)
    return parser
