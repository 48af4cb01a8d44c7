"""The Haystack applications of the corpus, traced by OpenInference."""

from e2e.corpus_checks import check_corpus


def test_the_corpus() -> None:
    """Most applications are scored exactly, and few wrongly."""
    check_corpus("openinference", "haystack", exact=0.8, wrong=0.03)
