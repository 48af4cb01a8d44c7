"""The LlamaIndex applications of the corpus, traced by OpenInference."""

from e2e.corpus_checks import corpus_test

test_the_corpus = corpus_test("openinference", "llamaindex", exact=0.9, wrong=0.0)
