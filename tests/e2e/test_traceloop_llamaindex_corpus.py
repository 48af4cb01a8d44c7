"""The LlamaIndex applications of the corpus, traced by OpenLLMetry."""

from e2e.corpus_checks import check_corpus


def test_the_corpus() -> None:
    """Most applications are scored exactly, and none wrongly or beside its span."""
    check_corpus("traceloop", "llamaindex", exact=0.75, wrong=0.0)
