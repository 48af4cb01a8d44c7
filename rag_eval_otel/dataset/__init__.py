"""Score the rows of a dataset offline, and write an HTML page about the scores in a file."""

from rag_eval_otel.dataset.comparison import Comparison
from rag_eval_otel.dataset.gate import Gate, GateResult
from rag_eval_otel.dataset.result import DatasetResult
from rag_eval_otel.dataset.run import Budget, aevaluate_dataset, evaluate_dataset

__all__ = [
    "Budget",
    "Comparison",
    "DatasetResult",
    "Gate",
    "GateResult",
    "aevaluate_dataset",
    "evaluate_dataset",
]
