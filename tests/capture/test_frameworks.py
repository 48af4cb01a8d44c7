"""Agent frameworks beside their own instrumentation: 115 traces of two turns each."""

import json
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

from framework_traces import PATHS, is_on_spans, load, stated
from rag_eval_otel.capture.conventions import kind_of, read, tool_name
from rag_eval_otel.export.attributes import ContentFilter
from replay import ReplayedSpan, replay
from verdicts import verdict

STRIP = ContentFilter(exported="none")
ENOUGH_EXACT = 0.9  # of the traces that hold question, contexts and answer at all

pytestmark = pytest.mark.skipif(not PATHS, reason="the shared traces are not here")


@cache
def replayed(path: Path) -> str:
    recording = load(path)
    return verdict(recording, replay(recording.calls))


@pytest.mark.slow
def test_no_sample_is_wrong() -> None:
    """Both samples of a trace are right, or it gives none."""
    assert [path.stem for path in PATHS if replayed(path) not in {"exact", "refused"}] == []


@pytest.mark.slow
def test_scored_turns_are_on_spans() -> None:
    """No span of a turn leaves before the turn is found."""
    found = {path.stem: replay(load(path).calls) for path in PATHS}
    assert [name for name, turns in found.items() if any(t.is_span_missed for t in turns)] == []


def test_what_is_not_there_is_not_told() -> None:
    """If a part of the truth is on no span, the turns are refused."""
    incomplete = [path for path in PATHS if not is_on_spans(path)]
    assert [path.stem for path in incomplete if replayed(path) != "refused"] == []


@pytest.mark.slow
def test_most_samples_are_found() -> None:
    """Of the traces that hold all of their truth most are exact."""
    verdicts = Counter(replayed(path) for path in PATHS if is_on_spans(path))
    assert verdicts["exact"] >= ENOUGH_EXACT * verdicts.total()


def test_the_kind_is_told_without_parsing() -> None:
    """The kind that the application's thread sees is the kind that reading the span gives."""
    for span in (span for path in PATHS for span in load(path).spans):
        assert read(span).kind == kind_of(span)
        assert kind_of(span) != "tool" or read(span).name == tool_name(span)


def texts_left(path: Path) -> list[str]:
    texts = {text for one in stated(path) for text in (one.question, one.answer, *one.contexts)}
    exported = []
    for span in map(ReplayedSpan, load(path).spans):
        shown = STRIP.shown(span)
        attributes = [shown.attributes, *(event.attributes for event in shown.events)]
        exported.append(json.dumps([dict(one or {}) for one in attributes], ensure_ascii=False))
    return [text for text in texts if text and any(text.strip() in one for one in exported)]


def test_no_text_survives_where_texts_are_stripped() -> None:
    """No attribute and no event holds a question, a context or an answer any more."""
    assert {path.stem: left for path in PATHS if (left := texts_left(path))} == {}
