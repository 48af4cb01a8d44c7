"""The LangChain and LangGraph applications of the corpus, traced by langfuse."""

from e2e.corpus_checks import check_corpus


def test_the_corpus() -> None:
    """Most applications are scored exactly, few wrongly, and no graph with a grader wrongly."""
    check_corpus("langfuse", "langchain", "langgraph", exact=0.94)
