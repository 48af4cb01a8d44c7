"""The LlamaIndex applications of the corpus, traced by LlamaIndex itself."""

from e2e.corpus_checks import corpus_test

test_the_corpus = corpus_test("llamaindex_native", "llamaindex", exact=0.75, wrong=0.0)
