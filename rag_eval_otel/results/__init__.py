"""Read and write score files.

`rag-eval-otel evaluate` writes score files. They are tables (JSON Lines, CSV, Parquet) or OTLP
JSON.
"""

from rag_eval_otel.results.read import read_scores
from rag_eval_otel.results.rows import CounterPoint, Row, ScoreRecord, UnscoredTurn

__all__ = ["CounterPoint", "Row", "ScoreRecord", "UnscoredTurn", "read_scores"]
