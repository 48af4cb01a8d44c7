"""The LangChain and LangGraph applications of the corpus, captured by our callback alone."""

from __future__ import annotations

import pytest

from e2e.corpus_checks import check_corpus


@pytest.mark.slow
def test_the_corpus() -> None:
    """Nearly all applications are scored exactly, and none wrongly."""
    check_corpus("callback", "langchain", "langgraph", exact=0.98, wrong=0.0)
