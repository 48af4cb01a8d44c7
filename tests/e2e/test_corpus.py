"""The applications of the corpus, traced by each instrumentation that can."""

from collections import Counter

import pytest

from corpus.kit import all_apps
from corpus.run import quietly, verdict
from corpus.sources import SOURCES
from e2e.corpus_checks import check_corpus

LANGCHAIN = ("langchain", "langgraph")
BOUNDS = {  # by the frameworks and the source
    (LANGCHAIN, "openinference"): {"exact": 0.94},
    (LANGCHAIN, "langfuse"): {"exact": 0.94},
    (LANGCHAIN, "traceloop"): {"exact": 0.9},
    (LANGCHAIN, "genai"): {"exact": 0.78},
    (("llamaindex",), "openinference"): {"exact": 0.9, "wrong": 0.0},
    (("llamaindex",), "llamaindex_native"): {"exact": 0.75, "wrong": 0.0},
    (("llamaindex",), "traceloop"): {"exact": 0.75, "wrong": 0.0},
    (("haystack",), "openinference"): {"exact": 0.8, "wrong": 0.03},
    (("haystack",), "haystack_native"): {"exact": 0.85, "wrong": 0.03},
}
CASES = [pytest.param(*one, id=f"{one[0][0]}-{one[1]}") for one in BOUNDS]
STREAMED = {"chat_stream_over_http", "streamed_and_awaited_chat", "streamed_context_chat"}
RUNS = 50


@pytest.mark.parametrize(("frameworks", "via"), CASES)
def test_most_applications_are_scored_exactly(frameworks: tuple[str, ...], via: str) -> None:
    """And few wrongly."""
    check_corpus(via, *frameworks, **BOUNDS[frameworks, via])


def test_streamed_chats_are_scored_on_their_spans() -> None:
    """LlamaIndex may start a model after the end of the chat's span, in some of many runs."""
    with quietly(), SOURCES["llamaindex"]["llamaindex_native"]() as source:
        apps = [one for one in all_apps("llamaindex") if one.name in STREAMED]
        found = [verdict(one, source, "llamaindex_native") for one in apps for _ in range(RUNS)]
    assert Counter((one.app.name, one.kind) for one in found) == {
        (name, "exact"): RUNS for name in STREAMED
    }
