"""Files of scores, read back: what `evaluate` writes, tables of one's own, and OTLP JSON."""

from rag_eval_otel.scorefile.read import read_scores
from rag_eval_otel.scorefile.records import Counted, Scored, Unscored

__all__ = ["Counted", "Scored", "Unscored", "read_scores"]
