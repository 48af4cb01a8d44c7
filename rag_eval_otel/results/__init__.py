"""Read and write score files, and read the feedback of people.

`rag-eval-otel evaluate` writes tables of scores (JSON Lines, CSV, Parquet), and the OpenTelemetry
Collector writes OTLP JSON. This package reads both kinds of files.
"""

from rag_eval_otel.results.read import read_feedback, read_scores
from rag_eval_otel.results.rows import CounterPoint, FeedbackRow, Row, ScoreRecord, UnscoredTurn

__all__ = [
    "CounterPoint",
    "FeedbackRow",
    "Row",
    "ScoreRecord",
    "UnscoredTurn",
    "read_feedback",
    "read_scores",
]
