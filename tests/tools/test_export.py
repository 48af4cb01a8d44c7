"""`export`: scored rows in files and over OTLP."""

import asyncio
import csv
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from offline import EMBEDDER, JUDGED, Reads, asked_rows, judge, numbers
from otlp_receiver import OtlpReceiver
from rag_eval_otel.errors import ConfigError, FailedRowError
from rag_eval_otel.evaluation import Measurement
from rag_eval_otel.metrics.base import Metric
from rag_eval_otel.tools.dataset import Run
from rag_eval_otel.tools.export import export
from rag_eval_otel.tools.read import open_dataset
from rag_eval_otel.tools.stats import Totals


def exported(
    rows: object, *, metrics: Sequence[Metric] = (Reads(),), raising: bool = False, **targets: Any
) -> tuple[Totals, int]:
    measurement = Measurement(metrics=tuple(metrics), judge=judge(), embedder=EMBEDDER)
    run = Run(measurement=measurement, progress="off", raise_on_failure=raising)
    return asyncio.run(export(open_dataset(rows), run, **targets))


def read_back(path: Path) -> list[dict[str, Any]]:
    if path.suffix == ".parquet":
        return pq.read_table(path).to_pylist()
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".csv":
        return list(csv.DictReader(text.splitlines()))
    return [json.loads(line) for line in text.splitlines()]


@pytest.mark.parametrize("suffix", ["jsonl", "ndjson", "csv", "parquet"])
def test_rows_are_written(suffix: str, tmp_path: Path) -> None:
    """Each row once and in order, with value, status and reason of each score."""
    path = tmp_path / f"scores.{suffix}"
    totals, _ = exported(numbers(1, "?", "wrong"), output=path)
    assert (totals.rows, totals.failed) == (3, 1)
    rows = read_back(path)
    assert [int(row["row"]) for row in rows] == [0, 1, 2]
    assert [row["status"] for row in rows] == ["scored", "unscored", "error"]
    assert [p.name for p in tmp_path.iterdir()] == [path.name]
    if suffix in {"csv", "parquet"}:
        assert [row["reads"] for row in rows] in (["1.0", "", ""], [1.0, None, None])
        assert [row["reads.reason"] for row in rows][1:] == ["no_claims", "internal"]


def test_failed_run_keeps_the_previous_output(tmp_path: Path) -> None:
    """A run that ends in an error leaves the output of the one before."""
    path = tmp_path / "scores.jsonl"
    path.write_text("{}\n", encoding="utf-8")
    with pytest.raises(FailedRowError):
        exported(numbers(1, "wrong"), output=path, raising=True)
    assert read_back(path) == [{}]
    assert list(tmp_path.iterdir()) == [path]


@pytest.fixture
def receiver(monkeypatch: pytest.MonkeyPatch) -> Any:
    with OtlpReceiver() as receiving:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiving.http_endpoint)
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf")
        yield receiving


def test_each_row_is_a_trace_with_its_scores(receiver: OtlpReceiver) -> None:
    """Scores are attributes as on live spans, and events parented to them."""
    _, unsent = exported(asked_rows(3), otlp="on", metrics=[JUDGED])
    spans = sorted(receiver.spans(), key=lambda span: span.attributes["rag.dataset.row"])
    assert unsent == 0
    assert [span.attributes["rag.dataset.row"] for span in spans] == [0, 1, 2]
    assert len({span.trace_id for span in spans}) == 3
    first = spans[0]
    assert first.attributes["rag.dataset.name"] == "the list"
    assert first.attributes["rag.evaluation.status"] == "scored"
    assert first.attributes["rag.evaluation.judge"] == "fake"
    assert first.attributes["rag.evaluation.context_agreement.score"] == 1.0
    assert first.attributes["rag.evaluation.context_agreement.label"] == "pass"
    assert first.attributes["rag.evaluation.context_agreement.version"].endswith("/fake")
    assert "rag.evaluation.context_agreement.explanation" not in first.attributes
    assert first.parent_span_id is None
    assert {log.span_id for log in receiver.logs()} == {span.span_id for span in spans}
    assert {log.event_name for log in receiver.logs()} == {"gen_ai.evaluation.result"}


def test_scores_are_also_metrics(receiver: OtlpReceiver) -> None:
    """Each score is in the histogram once; turns are not counted, because a job ends."""
    exported(asked_rows(3), otlp="on", metrics=[JUDGED])
    found = receiver.metrics()
    assert sum(metric.count for metric in found if metric.name == "rag.evaluation.score") == 3
    assert "rag.evaluation.turns" not in {metric.name for metric in found}


@pytest.mark.slow
def test_rows_beyond_the_queue_size_arrive(receiver: OtlpReceiver) -> None:
    """Each batch is waited for, so that the SDK drops nothing."""
    metrics = [Reads(), Reads(name="again"), Reads(name="and_again")]
    exported(numbers(*range(1500)), otlp="on", metrics=metrics)
    rows = [span.attributes["rag.dataset.row"] for span in receiver.spans()]
    assert sorted(rows) == list(range(1500))
    assert len(receiver.logs()) == 4500


def test_refused_traces_are_counted(receiver: OtlpReceiver) -> None:
    """What an exporter could not send is told."""
    receiver.fail_next(1, status=400)
    assert exported(numbers(1, 2), otlp="on")[1] == 2


def test_sending_without_an_exporter_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """``OTEL_TRACES_EXPORTER=none`` contradicts the option."""
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "none")
    with pytest.raises(ConfigError, match="nowhere to send traces to"):
        exported(numbers(1), otlp="on")
