"""The configurations of the folder ``collector/`` that write to Kafka and read from it."""

from __future__ import annotations

from collections import defaultdict
from contextlib import ExitStack
from pathlib import Path

from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor

from e2e.kafka_broker import serving
from e2e.programs import eventually
from e2e.stack import GATEWAY, collector
from otlp_receiver import OtlpReceiver

TRACES, SPANS, PARTITIONS = 30, 4, 6


def test_traces_go_through_kafka_as_a_whole(tmp_path: Path) -> None:
    """The agent writes all spans of a trace to one partition, and the gateway exports them all.

    Each span comes in a request of its own. Traces are spread over the partitions.
    """
    with ExitStack() as stack:
        broker = stack.enter_context(serving(tmp_path / "broker"))
        topic = broker.create("otlp_spans", PARTITIONS)
        backend = stack.enter_context(OtlpReceiver())
        kafka = {"RAG_KAFKA": broker.address}
        agent = stack.enter_context(
            collector(tmp_path / "agent", "agent.yaml", "kafka/agent.yaml", **kafka)
        )
        stack.enter_context(
            collector(
                tmp_path / "gateway",
                *GATEWAY,
                "kafka/gateway.yaml",
                RAG_KAFKA_SCORED=topic,
                RAG_TRACES=backend.grpc_endpoint.removeprefix("http://"),
                RAG_DECISION_WAIT="2s",
                RAG_SAMPLING_PERCENTAGE="100",
                **kafka,
            )
        )
        provider = TracerProvider()
        exporter = OTLPSpanExporter(f"http://{agent.grpc}", insecure=True)
        provider.add_span_processor(SimpleSpanProcessor(exporter))
        tracer = provider.get_tracer("app")
        for _ in range(TRACES):
            with tracer.start_as_current_span("root"):
                for _ in range(SPANS - 1):
                    tracer.start_span("child").end()
        provider.shutdown()
        eventually(lambda: len(backend.spans()) >= TRACES * SPANS, "the spans are at the backend")
        arrived = {span.span_id for span in backend.spans()}
        partitions: dict[bytes, set[int]] = defaultdict(set)
        for message in broker.messages(topic):
            request = ExportTraceServiceRequest.FromString(message.value())
            for resource in request.resource_spans:
                for span in (span for scope in resource.scope_spans for span in scope.spans):
                    partitions[span.trace_id].add(message.partition())
    assert len(arrived) == TRACES * SPANS
    assert len(partitions) == TRACES
    assert {len(found) for found in partitions.values()} == {1}
    assert len(set.union(*partitions.values())) > 1
