"""The corpus under OpenInference, told again: in any order, with spans lost or without an end."""

from __future__ import annotations

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

UNTOLD = {"two_retriever_tools", "two_retriever_nodes_in_parallel"}
"""Where the retriever of one of two tools, or nodes, is lost and nothing shows it.

A tool whose retriever is lost looks like one that retrieves nothing, such as a calculator.
"""


@cache
def recorded() -> tuple[Retold, ...]:
    """Run every application once."""
    with quietly(), SOURCES["openinference"]() as source:
        warnings.simplefilter("ignore")  # pytest makes those of the frameworks errors
        apps = [one for one in all_apps("langchain", "langgraph") if not one.missing()]
        return tuple(spans_of(one, source) for one in apps)


@pytest.mark.parametrize("how", ["lost", "open"])
def test_a_span_that_is_missing(how: str) -> None:
    """Whichever span is lost or never ends, there is no sample that the whole does not give."""
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
def test_several_spans_that_are_missing(data: st.DataObject) -> None:
    """The same with any number of spans lost."""
    one = data.draw(st.sampled_from([one for one in recorded() if one.app.name not in UNTOLD]))
    assert not one.wrong(one.without(data.draw(st.sets(st.sampled_from(one.keys or [0])))))


@settings(max_examples=200)
@given(st.data())
def test_any_order(data: st.DataObject) -> None:
    """However the spans of applications reach the processor, each gives its own samples."""
    apps = st.lists(
        st.sampled_from(recorded()), max_size=AT_ONCE, unique_by=lambda one: one.app.name
    )
    several = data.draw(apps)
    apart = sum((one.whole for one in several), Counter())
    assert Counter(tell_spans(data.draw(shuffled(several)))) == apart
