"""Score datasets; compare, calibrate and report scores. Modules are imported on first use."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rag_eval_otel.tools.compare import Comparison, Gate, GateResult, compare_files
    from rag_eval_otel.tools.dataset import DatasetResult, aevaluate_dataset, evaluate_dataset

__all__ = [
    "Comparison",
    "DatasetResult",
    "Gate",
    "GateResult",
    "aevaluate_dataset",
    "compare_files",
    "evaluate_dataset",
]

_MODULES = ("compare", "dataset")


def __getattr__(name: str) -> Any:
    for module in _MODULES if name in __all__ else ():
        content = vars(import_module(f"{__name__}.{module}"))
        if name in content:
            return content[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
