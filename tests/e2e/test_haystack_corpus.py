"""The Haystack applications of the corpus, traced by Haystack itself."""

from e2e.corpus_checks import corpus_test

test_the_corpus = corpus_test("haystack_native", "haystack", exact=0.85, wrong=0.03)
