"""Score the rows of a dataset offline, compare scores, and write HTML pages about score files."""

from rag_eval_otel.dataset.changes import FileComparison, compare_files
from rag_eval_otel.dataset.comparison import Comparison
from rag_eval_otel.dataset.gate import Gate, GateResult
from rag_eval_otel.dataset.result import DatasetResult
from rag_eval_otel.dataset.run import Budget, aevaluate_dataset, evaluate_dataset

__all__ = [
    "Budget",
    "Comparison",
    "DatasetResult",
    "FileComparison",
    "Gate",
    "GateResult",
    "aevaluate_dataset",
    "compare_files",
    "evaluate_dataset",
]
