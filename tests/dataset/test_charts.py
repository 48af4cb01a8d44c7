"""Axes of the drawings: ticks, labels and places."""

from __future__ import annotations

from datetime import datetime, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rag_eval_otel.dataset.charts import Axis, place_name, tick_label, ticks, time_ticks

FINITE = st.floats(-1e9, 1e9)


@given(low=FINITE, width=st.floats(1e-3, 1e12))
def test_ticks_are_few_and_within_the_axis(low: float, width: float) -> None:
    """For numbers and times."""
    for named in (ticks(low, low + width), time_ticks(low, low + width)):
        assert len(named) <= 7
        assert all(low - width / 100 <= one <= low + width * 1.01 for one in named)


def test_ticks_are_round() -> None:
    """A single value is a single tick."""
    assert [f"{one:g}" for one in ticks(0, 1)] == ["0", "0.2", "0.4", "0.6", "0.8", "1"]
    assert ticks(1, 5) == [1, 2, 3, 4, 5]
    assert ticks(7, 7) == time_ticks(7, 7) == [7]
    day = time_ticks(1_700_000_000, 1_700_086_400)
    labels = [tick_label(at, "time", all_ticks=day) for at in day]
    assert labels == ["11-15 00:00", "11-15 06:00", "11-15 12:00", "11-15 18:00"]
    week = time_ticks(1_700_000_000, 1_700_600_000)
    assert tick_label(week[0], "time", all_ticks=week) == "2023-11-15"


def seconds(text: str) -> float:
    """Return a date, and perhaps a time in UTC, as seconds since the epoch."""
    return datetime.fromisoformat(text).replace(tzinfo=timezone.utc).timestamp()


@pytest.mark.parametrize(
    ("start", "end", "labels"),
    [
        ("2026-11-01", "2026-12-01", ["2026-11-02", "2026-11-09", "2026-11-16", "2026-11-23"]),
        ("2026-01-15", "2026-05-20", ["2026-02", "2026-03", "2026-04", "2026-05"]),
        ("2025-06-15", "2027-02-01", ["2025-07", "2026-01", "2026-07", "2027-01"]),
        ("2019-03-01", "2026-03-01", ["2020", "2022", "2024", "2026"]),
        ("2026-11-22T09:00:00", "2026-11-22T09:00:00.900000", ["09:00:00.000", "09:00:00.200"]),
    ],
)
def test_times_are_round_in_the_calendar(start: str, end: str, labels: list[str]) -> None:
    """Mondays, first days of months and years, and parts of a second."""
    named = time_ticks(seconds(start), seconds(end))
    found = [tick_label(at, "time", all_ticks=named) for at in named]
    assert found[: len(labels)] == labels
    assert len(found) <= 6


def test_time_outside_the_calendar_is_clipped() -> None:
    """To 1970 and 9999."""
    assert place_name(-1e300, "time") == "1970-01-01 00:00:00 UTC"
    assert place_name(1e300, "time") == "9999-12-31 23:59:59 UTC"
    assert place_name(1234, "row") == "row 1,234"


def test_places_stay_on_the_axis() -> None:
    """A value outside is at the nearer end."""
    axis = Axis(low=0, high=1, start=100, end=200)
    assert [axis.place(v) for v in (-5, 0, 0.5, 1, 5)] == [100, 100, 150, 200, 200]
    assert Axis(low=3, high=3, start=100, end=200).place(3) == 100
