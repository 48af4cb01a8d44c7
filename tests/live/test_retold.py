"""The corpus under our callback, told again: applications at once, and runs that never end."""

from __future__ import annotations

import warnings
from collections import Counter
from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corpus.kit import all_apps
from corpus.orders import interleaved
from corpus.retold import Retold, runs_of, tell_runs
from corpus.run import quietly
from properties import examples

EVERY = 12  # application, in the quick tests
AT_ONCE = 3


@cache
def recorded(every: int) -> tuple[Retold, ...]:
    with quietly():
        warnings.simplefilter("ignore")  # pytest makes those of the frameworks errors
        apps = [one for one in all_apps("langchain", "langgraph") if not one.missing()]
        return tuple(runs_of(one) for one in apps[::every])


def check_unended(every: int) -> None:
    for one in recorded(every):
        for key in one.keys:
            wrong = one.wrong(one.unended({key}))
            assert not wrong, (one.app.name, one.name_of(key))


def check_interleaved(data: st.DataObject, every: int) -> None:
    apps = st.lists(
        st.sampled_from(recorded(every)), max_size=AT_ONCE, unique_by=lambda one: one.app.name
    )
    several = data.draw(apps)
    apart = sum((one.whole for one in several), Counter())
    assert Counter(tell_runs(data.draw(interleaved(several)))) == apart


@pytest.mark.slow
def test_the_corpus_is_there() -> None:
    """What is told again gives samples."""
    assert sum(bool(one.whole) for one in recorded(EVERY)) > len(recorded(EVERY)) / 2


@pytest.mark.slow
def test_a_run_that_never_ends() -> None:
    """Whichever run has no end, there is no sample that the whole does not give."""
    check_unended(EVERY)


@pytest.mark.slow
@examples(20)
@given(st.data())
def test_applications_at_once(data: st.DataObject) -> None:
    """However the events of applications mix, each gives the samples it gives by itself."""
    check_interleaved(data, EVERY)
