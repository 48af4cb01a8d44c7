"""The LangChain and LangGraph applications of the corpus, traced by traceloop."""

from e2e.corpus_checks import corpus_test

test_the_corpus = corpus_test("traceloop", "langchain", "langgraph", exact=0.9)
