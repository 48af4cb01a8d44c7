"""Streamed chats of LlamaIndex, traced by LlamaIndex itself: their spans wait for the answers."""

from collections import Counter

from corpus.kit import all_apps
from corpus.run import quietly, verdict
from corpus.sources import SOURCES

STREAMED = {"chat_stream_over_http", "streamed_and_awaited_chat", "streamed_context_chat"}
RUNS = 50


def test_streamed_chats_are_scored_on_their_spans() -> None:
    """The model may start after the end of the chat's span, in some of many runs."""
    with quietly(), SOURCES["llamaindex"]["llamaindex_native"]() as source:
        apps = [one for one in all_apps("llamaindex") if one.name in STREAMED]
        found = [verdict(one, source, "llamaindex_native") for one in apps for _ in range(RUNS)]
    assert Counter((one.app.name, one.kind) for one in found) == {
        (name, "exact"): RUNS for name in STREAMED
    }
