"""The exports of the worker: batches, repetitions, losses, and what they cost in memory."""

from __future__ import annotations

import itertools
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc  # type: ignore[import-untyped]
import pytest
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from live import points_of
from openai_server import HttpReply, LoopbackServer
from otlp_receiver import OtlpReceiver
from rag_eval_otel.environment import OtlpTarget, otlp_target
from rag_eval_otel.errors import ConfigError
from rag_eval_otel.worker.output import BatchLimits, OtlpOutput, Retries
from rag_eval_otel.worker.senders import Reply, SendError, open_sender, open_senders
from rag_eval_otel.worker.wire import (
    Receipt,
    WireGroup,
    WireSpan,
    groups_in,
    request_of,
    serialized_request,
    spans_in,
    untracked,
)

SOON = Retries(first=0.001, longest=0.002)
WAIT = 60.0  # seconds; never waited for unless something is broken
Names = list[str]


def request(*names: str, service: str = "shop") -> ExportTraceServiceRequest:
    made = ExportTraceServiceRequest()
    resource = made.resource_spans.add()
    resource.resource.attributes.add(key="service.name").value.string_value = service
    scope = resource.scope_spans.add()
    for i, name in enumerate(names, start=1):
        scope.spans.add(name=name, trace_id=bytes([1] * 16), span_id=i.to_bytes(8, "big"))
    return made


def spans(*names: str, receipt: Receipt | None = None) -> list[WireSpan]:
    return spans_in(request(*names), receipt or untracked())


def log_request(text: str) -> ExportLogsServiceRequest:
    made = ExportLogsServiceRequest()
    made.resource_logs.add().scope_logs.add().log_records.add().body.string_value = text
    return made


def names_in(message: bytes) -> Names:
    found = ExportTraceServiceRequest.FromString(message)
    return [span.name for one in found.resource_spans for s in one.scope_spans for span in s.spans]


class Script:
    """A sender that answers by a script: `SendError` is raised, `Reply` returned, in order."""

    def __init__(self, *answers: SendError | Reply, last: SendError | Reply | None = None) -> None:
        self._answers = iter((*answers, *itertools.repeat(last or Reply(), 10_000)))
        self.sent: list[bytes] = []
        self.is_closed = False
        self._lock = threading.Lock()
        self.before: Callable[[], object] = lambda: None

    def send(self, message: bytes) -> Reply:
        with self._lock:
            self.sent.append(message)
            answer = next(self._answers)
        self.before()
        if isinstance(answer, SendError):
            raise answer
        return answer

    def close(self) -> None:
        self.is_closed = True

    @property
    def batches(self) -> list[Names]:
        return [names_in(message) for message in self.sent]


DOWN = SendError("down", kind="transient")


class Clock:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def outputs() -> Iterator[Callable[..., OtlpOutput]]:
    made: list[OtlpOutput] = []

    def make(sender: Any, **options: Any) -> OtlpOutput:
        options = {"retries": SOON, **options}
        made.append(OtlpOutput({"traces": sender, "logs": sender}, **options))
        return made[-1]

    yield make
    for output in made:
        output.close(0)


Make = Callable[..., OtlpOutput]


def put(output: OtlpOutput, *given: WireSpan) -> None:
    for span in given:
        output.put(span)


@pytest.mark.parametrize(
    ("names", "limit", "numbers"),
    [
        ("abcde", {"spans": 2}, [2, 2, 1]),
        (["a" * 100, "b" * 100, "c" * 900], {"size": 300}, [2, 1]),
    ],
)
def test_spans_are_sent_in_batches(
    outputs: Make, names: Iterable[str], limit: dict[str, int], numbers: list[int]
) -> None:
    """A batch has at most this many spans or bytes, and at least one; the flush sends the rest."""
    sender = Script()
    output = outputs(sender, batches=BatchLimits(delay=WAIT, in_flight=1, **limit))
    put(output, *spans(*names))
    assert output.flush(WAIT)
    assert [len(batch) for batch in sender.batches] == numbers
    assert list(itertools.chain(*sender.batches)) == list(names)


def test_a_span_leaves_after_the_delay(outputs: Make) -> None:
    """Without a flush, a single span is sent once the delay is over."""
    arrived = threading.Event()
    sender = Script()
    sender.before = arrived.set
    put(outputs(sender, batches=BatchLimits(delay=0.01)), *spans("a"))
    assert arrived.wait(WAIT)


def test_spans_keep_their_resource_and_scope(outputs: Make) -> None:
    """A batch of spans of two services has a group for each service."""
    sender = Script()
    output = outputs(sender, batches=BatchLimits(delay=WAIT))
    for service in ("shop", "search", "shop"):
        put(output, *spans_in(request("x", service=service), untracked()))
    assert output.flush(WAIT)
    (message,) = sender.sent
    groups = ExportTraceServiceRequest.FromString(message).resource_spans
    counts = {
        group.resource.attributes[0].value.string_value: len(group.scope_spans[0].spans)
        for group in groups
    }
    assert counts == {"shop": 2, "search": 1}


def test_requests_are_those_that_protobuf_would_write() -> None:
    """Spans of all sizes and origins come out as in a request that was built field by field."""
    given = [
        one
        for service in ("shop", "search", "shop")
        for one in spans_in(request("a", "b" * 130, "c" * 20_000, service=service), untracked())
    ]
    raw = serialized_request((one.origin, one.message.SerializeToString()) for one in given)
    assert ExportTraceServiceRequest.FromString(raw) == request_of(given)


def group_of(count: int, receipt: Receipt) -> WireGroup:
    made = request(*(f"span {i}" for i in range(count)))
    (group,) = groups_in(made, receipt)
    return group


def test_groups_leave_in_one_piece(outputs: Make) -> None:
    """Groups and single spans share a request; the receipt is told of each span."""
    done: list[str] = []
    sender = Script()
    output = outputs(sender, batches=BatchLimits(spans=4, delay=WAIT, in_flight=1))
    output.put_group(group_of(3, Receipt(3, lambda: done.append("group"))))
    put(output, *spans("single"))
    output.put_group(group_of(1, untracked()))
    output.put_group(group_of(6, Receipt(6, lambda: done.append("large group"))))
    assert output.flush(WAIT)
    assert sorted(sender.batches[0]) == ["single", "span 0", "span 1", "span 2"]
    assert [len(batch) for batch in sender.batches] == [4, 4, 3]
    assert done == ["group", "large group"]
    assert output.stats.exported == {"traces": 11}


def test_a_group_that_is_too_large_is_divided(outputs: Make) -> None:
    """A group that the receiver finds too large is sent in parts, with its resource and scope."""
    sender = Script(SendError("too large", kind="too_large"))
    output = outputs(sender, batches=BatchLimits(delay=WAIT, in_flight=1))
    output.put_group(group_of(3, untracked()))
    assert output.flush(WAIT)
    assert sender.batches == [["span 0", "span 1", "span 2"], ["span 0"], ["span 1", "span 2"]]
    (resource,) = ExportTraceServiceRequest.FromString(sender.sent[2]).resource_spans
    assert resource.resource.attributes[0].value.string_value == "shop"


def test_log_records_of_a_request_that_is_too_large_are_divided(outputs: Make) -> None:
    """A single request of log records is sent in parts, each with its resource and scope."""
    given = ExportLogsServiceRequest()
    for number in range(2):
        resource = given.resource_logs.add(schema_url=f"resource/{number}")
        scope = resource.scope_logs.add(schema_url="scope")
        for text in ("a", "b"):
            scope.log_records.add().body.string_value = f"{text}{number}"
    sender = Script(SendError("too large", kind="too_large"))
    output = outputs(sender)
    output.put_logs(given)
    assert output.flush(WAIT)
    told = [
        (one.schema_url, scope.schema_url, record.body.string_value)
        for message in sender.sent[1:]
        for one in ExportLogsServiceRequest.FromString(message).resource_logs
        for scope in one.scope_logs
        for record in scope.log_records
    ]
    assert told == [(f"resource/{n}", "scope", f"{text}{n}") for n in (0, 1) for text in "ab"]
    assert [len(sender.sent), output.size] == [3, 0]
    assert output.stats.exported == {"logs": 4}


def test_log_records_share_requests(outputs: Make) -> None:
    """Requests of single log records, such as events of scores, leave as one request."""
    sender = Script()
    output = outputs(sender, batches=BatchLimits(delay=WAIT))
    for text in ("a", "b", "c"):
        output.put_logs(log_request(text))
    assert output.flush(WAIT)
    (message,) = sender.sent
    found = ExportLogsServiceRequest.FromString(message).resource_logs
    records = [one.scope_logs[0].log_records[0].body.string_value for one in found]
    assert records == ["a", "b", "c"]
    assert output.stats.exported == {"logs": 3}


def test_receipts_are_told_after_the_acknowledgement(outputs: Make) -> None:
    """A receipt is done when the last of its spans was acknowledged, not when it was sent."""
    done: list[str] = []
    seen: list[list[str]] = []
    sender = Script(SendError("down", kind="transient"))
    sender.before = lambda: seen.append(list(done))
    output = outputs(sender)
    put(output, *spans("a", "b", receipt=Receipt(2, lambda: done.append("request"))))
    assert output.flush(WAIT)
    assert done == ["request"]
    assert seen[:2] == [[], []]


def test_a_receiver_that_is_down_loses_nothing(outputs: Make) -> None:
    """A request that fails 50 times is sent again until it is accepted, without a second copy."""
    down = SendError("down", kind="transient")
    sender = Script(*[down] * 50)
    output = outputs(sender, batches=BatchLimits(in_flight=1))
    put(output, *spans("a"))
    assert output.flush(WAIT)
    assert len(sender.sent) == 51
    assert output.stats.exported == {"traces": 1}
    assert output.stats.failed == {"traces": 50}
    assert output.stats.dropped == {}
    assert output.size == 0


def test_size_tells_what_waits_while_the_receiver_is_down(outputs: Make) -> None:
    """The size grows with each span while nothing is accepted, so that the engine can refuse."""
    gate, sender = threading.Event(), Script()
    sender.before = lambda: gate.wait(WAIT)
    output = outputs(sender)
    given = spans("a", "b" * 1000)
    put(output, *given)
    content = sum(span.message.ByteSize() for span in given)
    assert output.size == content + 2 * 200  # objects around them
    assert not output.flush(0)
    gate.set()
    assert output.flush(WAIT)
    assert output.size == 0


def test_a_batch_is_dropped_after_the_limit_of_time(outputs: Make) -> None:
    """After ten minutes of failures a batch is dropped and counted; its receipt is not told."""
    clock, done = Clock(), list[str]()
    sender = Script(last=SendError("down", kind="transient"))

    def minutes() -> None:
        clock.now += 200

    sender.before = minutes
    output = outputs(sender, clock=clock)
    put(output, *spans("a", receipt=Receipt(1, lambda: done.append("request"))))
    assert output.flush(WAIT)
    assert output.stats.dropped == {("traces", "deadline"): 1}
    assert len(sender.sent) == 3
    assert done == []


@pytest.mark.parametrize("kind", ["transient", "denied"])
def test_durable_sources_are_repeated_for_ever(outputs: Make, kind: Any) -> None:
    """With ``limit=None`` a request outlives hours of outage, and credentials that are wrong."""
    clock, done = Clock(), list[str]()
    sender = Script(*[SendError("down", kind=kind)] * 30)

    def hour() -> None:
        clock.now += 3600

    sender.before = hour
    retries = Retries(first=0.001, longest=0.002, limit=None)
    output = outputs(sender, clock=clock, retries=retries)
    put(output, *spans("a", receipt=Receipt(1, lambda: done.append("request"))))
    assert output.flush(WAIT)
    assert done == ["request"]
    assert output.stats.dropped == {}


@pytest.mark.parametrize(
    ("answer", "limit", "reason", "exported", "is_done", "line"),
    [
        (SendError("UNAUTHENTICATED", kind="denied"), 600.0, "denied", None, False, "UNAUTHENTIC"),
        (SendError("bad", kind="invalid"), None, "invalid", None, True, "bad"),
        (Reply(rejected=1), 600.0, "rejected", 1, True, "rejected 1 of 2 records of an OTLP"),
        (Reply(rejected=5), 600.0, "rejected", 0, True, "rejected"),
    ],
    ids=["wrong credentials", "invalid content", "some rejected", "more rejected than sent"],
)
def test_what_a_receiver_does_not_take(
    *,
    outputs: Make,
    caplog: pytest.LogCaptureFixture,
    answer: Any,
    limit: float | None,
    reason: str,
    exported: int | None,
    is_done: bool,
    line: str,
) -> None:
    """It is counted and logged; what will never be accepted does not block a Kafka partition."""
    done = list[str]()
    output = outputs(Script(answer), retries=Retries(limit=limit))
    put(output, *spans("a", "b", receipt=Receipt(2, lambda: done.append("request"))))
    assert output.flush(WAIT)
    assert output.stats.exported == ({} if exported is None else {"traces": exported})
    assert output.stats.dropped == {("traces", reason): 2 - (exported or 0)}
    assert bool(done) is is_done
    assert line in caplog.text


def test_a_request_that_is_too_large_is_divided(outputs: Make) -> None:
    """The halves of a batch are sent in its place; a single span that is too large is dropped."""
    large = SendError("too large", kind="too_large")
    sender = Script(large, large, large, Reply(), Reply())
    output = outputs(sender, batches=BatchLimits(spans=3, delay=WAIT, in_flight=1))
    put(output, *spans("a", "b", "c"))
    assert output.flush(WAIT)
    assert sender.batches == [["a", "b", "c"], ["a"], ["b", "c"], ["b"], ["c"]]
    assert output.stats.dropped == {("traces", "too_large"): 1}
    assert output.stats.exported == {"traces": 2}


def test_revoked_spans_are_not_sent(outputs: Make) -> None:
    """Spans of a revoked Kafka partition are left out, also of a batch that failed before."""
    revoked = Receipt(1, lambda: None)
    sender = Script(SendError("down", kind="transient"))
    sender.before = revoked.revoke
    output = outputs(sender, batches=BatchLimits(spans=2, delay=WAIT, in_flight=1))
    put(output, *spans("a", receipt=revoked), *spans("b"))
    assert output.flush(WAIT)
    assert sender.batches == [["a", "b"], ["b"]]
    assert output.stats.exported == {"traces": 1}


def test_close_gives_up_in_time(outputs: Make) -> None:
    """At the end of the time, repetitions stop, and what is left is counted."""
    sender = Script(last=SendError("down", kind="transient"))
    output = outputs(sender, retries=Retries(first=WAIT, longest=WAIT))
    put(output, *spans("a"))
    output.put_logs(log_request("x"))
    output.close(0.01)
    dropped = output.stats.dropped
    assert dropped == {("traces", "shutdown"): 1, ("logs", "shutdown"): 1}
    assert sender.is_closed


@pytest.mark.slow
def test_close_counts_what_a_receiver_does_not_answer(outputs: Make) -> None:
    """A batch that is still under way at the end counts as dropped, once."""
    gate, begun, sender = threading.Event(), threading.Event(), Script(last=DOWN)

    def hang() -> None:
        begun.set()
        gate.wait(WAIT)

    sender.before = hang
    output = outputs(sender, batches=BatchLimits(spans=1, in_flight=1))
    put(output, *spans("a"))
    assert begun.wait(WAIT)
    output.close(0)
    assert output.stats.dropped == {("traces", "shutdown"): 1}
    gate.set()
    output._threads[0].join(WAIT)  # noqa: SLF001  # nothing else tells that it has ended
    assert output.stats.dropped == {("traces", "shutdown"): 1}


@pytest.mark.slow
def test_close_counts_the_parts_of_a_divided_batch(outputs: Make) -> None:
    """One half was exported; the other one, which is under way at the end, was not."""
    gate, begun = threading.Event(), threading.Event()
    sender = Script(SendError("too large", kind="too_large"), Reply(), last=DOWN)

    def hang() -> None:
        if len(sender.sent) > 2:
            begun.set()
            gate.wait(WAIT)

    sender.before = hang
    output = outputs(sender, batches=BatchLimits(spans=4, in_flight=1))
    put(output, *spans("a", "b", "c", "d"))
    assert begun.wait(WAIT)
    output.close(0)
    gate.set()
    output._threads[0].join(WAIT)  # noqa: SLF001  # nothing else tells that it has ended
    assert output.stats.exported == {"traces": 2}
    assert output.stats.dropped == {("traces", "shutdown"): 2}


@pytest.mark.slow
def test_close_waits_once_for_all_threads(outputs: Make) -> None:
    """Four requests that hang take no longer than one; what they answer later does not count."""
    gate, sender = threading.Event(), Script()
    begun = threading.Barrier(5)

    def hang() -> None:
        begun.wait(WAIT)
        gate.wait(WAIT)

    sender.before = hang
    output = outputs(sender, batches=BatchLimits(spans=1, in_flight=4))
    put(output, *spans("a", "b", "c", "d"))
    begun.wait(WAIT)
    start = time.monotonic()
    output.close(0)
    assert time.monotonic() - start < 3
    gate.set()
    for thread in output._threads:  # noqa: SLF001  # nothing else tells that they have ended
        thread.join(WAIT)
    assert output.stats.exported == {}
    assert output.stats.dropped == {("traces", "shutdown"): 4}


def test_what_comes_after_the_close_is_counted(outputs: Make) -> None:
    """Nobody would export it."""
    output = outputs(Script())
    output.close(0)
    put(output, *spans("a"))
    assert output.stats.dropped == {("traces", "shutdown"): 1}
    assert output.size == 0


def test_a_defect_costs_one_batch_and_no_thread(
    outputs: Make, caplog: pytest.LogCaptureFixture
) -> None:
    """After an exception that nobody expects, the batch is dropped, and others are sent."""
    done, sender = list[str](), Script()
    failures = iter([RuntimeError("a bug")])

    def fail() -> None:
        for error in failures:
            raise error

    sender.before = fail
    output = outputs(sender, batches=BatchLimits(spans=1, in_flight=1))
    put(output, *spans("a", receipt=Receipt(1, lambda: done.append("request"))), *spans("b"))
    assert output.flush(WAIT)
    assert output.stats.dropped == {("traces", "error"): 1}
    assert output.stats.exported == {"traces": 1}
    assert done == ["request"]
    assert "rag_eval_otel: failed in output" in caplog.text
    assert "a bug" not in caplog.text


def test_log_records_are_passed_on(outputs: Make) -> None:
    """A request of log records is sent as it came, and repeated like spans."""
    sender = Script(SendError("down", kind="transient"))
    output = outputs(sender)
    output.put_logs(log_request("x"))
    assert output.flush(WAIT)
    assert sender.sent == [log_request("x").SerializeToString()] * 2
    assert output.stats.exported == {"logs": 1}


def test_several_requests_are_under_way_at_once(outputs: Make) -> None:
    """A receiver that answers slowly gets several requests at the same time."""
    sender, barrier = Script(), threading.Barrier(3)
    sender.before = lambda: barrier.wait(WAIT)
    output = outputs(sender, batches=BatchLimits(spans=1, in_flight=3))
    put(output, *spans("a", "b", "c"))
    assert output.flush(WAIT)


def test_losses_are_in_the_metrics(outputs: Make) -> None:
    """Instruments count exports, failures and losses by signal and reason."""
    reader = InMemoryMetricReader()
    sender = Script(SendError("down", kind="transient"), Reply(rejected=1))
    output = outputs(sender, meter_provider=MeterProvider([reader]))
    put(output, *spans("a", "b"))
    assert output.flush(WAIT)
    found = {
        name.removeprefix("rag.evaluation.worker."): [
            (dict(point.attributes), point.value) for point in points
        ]
        for name, points in points_of(reader).items()
    }
    assert found == {
        "exported": [({"signal": "traces"}, 1)],
        "dropped": [({"signal": "traces", "reason": "rejected"}, 1)],
        "export.failures": [({"signal": "traces", "reason": "transient"}, 1)],
        "waiting": [({}, 0)],
    }


def test_waits_grow_and_obey_the_receiver() -> None:
    """Waits double up to the longest, with jitter; a time that the receiver names is kept."""
    retries, error = Retries(first=1, longest=8), SendError("down", kind="transient")
    waits = [retries.wait(attempt, error) for attempt in (0, 1, 2, 3, 4, 5000)]
    for wait, longest in zip(waits, (1, 2, 4, 8, 8, 8), strict=True):
        assert longest / 2 <= wait <= longest
    named = SendError("busy", kind="transient", retry_after=17.0)
    assert retries.wait(0, named) == 17.0
    at_once = SendError("busy", kind="transient", retry_after=0.0)
    assert retries.wait(5, at_once) == 1.0
    for_ever = SendError("busy", kind="transient", retry_after=1e9)
    assert retries.wait(0, for_ever) == 300.0


# --- the senders, with a real receiver ------------------------------------------------------------


@pytest.fixture
def backend() -> Iterator[OtlpReceiver]:
    with OtlpReceiver() as running:
        yield running


def environment(backend: OtlpReceiver, protocol: str, **more: str) -> Mapping[str, str]:
    is_http = protocol != "grpc"
    endpoint = backend.http_endpoint if is_http else backend.grpc_endpoint
    return {
        "OTEL_EXPORTER_OTLP_ENDPOINT": endpoint,
        "OTEL_EXPORTER_OTLP_PROTOCOL": protocol,
        **{f"OTEL_EXPORTER_OTLP_{name.upper()}": value for name, value in more.items()},
    }


PROTOCOLS = pytest.mark.parametrize("protocol", ["grpc", "http/protobuf"])


def send(variables: Mapping[str, str], message: bytes) -> Reply:
    """Send ``message`` to the target that ``variables`` name."""
    sender = open_sender("traces", otlp_target("traces", variables))
    try:
        return sender.send(message)
    finally:
        sender.close()


def failure(variables: Mapping[str, str], match: str | None = None) -> SendError:
    with pytest.raises(SendError, match=match) as caught:
        send(variables, request("a").SerializeToString())
    return caught.value


@pytest.mark.parametrize(
    ("protocol", "compression"),
    [
        ("grpc", "none"),
        ("grpc", "gzip"),
        ("http/protobuf", "none"),
        ("http/protobuf", "gzip"),
        ("http/protobuf", "deflate"),
    ],
)
def test_both_signals_arrive(backend: OtlpReceiver, protocol: str, compression: str) -> None:
    """Spans and log records arrive at a real receiver, by each protocol and compression."""
    output = OtlpOutput(open_senders(environment(backend, protocol, compression=compression)))
    put(output, *spans("a", "b"))
    output.put_logs(log_request("hello"))
    output.close(WAIT)
    assert [span.name for span in backend.spans()] == ["a", "b"]
    assert [log.body for log in backend.logs()] == ["hello"]


@PROTOCOLS
@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, "invalid"),
        (401, "denied"),
        (404, "denied"),
        (413, "too_large"),
        (429, "transient"),
        (503, "transient"),
    ],
)
def test_refusals_are_told_apart(
    backend: OtlpReceiver, protocol: str, status: int, kind: str
) -> None:
    """What a repetition would do is read from the status; the message names the receiver."""
    backend.fail_next(1, status)
    told = r"127.0.0.1:\d+: (HTTP \d+|[A-Z_]+)$"
    found = failure(environment(backend, protocol), told)
    assert (found.kind, found.retry_after) == (kind, None)


@pytest.mark.parametrize("status", [202, 204])
def test_each_status_of_success_is_one(backend: OtlpReceiver, status: int) -> None:
    """Grafana Cloud answers 204: a request that was accepted is neither dropped nor sent again."""
    backend.fail_next(1, status)
    message = request("a").SerializeToString()
    assert send(environment(backend, "http/protobuf"), message) == Reply()


@pytest.mark.parametrize(
    ("code", "details", "kind"),
    [
        ("RESOURCE_EXHAUSTED", "grpc: received message larger than max (5 vs. 4)", "too_large"),
        ("RESOURCE_EXHAUSTED", "gRPC message exceeds maximum size 4: 5", "too_large"),
        ("OUT_OF_RANGE", "Error, decoded message length too large: found 5 bytes", "too_large"),
        ("RESOURCE_EXHAUSTED", "out of memory", "transient"),
        ("OUT_OF_RANGE", "", "transient"),
    ],
)
def test_a_message_above_the_limit_is_told_by_its_text(code: str, details: str, kind: str) -> None:
    """There is no status of its own for it, and the libraries of gRPC have different texts."""

    def export(_: bytes, context: Any) -> None:
        context.abort(grpc.StatusCode[code], details)

    method = grpc.unary_unary_rpc_method_handler(export)
    name = "opentelemetry.proto.collector.trace.v1.TraceService"
    service = grpc.method_handlers_generic_handler(name, {"Export": method})
    with ThreadPoolExecutor(1) as pool:
        server = grpc.server(pool, [service])
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        place = OtlpTarget(protocol="grpc", endpoint=f"http://127.0.0.1:{port}")
        sender = open_sender("traces", place)
        with pytest.raises(SendError) as caught:
            sender.send(b"")
        sender.close()
        server.stop(None).wait()
    assert caught.value.kind == kind


@PROTOCOLS
def test_the_time_of_a_repetition_is_read(backend: OtlpReceiver, protocol: str) -> None:
    """`Retry-After` and `RetryInfo` are the seconds to wait."""
    backend.fail_next(1, 429, retry_after=7)
    assert failure(environment(backend, protocol)).retry_after == 7.0


@PROTOCOLS
def test_a_partial_success_is_read(backend: OtlpReceiver, protocol: str) -> None:
    """The number of rejected spans is read from the response."""
    backend.reject_next(1)
    message = request("a", "b").SerializeToString()
    assert send(environment(backend, protocol), message) == Reply(rejected=1)


@PROTOCOLS
def test_a_receiver_that_is_not_there(protocol: str) -> None:
    """A connection that is refused is a failure that may pass."""
    with OtlpReceiver() as stopped:
        variables = environment(stopped, protocol)
    assert failure(variables).kind == "transient"


SECRETS = ("key-1", "key-2", "what a user asked")


@pytest.mark.parametrize("fault", ["answer", "header", "absent"])
@PROTOCOLS
def test_no_secret_is_in_a_message(protocol: str, fault: str) -> None:
    """Neither a header, nor the query of the address, nor the answer of the receiver is quoted."""
    server = LoopbackServer(lambda *_: HttpReply(status=500, body={"e": SECRETS[2]}))
    server.start()
    place = server.url if fault != "absent" else "http://127.0.0.1:1"
    target = OtlpTarget(
        protocol=protocol,  # type: ignore[arg-type]
        endpoint=f"{place}/v1/traces?api_key={SECRETS[0]}",
        headers={"x-key": SECRETS[1] + "\n" * (fault == "header")},
        timeout=2.0,
    )
    sender = open_sender("traces", target)
    with pytest.raises(SendError) as caught:
        sender.send(b"")
    sender.close()
    server.stop()
    told = "".join(traceback.format_exception(caught.value))
    assert not [one for one in SECRETS if one in told]


@PROTOCOLS
def test_a_slow_receiver_times_out(backend: OtlpReceiver, protocol: str) -> None:
    """A request without an answer fails after the timeout, and may be sent again."""
    backend.pause()
    assert failure(environment(backend, protocol, timeout="0.05")).kind == "transient"


def test_a_backend_comes_back_after_an_outage(backend: OtlpReceiver) -> None:
    """All spans that were put while the backend refused everything arrive once."""
    backend.fail_next(40)
    senders = open_senders(environment(backend, "grpc"))
    output = OtlpOutput(senders, retries=SOON, batches=BatchLimits(spans=5, delay=0.01))
    put(output, *spans(*(f"span {i}" for i in range(200))))
    assert output.flush(WAIT)
    output.close(WAIT)
    assert sorted(span.name for span in backend.spans()) == sorted(f"span {i}" for i in range(200))


def test_a_certificate_that_disappears_is_waited_for(tmp_path: Path) -> None:
    """A PEM file that is being replaced fails the request, not the thread."""
    path = tmp_path / "ca.pem"
    path.touch()
    place = {"endpoint": "https://127.0.0.1:1", "certificate": str(path), "insecure": False}
    sender = open_sender("traces", OtlpTarget(protocol="http/protobuf", **place))
    path.unlink()
    with pytest.raises(SendError, match=r"OSError: .*ca\.pem") as caught:
        sender.send(b"")
    assert caught.value.kind == "transient"


def test_a_header_that_cannot_be_sent_is_not_quoted() -> None:
    """A header has characters of Latin-1 only; its value may be a secret."""
    headers = {"authorization": "s3cret \N{EURO SIGN}"}
    place = {"endpoint": "http://127.0.0.1:1", "headers": headers}
    sender = open_sender("traces", OtlpTarget(protocol="http/protobuf", **place))
    with pytest.raises(SendError, match="stray character in a header") as caught:
        sender.send(b"")
    assert caught.value.kind == "denied"
    assert "s3cret" not in str(caught.value)


def test_missing_files_are_named() -> None:
    """A certificate that is not there is reported with its path, before the first export."""
    variables = {"OTEL_EXPORTER_OTLP_CERTIFICATE": "/nowhere/ca.pem"}
    with pytest.raises(ConfigError, match=r"/nowhere/ca\.pem is named by"):
        open_senders(variables)


def test_a_password_in_an_endpoint_of_grpc_is_refused_and_not_quoted() -> None:
    """The client would take it for a part of the host's name, and write it into each error."""
    variables = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://user:secret@localhost:4317"}
    with pytest.raises(ConfigError, match="OTEL_EXPORTER_OTLP_HEADERS") as caught:
        open_senders(variables)
    assert "secret" not in str(caught.value)


# --- the variables --------------------------------------------------------------------------------

PREFIX = "OTEL_EXPORTER_OTLP_"


def target(signal: Any = "traces", **variables: str) -> OtlpTarget:
    return otlp_target(signal, {PREFIX + name: value for name, value in variables.items()})


def test_the_defaults_are_those_of_the_exporters() -> None:
    """Without variables, spans go to a collector on this machine, over gRPC without TLS."""
    assert target() == OtlpTarget(protocol="grpc", endpoint="http://localhost:4317")


@pytest.mark.parametrize(
    ("variables", "endpoint"),
    [
        ({"PROTOCOL": "http/protobuf"}, "http://localhost:4318/v1/logs"),
        ({"ENDPOINT": "http://c:4318/"}, "http://c:4318/v1/logs"),
        ({"ENDPOINT": "http://c:4318/otlp"}, "http://c:4318/otlp/v1/logs"),
        ({"LOGS_ENDPOINT": "http://c:4318/here"}, "http://c:4318/here"),
        ({"ENDPOINT": "http://c:4317"}, "http://c:4317"),
        ({"ENDPOINT": "http://c:4317", "LOGS_ENDPOINT": "http://d:4317"}, "http://d:4317"),
    ],
)
def test_endpoints(variables: dict[str, str], endpoint: str) -> None:
    """The path of the signal is added to a general endpoint over HTTP, and to no other."""
    assert target("logs", **variables).endpoint == endpoint


@pytest.mark.parametrize(
    ("variables", "insecure"),
    [
        ({"ENDPOINT": "http://c:4317"}, True),
        ({"ENDPOINT": "https://c:4317", "INSECURE": "true"}, False),
        ({"ENDPOINT": "c:4317"}, False),
        ({"ENDPOINT": "c:4317", "INSECURE": "true"}, True),
        ({"ENDPOINT": "http://c:4317", "INSECURE": "false"}, False),
    ],
)
def test_tls_is_chosen_by_scheme_and_variable(variables: dict[str, str], insecure: object) -> None:
    """The scheme https means TLS; otherwise a variable decides, and then the scheme."""
    assert target(**variables).insecure is insecure


def test_headers_and_endpoint_are_not_in_the_repr() -> None:
    """Headers have keys, and an address may have a password: they are read, and not shown."""
    found = target(HEADERS="api-key=secret,x=a%20b", ENDPOINT="http://user:secret@localhost:4318")
    assert found.headers == {"api-key": "secret", "x": "a b"}
    assert "secret" not in repr(found)


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"PROTOCOL": "http/json"}, "OTEL_EXPORTER_OTLP_PROTOCOL is 'http/json'; use grpc or"),
        ({"TIMEOUT": "soon"}, "OTEL_EXPORTER_OTLP_TIMEOUT is 'soon'; use a number"),
        ({"TIMEOUT": "0"}, "OTEL_EXPORTER_OTLP_TIMEOUT is '0'; use a number"),
        ({"COMPRESSION": "zstd"}, "OTEL_EXPORTER_OTLP_COMPRESSION is 'zstd'; use none or gzip"),
        ({"COMPRESSION": "deflate"}, "is 'deflate'; use none or gzip, or deflate with http"),
    ],
)
def test_values_that_cannot_be_used(variables: dict[str, str], message: str) -> None:
    """The message names the variable, its value, and the values that can be used."""
    with pytest.raises(ConfigError, match=message):
        target(**variables)
