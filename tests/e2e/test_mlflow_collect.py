"""The turns in a real MLflow come back as samples."""

import json
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

from e2e.fickle import BAD, GOOD, fickle
from e2e.test_mlflow import COMMAND, PATIENCE, MLflow
from e2e.test_mlflow import mlflow as mlflow  # noqa: PLC0414  # a fixture
from rag_eval_otel.tools.cli import main

TURNS, BAD_TURNS = 200, 20

pytestmark = [
    pytest.mark.skipif(not COMMAND.exists(), reason="mlflow is not installed"),
    pytest.mark.timeout(2400),
    # MLflow and its parts warn at their import.
    pytest.mark.filterwarnings("ignore"),
]


def test_200_turns_are_200_samples(
    mlflow: MLflow, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With question, contexts and answer; by label, too."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", mlflow.http)
    monkeypatch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    headers = {"x-mlflow-experiment-id": mlflow.create_experiment("orders")}
    for _ in range(2):
        otlp = OTLPSpanExporter(endpoint=f"{mlflow.http}/v1/traces", headers=headers, timeout=120)
        options: dict[str, Any] = {"signals": "traces", "traces": [otlp], "export_content": "all"}
        with fickle(mlflow, "shop", **options) as app:
            app.run((TURNS - BAD_TURNS) // 2, GOOD)
            app.run(BAD_TURNS // 2, BAD)
            assert app.handle.flush(PATIENCE)
    samples, failed = tmp_path / "samples.jsonl", tmp_path / "failed.jsonl"
    assert main(["collect", "--mlflow", "orders", "-o", str(samples)]) == 0
    rows = [json.loads(line) for line in samples.read_text().splitlines()]
    assert len({row["span_id"] for row in rows}) == len(rows) == TURNS
    assert all(row["question"] and row["contexts"] for row in rows)
    assert [row["answer"] for row in rows].count(BAD) == BAD_TURNS
    assert {row["service"] for row in rows} == {"shop"}
    assert main(["collect", "--mlflow", "orders", "-o", str(failed), "--failed"]) == 0
    labels = [row["live_label"] for row in rows]
    assert len(failed.read_text().splitlines()) == labels.count("fail") > 0
