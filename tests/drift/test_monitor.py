"""`DriftMonitor`: streams, reports, limits, and saved states."""

import json
import logging
import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from rag_eval_otel.drift import (
    BettingDetector,
    Drift,
    DriftMonitor,
    DriftOptions,
    NewBaseline,
    Stream,
)
from rag_eval_otel.errors import ConfigError
from rag_eval_otel.types import Evaluation, Score, SpanRef


def make(_: Stream) -> BettingDetector:
    return BettingDetector(learn=300, every=1000, cooldown=100)


STREAM = Stream(service="shop", name="faithfulness", version="1")


class Reports(list[Any]):
    """The reports of a monitor."""

    @property
    def drifts(self) -> list[Drift]:
        return [one for one in self if isinstance(one, Drift)]


def watch(**options: Any) -> tuple[DriftMonitor, Reports]:
    reports = Reports()
    return DriftMonitor(reports.append, **{"make": make, "service": "shop", **options}), reports


def evaluation(value: float | None, at: int = 1, version: str = "1", **options: Any) -> Evaluation:
    failed = {"status": "error", "reason": "timeout"} if value is None else {}
    score = Score(name="faithfulness", value=value, version=version, **failed, **options)
    return Evaluation(scores=(score,), span=SpanRef(trace_id=at, span_id=at))


def turns(monitor: DriftMonitor, count: int, mean: float, *, first: int = 0) -> None:
    dice = random.Random(first)
    for at in range(first, first + count):
        monitor.emit(evaluation(float(dice.random() < mean), at))


def test_an_alarm_has_stream_change_and_worst_turns() -> None:
    """The worst turns have the lowest scores since the onset."""
    monitor, reports = watch()
    turns(monitor, 400, 0.9)
    turns(monitor, 300, 0.5, first=400)
    (drift, *_) = reports.drifts
    assert drift.stream == STREAM
    assert drift.alarm.direction == "down"
    assert 0 < len(drift.worst) <= 5
    assert all(one.score == 0 and one.span is not None for one in drift.worst)
    assert all(one.span.trace_id >= drift.alarm.onset for one in drift.worst if one.span)
    assert "faithfulness of shop drifted (down): mean 0.8" in str(drift)


def test_a_rise_of_normalized_scores_and_of_lengths() -> None:
    """The worst turns of a rise have the highest scores; answer_length is a stream of its own."""
    monitor, reports = watch()
    dice = random.Random(0)
    for at in range(700):
        grade = float(dice.random() < (0.3 if at < 400 else 0.9))
        length = round((400 if at < 400 else 900) * dice.uniform(0.5, 1.5))
        turn = evaluation(1 + 4 * grade, at, normalized=grade)
        monitor.emit(replace(turn, answer_length=length))
    drifts = {drift.stream.name: drift for drift in reports.drifts}
    assert set(drifts) == {"faithfulness", "answer_length"}
    assert {drift.alarm.direction for drift in drifts.values()} == {"up"}
    assert {turn.score for turn in drifts["faithfulness"].worst} == {1.0}


def test_another_version_starts_a_new_baseline() -> None:
    """It is reported once, and raises no alarm."""
    monitor, reports = watch()
    turns(monitor, 400, 0.9)
    for at in range(200):
        monitor.emit(evaluation(float(at % 2), at, version="2"))
        monitor.emit(
            evaluation(float(at % 10 > 0), at, version="1")
        )  # a gradual roll-out: both are served
    assert reports == [
        NewBaseline(stream=Stream(service="shop", name="faithfulness", version="2"), previous="1")
    ]


def test_failed_scores_are_monitored_by_their_share() -> None:
    """They are not evidence for a drift of the metric itself."""
    monitor, reports = watch()
    turns(monitor, 400, 0.9)
    for at in range(2000):
        monitor.emit(evaluation(None, at))
    assert dict(monitor.evidence())[STREAM] < 3
    assert {one.stream.name for one in reports} == {"faithfulness.scored"}


def restarted(state: Any, **options: Any) -> tuple[DriftMonitor, Reports]:
    monitor, reports = watch(**options)
    monitor.restore(json.loads(json.dumps(state)))
    return monitor, reports


def test_a_restored_baseline_and_version_are_known() -> None:
    """The next process learns no new baseline, and reports another version."""
    before, _ = watch()
    turns(before, 400, 0.9)
    after, reports = restarted(before.to_state())
    turns(after, 200, 0.4, first=400)
    assert reports.drifts
    after, reports = restarted(before.to_state())
    after.emit(evaluation(0.0, version="2"))
    assert (reports[0].previous, reports[0].stream.version) == ("1", "2")


def test_restored_states_without_new_scores_are_saved_again() -> None:
    """A rarely scored metric keeps its baseline."""
    before, _ = watch()
    turns(before, 400, 0.9)
    seldom = Stream(service="shop", name="seldom")
    before.update(seldom, 1.0)
    after, _ = restarted(before.to_state())
    after.emit(evaluation(1.0))
    kept = after.to_state()["streams"]
    assert "seldom" in {one["name"] for one in kept}
    again, reports = restarted(after.to_state())
    again.update(seldom, 1.0)
    assert len(again.to_state()["streams"]) == len(kept)
    assert not reports


def spoilt(change: Callable[[Any], object]) -> Any:
    monitor, _ = watch()
    turns(monitor, 400, 0.9)
    state = monitor.to_state()
    change(state)
    return state


@pytest.mark.parametrize(
    "state",
    [
        None,
        [],
        {},
        "state",
        spoilt(lambda state: state.update(format=0)),
        spoilt(lambda state: state["streams"].append({})),
        spoilt(lambda state: state["streams"][0].update(detector=None)),
        spoilt(lambda state: state["streams"][0]["detector"].update(count=float("inf"))),
    ],
)
def test_an_invalid_state_is_ignored(state: Any, caplog: pytest.LogCaptureFixture) -> None:
    """The baseline is learned anew, with a warning and no alarm."""
    monitor, reports = restarted(state)
    turns(monitor, 400, 0.2)
    assert not reports
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert "cannot be used" in record.getMessage()
    assert "learned anew" in record.getMessage()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"direction": "sideways"}, "direction must be one of both, down, up"),
        ({"targets": {"faithfulness": 1.5}}, "target must be a mean between 0 and 1"),
    ],
)
def test_invalid_options_are_refused(options: dict[str, Any], message: str) -> None:
    """The error names the option and the allowed values."""
    with pytest.raises(ConfigError, match=message):
        DriftOptions(**options)
