"""The offline side and the command line: score data sets, compare scores, and report on them.

Each name is imported when it is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rag_eval_otel.tools.compare import Comparison, compare_files
    from rag_eval_otel.tools.dataset import (
        Budget,
        DatasetResult,
        aevaluate_dataset,
        evaluate_dataset,
    )
    from rag_eval_otel.tools.gate import Gate, GateResult

__all__ = [
    "Budget",
    "Comparison",
    "DatasetResult",
    "Gate",
    "GateResult",
    "aevaluate_dataset",
    "compare_files",
    "evaluate_dataset",
]

_MODULES = {
    "Budget": "dataset",
    "Comparison": "compare",
    "DatasetResult": "dataset",
    "Gate": "gate",
    "GateResult": "gate",
    "aevaluate_dataset": "dataset",
    "compare_files": "compare",
    "evaluate_dataset": "dataset",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        msg = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(msg)
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return [*globals(), *__all__]
