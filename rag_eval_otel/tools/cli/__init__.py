"""Define the ``rag-eval-otel`` command line, and run its commands.

A command is a module, or a class such as those in ``commands.py``, that is registered as an entry
point of the group `GROUP`. The first line of its docstring stands in the list of commands,
``DESCRIPTION`` is its help text, ``add_options(parser)`` declares its options, and ``run(options)``
executes it and returns the exit status.
"""

from __future__ import annotations

import argparse
import ast
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import redirect_stdout
from difflib import get_close_matches
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, TextIO, cast

from rag_eval_otel import __version__
from rag_eval_otel.errors import RagEvalError
from rag_eval_otel.tools.cli.options import say
from rag_eval_otel.untrusted import visible

GROUP: Final = "rag_eval_otel.commands"
_INTERRUPTED: Final = 130  # as of shells


def main(arguments: Sequence[str] | None = None) -> int:
    words = sys.argv[1:] if arguments is None else arguments
    options = _options(words)
    try:
        with redirect_stdout(cast("TextIO", _Terminal(sys.stdout))):
            status: int = options.run(options)
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader has closed the pipe. Without this, Python would write the rest at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except KeyboardInterrupt as interrupt:
        say("; ".join(["interrupted", *map(str, interrupt.args)]))
        return _INTERRUPTED
    except (RagEvalError, OSError) as error:  # such as a full disk
        say(str(error))
        return 2
    return status


class _Terminal:
    """A text stream that leaves out control and invisible characters."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        return self._stream.write(visible(text))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def registered() -> Mapping[str, EntryPoint]:
    return {point.name: point for point in sorted(entry_points(group=GROUP))}


def _options(words: Sequence[str]) -> argparse.Namespace:
    """Parse ``words``; for a wrong command or option, suggest a similar name and exit with 2."""
    parser = argparse.ArgumentParser(
        prog="rag-eval-otel", description="Live quality scores for RAG, on the trace itself."
    )
    parser.add_argument("--version", action="version", version=__version__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND", dest="command")
    known, name = registered(), next(iter(words), "")
    if name not in known:
        if not name.startswith("-"):
            wrong = f"there is no command {name!r}" if name else "a command is missing"
            parser.error(f"{wrong}{_meant(name, known)}; commands: {', '.join(known)}")
        for name, point in known.items():
            commands.add_parser(name, help=_summary(point))
        return parser.parse_args(words)
    command = known[name].load()
    named = commands.add_parser(
        name, description=command.DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    command.add_options(named)
    named.set_defaults(run=command.run)
    options, others = parser.parse_known_args(words)
    if others:
        flags = named._option_string_actions  # noqa: SLF001  # argparse has no public way to ask
        named.error(f"unrecognized arguments: {' '.join(others)}{_meant(others[0], flags)}")
    return options


def _meant(word: str, known: Iterable[str]) -> str:
    near = get_close_matches(word.partition("=")[0], known, n=1)
    return f"; did you mean {near[0]}?" if near else ""


def _summary(point: EntryPoint) -> str:
    """Return the first line of a command's docstring; a module is only parsed: imports are slow."""
    if point.attr:
        return str(point.load().__doc__).partition("\n")[0]
    spec = find_spec(point.module)
    if spec is None or spec.origin is None:
        return "is not installed completely"
    docstring = ast.get_docstring(ast.parse(Path(spec.origin).read_text(encoding="utf-8")))
    return (docstring or "").partition("\n")[0]
