"""Phoenix as the tracing backend: scores can be read back, filtered, seen and collected."""

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from e2e.fickle import BAD, GOOD, fickle
from e2e.phoenix_server import MARKS, PATIENCE, Phoenix, served
from e2e.programs import eventually
from rag_eval_otel.tools.cli import main

SERVICE, WITH_TEXTS, COLLECTED = "shop", "handbook", "collected"
TURNS, MANY, BAD_TURNS = 3, 200, 20
METRICS = ("faithfulness", "answer_relevancy", "context_relevance", "response_groundedness")
SPANS = 3 * TURNS  # turn, retrieval and chat
LOW = "attributes['rag']['evaluation']['faithfulness']['score'] <= 0.5"

pytestmark = MARKS


@pytest.fixture(scope="module")
def phoenix(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Phoenix]:
    """Run Phoenix, and send it two good turns and a bad one."""
    with served(tmp_path_factory.mktemp("phoenix")) as found:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("OTEL_RESOURCE_ATTRIBUTES", f"openinference.project.name={SERVICE}")
            with fickle(found, SERVICE, signals="traces") as app:
                app.ask(TURNS - 1, GOOD)
                app.ask(1, BAD)
        eventually(lambda: len(found.spans(SERVICE)) >= SPANS, f"{SPANS} spans in Phoenix")
        yield found


def turns_of(phoenix: Phoenix) -> list[dict[str, Any]]:
    turns = phoenix.turns(SERVICE).values()
    return sorted(turns, key=lambda turn: turn["attributes"]["rag.evaluation.label"])


def test_scores_are_read_back(phoenix: Phoenix) -> None:
    """Each turn is there once, with numeric scores and its children."""
    assert len(phoenix.spans(SERVICE)) == SPANS
    bad, *good = (turn["attributes"] for turn in turns_of(phoenix))
    assert bad["rag.evaluation.faithfulness.score"] < 0.1
    assert bad["rag.evaluation.label"] == "fail"
    assert [turn["rag.evaluation.faithfulness.score"] for turn in good] == [1.0] * (TURNS - 1)


def test_documented_filter_finds_the_bad_turn(phoenix: Phoenix) -> None:
    """The documented filter finds only the bad turn."""
    spans = f'spans(first: 10, filterCondition: "{LOW}") {{ edges {{ node {{ spanId }} }} }}'
    found = phoenix.query(
        f'{{ node(id: "{phoenix.project_of(SERVICE)}") {{ ... on Project {{ {spans} }} }} }}'
    )
    ids = [edge["node"]["spanId"] for edge in found["node"]["spans"]["edges"]]
    assert ids == [turns_of(phoenix)[0]["context"]["span_id"]]


@pytest.fixture(scope="module")
def content(phoenix: Phoenix) -> list[dict[str, Any]]:
    """Send turns with their texts, and their scores as annotations; return their spans."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OTEL_RESOURCE_ATTRIBUTES", f"openinference.project.name={WITH_TEXTS}")
        patch.setenv("PHOENIX_ENDPOINT", phoenix.http)
        options: dict[str, Any] = {"export_content": "all", "backends": ["phoenix"]}
        with fickle(phoenix, WITH_TEXTS, signals="traces", **options) as app:
            for count, answer in ((TURNS - 1, GOOD), (1, BAD)):
                app.run(count, answer)
                assert app.handle.flush(PATIENCE)  # the annotations, too
    eventually(lambda: len(phoenix.spans(WITH_TEXTS)) >= SPANS, f"{SPANS} spans with texts")
    spans = phoenix.spans(WITH_TEXTS)
    ids = [span["context"]["span_id"] for span in spans]
    wanted = TURNS * (len(METRICS) + 1)  # and the overall label
    eventually(lambda: len(phoenix.annotations(WITH_TEXTS, ids)) >= wanted, f"{wanted} annotations")
    return spans


def test_spans_have_a_kind_input_and_output(content: list[dict[str, Any]]) -> None:
    """No span is "unknown", and none shows "--": each has its kind, its input and its output."""
    kinds = Counter(span["span_kind"] for span in content)
    assert kinds == {"CHAIN": TURNS, "RETRIEVER": TURNS, "LLM": TURNS}
    for span in content:
        assert span["attributes"]["input.value"]
        assert span["span_kind"] == "RETRIEVER" or span["attributes"]["output.value"] in {GOOD, BAD}
    searches = [span["attributes"] for span in content if span["span_kind"] == "RETRIEVER"]
    assert all("Borealis" in str(one["retrieval.documents.0.document.content"]) for one in searches)


def test_turns_are_samples(
    phoenix: Phoenix, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With question, contexts and answer; by label, too; `evaluate` takes them as they are."""
    monkeypatch.setenv("PHOENIX_ENDPOINT", phoenix.http)
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", f"openinference.project.name={COLLECTED}")
    kept = InMemorySpanExporter()
    exporters = [OTLPSpanExporter(endpoint=phoenix.grpc, insecure=True), kept]
    options: dict[str, Any] = {"traces": exporters, "export_content": "all"}
    with fickle(phoenix, COLLECTED, signals="traces", **options) as app:
        app.run(MANY - BAD_TURNS, GOOD)
        app.run(BAD_TURNS, BAD)
        assert app.handle.flush(PATIENCE)
        assert app.providers.tracer_provider.force_flush()
        sent = len(kept.get_finished_spans())
    eventually(
        lambda: len(phoenix.spans(COLLECTED)) == sent,
        f"{sent} spans in Phoenix, which stores them in the background",
        PATIENCE,
    )
    turns = phoenix.turns(COLLECTED)
    assert len(turns) == MANY
    samples, failed = tmp_path / "samples.jsonl", tmp_path / "failed.jsonl"
    assert main(["collect", f"phoenix:{COLLECTED}", "-o", str(samples)]) == 0
    rows = [json.loads(line) for line in samples.read_text().splitlines()]
    assert {row["span_id"] for row in rows} == set(turns)
    assert len(rows) == MANY
    assert all(row["question"] and row["contexts"] for row in rows)
    assert [row["answer"] for row in rows].count(BAD) == BAD_TURNS
    assert main(["collect", f"phoenix:{COLLECTED}", "-o", str(failed), "--failed"]) == 0
    labels = [turn["attributes"]["rag.evaluation.label"] for turn in turns.values()]
    assert len(failed.read_text().splitlines()) == labels.count("fail") > 0
    assert main(["evaluate", str(samples), "--judge", "lexical", "--embedder", "hashing"]) == 0
