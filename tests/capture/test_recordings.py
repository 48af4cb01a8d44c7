"""Recorded traces of other people's instrumentations, with the samples they truly hold.

436 of applications, and 115 of two turns each by agent frameworks beside their own instrumentation.
"""

import json
from collections import Counter
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import framework_traces
from corpus.orders import shuffled
from framework_traces import is_on_spans, stated
from properties import examples
from rag_eval_otel.capture.conventions import convention_of, kind_of, read
from rag_eval_otel.capture.sample import Outcome
from rag_eval_otel.export.attributes import ContentFilter
from rag_eval_otel.types import Sample
from replay import Recording, ReplayedSpan, load, replay, unmatched, verdict

FOLDER = Path(__file__).parents[3] / "shared" / "recordings"
APPLICATIONS, AGENTS = sorted(FOLDER.glob("*.json")), framework_traces.PATHS
ENOUGH_EXACT = 240
ENOUGH_OF_AGENTS = 0.9  # of the traces that hold question, contexts and answer at all
STRIP = ContentFilter(exported="none")
SAMPLED = APPLICATIONS[::6]

pytestmark = pytest.mark.skipif(
    not (APPLICATIONS and AGENTS), reason="the shared recordings are not here"
)
both = pytest.mark.parametrize("paths", [APPLICATIONS, AGENTS], ids=["applications", "agents"])


@cache
def recording(path: Path) -> Recording:
    return framework_traces.load(path) if path in AGENTS else load(path)


@cache
def replayed(path: Path) -> tuple[Outcome, ...]:
    return tuple(replay(recording(path).calls))


def told(found: Sequence[Outcome]) -> Counter[object]:
    return Counter(
        (one.result.question, one.result.contexts, one.result.answer)
        if isinstance(one.result, Sample)
        else one.result
        for one in found
    )


@pytest.mark.slow
@both
def test_no_sample_is_wrong(paths: list[Path]) -> None:
    """Every sample that is found in a trace is right; every turn without one has a reason."""
    verdicts = {path.stem: verdict(recording(path), replayed(path)) for path in paths}
    assert [name for name, one in verdicts.items() if one in {"wrong", "incomplete"}] == []
    assert [path.stem for path in paths if not replayed(path)] == []


@pytest.mark.slow
def test_most_samples_are_found() -> None:
    """Of the traces that hold samples most are exactly right, with all of their samples."""
    verdicts = Counter(verdict(recording(path), replayed(path)) for path in APPLICATIONS)
    assert verdicts["exact"] >= ENOUGH_EXACT
    verdicts = Counter(verdict(recording(p), replayed(p)) for p in AGENTS if is_on_spans(p))
    assert verdicts["exact"] >= ENOUGH_OF_AGENTS * verdicts.total()


def test_what_is_not_there_is_not_told() -> None:
    """If a part of the truth of an agent's trace is on no span, the turns are refused."""
    found = [p for p in AGENTS if not is_on_spans(p)]
    assert [p.stem for p in found if verdict(recording(p), replayed(p)) != "refused"] == []


@pytest.mark.slow
@both
def test_scored_turns_are_on_spans(paths: list[Path]) -> None:
    """Each scored turn has a span that has not left when it is found."""
    scored = [(p.stem, one) for p in paths for one in replayed(p) if isinstance(one.result, Sample)]
    assert {name for name, one in scored if one.is_span_missed} == set()


@pytest.mark.slow
@both
def test_the_kind_is_told_without_parsing(paths: list[Path]) -> None:
    """The kind that the application's thread sees is the kind that reading the span gives."""
    for span in (span for path in paths for span in recording(path).spans):
        assert read(span).kind == kind_of(span)
        assert kind_of(span) != "other" or convention_of(span) in {None, "autogen"}


@pytest.mark.slow
@examples(75)
@given(st.data())
def test_the_order_of_the_calls_does_not_matter(data: st.DataObject) -> None:
    """Threads interleave as they like: the samples are the same."""
    path = data.draw(st.sampled_from(SAMPLED))
    calls = data.draw(shuffled(recording(path).calls))
    assert told(replay(calls, timed=False)) == told(replay(recording(path).calls, timed=False))


@pytest.mark.slow
@examples(300)
@given(st.data(), st.booleans())
def test_spans_that_are_missing_or_never_end_make_no_wrong_samples(
    data: st.DataObject,
    has_started: bool,  # noqa: FBT001
) -> None:
    """The samples are true, whichever spans are lost, or have started and not ended."""
    whole = recording(data.draw(st.sampled_from(SAMPLED)))
    spans = [span.span_id for span in whole.spans]
    lost = data.draw(st.sets(st.sampled_from(spans)) if spans else st.just(set()))
    kept = [
        call
        for call in whole.calls
        if call.span.span_id not in lost or (has_started and call.operation == "start")
    ]
    samples = [o.result for o in replay(kept, timed=False) if isinstance(o.result, Sample)]
    assert whole.truths is None or not unmatched(whole.truths, samples)


def texts_left(path: Path) -> list[str]:
    texts = {text for one in stated(path) for text in (one.question, one.answer, *one.contexts)}
    exported = []
    for span in map(ReplayedSpan, recording(path).spans):
        shown = STRIP.shown(span)
        attributes = [shown.attributes, *(event.attributes for event in shown.events)]
        exported.append(json.dumps([dict(one or {}) for one in attributes], ensure_ascii=False))
    return [text for text in texts if text and any(text.strip() in one for one in exported)]


def test_no_text_survives_where_texts_are_stripped() -> None:
    """No attribute and no event holds a question, a context or an answer any more."""
    assert {path.stem: left for path in AGENTS if (left := texts_left(path))} == {}
