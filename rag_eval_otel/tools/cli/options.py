"""Options of the command line and checks of files that several commands share."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rag_eval_otel.errors import ConfigError

AS_JSON: Mapping[str, Any] = {
    "dest": "form",
    "action": "store_const",
    "const": "json",
    "default": "text",
    "help": "print the result as JSON",
}
"""The keyword arguments of ``add_argument`` for the option ``--json``."""


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
