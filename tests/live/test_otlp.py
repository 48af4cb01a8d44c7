"""From ended spans to a real receiver, over real exporters."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as GrpcExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as HttpExporter

from live import SOURCES, STATUS, App, Source, attached
from otlp_receiver import OtlpReceiver

PROTOCOLS = pytest.mark.parametrize("protocol", ["http", "grpc"])


@contextmanager
def exporting(protocol: str, **options: Any) -> Iterator[tuple[App, OtlpReceiver]]:
    with OtlpReceiver() as receiver:
        exporter: Any = HttpExporter(endpoint=f"{receiver.http_endpoint}/v1/traces", timeout=2)
        if protocol == "grpc":
            exporter = GrpcExporter(endpoint=receiver.grpc_endpoint, insecure=True, timeout=2)
        with attached(exporter=exporter, **options) as app:
            yield app, receiver


@PROTOCOLS
@SOURCES
def test_scores_arrive_on_the_span_of_the_turn_once(protocol: str, source: Source) -> None:
    """The span that stands for the turn arrives once, with every score on it."""
    with exporting(protocol) as (app, receiver):
        app.turns(1, source)
        assert app.handle.flush()
        (span,) = [each for each in receiver.wait_for_spans(3) if STATUS in each.attributes]
    assert len(receiver.spans()) == 3
    assert span.attributes["rag.evaluation.status"] == "scored"
    assert span.attributes["rag.evaluation.label"] == "pass"
    assert span.attributes["rag.evaluation.judge"] == "fake"
    names = ("answer_relevancy", "context_relevance", "faithfulness", "response_groundedness")
    for metric in (f"rag.evaluation.{name}" for name in names):
        assert span.attributes[f"{metric}.score"] == 1.0
        assert isinstance(span.attributes[f"{metric}.score"], float)
        assert span.attributes[f"{metric}.label"] == "pass"
    for number in range(len(names)):
        metadata = span.attributes[f"evaluations.{number}.evaluation.metadata"]
        version = json.loads(metadata)["version"]
        assert "/fused" in version
        assert version.endswith("/fake")
    assert not any(key.endswith("explanation") for key in span.attributes)
