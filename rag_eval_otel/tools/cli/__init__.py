"""Define the ``rag-eval-otel`` command line, and run its commands.

A command is a module that is registered as an entry point of the group `GROUP`. The first line of
its docstring stands in the list of commands, ``DESCRIPTION`` is its help text,
``add_options(parser)`` declares its options, and ``run(options)`` executes it and returns the exit
status.
"""

from __future__ import annotations

import argparse
import ast
import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, TextIO, cast

from rag_eval_otel import __version__
from rag_eval_otel.errors import RagEvalError
from rag_eval_otel.untrusted import visible

GROUP: Final = "rag_eval_otel.commands"


def main(arguments: Sequence[str] | None = None) -> int:
    words = sys.argv[1:] if arguments is None else arguments
    options = _parser(words).parse_args(words)
    try:
        with redirect_stdout(cast("TextIO", _Terminal(sys.stdout))):
            status: int = options.run(options)
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader has closed the pipe. Without this, Python would write the rest at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except RagEvalError as error:
        return _failed(error, status=2)
    except OSError as error:  # a file that cannot be read, also one of this package
        return _failed(error, status=1)
    return status


def _failed(error: Exception, *, status: int) -> int:
    sys.stderr.write(f"rag-eval-otel: {visible(str(error))}\n")
    return status


class _Terminal:
    """A text stream that writes control and invisible characters as codes (``<U+001B>``)."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        return self._stream.write(visible(text))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def registered() -> Mapping[str, EntryPoint]:
    return {point.name: point for point in sorted(entry_points(group=GROUP))}


def _parser(words: Sequence[str]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="rag-eval-otel", description="Live quality scores for RAG, on the trace itself."
    )
    parser.add_argument("--version", action="version", version=__version__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    known = registered()
    named = known.get(next(iter(words), ""))
    if named:
        command = named.load()
        options = commands.add_parser(
            named.name,
            description=command.DESCRIPTION,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        command.add_options(options)
        options.set_defaults(run=command.run)
        return parser
    for name, point in known.items():  # a list of them, or an error that has their names
        commands.add_parser(name, help=_summary(point))
    return parser


def _summary(point: EntryPoint) -> str:
    """Return the first line of a command module's docstring, without importing the module."""
    spec = find_spec(point.module)
    if spec is None or spec.origin is None:
        return "is not installed completely"
    docstring = ast.get_docstring(ast.parse(Path(spec.origin).read_text(encoding="utf-8")))
    return (docstring or "").partition("\n")[0]
