"""The LlamaIndex applications of the corpus, traced by OpenInference."""

from e2e.corpus_checks import check_corpus


def test_the_corpus() -> None:
    """Most applications are scored exactly, and few wrongly."""
    check_corpus("openinference", "llamaindex", exact=0.9, wrong=0.0)
