"""The LlamaIndex applications of the corpus, traced by LlamaIndex itself."""

from e2e.corpus_checks import check_corpus


def test_the_corpus() -> None:
    """Most applications are scored exactly, and few wrongly."""
    check_corpus("llamaindex_native", "llamaindex", exact=0.75, wrong=0.0)
