"""The LangChain and LangGraph applications of the corpus, traced by langfuse."""

from e2e.corpus_checks import corpus_test

test_the_corpus = corpus_test("langfuse", "langchain", "langgraph", exact=0.94)
