"""Detectors of the user: those of river, those found by name, and functions that return one."""

from __future__ import annotations

import logging
import random
from importlib.metadata import EntryPoint
from typing import Any

import pytest

from rag_eval_otel import registry
from rag_eval_otel.drift import BettingDetector, DriftMonitor, DriftOptions, RiverDetector, Stream
from rag_eval_otel.drift.detectors import DETECTORS
from rag_eval_otel.errors import ConfigError

STREAM = Stream(service="shop", name="faithfulness", version="1")


def falling_scores() -> list[float]:
    """Return 2,000 scores with a mean of 0.9, then 1,000 with a mean of 0.5."""
    dice = random.Random(0)
    return [float(dice.random() < (0.9 if at < 2000 else 0.5)) for at in range(3000)]


class Change:
    """A detector with river's interface that alarms at its ``at``-th value."""

    def __init__(self, at: int = 5) -> None:
        self.at = at
        self.count = 0
        self.drift_detected = False

    def update(self, x: float) -> None:
        self.count += 1
        self.drift_detected = self.count == self.at


@pytest.mark.slow
@pytest.mark.parametrize("name", [pytest.param("ADWIN", marks=pytest.mark.slow), "PageHinkley"])
def test_a_detector_of_river_finds_a_fall(name: str) -> None:
    """The alarm has the onset and the size of the change, and no evidence."""
    drift = pytest.importorskip("river.drift", reason="river is not installed")
    detector = DriftOptions(detector=getattr(drift, name)()).make_detector(STREAM)
    alarms = [detector.alarm for score in falling_scores() if detector.update(score)]
    alarm = alarms[0]
    assert alarm is not None
    assert alarm.direction == "down"
    assert alarm.index > 2000
    assert alarm.onset == pytest.approx(2000, abs=50)
    assert alarm.before == pytest.approx(0.9, abs=0.05)
    assert alarm.interval[0] < -0.4 < alarm.interval[1]
    assert alarm.log10_evidence is None


def test_classes_and_functions_of_river_detectors_are_called() -> None:
    """A class without required parameters, a function without, and one that takes the stream."""
    for source in (Change, lambda: Change(at=3), lambda stream: Change(len(stream.name))):
        detector = DriftOptions(detector=source).make_detector(STREAM)
        assert isinstance(detector, RiverDetector)
        assert any(detector.update(0.5) for _ in range(12))


def test_each_stream_has_a_copy_of_a_given_detector() -> None:
    """Scores of one metric do not count as scores of another."""
    options = DriftOptions(detector=Change(at=2))
    first, second = options.make_detector(STREAM), options.make_detector(STREAM)
    assert not first.update(0.5)
    assert not second.update(0.5)
    assert first.update(0.5)


def test_a_detector_of_our_interface_is_not_adapted() -> None:
    """A function that returns a `Detector` is used as it is, and questions keep their detector."""
    own = BettingDetector(target=0.9)
    options = DriftOptions(detector=lambda stream: own)
    assert options.make_detector(STREAM) is own
    questions = options.make_detector(Stream(service="shop", name="question_embedding"))
    assert questions is not own


def test_the_first_value_can_raise_an_alarm() -> None:
    """Without earlier scores the change is 0; invalid scores and strata are ignored."""
    detector = RiverDetector(Change(at=1))
    assert not detector.update(float("nan"))
    assert not detector.update(None)
    assert detector.ignored == 1
    assert detector.update(0.25, stratum="billing")
    assert detector.alarm is not None
    assert (detector.alarm.index, detector.alarm.onset, detector.alarm.change) == (0, 0, 0.0)
    assert (detector.count, detector.since) == (1, 1)


def test_a_rise_is_dated_beyond_the_recent_scores() -> None:
    """Scores before the last 256 still count for the mean before the change."""
    detector = RiverDetector(Change(at=1030))
    assert any(map(detector.update, [0.2] * 1000 + [0.8] * 30))
    assert detector.alarm is not None
    assert (detector.alarm.direction, detector.alarm.onset, detector.alarm.n) == ("up", 1000, 30)
    assert detector.alarm.before == pytest.approx(0.2)


def test_a_saved_state_of_a_removed_detector_is_not_restored(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The baseline is learned anew, by the default detector and by one that saves no state."""
    saved = {"format": 1, "kind": "cusum", "target": None, "count": 9, "sums": [], "learned": []}
    stream = {"service": "shop", "name": "faithfulness", "version": "1", "detector": saved}
    for options in (DriftOptions(), DriftOptions(detector=Change())):
        caplog.clear()
        monitor = DriftMonitor(lambda _: None, make=options.make_detector)
        monitor.restore({"format": 1, "streams": [stream]})
        monitor.update(STREAM, 0.5)
        (record,) = caplog.records
        assert record.levelno == logging.WARNING
        assert "the state of faithfulness cannot be used" in record.getMessage()


def entry_point(name: str, monkeypatch: pytest.MonkeyPatch, loaded: Any) -> None:
    """Install an entry point called ``name`` that loads ``loaded``."""
    entry = EntryPoint(name, "acme:Detector", DETECTORS.group)
    monkeypatch.setattr(EntryPoint, "load", lambda _: loaded)
    monkeypatch.setattr(registry, "entry_points", lambda **_: (entry,))


def test_a_detector_is_found_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """The name is that of an entry point, or ``betting``, which takes the other options."""
    entry_point("change", monkeypatch, Change)
    assert isinstance(DriftOptions(detector="change").make_detector(STREAM), RiverDetector)
    default = DriftOptions(detector="betting", every=1000).make_detector(STREAM)
    assert isinstance(default, BettingDetector)
    assert default.every == 1000


@pytest.mark.parametrize(
    ("detector", "told"),
    [
        ("adwin", "unknown detector 'adwin'"),
        ("cusum", "the detector 'cusum' was removed"),
        ("page-hinkley", "in code a detector of river"),
        (7, "detector must be a name, a function that returns a detector, or an object"),
        (None, "not None"),
    ],
)
def test_an_invalid_detector_is_refused(detector: Any, told: str) -> None:
    """The error says what is allowed."""
    with pytest.raises(ConfigError, match=told):
        DriftOptions(detector=detector)


def test_a_function_without_a_signature_is_given_the_stream() -> None:
    """Some functions written in C have none; ``dict.pop`` is one of them."""
    detectors = {STREAM: Change()}
    DriftOptions(detector=detectors.pop).make_detector(STREAM)
    assert not detectors
