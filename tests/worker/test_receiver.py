"""The receiver of the worker, with the exporters of the SDK and with bad input in front of it."""

from __future__ import annotations

import gc
import gzip
import json
import shutil
import socket
import subprocess
import threading
import tracemalloc
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, TypeAlias

import grpc  # type: ignore[import-untyped]
import pytest
import requests
from google.rpc.error_details_pb2 import RetryInfo  # type: ignore[import-untyped]
from google.rpc.status_pb2 import Status  # type: ignore[import-untyped]
from opentelemetry.exporter.otlp.proto.grpc import trace_exporter as over_grpc
from opentelemetry.exporter.otlp.proto.http import Compression
from opentelemetry.exporter.otlp.proto.http import trace_exporter as over_http
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult

from rag_eval_otel.errors import ConfigError
from rag_eval_otel.worker.intake import Desk
from rag_eval_otel.worker.listening import ReceiverOptions
from rag_eval_otel.worker.output import OtlpOutput
from rag_eval_otel.worker.receiver import Probes, Receiver
from rag_eval_otel.worker.senders import open_senders
from rag_eval_otel.worker.wire import OverloadedError, spans_in, untracked

WAIT = 60.0
PROTOBUF, JSON = "application/x-protobuf", "application/json"
MEGABYTE = 2**20
EXPORT = "/opentelemetry.proto.collector.trace.v1.TraceService/Export"


class Intake:
    """An intake that keeps the requests; ``overload`` is raised if it is set."""

    def __init__(self) -> None:
        self.traces: list[ExportTraceServiceRequest] = []
        self.logs: list[ExportLogsServiceRequest] = []
        self.overload: OverloadedError | None = None
        self.before: Callable[[], object] = lambda: None

    def accept(self, request: ExportTraceServiceRequest) -> None:
        self.before()
        if self.overload is not None:
            raise self.overload
        self.traces.append(request)

    def accept_logs(self, request: ExportLogsServiceRequest) -> None:
        self.logs.append(request)

    def hold(self) -> tuple[threading.Event, threading.Event]:
        """Hold requests that are accepted from now on; return when one is, and what ends that."""
        entered, gate = threading.Event(), threading.Event()
        self.before = lambda: (entered.set(), gate.wait(WAIT))
        return entered, gate

    @property
    def names(self) -> list[str]:
        return [
            span.name
            for request in self.traces
            for resource in request.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]


@pytest.fixture
def intake() -> Intake:
    return Intake()


Listen: TypeAlias = Callable[..., Receiver]


@pytest.fixture
def listen(intake: Intake) -> Iterator[Listen]:
    started: list[Receiver] = []

    def start(**options: Any) -> Receiver:
        probes = options.pop("probes", None)
        ports = {"grpc_port": 0, "http_port": None}
        receiver = Receiver(intake, ReceiverOptions(**{**ports, **options}), probes=probes)
        started.append(receiver.start())
        return receiver

    yield start
    for receiver in started:
        receiver.stop()


@pytest.fixture
def http(listen: Listen) -> Callable[..., Receiver]:
    pytest.importorskip("aiohttp")
    return lambda **options: listen(**{"http_port": 0, **options})


def request_of(*ids: tuple[bytes, bytes]) -> ExportTraceServiceRequest:
    made = ExportTraceServiceRequest()
    scope = made.resource_spans.add().scope_spans.add()
    for number, (trace_id, span_id) in enumerate(ids):
        scope.spans.add(name=f"span {number}", trace_id=trace_id, span_id=span_id)
    return made


GOOD = (bytes([1] * 16), bytes([2] * 8))
ONE = request_of(GOOD).SerializeToString()
BOMB = b"\x0a" * (64 * MEGABYTE)


def stub(receiver: Receiver, service: str = "trace.v1.TraceService", **options: Any) -> Any:
    channel = grpc.insecure_channel(f"127.0.0.1:{receiver.grpc_port}", **options)
    export = channel.unary_unary(f"/opentelemetry.proto.collector.{service}/Export")

    def call(content: bytes, **more: Any) -> bytes:
        return export(content, timeout=WAIT, **more)

    return call


def refusal(call: Callable[[], object]) -> Any:
    with pytest.raises(grpc.RpcError) as caught:
        call()
    return caught.value


def url(receiver: Receiver, path: str = "/v1/traces") -> str:
    return f"http://127.0.0.1:{receiver.http_port}{path}"


def post(receiver: Receiver, body: Any = ONE, path: str = "/v1/traces", **headers: Any) -> Any:
    given = {name.replace("_", "-"): value for name, value in headers.items()}
    return requests.post(
        url(receiver, path), body, headers={"content-type": PROTOBUF, **given}, timeout=WAIT
    )


def silent(until: threading.Event) -> Iterator[bytes]:
    until.wait(WAIT)
    yield from ()


# --- what arrives ---------------------------------------------------------------------------------


def export_one(exporter: SpanExporter) -> None:
    """Export one span by a real exporter, and fail if the receiver does not accept it."""
    results = list[SpanExportResult]()
    export = exporter.export

    def recording(spans: Any) -> SpanExportResult:
        results.append(export(spans))
        return results[-1]

    exporter.export = recording  # type: ignore[method-assign]
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    provider.get_tracer("shop").start_span("turn").end()
    provider.shutdown()
    assert results == [SpanExportResult.SUCCESS]


@pytest.mark.parametrize("compression", list(grpc.Compression))
def test_spans_of_the_sdk_arrive_over_grpc(
    listen: Listen, intake: Intake, compression: Any
) -> None:
    """The SDK's exporter is accepted with each compression of gRPC."""
    endpoint = f"http://127.0.0.1:{listen().grpc_port}"
    export_one(over_grpc.OTLPSpanExporter(endpoint, compression=compression))
    assert intake.names == ["turn"]


@pytest.mark.parametrize("compression", list(Compression))
def test_spans_of_the_sdk_arrive_over_http(
    http: Listen, intake: Intake, compression: Compression
) -> None:
    """The SDK's exporter is accepted with each compression of HTTP."""
    export_one(over_http.OTLPSpanExporter(url(http()), compression=compression))
    assert intake.names == ["turn"]


def test_log_records_arrive(http: Listen, intake: Intake) -> None:
    """Requests of log records go to their own method, over both protocols."""
    receiver = http()
    request = ExportLogsServiceRequest()
    request.resource_logs.add().scope_logs.add().log_records.add().body.string_value = "hello"
    content = request.SerializeToString()
    assert stub(receiver, "logs.v1.LogsService")(content) == b""
    assert post(receiver, content, "/v1/logs").status_code == 200
    assert intake.logs == [request, request]


OTLP_JSON = {
    "resourceSpans": [
        {
            "resource": {"attributes": [{"key": "service.name", "value": {"stringValue": "s"}}]},
            "scopeSpans": [
                {
                    "spans": [
                        {
                            "traceId": "5B8EFFF798038103D269B633813FC60C",
                            "spanId": "eee19b7ec3c1b174",
                            "parentSpanId": "",
                            "name": "turn",
                            "kind": 2,
                            "startTimeUnixNano": "1544712660000000000",
                            "endTimeUnixNano": 1544712661000000000,
                            "attributes": [{"key": "n", "value": {"intValue": "9007199254740993"}}],
                            "links": [
                                {
                                    "traceId": "5b8efff798038103d269b633813fc60c",
                                    "spanId": "eee19b7ec3c1b174",
                                }
                            ],
                            "aFieldOfTheFuture": {"x": 1},
                        }
                    ]
                }
            ],
        }
    ]
}


def test_otlp_json_is_read_as_specified(http: Listen, intake: Intake) -> None:
    """Ids are hexadecimal, enums are numbers, large integers are texts, unknown fields ignored."""
    response = post(http(), json.dumps(OTLP_JSON), content_type=f"{JSON}; charset=utf-8")
    assert (response.status_code, response.json()) == (200, {})
    assert response.headers["Content-Type"].startswith(JSON)
    (span,) = intake.traces[0].resource_spans[0].scope_spans[0].spans
    assert span.trace_id.hex() == "5b8efff798038103d269b633813fc60c"
    assert span.span_id.hex() == "eee19b7ec3c1b174"
    assert span.parent_span_id == b""
    assert span.kind == 2
    assert span.start_time_unix_nano == 1544712660000000000
    assert span.end_time_unix_nano == 1544712661000000000
    assert span.attributes[0].value.int_value == 9007199254740993
    assert span.links[0].span_id == span.span_id


def test_spans_without_valid_ids_are_rejected(http: Listen, intake: Intake) -> None:
    """The other spans of the request are taken; the response says how many were rejected."""
    receiver = http()
    content = request_of(
        GOOD, (bytes(16), GOOD[1]), (GOOD[0], bytes(8)), (b"short", GOOD[1]), (GOOD[0], b""), GOOD
    ).SerializeToString()
    by_grpc = ExportTraceServiceResponse.FromString(stub(receiver)(content))
    by_http = ExportTraceServiceResponse.FromString(post(receiver, content).content)
    assert by_grpc == by_http
    assert by_grpc.partial_success.rejected_spans == 4
    assert "trace id of 16 bytes" in by_grpc.partial_success.error_message
    assert intake.names == ["span 0", "span 5"] * 2


def test_a_partial_success_in_json(http: Listen) -> None:
    """The response is in the encoding of the request; the number is a text, as OTLP JSON says."""
    body = {"resourceSpans": [{"scopeSpans": [{"spans": [{"name": "no ids"}]}]}]}
    found = post(http(), json.dumps(body), content_type=JSON).json()
    assert found["partialSuccess"]["rejectedSpans"] == "1"


# --- bad input ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "content",
    [b"\xff\xff", b"\x0a\x05abc", b"\x1f\x8bnot gzip", gzip.compress(ONE, mtime=0)[:-4]],
    ids=["no field", "too short", "no gzip", "half of gzip"],
)
def test_broken_protobuf_is_refused(http: Listen, intake: Intake, content: bytes) -> None:
    """Broken content gets INVALID_ARGUMENT or 400 with a message, and is not handed on."""
    receiver = http()
    error = refusal(lambda: stub(receiver)(content))
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "content" in error.details()
    response = post(receiver, content)
    assert response.status_code == 400
    assert "content" in Status.FromString(response.content).message
    assert intake.traces == []
    assert receiver.requests == {("traces", "malformed"): 2}


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[]",
        "null",
        '{"resourceSpans": 1}',
        '{"resourceSpans": [1]}',
        '{"resourceSpans": [{"scopeSpans": [{"spans": [{"traceId": "xyz"}]}]}]}',
        '{"resourceSpans": [{"scopeSpans": [{"spans": [{"traceId": 7}]}]}]}',
        '{"resourceSpans": [{"scopeSpans": [{"spans": [{"startTimeUnixNano": "x"}]}]}]}',
        '{"resourceSpans": [{"scopeSpans": [{"spans": [{"kind": 1e400}]}]}]}',
        '{"resourceSpans": ' + "[" * 100_000,
        "\ufeff\x00",
    ],
)
def test_broken_json_is_refused(http: Listen, intake: Intake, text: str) -> None:
    """Broken JSON, and JSON that is not OTLP, gets 400 with a message in JSON."""
    response = post(http(), text.encode(), content_type=JSON)
    assert response.status_code == 400
    assert "not OTLP JSON" in response.json()["message"]
    assert intake.traces == []


@pytest.mark.parametrize("kind", ["intValue", "doubleValue", "boolValue"])
def test_a_refused_value_is_not_quoted(
    http: Listen, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    """An attribute of another type may be a user's text; its place is told instead."""
    spans = [{"attributes": [{"key": "input.value", "value": {kind: "Who is Ada?"}}]}]
    body = {"resourceSpans": [{"scopeSpans": [{"spans": spans}]}]}
    response = post(http(), json.dumps(body), content_type=JSON)
    assert response.status_code == 400
    assert "resourceSpans.scopeSpans.spans.attributes.value" in response.json()["message"]
    assert "refused an OTLP request" in caplog.text
    assert "Ada" not in response.text + caplog.text


@pytest.mark.slow
def test_a_gzip_bomb_is_not_expanded(http: Listen, intake: Intake) -> None:
    """A small request that would expand to 64 MB is refused, and never takes that memory."""
    receiver = http(max_request=MEGABYTE)
    packed = gzip.compress(BOMB), zlib.compress(BOMB)
    call = stub(receiver)
    tracemalloc.start()
    for content in packed:
        error = refusal(lambda content=content: call(content))
        assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert f"more than {MEGABYTE} bytes when it is decompressed" in error.details()
    responses = [post(receiver, packed[0], content_encoding="gzip")]
    responses.append(post(receiver, packed[1], content_encoding="deflate"))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert [response.status_code for response in responses] == [413, 413]
    assert peak < 16 * MEGABYTE
    assert receiver.requests == {("traces", "too_large"): 4}
    assert intake.traces == []


@pytest.mark.slow
def test_a_gzip_bomb_that_grpc_has_compressed(listen: Listen, intake: Intake) -> None:
    """The same holds where gRPC itself compresses the request."""
    receiver = listen(max_request=MEGABYTE)
    call = stub(receiver, compression=grpc.Compression.Gzip)
    error = refusal(lambda: call(BOMB))
    assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert intake.traces == []


@pytest.mark.parametrize("protocol", ["grpc", "http/protobuf"])
def test_a_sender_of_ours_divides_what_is_too_large(
    http: Listen, intake: Intake, protocol: str
) -> None:
    """A request that is too large when it is decompressed is not repeated as it is."""
    receiver = http(max_request=1000)
    port = receiver.grpc_port if protocol == "grpc" else receiver.http_port
    variables = {"PROTOCOL": protocol, "COMPRESSION": "gzip"}
    environ = {f"OTEL_EXPORTER_OTLP_{name}": value for name, value in variables.items()}
    environ["OTEL_EXPORTER_OTLP_ENDPOINT"] = f"http://127.0.0.1:{port}"
    output = OtlpOutput(open_senders(environ))
    request = request_of(*[(bytes([1] * 16), number.to_bytes(8, "big")) for number in range(1, 61)])
    for span in spans_in(request, untracked()):
        output.put(span)
    assert output.flush(WAIT)
    output.close(WAIT)
    assert output.stats.dropped == {}
    assert sorted(intake.names) == sorted(f"span {number}" for number in range(60))


def test_all_members_of_gzip_content_are_read(http: Listen, intake: Intake) -> None:
    """Joined gzip files are one request; too many of them are refused."""
    receiver = http()
    packed = gzip.compress(ONE)
    assert post(receiver, packed * 2 + bytes(8), content_encoding="gzip").status_code == 200
    assert intake.names == ["span 0"] * 2
    response = post(receiver, packed * 100, content_encoding="gzip")
    assert response.status_code == 400
    assert "parts" in Status.FromString(response.content).message
    assert post(receiver, packed + b"more", content_encoding="gzip").status_code == 400


def test_calls_without_a_message_block_no_others(listen: Listen, intake: Intake) -> None:
    """Calls without the token are refused before their message; too many others are cancelled."""
    token = (("authorization", "Bearer secret"),)
    never = threading.Event()
    receiver = listen(token="secret")
    with grpc.insecure_channel(f"127.0.0.1:{receiver.grpc_port}") as channel:
        export = channel.stream_unary(EXPORT)
        calls = [export.future(silent(never), timeout=WAIT) for _ in range(20)]
        assert {one.code() for one in calls} == {grpc.StatusCode.UNAUTHENTICATED}
        calls = [export.future(silent(never), timeout=WAIT, metadata=token) for _ in range(50)]
        stub(receiver)(ONE, metadata=token)
        ended = {one.code() for one in calls[:20]}
        assert ended <= {grpc.StatusCode.CANCELLED, grpc.StatusCode.DEADLINE_EXCEEDED}
        never.set()
    assert intake.names == ["span 0"]
    assert receiver.drain(WAIT)


@pytest.mark.slow
def test_a_call_without_a_message_ends_in_time(
    listen: Listen, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A call whose message does not arrive is cancelled, also if no other call needs its thread."""
    monkeypatch.setattr("rag_eval_otel.worker.receiver._SLOWEST", 0.0)
    never = threading.Event()
    receiver = listen()
    with grpc.insecure_channel(f"127.0.0.1:{receiver.grpc_port}") as channel:
        export = channel.stream_unary(EXPORT)
        code = export.future(silent(never), timeout=WAIT).code()
        assert code in {grpc.StatusCode.CANCELLED, grpc.StatusCode.DEADLINE_EXCEEDED}
        never.set()
    assert receiver.drain(WAIT)
    assert receiver.requests["traces", "slow"] == 1


def test_oversized_requests_are_refused(http: Listen, intake: Intake) -> None:
    """A request above the limit gets RESOURCE_EXHAUSTED or 413, also without a length."""
    receiver = http(max_request=1000)
    content = bytes(20_000)
    error = refusal(lambda: stub(receiver)(content))
    assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert "larger than max" in error.details()
    responses = [post(receiver, content), post(receiver, iter([content]))]
    assert [response.status_code for response in responses] == [413, 413]
    assert "more than 1000 bytes" in Status.FromString(responses[0].content).message
    assert intake.traces == []
    assert post(receiver).status_code == 200


@pytest.mark.parametrize(
    ("headers", "message"),
    [
        ({"content_type": "text/plain"}, "send the content type application/x-protobuf"),
        ({"content_type": ""}, "send the content type application/x-protobuf"),
        ({"content_encoding": "br"}, "send the content encoding gzip, deflate or none"),
    ],
)
def test_a_wrong_content_type_is_refused(
    http: Listen, headers: dict[str, str], message: str
) -> None:
    """A content type or encoding that cannot be read gets 415; the message names the right one."""
    response = post(http(), **headers)
    assert response.status_code == 415
    assert message in Status.FromString(response.content).message


def test_metrics_are_refused(http: Listen) -> None:
    """Metrics get UNIMPLEMENTED or 404, with the advice to send them elsewhere."""
    receiver = http()
    error = refusal(lambda: stub(receiver, "metrics.v1.MetricsService")(b""))
    assert error.code() is grpc.StatusCode.UNIMPLEMENTED
    assert "send metrics to their backend" in error.details()
    response = post(receiver, b"", "/v1/metrics")
    assert response.status_code == 404
    assert "send metrics to their backend" in Status.FromString(response.content).message
    assert requests.get(url(receiver), timeout=WAIT).status_code == 405


def test_the_token_is_required(http: Listen, intake: Intake) -> None:
    """Requests without the token get UNAUTHENTICATED or 401, and are not read."""
    receiver = http(token="secret")
    for header in ({}, {"authorization": "Bearer wrong"}, {"authorization": "secret"}):
        error = refusal(
            lambda header=header: stub(receiver)(b"\xff", metadata=tuple(header.items()))
        )
        assert error.code() is grpc.StatusCode.UNAUTHENTICATED
        response = post(receiver, b"\xff", **header)
        assert response.status_code == 401
        assert "Authorization: Bearer" in Status.FromString(response.content).message
    assert intake.traces == []
    stub(receiver)(ONE, metadata=(("authorization", "Bearer secret"),))
    assert post(receiver, authorization="bearer  secret").status_code == 200
    assert post(receiver, authorization=b"Bearer \xff").status_code == 401  # not UTF-8
    assert receiver.requests == {("traces", "unauthorized"): 7, ("traces", "accepted"): 2}
    assert "secret" not in repr(ReceiverOptions(token="secret"))


def test_overload_is_told_with_a_time(http: Listen, intake: Intake) -> None:
    """A request without memory gets RESOURCE_EXHAUSTED with RetryInfo, or 429 with Retry-After."""
    receiver = http()
    intake.overload = OverloadedError("no memory", retry_after=2.5)
    error = refusal(lambda: stub(receiver)(ONE))
    assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    metadata, info = dict(error.trailing_metadata()), RetryInfo()
    status = Status.FromString(metadata["grpc-status-details-bin"])
    assert status.details[0].Unpack(info)
    assert info.retry_delay.ToMilliseconds() == 2500
    assert RetryInfo.FromString(metadata["google.rpc.retryinfo-bin"]) == info
    response = post(receiver)
    assert (response.status_code, response.headers["Retry-After"]) == (429, "3")


def test_the_exporter_of_the_sdk_waits_and_succeeds(listen: Listen, intake: Intake) -> None:
    """The SDK's exporter repeats a request that was refused for lack of memory."""
    intake.overload = OverloadedError("no memory", retry_after=0.01)
    attempts: list[int] = []

    def recover() -> None:
        attempts.append(1)
        if len(attempts) == 3:
            intake.overload = None

    intake.before = recover
    export_one(over_grpc.OTLPSpanExporter(f"http://127.0.0.1:{listen().grpc_port}", timeout=WAIT))
    assert intake.names == ["turn"]


@contextmanager
def half_sent(receiver: Receiver, *, announced: int, sent: int, requests: int) -> Iterator[None]:
    head = f"POST /v1/traces HTTP/1.1\r\nHost: a\r\nContent-Type: {PROTOBUF}\r\n"
    head += f"Content-Length: {announced}\r\n\r\n"
    with ExitStack() as stack:
        for _ in range(requests):
            one = socket.create_connection(("127.0.0.1", receiver.http_port or 0), WAIT)
            stack.enter_context(one).sendall(head.encode() + bytes(sent))
        yield


def test_bodies_that_are_read_at_once_are_bounded(http: Listen) -> None:
    """While bodies that arrive take all memory, further ones get 429."""
    receiver = http(max_request=1000, max_reading=1500)
    with half_sent(receiver, announced=1000, sent=900, requests=1):
        while (second := post(receiver, bytes(900))).status_code == 400:  # not being read yet
            pass
    assert (second.status_code, second.headers["Retry-After"]) == (429, "1")


def test_announced_bodies_take_no_room(http: Listen, intake: Intake) -> None:
    """Requests that announce bodies and send none do not keep others waiting."""
    receiver = http()
    with half_sent(receiver, announced=16 * MEGABYTE, sent=0, requests=50):
        assert post(receiver).status_code == 200
    assert intake.names == ["span 0"]


def test_bodies_that_wait_for_the_engine_are_bounded(http: Listen, intake: Intake) -> None:
    """Bodies that have arrived count until the engine has them."""
    receiver = http(max_request=1000, max_reading=len(ONE) + 900)
    entered, gate = intake.hold()
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(post, receiver)
        assert entered.wait(WAIT)
        assert post(receiver, bytes(901)).status_code == 429
        gate.set()
        assert first.result(WAIT).status_code == 200


# --- probes and the end ---------------------------------------------------------------------------


def test_probes_tell_the_state_of_the_worker(http: Listen) -> None:
    """`/livez` and `/readyz` answer 200 or 503, without a token, also at a port of their own."""
    state = {"live": True, "ready": False}
    probes = Probes(is_live=lambda: state["live"], is_ready=lambda: state["ready"])
    receiver = http(probes=probes, probe_port=0, token="secret")

    def status(path: str) -> set[int]:
        ports = (receiver.http_port, receiver.probe_port)
        urls = [f"http://127.0.0.1:{port}{path}" for port in ports]
        return {requests.get(one, timeout=WAIT).status_code for one in urls}

    assert (status("/livez"), status("/readyz")) == ({200}, {503})
    state.update(live=False, ready=True)
    assert (status("/livez"), status("/readyz")) == ({503}, {200})
    probe_url = f"http://127.0.0.1:{receiver.probe_port}/v1/traces"
    assert requests.post(probe_url, ONE, timeout=WAIT).status_code == 404


def test_drain_lets_requests_end_and_refuses_others(http: Listen, intake: Intake) -> None:
    """While the worker drains it is not ready; requests under way are accepted, others refused."""
    receiver = http()
    started, gate = intake.hold()
    with ThreadPoolExecutor(2) as pool:
        under_way = pool.submit(stub(receiver), ONE)
        assert started.wait(WAIT)
        drained = pool.submit(receiver.drain, WAIT)
        while requests.get(url(receiver, "/readyz"), timeout=WAIT).status_code == 200:
            pass
        response = post(receiver)
        assert (response.status_code, response.headers["Retry-After"]) == (503, "5")
        assert not drained.done()
        gate.set()
        assert under_way.result(WAIT) == b""
        assert drained.result(WAIT)
    assert refusal(lambda: stub(receiver)(ONE)).code() is grpc.StatusCode.UNAVAILABLE
    assert requests.get(url(receiver, "/livez"), timeout=WAIT).status_code == 200
    assert len(intake.traces) == 1


def test_drain_ends_in_time(http: Listen, intake: Intake) -> None:
    """A request that does not end keeps the worker no longer than the time it has."""
    receiver = http()
    started, gate = intake.hold()
    with ThreadPoolExecutor(1) as pool:
        under_way = pool.submit(post, receiver)
        assert started.wait(WAIT)
        assert not receiver.drain(0.01)
        gate.set()
        under_way.result(WAIT)


def test_drain_has_one_time_for_both_protocols(
    listen: Listen, intake: Intake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A call over gRPC that does not end is not waited for a second time."""
    receiver, left = listen(), list[float]()
    started, gate = intake.hold()
    monkeypatch.setattr(Desk, "wait_idle", lambda _, timeout: bool(left.append(timeout)))
    with ThreadPoolExecutor(1) as pool:
        under_way = pool.submit(stub(receiver), ONE)
        assert started.wait(WAIT)
        assert not receiver.drain(0.2)
        gate.set()
        assert isinstance(under_way.exception(WAIT), grpc.RpcError)
    assert left[0] < 0.1


def test_uploads_that_are_cut_off_are_no_errors(
    http: Listen, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sender that ends within a request is counted as slow, without a traceback in the log."""
    receiver, begun = http(), threading.Event()
    monkeypatch.setattr(Desk, "check_open", lambda *_: begun.set())
    head = f"POST /v1/traces HTTP/1.1\r\nHost: x\r\nContent-Type: {PROTOBUF}\r\n"
    for body in ("Content-Length: 100\r\n\r\nabc", "Transfer-Encoding: chunked\r\n\r\n3\r\nabc"):
        with socket.create_connection(("127.0.0.1", receiver.http_port or 0)) as sender:
            sender.sendall((head + body).encode())
            assert begun.wait(WAIT)
        assert receiver._desk.wait_idle(WAIT)  # noqa: SLF001  # a drain would refuse the next one
        begun.clear()
    assert receiver.requests == {("traces", "slow"): 2}
    assert not any(record.exc_info for record in caplog.records)


# --- TLS ------------------------------------------------------------------------------------------


EXTENSIONS = """\
subjectAltName=DNS:localhost,IP:127.0.0.1
subjectKeyIdentifier=hash
authorityKeyIdentifier=keyid
"""  # Python 3.13 and later require identifiers of keys


@pytest.fixture(scope="session")
def pem(tmp_path_factory: pytest.TempPathFactory) -> Path:
    openssl, folder = shutil.which("openssl"), tmp_path_factory.mktemp("pem")
    if openssl is None:
        pytest.skip("openssl is not installed")

    def run(*arguments: str) -> None:
        subprocess.run([openssl, *arguments], cwd=folder, check=True, capture_output=True)

    new = ("-newkey", "rsa:2048", "-nodes", "-days", "2")
    authority = ("-subj", "/CN=authority", "-addext", "keyUsage=critical,keyCertSign,cRLSign")
    run("req", "-x509", *new, "-keyout", "ca.key", "-out", "ca.pem", *authority)
    (folder / "extensions").write_text(EXTENSIONS, encoding="ascii")
    for name in ("server", "client"):
        subject = ("-subj", f"/CN={name}")
        run("req", *new, "-keyout", f"{name}.key", "-out", f"{name}.csr", *subject)
        signed = ("-in", f"{name}.csr", "-out", f"{name}.pem", "-CA", "ca.pem", "-CAkey", "ca.key")
        run("x509", "-req", *signed, "-CAcreateserial", "-days", "2", "-extfile", "extensions")
    return folder


def tls(pem: Path, **more: str) -> dict[str, str]:
    return {"certificate": str(pem / "server.pem"), "key": str(pem / "server.key"), **more}


@pytest.mark.slow
def test_tls(http: Listen, intake: Intake, pem: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a certificate, both ports speak TLS, and nothing else."""
    for name in ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"):  # before the exporter's own options
        monkeypatch.delenv(name, raising=False)
    receiver = http(**tls(pem))
    root = (pem / "ca.pem").read_bytes()
    credentials = grpc.ssl_channel_credentials(root)
    endpoint = f"https://localhost:{receiver.grpc_port}"
    export_one(over_grpc.OTLPSpanExporter(endpoint, credentials=credentials))
    target = f"https://localhost:{receiver.http_port}/v1/traces"
    export_one(over_http.OTLPSpanExporter(target, certificate_file=str(pem / "ca.pem")))
    assert intake.names == ["turn", "turn"]
    assert refusal(lambda: stub(receiver)(ONE)).code() is grpc.StatusCode.UNAVAILABLE
    with pytest.raises(requests.ConnectionError):
        post(receiver)


# Python 3.11.7 and older forget to close a connection whose TLS handshake has failed.
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_mtls(http: Listen, intake: Intake, pem: Path) -> None:
    """With an authority of clients, both ports refuse clients without a certificate of it."""
    receiver = http(**tls(pem, client_ca=str(pem / "ca.pem")), probe_port=0)
    ca, pair = str(pem / "ca.pem"), (str(pem / "client.pem"), str(pem / "client.key"))
    target = f"https://localhost:{receiver.http_port}/v1/traces"
    with pytest.raises((requests.ConnectionError, requests.exceptions.SSLError)):
        requests.post(target, ONE, verify=ca, timeout=WAIT)
    headers = {"content-type": PROTOBUF}
    found = requests.post(target, ONE, headers=headers, verify=ca, cert=pair, timeout=WAIT)
    assert found.status_code == 200
    root = (pem / "ca.pem").read_bytes()
    chain, key = (Path(path).read_bytes() for path in pair)
    anonymous = grpc.ssl_channel_credentials(root)
    known = grpc.ssl_channel_credentials(root, key, chain)

    def call(credentials: Any) -> Any:
        channel = grpc.secure_channel(f"localhost:{receiver.grpc_port}", credentials)
        return channel.unary_unary(EXPORT)(ONE, timeout=WAIT)

    assert refusal(lambda: call(anonymous)).code() is grpc.StatusCode.UNAVAILABLE
    assert call(known) == b""
    probe = f"http://127.0.0.1:{receiver.probe_port}/livez"
    assert requests.get(probe, timeout=WAIT).status_code == 200
    receiver.stop()
    gc.collect()


@pytest.mark.slow
@pytest.mark.parametrize("protocol", ["grpc", "http/protobuf"])
def test_a_worker_sends_to_a_worker(http: Listen, intake: Intake, pem: Path, protocol: str) -> None:
    """The exports of a worker have the certificates and headers that the variables name."""
    receiver = http(**tls(pem, client_ca=str(pem / "ca.pem")), token="secret")
    port = receiver.grpc_port if protocol == "grpc" else receiver.http_port
    variables = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": f"https://localhost:{port}",
        "OTEL_EXPORTER_OTLP_PROTOCOL": protocol,
        "OTEL_EXPORTER_OTLP_HEADERS": "authorization=Bearer%20secret",
        "OTEL_EXPORTER_OTLP_CERTIFICATE": str(pem / "ca.pem"),
        "OTEL_EXPORTER_OTLP_CLIENT_KEY": str(pem / "client.key"),
        "OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE": str(pem / "client.pem"),
    }
    output = OtlpOutput(open_senders(variables))
    for span in spans_in(request_of(GOOD), untracked()):
        output.put(span)
    output.close(WAIT)
    assert output.stats.exported == {"traces": 1}
    assert intake.names == ["span 0"]


# --- options --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"certificate": "a.pem"}, "certificate and key belong together"),
        ({"client_ca": "a.pem"}, "client_ca needs TLS"),
        ({"token": " "}, "token must not be empty"),
        ({"token": "é"}, "printable ASCII"),
    ],
)
def test_options_that_cannot_be_used(options: dict[str, str], message: str) -> None:
    """Options that do not fit together are refused when they are made."""
    with pytest.raises(ConfigError, match=message):
        ReceiverOptions(**options)


def test_files_that_cannot_be_used(listen: Listen, tmp_path: Path) -> None:
    """PEM files that are missing or broken are named before a port is opened."""
    broken = tmp_path / "broken.pem"
    broken.write_text("no certificate", encoding="ascii")
    for path in (broken, tmp_path / "missing.pem"):
        with pytest.raises(ConfigError, match=f"{path.name}.* cannot be used"):
            listen(certificate=str(path), key=str(path))


def test_ports_that_are_taken(http: Listen) -> None:
    """A port that another process has is named."""
    first = http()
    with pytest.raises(ConfigError, match=r"cannot listen at .*another process"):
        http(grpc_port=first.grpc_port)
    with pytest.raises(ConfigError, match=r"cannot listen at .*another process"):
        http(http_port=first.http_port)


@pytest.mark.parametrize(
    ("host", "token", "is_told"),
    [("0.0.0.0", None, True), ("0.0.0.0", "t", False), ("127.0.0.1", None, False)],  # noqa: S104
)
def test_a_port_that_is_open_to_all_is_told(
    listen: Listen, caplog: pytest.LogCaptureFixture, host: str, token: str, *, is_told: bool
) -> None:
    """Without a token or certificates of senders, whoever can reach the port can send spans."""
    listen(host=host, token=token)
    assert ("without a token" in caplog.text) is is_told
