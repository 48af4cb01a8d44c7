"""The LangChain and LangGraph applications of the corpus, traced by traceloop."""

from __future__ import annotations

from e2e.corpus_checks import check_corpus


def test_the_corpus() -> None:
    """Most applications are scored exactly, hardly any wrongly, and no graph that grades."""
    check_corpus("traceloop", "langchain", "langgraph", exact=0.9)
