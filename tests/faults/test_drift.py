"""Faults of what drift detection is given, and of its state."""

import math
import shutil
import subprocess
from pathlib import Path

import pytest

from drifts import Backend
from live import Measured
from rag_eval_otel.types import Evaluation, Score, SpanRef

EVIDENCE = "rag.evaluation.drift.log10_evidence"
RULES = Path(__file__).parents[2] / "collector" / "prometheus"


def _evaluation(*scores: Score) -> Evaluation:
    return Evaluation(scores=scores, span=SpanRef(trace_id=1, span_id=1))


@pytest.mark.fault(41, expected="no evidence against the metric, no alarm on its values")
def test_fault_41_failed_evaluations_and_impossible_scores_are_no_evidence(
    measured: Measured,
) -> None:
    """600 failed or impossible scores after a good baseline change no evidence."""
    backend = Backend()
    backend.score(*[0.9, 1.0] * 100)
    before = backend.evidence()
    for value in (math.nan, math.inf):
        with pytest.raises(ValueError, match="not a finite number"):
            Score(name="faithfulness", value=value, version="1")
    failed = Score(name="faithfulness", status="error", reason="transport", version="1")
    scores = (failed, *(Score(name="faithfulness", value=v, version="1") for v in (-1.0, 2.0)))
    for score in scores * 200:
        backend.sink(_evaluation(score))
    alarms = {dict(e.attributes)["gen_ai.evaluation.name"] for e in backend.events()}
    assert backend.evidence() == before
    assert "faithfulness" not in alarms
    measured("evidence after 600 failed or impossible scores", f"{before['1']:.2f}, unchanged")


@pytest.mark.fault(42, expected="an event for the new baseline, no alarm")
def test_fault_42_another_version_learns_a_new_baseline(measured: Measured) -> None:
    """Scores of another model may be lower by .4 without an alarm."""
    backend = Backend()
    backend.score(*[0.9, 1.0] * 100)
    backend.score(*[0.5, 0.6] * 100, version="2")
    names = [event.event_name for event in backend.events()]
    assert names == ["rag.evaluation.drift.baseline"]
    measured("alarms after a fall of .4 with another version", 0)


@pytest.mark.fault(43, expected="the same alarm after a restart; a broken file: new baseline")
@pytest.mark.parametrize("content", ["kept", "", "[[[", '{"streams": [{"detector": 1}]}'])
def test_fault_43_the_state_survives_a_restart_or_is_learned_anew(
    content: str, measured: Measured, tmp_path: Path
) -> None:
    """An alarm comes as soon as without a restart; nothing is raised for a broken file."""
    path = tmp_path / "drift.json"
    backend = Backend(state=path)
    backend.score(*[1.0] * 100)
    backend.sink.close()
    if content != "kept":
        path.write_text(content, encoding="utf-8")
    backend.sink = backend.made()
    backend.score(*[0.0] * 20)
    alarms = sum(event.event_name == "rag.evaluation.drift" for event in backend.events())
    assert alarms == (content == "kept")
    measured(f"alarms after the restart, file {content[:4] or 'empty'}", alarms)


@pytest.mark.fault(44, expected="the gauge shows the alarm in two collections")
def test_fault_44_an_alarm_between_two_collections_is_seen(measured: Measured) -> None:
    """Without a cool-down the evidence itself restarts at zero at once."""
    backend = Backend(cooldown=0)
    backend.score(*[1.0] * 100)
    while not backend.events():
        backend.score(0.0)
    values = [backend.points(EVIDENCE)[0].value for _ in range(3)]
    assert values[0] == values[1] >= 2
    assert values[2] == 0
    measured("log10 of the evidence in three collections", [round(v, 1) for v in values])


@pytest.mark.slow
@pytest.mark.fault(45, expected="no alert")
def test_fault_45_few_turns_that_are_bad_by_chance_raise_no_alert(measured: Measured) -> None:
    """Promtool runs the scenarios of the rules, among them two bad answers of few by chance."""
    if (promtool := shutil.which("promtool")) is None:
        pytest.skip("promtool (of Prometheus) is not on the path")
    command = [promtool, "test", "rules", str(RULES / "rules_test.yaml")]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    measured("scenarios of promtool", "all pass")
