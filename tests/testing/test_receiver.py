"""The OTLP receiver, with the real exporters of the SDK in front of it."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, NamedTuple

import grpc  # type: ignore[import-untyped]
import pytest
import requests
from opentelemetry._logs import SeverityNumber
from opentelemetry.exporter.otlp.proto.grpc._log_exporter import OTLPLogExporter as GrpcLogs
from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import OTLPMetricExporter as GrpcMetrics
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as GrpcSpans
from opentelemetry.exporter.otlp.proto.http import Compression
from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter as HttpLogs
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter as HttpMetrics
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as HttpSpans
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs.export import SimpleLogRecordProcessor
from opentelemetry.sdk.metrics import AlwaysOnExemplarFilter, MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.metrics.view import (
    ExponentialBucketHistogramAggregation,
    View,
)
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import SpanLimits, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExportResult
from opentelemetry.trace import Link, SpanContext, SpanKind, Status, StatusCode

from rag_eval_otel.testing import OtlpReceiver, SequentialIdGenerator

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

RESOURCE = Resource({"service.name": "shop"})


@pytest.fixture
def receiver() -> Iterator[OtlpReceiver]:
    """A running receiver."""
    with OtlpReceiver() as running:
        yield running


class Wire(NamedTuple):
    """The three exporters of one protocol, made for a receiver."""

    spans: Callable[[OtlpReceiver], Any]
    logs: Callable[[OtlpReceiver], Any]
    metrics: Callable[[OtlpReceiver], Any]


def over_grpc(**options: Any) -> Wire:
    """Exporters over gRPC."""
    return Wire(
        *(
            lambda r, kind=kind: kind(endpoint=r.grpc_endpoint, **options)
            for kind in (GrpcSpans, GrpcLogs, GrpcMetrics)
        )
    )


def over_http(**options: Any) -> Wire:
    """Exporters over HTTP/protobuf."""
    kinds = ((HttpSpans, "traces"), (HttpLogs, "logs"), (HttpMetrics, "metrics"))
    return Wire(
        *(
            lambda r, kind=kind, path=path: kind(endpoint=f"{r.http_endpoint}/v1/{path}", **options)
            for kind, path in kinds
        )
    )


WIRES = {
    "grpc": over_grpc(),
    "grpc-gzip": over_grpc(compression=grpc.Compression.Gzip),
    "http": over_http(),
    "http-gzip": over_http(compression=Compression.Gzip),
    "http-deflate": over_http(compression=Compression.Deflate),
}
every_wire = pytest.mark.parametrize("wire", WIRES.values(), ids=WIRES)
both_wires = pytest.mark.parametrize("wire", [WIRES["grpc"], WIRES["http"]], ids=["grpc", "http"])


def tracing(exporter: Any, **options: Any) -> TracerProvider:
    """A provider with sequential ids that exports each span at its end."""
    provider = TracerProvider(resource=RESOURCE, id_generator=SequentialIdGenerator(), **options)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    return provider


def one_span(exporter: Any, name: str = "turn") -> None:
    """Export one span and shut the exporter down."""
    provider = tracing(exporter)
    provider.get_tracer("t").start_span(name).end()
    provider.shutdown()


@every_wire
def test_span_arrives_whole(receiver: OtlpReceiver, wire: Wire) -> None:
    """Every part of a span arrives, over each protocol and compression."""
    provider = tracing(wire.spans(receiver))
    tracer = provider.get_tracer("shop.rag", "1.2")
    link = Link(SpanContext(trace_id=7, span_id=8, is_remote=True), {"why": "retry"})
    with tracer.start_as_current_span("turn"):
        child = tracer.start_span("ask", kind=SpanKind.CLIENT, links=[link], start_time=1000)
        child.set_attribute("k", "v")
        child.add_event("chunk", {"n": 1}, timestamp=1500)
        child.set_status(Status(StatusCode.ERROR, "too slow"))
        child.end(2000)
    ask, turn = receiver.wait_for_spans(2)
    provider.shutdown()

    assert (ask.name, ask.trace_id, ask.span_id, ask.parent_span_id) == ("ask", 1, 2, 1)
    assert (ask.kind, ask.status, ask.status_message) == ("CLIENT", "ERROR", "too slow")
    assert (ask.start_ns, ask.end_ns, ask.attributes) == (1000, 2000, {"k": "v"})
    assert [(e.name, e.attributes, e.time_ns) for e in ask.events] == [("chunk", {"n": 1}, 1500)]
    assert [(k.trace_id, k.span_id, k.attributes) for k in ask.links] == [(7, 8, {"why": "retry"})]
    assert (ask.scope, ask.scope_version, ask.resource) == (
        "shop.rag",
        "1.2",
        {"service.name": "shop"},
    )
    assert (turn.name, turn.parent_span_id, turn.kind, turn.status) == (
        "turn",
        None,
        "INTERNAL",
        "UNSET",
    )


@both_wires
def test_values_keep_their_types(receiver: OtlpReceiver, wire: Wire) -> None:
    """An int stays int and a float float, also when equal; bools, arrays and bytes come as sent."""
    sent: dict[str, Any] = {
        "i": 1,
        "f": 1.0,
        "b": True,
        "s": "é",
        "ints": [1, 2],
        "strs": ["a", "b"],
        "z": 0,
    }
    provider = tracing(wire.spans(receiver))
    provider.get_tracer("t").start_span("turn", attributes=sent).end()
    (span,) = receiver.wait_for_spans(1)
    provider.shutdown()
    assert span.attributes == sent
    assert {key: type(value) for key, value in span.attributes.items()} == {
        key: type(value) for key, value in sent.items()
    }


def test_dropped_parts_are_counted(receiver: OtlpReceiver) -> None:
    """What the SDK's limits cut off a span is told by kind."""
    limits = SpanLimits(max_span_attributes=1, max_events=1, max_links=1)
    provider = tracing(WIRES["http"].spans(receiver), span_limits=limits)
    links = [Link(SpanContext(trace_id=7, span_id=n, is_remote=False)) for n in (1, 2, 3, 4)]
    span = provider.get_tracer("t").start_span("turn", attributes={"a": 1, "b": 2}, links=links)
    for name in ("x", "y", "z"):
        span.add_event(name)
    span.end()
    (got,) = receiver.wait_for_spans(1)
    provider.shutdown()
    assert (got.dropped_attributes, got.dropped_events, got.dropped_links) == (1, 2, 3)


@every_wire
def test_log_arrives_whole(receiver: OtlpReceiver, wire: Wire) -> None:
    """An event arrives with its name, nested body, severity and the ids of its span."""
    provider = LoggerProvider(resource=RESOURCE)
    provider.add_log_record_processor(SimpleLogRecordProcessor(wire.logs(receiver)))
    tracer = TracerProvider(id_generator=SequentialIdGenerator()).get_tracer("t")
    with tracer.start_as_current_span("turn"):
        provider.get_logger("shop.rag").emit(
            event_name="gen_ai.evaluation.result",
            body={"n": {"deep": [1, 2.0, None]}, "raw": b"\x00\xff"},
            attributes={"score": 1.0},
            severity_number=SeverityNumber.INFO,
            timestamp=123,
        )
    provider.get_logger("shop.rag").emit(body="outside")
    receiver.wait_for(lambda r: len(r.logs()) == 2)
    provider.shutdown()

    inside, outside = receiver.logs()
    assert inside.event_name == "gen_ai.evaluation.result"
    assert inside.body == {"n": {"deep": [1, 2.0, None]}, "raw": b"\x00\xff"}
    assert (inside.attributes, inside.severity, inside.time_ns) == ({"score": 1.0}, 9, 123)
    assert (inside.trace_id, inside.span_id, inside.scope) == (1, 1, "shop.rag")
    assert inside.resource == {"service.name": "shop"}
    assert (outside.body, outside.trace_id, outside.span_id, outside.severity) == (
        "outside",
        None,
        None,
        0,
    )


@every_wire
def test_metrics_arrive_with_exemplars(receiver: OtlpReceiver, wire: Wire) -> None:
    """Histograms, sums and gauges arrive one record a point, with the span of each exemplar."""
    reader = PeriodicExportingMetricReader(wire.metrics(receiver))
    provider = MeterProvider([reader], exemplar_filter=AlwaysOnExemplarFilter())
    meter = provider.get_meter("shop.rag")
    score = meter.create_histogram("score", "1", explicit_bucket_boundaries_advisory=[0.25, 0.5])
    turns = meter.create_counter("turns", "{turn}")
    tracer = TracerProvider(id_generator=SequentialIdGenerator()).get_tracer("t")
    with tracer.start_as_current_span("turn"):
        score.record(0.4, {"m": "a"})
    score.record(0.75, {"m": "b"})
    turns.add(2)
    meter.create_gauge("depth").set(0.5)
    provider.force_flush()
    points = receiver.metrics()
    provider.shutdown()

    by_key = {(p.name, p.attributes.get("m")): p for p in points[:4]}
    a, b = by_key["score", "a"], by_key["score", "b"]
    assert (a.kind, a.unit, a.scope, a.value) == ("histogram", "1", "shop.rag", None)
    assert (a.count, a.sum, a.bounds, a.bucket_counts) == (1, 0.4, (0.25, 0.5), (0, 1, 0))
    assert (a.exemplars, b.exemplars) == (((1, 1, 0.4),), ((None, None, 0.75),))
    turns_point, depth = by_key["turns", None], by_key["depth", None]
    assert (turns_point.kind, turns_point.value, turns_point.unit) == ("sum", 2, "{turn}")
    assert (depth.kind, depth.value) == ("gauge", 0.5)
    assert (type(turns_point.value), type(depth.value)) == (int, float)


@both_wires
def test_exponential_histogram_arrives(receiver: OtlpReceiver, wire: Wire) -> None:
    """An exponential histogram shows count, sum and its positive buckets."""
    view = View(instrument_name="lag", aggregation=ExponentialBucketHistogramAggregation())
    reader = PeriodicExportingMetricReader(wire.metrics(receiver))
    provider = MeterProvider([reader], views=[view])
    provider.get_meter("t").create_histogram("lag").record(3.0)
    provider.force_flush()
    (point,) = receiver.metrics()
    provider.shutdown()
    assert (point.kind, point.count, point.sum) == ("exponential_histogram", 1, 3.0)
    assert (sum(point.bucket_counts), point.bounds) == (1, ())


@pytest.mark.slow
def test_parallel_exports_all_arrive(receiver: OtlpReceiver) -> None:
    """Nothing is lost or doubled when both protocols deliver from many threads."""

    def send(number: int) -> None:
        wire = WIRES["grpc" if number % 2 else "http"]
        one_span(wire.spans(receiver), name=f"turn {number}")

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(send, range(40)))
    assert sorted(s.name for s in receiver.spans()) == sorted(f"turn {n}" for n in range(40))


def test_wait_wakes_on_arrival(receiver: OtlpReceiver) -> None:
    """A waiting test goes on as soon as the span it waits for has arrived."""
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(receiver.wait_for_spans, 2, 10.0)
        one_span(WIRES["http"].spans(receiver), "first")
        one_span(WIRES["grpc"].spans(receiver), "second")
        assert [span.name for span in waiting.result(10)] == ["first", "second"]


def test_timeout_names_what_arrived(receiver: OtlpReceiver) -> None:
    """A wait in vain says what there was instead."""
    one_span(WIRES["http"].spans(receiver), "only this")
    with pytest.raises(TimeoutError, match=r"after 0.01 s there were spans \['only this'\]"):
        receiver.wait_for_spans(2, timeout=0.01)


def test_clear_forgets(receiver: OtlpReceiver) -> None:
    """After clear, only what comes later is there."""
    one_span(WIRES["http"].spans(receiver), "old")
    receiver.clear()
    assert receiver.spans() == []
    one_span(WIRES["http"].spans(receiver), "new")
    assert [span.name for span in receiver.spans()] == ["new"]


@pytest.mark.slow
@both_wires
def test_exporter_survives_one_failure(receiver: OtlpReceiver, wire: Wire) -> None:
    """A refusal that may be retried is retried by the exporter, and the span comes once."""
    receiver.fail_next(1)
    one_span(wire.spans(receiver))
    assert len(receiver.spans()) == 1


def test_failures_are_counted_down(receiver: OtlpReceiver) -> None:
    """Exactly n requests fail, with the status asked for, and leave nothing behind."""
    receiver.fail_next(2, status=400)
    exporter = WIRES["http"].spans(receiver)
    provider = TracerProvider()
    span: Any = provider.get_tracer("t").start_span("turn")
    span.end()
    results = [exporter.export([span]) for _ in range(3)]
    exporter.shutdown()
    assert results == [SpanExportResult.FAILURE, SpanExportResult.FAILURE, SpanExportResult.SUCCESS]
    assert len(receiver.spans()) == 1


@both_wires
def test_pause_holds_requests_until_resume(receiver: OtlpReceiver, wire: Wire) -> None:
    """A stuck receiver lets nothing in, and everything once it goes on."""
    receiver.pause()
    sending = threading.Thread(target=one_span, args=(wire.spans(receiver),))
    sending.start()
    with pytest.raises(TimeoutError):
        receiver.wait_for_spans(1, timeout=0.1)
    assert sending.is_alive()
    receiver.resume()
    assert len(receiver.wait_for_spans(1)) == 1
    sending.join(10)
    assert not sending.is_alive()


@both_wires
def test_stop_frees_paused_requests(wire: Wire) -> None:
    """Stopping a stuck receiver is quick, and its clients see a failure."""
    with OtlpReceiver() as receiver:
        receiver.pause()
        exporter = wire.spans(receiver)
        sending = threading.Thread(target=one_span, args=(exporter,))
        sending.start()
        with pytest.raises(TimeoutError):
            receiver.wait_for_spans(1, timeout=0.1)
        began = time.monotonic()
    assert time.monotonic() - began < 2
    exporter.shutdown()
    sending.join(10)
    assert not sending.is_alive()
    assert receiver.spans() == []


def test_records_outlive_the_receiver() -> None:
    """What arrived stays readable after the stop, even a second one, and a new start adds to it."""
    receiver = OtlpReceiver()
    for name in ("first", "second"):
        with receiver:
            one_span(WIRES["grpc"].spans(receiver), name)
    receiver.stop()
    assert [span.name for span in receiver.spans()] == ["first", "second"]


def test_http_refuses_what_it_cannot_read(receiver: OtlpReceiver) -> None:
    """Unknown paths get 404, unreadable bodies 400, and the connection stays usable."""
    body = ExportTraceServiceRequest().SerializeToString()
    gzipped = {"Content-Encoding": "gzip"}
    traces = f"{receiver.http_endpoint}/v1/traces"
    with requests.Session() as session:
        statuses = [
            session.post(f"{receiver.http_endpoint}/v1/profiles", body).status_code,
            session.post(traces, b"\xff\xff").status_code,
            session.post(traces, b"not gzip", headers=gzipped).status_code,
            session.post(traces, body).status_code,
        ]
    assert statuses == [404, 400, 400, 200]


def test_unset_and_nested_values_decode(receiver: OtlpReceiver) -> None:
    """A value with nothing set is None, and arrays and maps nest, however the peer built them."""
    request = ExportLogsServiceRequest()
    log = request.resource_logs.add().scope_logs.add().log_records.add()
    log.attributes.add().key = "unset"
    log.body.kvlist_value.values.add(key="list").value.array_value.values.add().int_value = 3
    response = requests.post(
        f"{receiver.http_endpoint}/v1/logs", request.SerializeToString(), timeout=10
    )
    assert (response.status_code, response.content) == (200, b"")
    (got,) = receiver.logs()
    assert (got.attributes, got.body) == ({"unset": None}, {"list": [3]})
