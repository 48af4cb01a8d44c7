"""The traffic of a look around: its phases, and what a backend gets of them."""

from __future__ import annotations

from collections import Counter

import pytest
from traffic import PHASES, planned, play

from otlp_receiver import OtlpReceiver


def test_phases_follow_each_other_with_their_share_of_bad_answers() -> None:
    """Every second answer of the bad deployment is wrong, and few others."""
    turns = list(planned(1200))
    assert list(dict.fromkeys(phase for phase, _ in turns)) == list(PHASES)
    assert sum(phase.share for phase in PHASES) == pytest.approx(1)
    bad = Counter(phase.name for phase, turn in turns if turn.defect != "none")
    counted = Counter(phase.name for phase, _ in turns)
    shares = [bad[phase.name] / counted[phase.name] for phase in PHASES]
    assert shares == pytest.approx([1 / 30, 1 / 2, 1 / 30, 1 / 30, 1 / 30], abs=0.01)


@pytest.mark.slow
def test_traffic(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Each turn arrives once; the first of the outage have no scores, the others wait."""
    with OtlpReceiver() as receiver:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.http_endpoint)
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf")
        assert play(minutes=1, rate=1, now=lambda: 0.0, wait=lambda _: None) == 0
        roots = [span for span in receiver.spans() if span.parent_span_id is None]
        names = {metric.name for metric in receiver.metrics()}
    statuses = Counter(span.attributes["rag.evaluation.status"] for span in roots)
    assert statuses.total() == 60
    assert statuses["scored"] >= 30
    assert statuses["error"] >= 1, statuses
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(" s  ")[2] for line in lines[: len(PHASES)]] == [p.name for p in PHASES]
    received = "rag.evaluation.feedback.received"
    assert {"rag.evaluation.score", "rag.evaluation.judge.tokens", received} <= names
