"""The numbers behind the drawings."""

from __future__ import annotations

import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rag_eval_otel.dataset.charts import Axis, place_name, tick_label, ticks, time_ticks
from rag_eval_otel.dataset.figures import Line, bins, find_drift, parts, running, window_of
from rag_eval_otel.dataset.series import CounterTotals
from rag_eval_otel.drift.validation import default_learn
from rag_eval_otel.results import CounterPoint
from score_files import falling

FINITE = st.floats(-1e9, 1e9)


def line(values: list[float]) -> Line:
    """Return a line of ``values``, one a row."""
    at = [float(i) for i in range(len(values))]
    return Line(version="v", at=at, values=values, units=values)


@given(st.lists(st.floats(0, 1), min_size=1))
def test_every_score_is_in_a_bin(values: list[float]) -> None:
    """The counts add up, and the ends belong to the outer bins."""
    found = bins([*values, 0.0, 1.0], (0.0, 1.0))
    assert sum(one.count for one in found) == len(values) + 2
    assert found[0].count and found[-1].count  # noqa: PT018  # both ends


def test_bins_begin_where_they_say() -> None:
    """A score on a bound is in the bin above it, also where the bound is no exact number."""
    counts = [one.count for one in bins([0.05 * i for i in range(20)], (0.0, 1.0))]
    assert counts == [1] * 20


@given(low=FINITE, width=st.floats(1e-3, 1e12))
def test_ticks_are_few_and_within(low: float, width: float) -> None:
    """Of numbers and of times."""
    for named in (ticks(low, low + width), time_ticks(low, low + width)):
        assert len(named) <= 7
        assert all(low - width / 100 <= one <= low + width * 1.01 for one in named)


def test_ticks_are_round() -> None:
    """As people would name them; one value is one tick."""
    assert [f"{one:g}" for one in ticks(0, 1)] == ["0", "0.2", "0.4", "0.6", "0.8", "1"]
    assert ticks(1, 5) == [1, 2, 3, 4, 5]
    assert ticks(7, 7) == time_ticks(7, 7) == [7]
    day = time_ticks(1_700_000_000, 1_700_086_400)
    labels = [tick_label(at, "time", all_ticks=day) for at in day]
    assert labels == ["11-15 00:00", "11-15 06:00", "11-15 12:00", "11-15 18:00"]
    week = time_ticks(1_700_000_000, 1_700_600_000)
    assert tick_label(week[0], "time", all_ticks=week) == "2023-11-15"


def test_times_have_a_year_that_can_be_written() -> None:
    """Whatever a file calls a time."""
    assert place_name(-1e300, "time") == "1970-01-01 00:00:00 UTC"
    assert place_name(1e300, "time") == "9999-12-31 23:59:59 UTC"
    assert place_name(1234, "row") == "row 1,234"


def test_places_stay_on_the_drawing() -> None:
    """What is outside of an axis is at its end."""
    axis = Axis(low=0, high=1, start=100, end=200)
    assert [axis.place(v) for v in (-5, 0, 0.5, 1, 5)] == [100, 100, 150, 200, 200]
    assert Axis(low=3, high=3, start=100, end=200).place(3) == 100


def test_running_means_are_of_their_window() -> None:
    """The last one is the mean of the last window; there are no more than can be seen."""
    values = falling(10_000, at=6000)
    found = running(line(values))
    assert len(found) <= 241
    assert found[-1].n == window_of(10_000) == 250
    assert found[-1].mean == pytest.approx(statistics.mean(values[-250:]))
    low, high = found[-1].interval or (0.0, 0.0)
    assert low < found[-1].mean < high
    assert running(line([])) == []
    assert [one.n for one in running(line([0.5]))] == [1]


def test_parts_are_of_all_scores() -> None:
    """Twenty at most, in order, with the lowest score of each."""
    values = falling(1001, at=500)
    found = list(parts(line(values)))
    assert sum(one.n for one in found) == 1001
    assert len(found) <= 20
    assert min(one.lowest for one in found) == min(values)
    assert [one.since for one in found] == sorted(one.since for one in found)


# --- drift ----------------------------------------------------------------------------------------


def test_a_change_that_lasts_is_one_mark() -> None:
    """The alarms after the first are counted."""
    found = find_drift(line(falling(6000, at=3000)))
    (mark,) = found.marks
    assert 2980 <= mark.onset <= 3010
    assert mark.onset <= mark.at <= 3030
    assert mark.again >= 3
    assert mark.until > 5000
    assert found.alarms == 1 + mark.again
    assert found.has_baseline
    assert found.learn == 2000


def test_what_is_no_score_is_passed_over() -> None:
    """Scores that are not in [0, 1] are counted, and the places of alarms stay right."""
    values = [85.0 if i % 2 else value for i, value in enumerate(falling(3000, at=2000))]
    found = find_drift(line(values))
    assert found.outside == 1500
    assert 1950 <= found.marks[0].onset <= 2050


@pytest.mark.parametrize(("count", "learn"), [(0, 50), (100, 50), (1000, 500), (99_999, 2000)])
def test_of_few_scores_half_say_what_is_normal(count: int, learn: int) -> None:
    """For `rag-eval-otel drift` and the report alike."""
    assert default_learn(count) == learn


# --- counters -------------------------------------------------------------------------------------


def point(value: float, *, at: float, key: str = "k", cumulative: bool = True) -> CounterPoint:
    """Return a point of the counter ``c``."""
    return CounterPoint(
        name="c", attributes={"a": key}, value=value, time=at, key=key, cumulative=cumulative
    )


def test_counters_add_up_over_processes() -> None:
    """The latest of each cumulative one, in any order; all of the others."""
    counters = CounterTotals()
    for one in (point(5, at=1), point(9, at=3), point(7, at=2), point(4, at=1, key="other")):
        counters.add(one)
    for value in (1, 2):
        counters.add(point(value, at=1, key="delta", cumulative=False))
    assert counters.total("c", {}) == 9 + 4 + 3
    assert counters.total("c", {"a": "other"}) == 4
    assert counters.total("d", {}) is None
