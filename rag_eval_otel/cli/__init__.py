"""Define the ``rag-eval-otel`` command line and run its commands.

Each command is a module of this package. ``DESCRIPTION`` is its help text, ``add_options(parser)``
declares its options, and ``run(options)`` executes the command and returns the exit status. A new
command must also be added to ``_COMMANDS``.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from importlib import import_module
from typing import Any, TextIO, cast

from rag_eval_otel import __version__
from rag_eval_otel.errors import RagEvalError
from rag_eval_otel.untrusted import visible

_COMMANDS: Mapping[str, str] = {
    "demo": "run a small offline RAG app, and show its traces with their scores",
    "collect": "write the samples in recorded traces to a file",
    "evaluate": "score the rows of a file",
    "compare": "show how the scores of two files differ",
    "metrics": "list the metrics: name, needs, judge requests, range",
    "check-judge": "measure a judge on cases with known verdicts",
    "calibrate": "compare scores with human labels",
    "drift": "find drift in the scores of a file",
    "estimate": "estimate the mean quality of all turns from a sample",
    "report": "write an HTML page about the scores of a file",
    "doctor": "check the set-up or a program's run, and say what to do",
    "serve": "score the turns in spans that other processes send over OTLP",
    "rules": "print Prometheus rules for a target",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command in ``arguments`` and return the exit status.

    The status is 0 after success, 1 after a failure, and 2 after wrong usage. Some commands have
    further codes. If ``arguments`` is None, the command-line arguments of the process are used.
    """
    given = sys.argv[1:] if arguments is None else arguments
    options = _parser(given).parse_args(given)
    try:
        with redirect_stdout(cast("TextIO", _Terminal(sys.stdout))):
            status: int = options.run(options)
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader has closed the pipe. Without this, Python would write the rest at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except RagEvalError as error:
        sys.stderr.write(f"rag-eval-otel: {visible(str(error))}\n")
        return 2
    return status


class _Terminal:
    """A text stream that shows control and hidden characters by their codes (``<U+001B>``).

    Texts of users and judges could otherwise move the cursor of the terminal, or hide output.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        return self._stream.write(visible(text))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def _parser(given: Sequence[str]) -> argparse.ArgumentParser:
    """Return the argument parser for ``given``, the command line arguments.

    Only the module of the command that ``given`` names is imported.
    """
    parser = argparse.ArgumentParser(
        prog="rag-eval-otel", description="Live quality scores for RAG, on the trace itself."
    )
    parser.add_argument("--version", action="version", version=__version__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    named = next((word for word in given if not word.startswith("-")), None)
    for name, told in _COMMANDS.items():
        options = commands.add_parser(
            name, help=told, formatter_class=argparse.RawDescriptionHelpFormatter
        )
        if name == named:
            command = import_module(f"{__name__}.{name.replace('-', '_')}")
            options.description = command.DESCRIPTION
            command.add_options(options)
            options.set_defaults(run=command.run)
    return parser
