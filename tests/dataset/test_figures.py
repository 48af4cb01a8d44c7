"""The numbers behind the drawings."""

from __future__ import annotations

import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rag_eval_otel.dataset.figures import Line, bins, find_drift, parts, running, window_of
from rag_eval_otel.drift.validation import default_learn
from score_files import falling


def line(values: list[float]) -> Line:
    """Return a line of ``values``, one a row."""
    at = [float(i) for i in range(len(values))]
    return Line(version="v", at=at, values=values, units=values)


@given(st.lists(st.floats(0, 1), min_size=1))
def test_every_score_is_in_a_bin(values: list[float]) -> None:
    """The counts add up, and both ends belong to the outer bins."""
    found = bins([*values, 0.0, 1.0], (0.0, 1.0))
    assert sum(one.count for one in found) == len(values) + 2
    assert found[0].count and found[-1].count  # noqa: PT018  # both ends


def test_score_on_a_bound_is_in_the_bin_above() -> None:
    """Also if the bound is not an exact binary fraction."""
    counts = [one.count for one in bins([0.05 * i for i in range(20)], (0.0, 1.0))]
    assert counts == [1] * 20


def test_running_mean_is_over_its_window() -> None:
    """The last mean is that of the last window; there are at most 241."""
    values = falling(10_000, at=6000)
    found = running(line(values))
    assert len(found) <= 241
    assert found[-1].n == window_of(10_000) == 250
    assert found[-1].mean == pytest.approx(statistics.mean(values[-250:]))
    low, high = found[-1].interval or (0.0, 0.0)
    assert low < found[-1].mean < high
    assert running(line([])) == []
    assert [one.n for one in running(line([0.5]))] == [1]


def test_parts_cover_all_scores() -> None:
    """At most twenty, in order, with the lowest score of each."""
    values = falling(1001, at=500)
    found = list(parts(line(values)))
    assert sum(one.n for one in found) == 1001
    assert len(found) <= 20
    assert min(one.lowest for one in found) == min(values)
    assert [one.since for one in found] == sorted(one.since for one in found)


# --- drift ----------------------------------------------------------------------------------------


def test_lasting_change_is_one_mark() -> None:
    """Repeated alarms are counted."""
    found = find_drift(line(falling(6000, at=3000)))
    (mark,) = found.marks
    assert 2980 <= mark.onset <= 3010
    assert mark.onset <= mark.at <= 3030
    assert mark.again >= 3
    assert mark.until > 5000
    assert found.alarms == 1 + mark.again
    assert found.has_baseline
    assert found.learn == 2000


def test_scores_outside_0_to_1_are_left_out() -> None:
    """They are counted, and the places of alarms stay right."""
    values = [85.0 if i % 2 else value for i, value in enumerate(falling(3000, at=2000))]
    found = find_drift(line(values))
    assert found.outside == 1500
    assert 1950 <= found.marks[0].onset <= 2050


@pytest.mark.parametrize(("count", "learn"), [(0, 50), (100, 50), (1000, 500), (99_999, 2000)])
def test_baseline_is_learned_from_half_of_few_scores(count: int, learn: int) -> None:
    """In `rag-eval-otel drift` and on the page."""
    assert default_learn(count) == learn


# --- counters -------------------------------------------------------------------------------------
