"""Agent frameworks beside their own instrumentation: 115 traces of two turns each."""

from __future__ import annotations

import json
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

from framework_traces import PATHS, is_on_spans, load, stated
from rag_eval_otel.capture.dialects import kind_of, read, tool_name
from rag_eval_otel.sinks.attributes import ContentFilter
from rag_eval_otel.testing.replay import ReplayedSpan, replay
from verdicts import verdict

STRIP = ContentFilter(foreign="strip")
ENOUGH_EXACT = 0.9  # of the traces that hold question, contexts and answer at all

pytestmark = pytest.mark.skipif(not PATHS, reason="the shared traces are not here")

each_trace = pytest.mark.parametrize("path", PATHS, ids=[path.stem for path in PATHS])


@cache
def replayed(path: Path) -> str:
    """Replay a trace once."""
    recording = load(path)
    return verdict(recording, replay(recording.calls))


@each_trace
def test_no_sample_is_wrong(path: Path) -> None:
    """What is found in a trace is truly there, and both turns of it or none."""
    assert replayed(path) in {"exact", "refused"}


@each_trace
def test_what_is_not_there_is_not_told(path: Path) -> None:
    """Where a part of the truth is on no span the turns are refused."""
    assert is_on_spans(path) or replayed(path) == "refused"


def test_most_samples_are_found() -> None:
    """Of the traces that hold all of their truth most are exact."""
    verdicts = Counter(replayed(path) for path in PATHS if is_on_spans(path))
    assert verdicts["exact"] >= ENOUGH_EXACT * verdicts.total()


@each_trace
def test_the_kind_is_told_without_parsing(path: Path) -> None:
    """What is said of a span on the application's thread is what reading it says."""
    for span in load(path).spans:
        assert read(span).kind == kind_of(span)
        assert kind_of(span) != "tool" or read(span).name == tool_name(span)


@each_trace
def test_no_text_survives_where_texts_are_stripped(path: Path) -> None:
    """What was asked, found and answered is in no attribute and in no event any more."""
    texts = {text for one in stated(path) for text in (one.question, one.answer, *one.contexts)}
    for span in map(ReplayedSpan, load(path).spans):
        shown = STRIP.shown(span)
        told = [shown.attributes, *(event.attributes for event in shown.events)]
        left = json.dumps([dict(one or {}) for one in told], ensure_ascii=False)
        assert not [text for text in texts if text and text.strip() in left]
