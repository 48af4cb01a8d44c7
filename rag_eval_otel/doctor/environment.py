"""The environment, as the doctor reads it for itself and hands it to a program it starts."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from rag_eval_otel.config import DOCTOR


def variables() -> Mapping[str, str]:
    """Return the environment."""
    return os.environ


def search_path() -> str:
    """Return where commands are looked for."""
    return os.environ.get("PATH", os.defpath)


def for_program(folder: Path) -> dict[str, str]:
    """Return the environment in which a program's pipelines leave their notes in ``folder``."""
    return {**os.environ, DOCTOR: str(folder)}
