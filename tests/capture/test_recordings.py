"""436 recorded traces of other people's instrumentations, with the samples they truly hold."""

from collections import Counter
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from properties import examples
from rag_eval_otel.capture.conventions import convention_of, kind_of, read, tool_name
from rag_eval_otel.capture.sample import Outcome
from rag_eval_otel.types import Sample
from replay import Call, Recording, load, replay
from verdicts import unmatched, verdict

FOLDER = Path(__file__).parents[3] / "shared" / "recordings"
PATHS = sorted(FOLDER.glob("*.json"))
ENOUGH_EXACT = 240

pytestmark = pytest.mark.skipif(not PATHS, reason="the shared recordings are not here")

SAMPLED = PATHS[::6]


@cache
def recording(path: Path) -> Recording:
    return load(path)


@cache
def replayed(path: Path) -> tuple[Outcome, ...]:
    return tuple(replay(recording(path).calls))


def told(found: tuple[Outcome, ...] | list[Outcome]) -> Counter[object]:
    return Counter(
        (one.result.question, one.result.contexts, one.result.answer)
        if isinstance(one.result, Sample)
        else one.result
        for one in found
    )


@pytest.mark.slow
def test_no_sample_is_wrong() -> None:
    """Every sample that is found in a trace is right; every turn without one has a reason."""
    verdicts = {path.stem: verdict(recording(path), replayed(path)) for path in PATHS}
    assert [name for name, one in verdicts.items() if one in {"wrong", "incomplete"}] == []
    assert [path.stem for path in PATHS if not replayed(path)] == []


@pytest.mark.slow
def test_most_samples_are_found() -> None:
    """Of the traces that hold samples most are exactly right, with all of their samples."""
    verdicts = Counter(verdict(recording(path), replayed(path)) for path in PATHS)
    assert verdicts["exact"] >= ENOUGH_EXACT
    assert verdicts["wrong"] == verdicts["incomplete"] == 0


@pytest.mark.slow
def test_scored_turns_are_on_spans() -> None:
    """Each scored turn has a span that has not left when it is found."""
    scored = [(p.stem, one) for p in PATHS for one in replayed(p) if isinstance(one.result, Sample)]
    assert {name for name, one in scored if one.is_span_missed} == set()


@pytest.mark.slow
def test_the_kind_is_told_without_parsing() -> None:
    """The kind that the application's thread sees is the kind that reading the span gives."""
    for span in (span for path in PATHS for span in recording(path).spans):
        assert read(span).kind == kind_of(span)
        assert (convention_of(span) is None) == (kind_of(span) == "other")
        assert kind_of(span) != "tool" or read(span).name == tool_name(span)


@st.composite
def shuffled(draw: st.DrawFn, calls: tuple[Call, ...]) -> list[Call]:
    order = list(draw(st.permutations(calls)))
    places: dict[int, list[int]] = {}
    for place, call in enumerate(order):
        places.setdefault(call.span.span_id, []).append(place)
    for several in places.values():
        both = sorted((order[place] for place in several), key=lambda c: c.operation != "start")
        for place, call in zip(several, both, strict=True):
            order[place] = call
    return order


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
