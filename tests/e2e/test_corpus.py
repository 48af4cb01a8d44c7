"""The applications of the corpus, traced by each instrumentation that can."""

from collections import Counter

import pytest

from corpus.kit import all_apps
from corpus.run import quietly, verdict
from corpus.sources import SOURCES
from e2e.corpus_checks import check_corpus

LANGCHAIN = ("langchain", "langgraph")
EXACT = {  # the share, by the frameworks and the source
    (LANGCHAIN, "openinference"): 0.94,
    (LANGCHAIN, "langfuse"): 0.94,
    (LANGCHAIN, "traceloop"): 0.9,
    (LANGCHAIN, "genai"): 0.78,
    (("llamaindex",), "openinference"): 0.9,
    (("llamaindex",), "llamaindex_native"): 0.75,
    (("llamaindex",), "traceloop"): 0.75,
    (("haystack",), "openinference"): 0.8,
    (("haystack",), "haystack_native"): 0.85,
}
CASES = [pytest.param(*one, id=f"{one[0][0]}-{one[1]}") for one in EXACT]
STREAMED = {"chat_stream_over_http", "streamed_and_awaited_chat", "streamed_context_chat"}
RUNS = 50


@pytest.mark.parametrize(("frameworks", "via"), CASES)
def test_most_applications_are_scored_exactly(frameworks: tuple[str, ...], via: str) -> None:
    """And none wrongly."""
    check_corpus(via, *frameworks, exact=EXACT[frameworks, via])


def test_streamed_chats_are_scored_on_their_spans() -> None:
    """LlamaIndex may start a model after the end of the chat's span, in some of many runs."""
    with quietly(), SOURCES["llamaindex"]["llamaindex_native"]() as source:
        apps = [one for one in all_apps("llamaindex") if one.name in STREAMED]
        found = [verdict(one, source, "llamaindex_native") for one in apps for _ in range(RUNS)]
    assert Counter((one.app.name, one.kind) for one in found) == {
        (name, "exact"): RUNS for name in STREAMED
    }
