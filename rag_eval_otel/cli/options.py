"""Define the command line options that several commands share."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from rag_eval_otel.errors import ConfigError
from rag_eval_otel.thresholds import read_thresholds, thresholds_of


def names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


AS_JSON: Mapping[str, Any] = {
    "dest": "form",
    "action": "store_const",
    "const": "json",
    "default": "text",
    "help": "print the result as JSON",
}
"""The keyword arguments of ``add_argument`` for the option ``--json``."""

THRESHOLDS: Mapping[str, Mapping[str, Any]] = {
    "--threshold": {
        "action": "append",
        "default": [],
        "dest": "pairs",
        "metavar": "METRIC=SCORE",
        "help": "lowest score with which a metric passes; may be given several times",
    },
    "--thresholds": {
        "type": Path,
        "metavar": "FILE.toml",
        "help": "thresholds as `rag-eval-otel calibrate --write` writes them",
    },
    "--label-metrics": {
        "type": names,
        "metavar": "METRICS",
        "help": "metrics that decide the label of a row (default: those the judge can tell)",
    },
}
"""The options about thresholds, for every command that labels scores."""


def chosen_thresholds(options: argparse.Namespace) -> dict[str, float] | None:
    """Return the thresholds of ``--thresholds`` and ``--threshold``, by metric.

    ``--threshold`` has precedence. The result is None if neither option is given.
    """
    if options.thresholds is None and not options.pairs:
        return None
    found = {} if options.thresholds is None else read_thresholds(options.thresholds)
    return found | thresholds_of(",".join(options.pairs), where="--threshold")


def count_up_to(most: int) -> Callable[[str], int]:
    """Return a function that reads a whole number from 0 to ``most``, for ``type=``."""

    def count(text: str) -> int:
        if not (text.isdecimal() and int(text) <= most):
            msg = f"must be a whole number from 0 to {most}, not {text!r}"
            raise argparse.ArgumentTypeError(msg)
        return int(text)

    return count


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
