"""Offline evaluation of datasets: read, score, sum up, compare, write."""

from rag_eval_otel.dataset.budget import Budget
from rag_eval_otel.dataset.report import Report
from rag_eval_otel.dataset.run import aevaluate_dataset, evaluate_dataset

__all__ = ["Budget", "Report", "aevaluate_dataset", "evaluate_dataset"]
