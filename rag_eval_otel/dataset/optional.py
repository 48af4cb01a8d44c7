"""Libraries that are imported on use."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from rag_eval_otel.errors import MissingDependencyError

EXTRA = "dataset"


def require(module: str, extra: str = EXTRA) -> Any:
    """Return ``module``, which ``extra`` brings; `MissingDependencyError` if it is not there."""
    try:
        return import_module(module)
    except ImportError as error:
        raise MissingDependencyError(module.partition(".")[0], extra) from error
