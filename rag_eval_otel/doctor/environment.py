"""The environment, as the doctor reads it for itself and changes it for a program it starts."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

NOTES_VARIABLE: Final = "RAG_DOCTOR_NOTES"
"""Names the folder for the notes of a program that is watched; it is no option of ours."""

_BOOTSTRAP = str(Path(__file__).parent / "bootstrap")


def variables() -> Mapping[str, str]:
    """Return the environment."""
    return os.environ


def search_path() -> str:
    """Return where commands are looked for."""
    return os.environ.get("PATH", os.defpath)


def for_program(folder: Path) -> dict[str, str]:
    """Return the environment in which a program leaves its notes in ``folder``."""
    return {
        **os.environ,
        NOTES_VARIABLE: str(folder),
        "PYTHONPATH": with_bootstrap(os.environ.get("PYTHONPATH", "")),
    }


def with_bootstrap(path: str) -> str:
    """Return a ``PYTHONPATH`` that begins with our folder."""
    others = [part for part in path.split(os.pathsep) if part != _BOOTSTRAP] if path else []
    return os.pathsep.join([_BOOTSTRAP, *others])


def keep_watching(environ: Mapping[str, str] | None = None) -> None:
    """Put our folder in front again, where another program is about to take this one's place.

    ``environ`` is what that program will get, where it is not ours.
    """
    target = os.environ if environ is None else environ
    if isinstance(target, dict | os._Environ) and target.get(NOTES_VARIABLE):  # noqa: SLF001  # it has no public name
        target["PYTHONPATH"] = with_bootstrap(target.get("PYTHONPATH", ""))
