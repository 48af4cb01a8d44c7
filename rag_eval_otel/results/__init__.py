"""Score files: the rows that `evaluate` writes, and the reader of these, tables and OTLP JSON."""

from rag_eval_otel.results.read import read_scores
from rag_eval_otel.results.rows import CounterPoint, Row, ScoreRecord, UnscoredTurn

__all__ = ["CounterPoint", "Row", "ScoreRecord", "UnscoredTurn", "read_scores"]
