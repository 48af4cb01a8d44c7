"""The LangChain and LangGraph applications of the corpus, traced by openinference."""

from e2e.corpus_checks import corpus_test

test_the_corpus = corpus_test("openinference", "langchain", "langgraph", exact=0.94)
