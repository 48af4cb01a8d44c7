"""The turns in a real Phoenix come back as samples."""

import json
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from e2e.fickle import BAD, GOOD, fickle
from e2e.phoenix_server import MARKS, PATIENCE, Phoenix
from e2e.phoenix_server import phoenix as phoenix  # noqa: PLC0414  # a fixture
from e2e.programs import eventually
from rag_eval_otel.tools.cli import main

TURNS, BAD_TURNS = 200, 20

pytestmark = MARKS


def test_200_turns_are_200_samples(
    phoenix: Phoenix, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With question, contexts and answer; by label, too; `evaluate` takes them as they are."""
    monkeypatch.setenv("PHOENIX_ENDPOINT", phoenix.http)
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "openinference.project.name=shop")
    kept = InMemorySpanExporter()
    exporters = [OTLPSpanExporter(endpoint=phoenix.grpc, insecure=True), kept]
    options: dict[str, Any] = {"traces": exporters, "export_content": "all"}
    with fickle(phoenix, "shop", signals="traces", **options) as app:
        app.run(TURNS - BAD_TURNS, GOOD)
        app.run(BAD_TURNS, BAD)
        assert app.handle.flush(PATIENCE)
        assert app.providers.tracer_provider.force_flush()
        sent = len(kept.get_finished_spans())
    eventually(
        lambda: len(phoenix.spans("shop")) == sent,
        f"{sent} spans in Phoenix, which stores them in the background",
        PATIENCE,
    )
    turns = phoenix.turns("shop")
    assert len(turns) == TURNS
    samples, failed = tmp_path / "samples.jsonl", tmp_path / "failed.jsonl"
    assert main(["collect", "phoenix:shop", "-o", str(samples)]) == 0
    rows = [json.loads(line) for line in samples.read_text().splitlines()]
    assert {row["span_id"] for row in rows} == set(turns)
    assert len(rows) == TURNS
    assert all(row["question"] and row["contexts"] for row in rows)
    assert [row["answer"] for row in rows].count(BAD) == BAD_TURNS
    assert main(["collect", "phoenix:shop", "-o", str(failed), "--failed"]) == 0
    labels = [turn["attributes"]["rag.evaluation.label"] for turn in turns.values()]
    assert len(failed.read_text().splitlines()) == labels.count("fail") > 0
    assert main(["evaluate", str(samples), "--judge", "lexical", "--embedder", "hashing"]) == 0
