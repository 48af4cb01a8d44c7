"""Files of scores, read back: what `evaluate` writes, tables of one's own, and OTLP JSON."""

from rag_eval_otel.results.read import read_scores
from rag_eval_otel.results.records import Counted, Scored, Unscored

__all__ = ["Counted", "Scored", "Unscored", "read_scores"]
