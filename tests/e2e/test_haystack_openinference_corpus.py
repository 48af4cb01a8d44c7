"""The Haystack applications of the corpus, traced by OpenInference."""

from e2e.corpus_checks import corpus_test

test_the_corpus = corpus_test("openinference", "haystack", exact=0.8, wrong=0.03)
