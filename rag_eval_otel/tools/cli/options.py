"""Options of the command line and checks of files that several commands share."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias

from rag_eval_otel.errors import ConfigError

Options: TypeAlias = Mapping[str, tuple[str, Mapping[str, Any]]]
"""Options by their names and metavar, ``-o --output FILE``, with help and further arguments."""

AS_JSON: Mapping[str, Any] = {
    "dest": "form",
    "action": "store_const",
    "const": "json",
    "default": "text",
    "help": "print the result as JSON",
}
"""The keyword arguments of ``add_argument`` for the option ``--json``."""


def add_all(parser: argparse._ActionsContainer, options: Options) -> None:
    """Add ``options`` to ``parser``; a name without dashes is that of a positional argument."""
    for names, (text, arguments) in options.items():
        words = names.split()
        flags = [word for word in words if word.startswith("-")] or words[:1]
        named = {"metavar": words[-1], **arguments} if words[len(flags) :] else arguments
        parser.add_argument(*flags, help=text, **named)


def check_page(page: Path, file: Path, *, option: str) -> None:
    """Raise `ConfigError` if an HTML page on ``file`` cannot be written to ``page``.

    This is checked before ``file`` is read. ``option`` names the option that set ``page``.
    """
    if page.suffix.lower() not in {".html", ".htm"}:
        msg = f"{option} {page} must end in .html"
        raise ConfigError(msg)
    if page.is_dir():
        msg = f"{option} {page} is a folder; name a file"
        raise ConfigError(msg)
    require_another_file(page, file, option=option)


def require_another_file(path: Path, *read: Path, option: str) -> None:
    """Raise `ConfigError` if ``path``, the file of ``option``, is one of the files in ``read``."""
    if path.resolve() in {file.resolve() for file in read}:
        msg = f"{option} {path} is the file that is read; name another"
        raise ConfigError(msg)
