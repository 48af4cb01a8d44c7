"""The LangChain and LangGraph applications of the corpus, traced by genai."""

from e2e.corpus_checks import corpus_test

test_the_corpus = corpus_test("genai", "langchain", "langgraph", exact=0.78)
