"""The traffic of the demo: its phases, and what a backend gets of them."""

from __future__ import annotations

from collections import Counter

import pytest

from otlp_receiver import OtlpReceiver
from rag_eval_otel.tools.cli import main
from rag_eval_otel.tools.demo import PHASES, Clock, planned, run_traffic

AT_ONCE = Clock(now=lambda: 0.0, wait=lambda _: None)


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
def test_a_backend_gets_scores_and_an_outage(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each turn arrives once; the first of the outage have no scores, the others wait."""
    written: list[str] = []
    with OtlpReceiver() as receiver:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.http_endpoint)
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf")
        assert run_traffic(minutes=1, rate=1, write=written.append, clock=AT_ONCE) == 0
        roots = [span for span in receiver.spans() if span.parent_span_id is None]
        names = {metric.name for metric in receiver.metrics()}
    statuses = Counter(span.attributes["rag.evaluation.status"] for span in roots)
    assert statuses.total() == 60
    assert statuses["scored"] >= 30
    assert statuses["error"] >= 1, statuses
    text = "".join(written)
    assert [phase.name for phase in PHASES] == [
        line.partition(" s  ")[2] for line in text.splitlines()[: len(PHASES)]
    ]
    assert "Also exported to" in text
    agreement = "rag.evaluation.feedback.agreement"
    assert {"rag.evaluation.score", "rag.evaluation.judge.tokens", agreement} <= names


def test_a_failed_export_is_told_by_the_status(monkeypatch: pytest.MonkeyPatch) -> None:
    """Here the backend accepts the test export, and refuses all spans from the first phase on."""
    written: list[str] = []
    with OtlpReceiver() as receiver:

        def write(text: str) -> None:
            receiver.fail_next(10, 400)
            written.append(text)

        endpoint = f"{receiver.http_endpoint}/v1/traces"
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", endpoint)
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf")
        assert run_traffic(minutes=0.1, rate=1, write=write, clock=AT_ONCE) == 1
    assert "Not exported: traces" in written[-1]


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--minutes", "1"], "set OTEL_EXPORTER_OTLP_ENDPOINT=http://localhost:4318"),
        (["--minutes", "0"], "must be above 0"),
        (["--minutes", "1", "--judge", "lexical"], "leave out --judge"),
        (["--rate", "1"], "add --minutes"),
    ],
)
def test_wrong_use_is_refused(
    options: list[str],
    told: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Without a backend, with numbers or options that do not fit: a message, and status 2."""
    for name in ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"):
        monkeypatch.delenv(name, raising=False)
    assert main(["demo", *options]) == 2
    assert told in capsys.readouterr().err
