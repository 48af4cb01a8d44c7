"""The corpus under OpenInference, replayed in any order, with lost or unended spans."""

import warnings
from collections import Counter
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from corpus.kit import all_apps
from corpus.orders import shuffled
from corpus.retold import Retold, spans_of, tell_spans
from corpus.run import quietly
from corpus.sources import SOURCES

AT_ONCE = 2

UNTOLD = {"agent_with_two_engines"}
"""Where the retriever, or the model, of one of two tools is lost and nothing shows it.

A tool whose retriever is lost looks like one that retrieves nothing, such as a calculator. If the
model of a tool is lost, the tool looks like one without a turn of its own.
"""


@cache
def recorded() -> tuple[Retold, ...]:
    with quietly(), SOURCES["langchain"]["openinference"]() as source:
        warnings.simplefilter("ignore")  # pytest turns warnings of the frameworks into errors
        apps = [one for one in all_apps("langchain", "langgraph") if not one.missing()]
        return tuple(spans_of(one, source) for one in apps)


@pytest.mark.parametrize("how", ["lost", "open"])
def test_a_missing_span_gives_no_new_sample(how: str) -> None:
    """Without any one span, or with it unended, no new sample appears."""
    missing = Retold.without if how == "lost" else Retold.unended
    found = {
        f"{one.app.name}: {one.name_of(key)}"
        for one in recorded()
        for key in one.keys
        if one.wrong(missing(one, {key}))
    }
    assert {name for name in found if name.partition(":")[0] not in UNTOLD} == set()


@settings(max_examples=200)
@given(st.data())
def test_samples_do_not_depend_on_the_order_of_spans(data: st.DataObject) -> None:
    """In any order of spans each application gives its own samples."""
    apps = st.lists(
        st.sampled_from(recorded()), max_size=AT_ONCE, unique_by=lambda one: one.app.name
    )
    several = data.draw(apps)
    apart = sum((one.whole for one in several), Counter())
    notes = [note for one in several for note in one.notes]
    assert Counter(tell_spans(data.draw(shuffled(notes)))) == apart
