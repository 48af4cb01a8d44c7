"""Drift of live scores: telemetry, the state file, and failing functions of the user."""

import json
from pathlib import Path
from typing import Any

import pytest

from drifts import Backend
from live import attached, good_judge
from rag_eval_otel.drift import Drift, DriftOptions, NewBaseline


def test_an_alarm_is_an_event_and_counted() -> None:
    """The event belongs to the trace of the worst turn."""
    told: list[Any] = []
    backend = Backend(on_drift=told.append)
    backend.score(*[1.0] * 100, *[0.0] * 20)
    (event, *_) = backend.events()
    attributes = dict(event.attributes)
    assert event.event_name == "rag.evaluation.drift"
    assert 100 < event.trace_id <= 120
    assert "faithfulness of shop drifted (down)" in event.body
    assert attributes["gen_ai.evaluation.name"] == "faithfulness"
    assert attributes["rag.evaluation.drift.direction"] == "down"
    numbers = [value for value in attributes.values() if isinstance(value, float)]
    assert numbers == pytest.approx([1, 0, -1, -1.014, -0.986, 3.5945], abs=1e-4)
    assert f"{event.trace_id:032x}" in attributes["rag.evaluation.drift.worst_traces"]
    (count,) = backend.points("rag.evaluation.drift.alarms")
    assert count.value == 1
    assert isinstance(told[0], Drift)


def test_a_closed_sink_saves_its_state_and_reports_evidence(tmp_path: Path) -> None:
    """The last collection of metrics comes after `close`. The state is not saved again at exit."""
    path = tmp_path / "drift.json"
    backend = Backend(state=path)
    backend.score(*[1.0] * 100, 0.0)
    first = backend.sink
    before = backend.evidence()["1"]
    assert before > 0
    first.close()
    assert backend.evidence()["1"] == before
    backend.sink = backend.made()
    backend.score(*[1.0] * 200)
    backend.sink.close()
    saved = path.read_text(encoding="utf-8")
    assert json.loads(saved)["streams"][0]["detector"]["count"] == 301
    assert not list(tmp_path.glob("*.part"))
    first.save()
    assert path.read_text(encoding="utf-8") == saved


def test_a_new_version_is_an_event() -> None:
    """It names the previous version."""
    told: list[Any] = []
    backend = Backend(on_drift=told.append)
    backend.score(1.0)
    backend.score(0.0, version="2")
    (event,) = backend.events()
    assert event.event_name == "rag.evaluation.drift.baseline"
    assert event.attributes["rag.evaluation.version.previous"] == "1"
    assert isinstance(told[0], NewBaseline)
    assert not backend.points("rag.evaluation.drift.alarms")


@pytest.mark.parametrize("content", ["", "{", "[1]", "[" * 100_000, '{"format": 7, "streams": []}'])
def test_an_invalid_state_file_is_logged_and_replaced(
    tmp_path: Path, content: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The baselines are learned anew."""
    path = tmp_path / "drift.json"
    path.write_text(content, encoding="utf-8")
    backend = Backend(state=path)
    backend.score(*[1.0] * 120)
    assert "learned anew" in caplog.text
    assert json.loads(path.read_text(encoding="utf-8"))["streams"]


def test_a_state_file_that_cannot_be_written_is_logged_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Scores are still monitored."""
    backend = Backend(state=tmp_path / "absent" / "drift.json")
    backend.score(*[1.0] * 250, *[0.0] * 20)
    assert caplog.text.count("cannot be written") == 1
    assert backend.events()


def test_an_exception_of_on_drift_is_counted() -> None:
    """The turns are exported with their scores."""
    told: list[Any] = []

    def fail(report: Any) -> None:
        told.append(report)
        raise RuntimeError

    judge = good_judge()
    with attached(judge=judge, drift=DriftOptions(on_drift=fail), raise_errors=False) as app:
        for judge.model in ("one", "another"):
            app.turn()
            assert app.handle.flush()
        assert app.statuses() == {"scored": 2, None: 4}
        errors = app.points("rag.evaluation.internal_errors")
    assert told
    assert {point.attributes["place"] for point in errors} == {"sink"}
