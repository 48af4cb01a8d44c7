"""The Haystack applications of the corpus, traced by Haystack itself."""

from e2e.corpus_checks import check_corpus


def test_the_corpus() -> None:
    """Most applications are scored exactly, and few wrongly."""
    check_corpus("haystack_native", "haystack", exact=0.85, wrong=0.03)
