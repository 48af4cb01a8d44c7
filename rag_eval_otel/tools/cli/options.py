"""Options of the command line and checks of files that several commands share."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias

from rag_eval_otel.errors import ConfigError

Options: TypeAlias = Mapping[str, tuple[str, Mapping[str, Any]]]
"""Options by their names and metavar, ``-o --output FILE``, with help and further arguments."""

AS_JSON: Options = {
    "--json": (
        "print the result as JSON",
        {"dest": "form", "action": "store_const", "const": "json", "default": "text"},
    )
}


def add_all(parser: argparse._ActionsContainer, options: Options) -> None:
    """Add ``options`` to ``parser``. A name without leading dashes is a positional argument."""
    for names, (text, arguments) in options.items():
        words = names.split()
        flags = [word for word in words if word.startswith("-")] or words[:1]
        named = {"metavar": words[-1], **arguments} if words[len(flags) :] else arguments
        parser.add_argument(*flags, help=text, **named)


def print_result(options: argparse.Namespace, result: object, text: str) -> None:
    as_json = options.form == "json"
    text = json.dumps(result, indent=2, ensure_ascii=False) if as_json else text
    sys.stdout.write(f"{text}\n")


def require_another_file(path: Path, *read: Path, option: str) -> None:
    """Raise `ConfigError` if ``path``, the file of ``option``, is one of the files in ``read``."""
    if path.resolve() in {file.resolve() for file in read}:
        raise ConfigError(f"{option} {path} is the file that is read; name another")
